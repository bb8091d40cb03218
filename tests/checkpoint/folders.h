// Checkpoint folders for tests, and whole tensors out of a Checkpoint.
#pragma once

#include "checkpoint/checkpoint.h"
#include "checkpoint/export.h"
#include "io/safetensors_writer.h"
#include "support/files.h"

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

namespace nibble::test {

struct RawTensor {
    std::string name;
    DType dtype = DType::u8;
    std::vector<int64_t> shape;
    std::vector<std::byte> bytes;
};

template <class T>
RawTensor raw(std::string name, DType dtype, std::vector<int64_t> shape, const std::vector<T>& values) {
    const auto bytes = std::as_bytes(std::span(values));
    return {std::move(name), dtype, std::move(shape), {bytes.begin(), bytes.end()}};
}

// Bytes 0, 1, 2 ... of the right number.
RawTensor filled(std::string name, DType dtype, std::vector<int64_t> shape);

void write_safetensors(const std::filesystem::path& path, const std::vector<RawTensor>& tensors);
std::vector<RawTensor> read_safetensors(const std::filesystem::path& path);
// Every tensor of every *.safetensors in the folder, by name.
std::map<std::string, RawTensor> read_folder(const std::filesystem::path& folder);

// The message of a failed result; a test failure when it is fine.
template <class T>
std::string message_of(const Result<T>& result) {
    if (!result.ok()) return result.error().message();
    ADD_FAILURE() << "expected an error";
    return {};
}

// The value, or a test failure with the message and an abort of the test by exception.
template <class T>
T value_of(Result<T> result) {
    if (!result.ok()) throw std::runtime_error(result.error().message());
    return *std::move(result);
}
inline void check(const Status& status) {
    if (!status.ok()) throw std::runtime_error(status.error().message());
}

// What an export of everything in `in` would be declared as.
ExportSpec spec_of(const Checkpoint& in, Dialect dialect, std::filesystem::path out);

// Writes all tensors of `in`, in panels of 128 rows, and finishes.
void write_all(const Checkpoint& in, Export& out);

// One matrix decoded to FP32: code times scale, the scales multiplied first.
std::vector<float> decode(const Checkpoint& in, size_t index);
size_t index_of(const Checkpoint& in, std::string_view name);

}  // namespace nibble::test

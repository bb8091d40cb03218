// Writes checkpoint folders for tests, and reads whole tensors of a Checkpoint.
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

// Returns a tensor with the bytes 0, 1, 2 ...
RawTensor filled(std::string name, DType dtype, std::vector<int64_t> shape);

void write_safetensors(const std::filesystem::path& path, const std::vector<RawTensor>& tensors);
std::vector<RawTensor> read_safetensors(const std::filesystem::path& path);
// Returns every tensor of every *.safetensors in the folder, by name.
std::map<std::string, RawTensor> read_folder(const std::filesystem::path& folder);

// Returns the message of a failed result; fails the test if the result is a success.
template <class T>
std::string message_of(const Result<T>& result) {
    if (!result.ok()) return result.error().message();
    ADD_FAILURE() << "expected an error";
    return {};
}

// Returns the value, or throws the error message, which fails the test.
template <class T>
T value_of(Result<T> result) {
    if (!result.ok()) throw std::runtime_error(result.error().message());
    return *std::move(result);
}
inline void check(const Status& status) {
    if (!status.ok()) throw std::runtime_error(status.error().message());
}

// Returns the declaration of an export of everything in `in`.
ExportSpec spec_of(const Checkpoint& in, Dialect dialect, std::filesystem::path out);

// Writes all tensors of `in` in panels of 128 rows, and finishes the export.
void write_all(const Checkpoint& in, Export& out);

// Returns one matrix decoded to FP32: code times scale, with the scales multiplied first.
std::vector<float> decode(const Checkpoint& in, size_t index);
size_t index_of(const Checkpoint& in, std::string_view name);

}  // namespace nibble::test

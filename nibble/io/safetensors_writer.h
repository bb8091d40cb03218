// Writes safetensors files in two phases: the layout (all names and sizes, so the exact header and every offset) first,
// then the bytes, in any order, from any thread, across restarts.
//
//   NIBBLE_TRY(auto layout, SafetensorsLayout::make({{"w", DType::bf16, {4, 8}}, {"b", DType::f32, {4}}}));
//   NIBBLE_TRY(auto writer, SafetensorsFileWriter::create("out.safetensors.part", std::move(layout)));
//   NIBBLE_CHECK(writer.write(0, 0, weight_bytes));  // 0: the place in the list, wherever the data lies in the file
//   NIBBLE_CHECK(writer.write(1, 0, bias_bytes));
//   NIBBLE_CHECK(writer.finish());                   // then rename_durably() of io/atomic_file.h
//
// The files equal those of the reference library (safetensors 0.8, `serialize`): tensors by dtype (U64, I64, F64, F32,
// U32, I32, BF16, F16, U16, I16, F8_E8M0, F8_E4M3, F8_E5M2, I8, U8, BOOL), then by name in byte order; compact JSON,
// padded with spaces to a multiple of 8 bytes. One freedom: with several metadata keys the reference's order is random,
// ours is sorted.
#pragma once

#include "base/dtype.h"
#include "base/error.h"
#include "base/mapped_file.h"
#include "io/file_descriptor.h"

#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <vector>

namespace nibble {

struct TensorSpec {
    std::string name;
    DType dtype = DType::u8;
    std::vector<int64_t> shape;
};

class SafetensorsLayout {
public:
    using Metadata = std::map<std::string, std::string>;

    // Errors: a name twice, the name "__metadata__", a name that is not UTF-8, sizes that overflow, a header over the
    // limit of 100 MB. Empty metadata writes no "__metadata__".
    static Result<SafetensorsLayout> make(std::vector<TensorSpec> tensors,
                                          const Metadata& metadata = {{"format", "pt"}});

    // Indices below are places in the list given to make().
    const std::vector<TensorSpec>& tensors() const { return tensors_; }
    int64_t offset(size_t tensor) const { return places_[tensor].offset; }  // bytes from the start of the file
    int64_t bytes(size_t tensor) const { return places_[tensor].bytes; }

    const std::string& header() const { return header_; }  // the file up to the data, length field included
    int64_t file_bytes() const { return file_bytes_; }

private:
    struct Place {
        int64_t offset = 0, bytes = 0;
    };
    SafetensorsLayout() = default;

    std::vector<TensorSpec> tensors_;
    std::vector<Place> places_;
    std::string header_;
    int64_t file_bytes_ = 0;
};

class SafetensorsFileWriter {
public:
    // A new file (an old one is emptied) with its header written and its space reserved: a disk too small is an error
    // here.
    static Result<SafetensorsFileWriter> create(const std::filesystem::path& path, SafetensorsLayout layout);

    // The file of an interrupted create(): error unless it has this layout's header and size. Which tensors it already
    // holds is for the caller's journal to know.
    static Result<SafetensorsFileWriter> reopen(const std::filesystem::path& path, SafetensorsLayout layout);

    const SafetensorsLayout& layout() const { return layout_; }
    const std::filesystem::path& path() const { return file_.path(); }

    // Bytes [offset, offset + size) of one tensor. Threads may call both at once; parts written at once must not
    // overlap.
    Status write(size_t tensor, int64_t offset, Bytes bytes) const;
    Status read_back(size_t tensor, int64_t offset, std::span<std::byte> bytes) const;

    // What was written survives a power cut. Call before a journal says so.
    Status sync() const { return file_.sync(); }

    // Syncs and closes; the writer is of no further use. It does not know whether every tensor was written.
    Status finish();

private:
    SafetensorsFileWriter(FileDescriptor file, SafetensorsLayout layout)
        : file_(std::move(file)), layout_(std::move(layout)) {}
    Status check_range(size_t tensor, int64_t offset, size_t size) const;

    FileDescriptor file_;
    SafetensorsLayout layout_;
};

}  // namespace nibble

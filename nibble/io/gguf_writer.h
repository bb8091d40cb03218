// Writes GGUF version 3 in two phases: the layout (all metadata, names and sizes, so the exact header and every offset)
// first, then the bytes, in any order, from any thread, across restarts.
//
//   NIBBLE_TRY(auto layout, GgufLayout::make(metadata, {{"blk.0.ffn_up.weight", GgmlType::nvfp4, {128, 64}}}));
//   NIBBLE_TRY(auto writer, GgufFileWriter::create("out.gguf.part", std::move(layout)));
//   NIBBLE_CHECK(writer.write(0, 0, blocks));
//   NIBBLE_CHECK(writer.finish());
//
// Tensors lie in the order of the list, each padded with zeros to the alignment, the last one too.
#pragma once

#include "io/file_descriptor.h"
#include "io/gguf.h"

namespace nibble {

struct GgufTensorSpec {
    std::string name;
    GgmlType type = GgmlType::f32;
    std::vector<int64_t>
        shape;  // Hugging Face order, written reversed; leading dimensions of 1 are dropped, as ggml does
};

class GgufLayout {
public:
    // Copies what it needs of the metadata: views in arrays may die afterwards. The alignment is 32 unless the metadata
    // holds general.alignment. Errors: an empty key, a tensor name twice or over 63 bytes, a shape outside 1 to 4
    // positive dimensions, rows that are not whole blocks, overflow.
    static Result<GgufLayout> make(const GgufMetadata& metadata, std::vector<GgufTensorSpec> tensors);

    // Indices below are places in the list given to make().
    const std::vector<GgufTensorSpec>& tensors() const { return tensors_; }
    int64_t offset(size_t tensor) const { return places_[tensor].offset; }  // bytes from the start of the file
    int64_t bytes(size_t tensor) const { return places_[tensor].bytes; }    // without padding

    const std::string& header() const { return header_; }  // the file up to the data, padding included
    int64_t file_bytes() const { return file_bytes_; }

private:
    struct Place {
        int64_t offset = 0, bytes = 0;
    };
    GgufLayout() = default;

    std::vector<GgufTensorSpec> tensors_;
    std::vector<Place> places_;
    std::string header_;
    int64_t file_bytes_ = 0;
};

class GgufFileWriter {
public:
    // A new file (an old one is emptied) with its header written and its space reserved, zero where nothing is written.
    static Result<GgufFileWriter> create(const std::filesystem::path& path, GgufLayout layout);

    // The file of an interrupted create(): error unless it has this layout's header and size. Which tensors it already
    // holds is for the caller's journal to know.
    static Result<GgufFileWriter> reopen(const std::filesystem::path& path, GgufLayout layout);

    const GgufLayout& layout() const { return layout_; }
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
    GgufFileWriter(FileDescriptor file, GgufLayout layout) : file_(std::move(file)), layout_(std::move(layout)) {}
    Status check_range(size_t tensor, int64_t offset, size_t size) const;

    FileDescriptor file_;
    GgufLayout layout_;
};

}  // namespace nibble

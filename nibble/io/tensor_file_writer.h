// Common parts of the safetensors and GGUF writers: a header with the place of every tensor, then bytes in any order,
// from any thread, across restarts.
#pragma once

#include "base/error.h"
#include "base/mapped_file.h"
#include "io/file_descriptor.h"
#include "io/json_events.h"

#include <fcntl.h>

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace nibble {

// The places of tensors in a file. `tensor` is an index in the list of tensors.
template <class Tensor>
class TensorFileLayout {
public:
    const std::vector<Tensor>& tensors() const { return tensors_; }
    int64_t offset(size_t tensor) const { return places_[tensor].offset; }  // bytes from the start of the file
    int64_t bytes(size_t tensor) const { return places_[tensor].bytes; }    // without padding

    const std::string& header() const { return header_; }  // contents of the file before the data
    int64_t file_bytes() const { return file_bytes_; }

protected:
    struct Place {
        int64_t offset = 0, bytes = 0;
    };
    TensorFileLayout() = default;

    std::vector<Tensor> tensors_;
    std::vector<Place> places_;
    std::string header_;
    int64_t file_bytes_ = 0;
};

template <class Layout>
class TensorFileWriter {
public:
    // Creates a file (an existing one is emptied), writes its header and allocates its space, which reads as zero until
    // it is written. Error: the disk is too small, or the file cannot be written.
    static Result<TensorFileWriter> create(const std::filesystem::path& path, Layout layout) {
        NIBBLE_TRY(auto file, FileDescriptor::open(path, O_RDWR | O_CREAT | O_TRUNC));
        NIBBLE_CHECK(file.reserve(layout.file_bytes()));
        NIBBLE_CHECK(file.write_at(std::as_bytes(std::span(layout.header())), 0));
        return TensorFileWriter(std::move(file), std::move(layout));
    }

    // Opens the file of an interrupted create(). Error: it has another header or size. The caller's journal must record
    // which tensors it already contains.
    static Result<TensorFileWriter> reopen(const std::filesystem::path& path, Layout layout) {
        NIBBLE_TRY(auto file, FileDescriptor::open(path, O_RDWR));
        NIBBLE_TRY(const int64_t size, file.size());
        if (size != layout.file_bytes())
            return fail("{}: cannot resume: has {} bytes, expected {}", path.string(), size, layout.file_bytes());
        std::string header(layout.header().size(), '\0');
        NIBBLE_CHECK(file.read_at(std::as_writable_bytes(std::span(header)), 0));
        if (header != layout.header())
            return fail("{}: cannot resume: its header lists other tensors than this job writes", path.string());
        return TensorFileWriter(std::move(file), std::move(layout));
    }

    const Layout& layout() const { return layout_; }
    const std::filesystem::path& path() const { return file_.path(); }

    // Write or read bytes [offset, offset + size) of one tensor. Thread-safe; concurrent writes must not overlap.
    // Errors: a range outside the tensor, input and output errors.
    Status write(size_t tensor, int64_t offset, Bytes bytes) const {
        NIBBLE_CHECK(check_range(tensor, offset, bytes.size()));
        return file_.write_at(bytes, layout_.offset(tensor) + offset);
    }
    Status read_back(size_t tensor, int64_t offset, std::span<std::byte> bytes) const {
        NIBBLE_CHECK(check_range(tensor, offset, bytes.size()));
        return file_.read_at(bytes, layout_.offset(tensor) + offset);
    }

    // Ensures that everything written survives a power cut. Call it before a journal records the writes.
    Status sync() const { return file_.sync(); }

    // Syncs and closes the file; the writer cannot be used afterwards. Does not check that every tensor was written.
    Status finish() {
        NIBBLE_CHECK(file_.sync());
        return file_.close();
    }

private:
    TensorFileWriter(FileDescriptor file, Layout layout) : file_(std::move(file)), layout_(std::move(layout)) {}

    Status check_range(size_t tensor, int64_t offset, size_t size) const {
        if (tensor >= layout_.tensors().size())
            return fail("{}: no tensor number {}, there are {}", path().string(), tensor, layout_.tensors().size());
        const int64_t have = layout_.bytes(tensor);
        if (offset < 0 || offset > have || size > static_cast<uint64_t>(have - offset))
            return fail("{}: tensor {}: {} bytes at {} do not fit its {} bytes", path().string(),
                        show_name(layout_.tensors()[tensor].name), size, offset, have);
        return Ok{};
    }

    FileDescriptor file_;
    Layout layout_;
};

}  // namespace nibble

// What writers of safetensors and of GGUF share: a header that says where every tensor lies, then bytes in any order,
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

// Where tensors lie in a file. Indices are places in the list of tensors.
template <class Tensor>
class TensorFileLayout {
public:
    const std::vector<Tensor>& tensors() const { return tensors_; }
    int64_t offset(size_t tensor) const { return places_[tensor].offset; }  // bytes from the start of the file
    int64_t bytes(size_t tensor) const { return places_[tensor].bytes; }    // without padding

    const std::string& header() const { return header_; }  // the file up to the data
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
    // A new file (an old one is emptied) with its header written and its space reserved, zero where nothing is written:
    // a disk too small is an error here.
    static Result<TensorFileWriter> create(const std::filesystem::path& path, Layout layout) {
        NIBBLE_TRY(auto file, FileDescriptor::open(path, O_RDWR | O_CREAT | O_TRUNC));
        NIBBLE_CHECK(file.reserve(layout.file_bytes()));
        NIBBLE_CHECK(file.write_at(std::as_bytes(std::span(layout.header())), 0));
        return TensorFileWriter(std::move(file), std::move(layout));
    }

    // The file of an interrupted create(): error unless it has this layout's header and size. Which tensors it already
    // holds is for the caller's journal to know.
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

    // Bytes [offset, offset + size) of one tensor. Threads may call both at once; parts written at once must not
    // overlap.
    Status write(size_t tensor, int64_t offset, Bytes bytes) const {
        NIBBLE_CHECK(check_range(tensor, offset, bytes.size()));
        return file_.write_at(bytes, layout_.offset(tensor) + offset);
    }
    Status read_back(size_t tensor, int64_t offset, std::span<std::byte> bytes) const {
        NIBBLE_CHECK(check_range(tensor, offset, bytes.size()));
        return file_.read_at(bytes, layout_.offset(tensor) + offset);
    }

    // What was written survives a power cut. Call before a journal says so.
    Status sync() const { return file_.sync(); }

    // Syncs and closes; the writer is of no further use. It does not know whether every tensor was written.
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

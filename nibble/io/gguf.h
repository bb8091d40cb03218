// Reads GGUF files, versions 2 and 3, little-endian: bytes, names, shapes and type ids. formats/ggml_blocks.h
// interprets blocks, checkpoint/ interprets names.
//
// The file is untrusted. Everything that the returned GgufFile contains has been checked (limits, duplicates, overflow,
// offsets equal to the running sum of padded sizes, data inside the file), so users need no further checks. Format:
// ggml docs/gguf.md and src/gguf.cpp.
#pragma once

#include "base/ggml_type.h"
#include "base/mapped_file.h"
#include "io/gguf_value.h"

#include <optional>

namespace nibble {

inline constexpr uint32_t gguf_default_alignment = 32;
inline constexpr size_t gguf_max_name_bytes = 63;
inline constexpr int gguf_max_dims = 4;
inline constexpr int64_t most_gguf_parts = 1000;
inline constexpr uint64_t gguf_max_count = uint64_t{1} << 30;  // largest length of strings and arrays

struct GgufTensor {
    std::string name;
    GgmlType type = GgmlType::f32;
    std::vector<int64_t> shape;  // Hugging Face order: [out, in], [experts, out, in]; 1 to 4 positive dimensions
    Bytes data;                  // exactly the tensor's blocks, row-major
};

// Returns the bytes of a tensor. Errors: rows that are not whole blocks, overflow.
Result<int64_t> ggml_tensor_bytes(GgmlType type, std::span<const int64_t> shape);

class GgufFile {
public:
    // Maps the file. All views are valid as long as this object. A split file (NAME-00001-of-00003.gguf and so on, made
    // by llama-gguf-split) is opened by its first part: metadata come from this part, tensors from all parts in order.
    // Errors start with the path.
    static Result<GgufFile> open(const std::filesystem::path& path);
    // Parses bytes in memory, which must outlive the object.
    static Result<GgufFile> parse(Bytes bytes);

    uint32_t version() const { return version_; }
    uint64_t alignment() const { return alignment_; }
    const GgufMetadata& metadata() const { return metadata_; }
    const std::vector<GgufTensor>& tensors() const { return tensors_; }
    const GgufTensor* find_tensor(std::string_view name) const;
    // Tells the kernel that `data` of a tensor is no longer needed.
    void done_with(Bytes data) const;
    // Returns the file that contains `data` of a tensor; `whole` after parse().
    const std::filesystem::path& part_of(Bytes data, const std::filesystem::path& whole) const;

private:
    friend class GgufParser;
    GgufFile() = default;

    const MappedFile* file_of(Bytes data) const;
    static Result<GgufFile> open_part(const std::filesystem::path& path);
    Status add_parts(const std::filesystem::path& first);

    std::vector<MappedFile> files_;  // one per part
    uint32_t version_ = 0;
    uint64_t alignment_ = gguf_default_alignment;
    GgufMetadata metadata_;
    std::vector<GgufTensor> tensors_;
    std::unordered_map<std::string_view, size_t> by_name_;  // keys refer to tensors_[i].name
};

}  // namespace nibble

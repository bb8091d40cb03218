// Reads a safetensors file through a memory map: names, dtypes, shapes and views of the bytes. Only names are copied.
//
//   NIBBLE_TRY(auto file, SafetensorsFile::open("model.safetensors"));
//   for (const TensorRecord& t : file.tensors()) use(t.name, t.dtype, t.shape, t.data);
//
// The format (github.com/huggingface/safetensors, README "Format"): u64 little-endian header length (at most 100 MB), a
// JSON object, then the data. Each tensor is {"dtype", "shape", "data_offsets": [begin, end)} relative to the data, in
// row-major order; "__metadata__" maps strings to strings. Stricter than the reference library:
// duplicate names, unknown keys in an entry and a header that does not begin with '{' are errors.
#pragma once

#include "base/dtype.h"
#include "base/error.h"
#include "base/mapped_file.h"

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace nibble {

inline constexpr int64_t safetensors_header_limit = 100'000'000;  // bytes; the limit of the reference library
inline constexpr std::string_view safetensors_metadata_key = "__metadata__";

struct TensorRecord {
    std::string name;
    DType dtype = DType::u8;
    std::vector<int64_t> shape;  // empty: a scalar with one element; a dimension of zero: no elements
    Bytes data;                  // elements(shape) * dtype_bytes(dtype) bytes, little-endian; may be unaligned
};

class SafetensorsFile {
public:
    // Maps a file. Views are valid as long as this object, also when it is moved. Reading them faults if another
    // process truncates the file. Errors name the path and the tensor.
    static Result<SafetensorsFile> open(const std::filesystem::path& path);
    // Parses bytes in memory, which must outlive the object.
    static Result<SafetensorsFile> parse(Bytes bytes);

    // Returns the tensors in the order of their data in the file; tensors without elements in the order of the header.
    const std::vector<TensorRecord>& tensors() const { return tensors_; }
    const TensorRecord* find(std::string_view name) const;  // null: there is none
    const std::map<std::string, std::string>& metadata() const { return metadata_; }

    // Returns the bytes of all tensors together.
    int64_t data_bytes() const { return data_bytes_; }

    // Returns the map that the views refer to, for done_with(); null after parse().
    const MappedFile* map() const { return map_ ? &*map_ : nullptr; }

private:
    SafetensorsFile() = default;

    std::optional<MappedFile> map_;
    std::vector<TensorRecord> tensors_;
    std::unordered_map<std::string_view, size_t> by_name_;  // keys refer to names in tensors_
    std::map<std::string, std::string> metadata_;
    int64_t data_bytes_ = 0;
};

}  // namespace nibble

#include "io/gguf.h"

#include "base/checked.h"

#include <algorithm>
#include <bit>

namespace nibble {

static_assert(std::endian::native == std::endian::little, "GGUF values are read without byte swapping");

Result<int64_t> ggml_tensor_bytes(GgmlType type, std::span<const int64_t> shape) {
    const GgmlTypeInfo& info = ggml_type_info(type);
    if (shape.empty()) return fail("a tensor needs at least one dimension");
    if (shape.back() % info.block != 0)
        return fail("rows of {} elements are not whole {} blocks of {}", shape.back(), info.name, info.block);
    const auto elements = checked_elements(shape);
    if (!elements) return fail("shape has more than 2^63 elements");
    const auto bytes = checked_mul(*elements / info.block, info.bytes);
    if (!bytes) return fail("tensor has more than 2^63 bytes");
    return *bytes;
}

// Parses the header in one pass. Every count is compared with the remaining bytes before memory is allocated for it.
class GgufParser {
public:
    explicit GgufParser(Bytes bytes) : bytes_(bytes) {}

    Result<GgufFile> run() {
        NIBBLE_CHECK(read_preamble());
        for (int64_t i = 0; i < kv_count_; ++i) NIBBLE_CHECK(read_kv(i));
        NIBBLE_CHECK(find_alignment());
        for (int64_t i = 0; i < tensor_count_; ++i) NIBBLE_CHECK(read_tensor_info(i));
        NIBBLE_CHECK(place_tensors());
        return std::move(out_);
    }

private:
    size_t left() const { return bytes_.size() - at_; }

    template <class T>
    Result<T> read(std::string_view what) {
        if (left() < sizeof(T)) return fail("file ends at byte {} inside {}", bytes_.size(), what);
        T value;
        std::memcpy(&value, bytes_.data() + at_, sizeof(T));
        at_ += sizeof(T);
        return value;
    }

    Result<std::string_view> read_string(std::string_view what) {
        NIBBLE_TRY(const uint64_t size, read<uint64_t>(what));
        if (size > gguf_max_count) return fail("{} claims {} bytes, the limit is {}", what, size, gguf_max_count);
        if (size > left()) return fail("{} claims {} bytes, {} are left in the file", what, size, left());
        const std::string_view text(reinterpret_cast<const char*>(bytes_.data() + at_), size);
        at_ += size;
        return text;
    }

    Status read_preamble() {
        NIBBLE_TRY(const uint32_t magic, read<uint32_t>("the magic"));
        if (magic != 0x46554747u) return fail("not a GGUF file: the first four bytes are not 'GGUF'");
        NIBBLE_TRY(const uint32_t version, read<uint32_t>("the version"));
        if (version != 0 && (version & 0xFFFFu) == 0) return fail("big-endian GGUF: convert it to little-endian first");
        if (version < 2 || version > 3) return fail("GGUF version {}: versions 2 and 3 are supported", version);
        out_.version_ = version;
        NIBBLE_TRY(tensor_count_, read<int64_t>("the tensor count"));
        NIBBLE_TRY(kv_count_, read<int64_t>("the metadata count"));
        constexpr int64_t smallest_info = 8 + 1 + 4 + 8 + 4 + 8, smallest_kv = 8 + 1 + 4 + 1;
        if (tensor_count_ < 0 || tensor_count_ > static_cast<int64_t>(left()) / smallest_info)
            return fail("header claims {} tensors, more than {} bytes can hold", tensor_count_, left());
        if (kv_count_ < 0 || kv_count_ > static_cast<int64_t>(left()) / smallest_kv)
            return fail("header claims {} metadata keys, more than {} bytes can hold", kv_count_, left());
        return Ok{};
    }

    Status read_kv(int64_t i) {
        NIBBLE_TRY(const std::string_view key, read_string(fmt::format("metadata key {}", i)));
        if (key.empty()) return fail("metadata key {} is empty", i);
        const std::string what = fmt::format("metadata key {}", gguf_shown(key));
        NIBBLE_TRY(const uint32_t type, read<uint32_t>(what));
        NIBBLE_TRY(GgufValue value, read_value(type, what));
        if (!out_.metadata_.add(std::string(key), std::move(value))) return fail("{} appears twice", what);
        return Ok{};
    }

    template <class T>
    Result<GgufValue> read_scalar(std::string_view what) {
        NIBBLE_TRY(const T value, read<T>(what));
        return GgufValue(value);
    }

    Result<GgufValue> read_value(uint32_t type, std::string_view what) {
        switch (static_cast<GgufValueType>(type)) {
            case GgufValueType::u8:
                return read_scalar<uint8_t>(what);
            case GgufValueType::i8:
                return read_scalar<int8_t>(what);
            case GgufValueType::u16:
                return read_scalar<uint16_t>(what);
            case GgufValueType::i16:
                return read_scalar<int16_t>(what);
            case GgufValueType::u32:
                return read_scalar<uint32_t>(what);
            case GgufValueType::i32:
                return read_scalar<int32_t>(what);
            case GgufValueType::f32:
                return read_scalar<float>(what);
            case GgufValueType::u64:
                return read_scalar<uint64_t>(what);
            case GgufValueType::i64:
                return read_scalar<int64_t>(what);
            case GgufValueType::f64:
                return read_scalar<double>(what);
            case GgufValueType::boolean: {
                NIBBLE_TRY(const uint8_t value, read<uint8_t>(what));
                if (value > 1) return fail("{}: a bool is 0 or 1, found {}", what, value);
                return GgufValue(value == 1);
            }
            case GgufValueType::string: {
                NIBBLE_TRY(const std::string_view text, read_string(what));
                return GgufValue(std::string(text));
            }
            case GgufValueType::array:
                return read_array(what);
        }
        return fail("{}: unknown value type {}", what, type);
    }

    Result<GgufValue> read_array(std::string_view what) {
        NIBBLE_TRY(const uint32_t type_id, read<uint32_t>(what));
        NIBBLE_TRY(const uint64_t count, read<uint64_t>(what));
        GgufArray array{static_cast<GgufValueType>(type_id), count, {}, {}};
        if (array.type == GgufValueType::array) return fail("{}: arrays of arrays are not supported", what);
        if (type_id > static_cast<uint32_t>(GgufValueType::f64))
            return fail("{}: unknown array element type {}", what, type_id);
        if (count > gguf_max_count) return fail("{} claims {} elements, the limit is {}", what, count, gguf_max_count);
        const bool strings = array.type == GgufValueType::string;
        const uint64_t smallest = strings ? sizeof(uint64_t) : gguf_type_bytes(array.type);
        if (count > left() / smallest) return fail("{} claims {} elements, {} bytes are left", what, count, left());
        if (strings) {
            array.strings.reserve(count);
            for (uint64_t i = 0; i < count; ++i) {
                NIBBLE_TRY(const std::string_view text, read_string(what));
                array.strings.push_back(text);
            }
        } else {
            array.raw = bytes_.subspan(at_, count * smallest);
            at_ += array.raw.size();
            if (array.type == GgufValueType::boolean &&
                std::ranges::any_of(array.raw, [](std::byte b) { return b > std::byte{1}; }))
                return fail("{}: a bool is 0 or 1", what);
        }
        return GgufValue(std::move(array));
    }

    Status find_alignment() {
        const GgufValue* value = out_.metadata_.find("general.alignment");
        if (!value) return Ok{};
        const uint32_t* alignment = std::get_if<uint32_t>(value);
        if (!alignment || !std::has_single_bit(*alignment))
            return fail("metadata key 'general.alignment' must be a u32 power of two");
        out_.alignment_ = *alignment;
        return Ok{};
    }

    Status read_tensor_info(int64_t i) {
        NIBBLE_TRY(const std::string_view name, read_string(fmt::format("name of tensor {}", i)));
        if (name.empty() || name.size() > gguf_max_name_bytes)
            return fail("name of tensor {} has {} bytes: 1 to {} are allowed", i, name.size(), gguf_max_name_bytes);
        const std::string what = fmt::format("tensor {}", gguf_shown(name));
        NIBBLE_TRY(const uint32_t dims, read<uint32_t>(what));
        if (dims < 1 || dims > gguf_max_dims) return fail("{} has {} dimensions: 1 to 4 are allowed", what, dims);
        GgufTensor tensor{std::string(name), GgmlType::f32, {}, {}};
        for (uint32_t d = 0; d < dims; ++d) {
            NIBBLE_TRY(const int64_t extent, read<int64_t>(what));
            if (extent < 1) return fail("{}: dimension {} is {}", what, d, extent);
            tensor.shape.insert(tensor.shape.begin(), extent);  // ggml lists the contiguous dimension first
        }
        NIBBLE_TRY(const uint32_t type_id, read<uint32_t>(what));
        const auto type = ggml_type_from_id(type_id);
        if (!type) return fail("{}: unknown tensor type id {}", what, type_id);
        tensor.type = type->type;
        NIBBLE_TRY(const uint64_t offset, read<uint64_t>(what));
        NIBBLE_TRY(const int64_t bytes, ggml_tensor_bytes(tensor.type, tensor.shape).within(what));
        if (offset != next_offset_)
            return fail("{}: offset {}, expected {} (tensors must follow each other without gaps)", what, offset,
                        next_offset_);
        extents_.push_back({offset, static_cast<uint64_t>(bytes)});
        const auto end = checked_add(offset, static_cast<uint64_t>(bytes));
        const auto padded = end ? checked_add(*end, out_.alignment_ - 1) : end;
        if (!padded) return fail("{} ends beyond 2^64 bytes", what);
        next_offset_ = *padded / out_.alignment_ * out_.alignment_;
        out_.tensors_.push_back(std::move(tensor));
        return Ok{};
    }

    // The padding after the last tensor may be missing; llama.cpp's loader accepts such files too.
    Status place_tensors() {
        if (out_.tensors_.empty()) return Ok{};
        const uint64_t data_start = round_up(static_cast<uint64_t>(at_), out_.alignment_);
        out_.by_name_.reserve(out_.tensors_.size());
        for (size_t i = 0; i < out_.tensors_.size(); ++i) {
            GgufTensor& tensor = out_.tensors_[i];
            const auto [offset, size] = extents_[i];
            const auto begin = checked_add(data_start, offset);
            const auto end = begin ? checked_add(*begin, size) : begin;
            if (!end || *end > bytes_.size())
                return fail("tensor {} needs {} bytes at data offset {}, the file has {} bytes in all (truncated?)",
                            gguf_shown(tensor.name), size, offset, bytes_.size());
            tensor.data = bytes_.subspan(*begin, size);
            if (!out_.by_name_.emplace(tensor.name, i).second)
                return fail("tensor {} appears twice", gguf_shown(tensor.name));
        }
        return Ok{};
    }

    struct Extent {
        uint64_t offset, size;
    };

    Bytes bytes_;
    size_t at_ = 0;
    int64_t tensor_count_ = 0, kv_count_ = 0;
    uint64_t next_offset_ = 0;
    std::vector<Extent> extents_;
    GgufFile out_;
};

Result<GgufFile> GgufFile::parse(Bytes bytes) { return GgufParser(bytes).run(); }

Result<GgufFile> GgufFile::open_part(const std::filesystem::path& path) {
    NIBBLE_TRY(auto file, MappedFile::open(path));
    NIBBLE_TRY(auto parsed, parse(file.bytes()).within(path.string()));
    parsed.files_.push_back(std::move(file));
    return parsed;
}

Result<GgufFile> GgufFile::open(const std::filesystem::path& path) {
    NIBBLE_TRY(auto first, open_part(path));
    if (first.metadata_.has("split.count")) NIBBLE_CHECK(first.add_parts(path).within(path.string()));
    return first;
}

// Names and keys are those of llama.cpp, src/llama-model-loader.cpp (llama_split_path, split.no, split.count,
// split.tensors.count).
Status GgufFile::add_parts(const std::filesystem::path& first) {
    NIBBLE_TRY(const int64_t count, metadata_.integer("split.count"));
    if (count <= 1) return Ok{};
    if (count > most_gguf_parts) return fail("declares {} parts, the limit is {}", count, most_gguf_parts);
    NIBBLE_TRY(const int64_t number, metadata_.integer("split.no"));
    const std::string name = first.filename().string();
    const std::string suffix = fmt::format("-{:05}-of-{:05}.gguf", number + 1, count);
    if (!name.ends_with(suffix)) return fail("is part {} of {}, whose name ends in {}", number + 1, count, suffix);
    const std::string stem = name.substr(0, name.size() - suffix.size());
    const auto part_name = [&](int64_t i) { return fmt::format("{}-{:05}-of-{:05}.gguf", stem, i + 1, count); };
    if (number != 0) return fail("is part {} of {}: give the first one, {}", number + 1, count, part_name(0));
    for (int64_t i = 1; i < count; ++i) {
        NIBBLE_TRY(GgufFile part, open_part(first.parent_path() / part_name(i)));
        NIBBLE_TRY(const int64_t its_number, part.metadata_.integer("split.no").within(part_name(i)));
        NIBBLE_TRY(const int64_t its_count, part.metadata_.integer("split.count").within(part_name(i)));
        if (its_number != i || its_count != count)
            return fail("{}: declares itself part {} of {}", part_name(i), its_number + 1, its_count);
        for (GgufTensor& tensor : part.tensors_) tensors_.push_back(std::move(tensor));
        files_.push_back(std::move(part.files_[0]));
    }
    if (metadata_.has("split.tensors.count")) {
        NIBBLE_TRY(const int64_t all, metadata_.integer("split.tensors.count"));
        if (all != std::ssize(tensors_)) return fail("declares {} tensors, its parts have {}", all, tensors_.size());
    }
    by_name_.clear();  // its keys refer to names that have moved
    for (size_t i = 0; i < tensors_.size(); ++i)
        if (!by_name_.emplace(tensors_[i].name, i).second)
            return fail("tensor {} appears in two parts", gguf_shown(tensors_[i].name));
    return Ok{};
}

const MappedFile* GgufFile::file_of(Bytes data) const {
    for (const MappedFile& file : files_)
        if (data.data() >= file.bytes().data() && data.data() < file.bytes().data() + file.bytes().size()) return &file;
    return nullptr;
}

void GgufFile::done_with(Bytes data) const {
    if (const MappedFile* file = file_of(data)) file->done_with(data);
}

const std::filesystem::path& GgufFile::part_of(Bytes data, const std::filesystem::path& whole) const {
    const MappedFile* file = file_of(data);
    return file ? file->path() : whole;
}

const GgufTensor* GgufFile::find_tensor(std::string_view name) const {
    const auto it = by_name_.find(name);
    return it == by_name_.end() ? nullptr : &tensors_[it->second];
}

}  // namespace nibble

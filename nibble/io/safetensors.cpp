#include "io/safetensors.h"

#include "io/json_events.h"
#include "io/safetensors_header.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace nibble {
namespace {

static_assert(std::endian::native == std::endian::little, "the header length and all data are little-endian");

// Checks that the tensors tile the data section: no overlap, no hole, nothing after the last one. Entries must be in
// order of offset.
Status check_tiling(const std::vector<SafetensorsEntry>& entries, uint64_t data_bytes) {
    uint64_t covered = 0;
    const SafetensorsEntry* previous = nullptr;
    for (const SafetensorsEntry& e : entries) {
        if (e.end > data_bytes)
            return fail(
                "tensor {}: ends at byte {} of the data, which has {}: the file is cut short or its header is wrong",
                show_name(e.name), e.end, data_bytes);
        if (e.begin < covered)
            return fail("tensor {} at [{}, {}) overlaps tensor {} at [{}, {})", show_name(e.name), e.begin, e.end,
                        show_name(previous->name), previous->begin, previous->end);
        if (e.begin > covered)
            return fail("bytes [{}, {}) of the data, before tensor {}, belong to no tensor", covered, e.begin,
                        show_name(e.name));
        covered = e.end;
        previous = &e;
    }
    if (covered != data_bytes)
        return fail("bytes [{}, {}) at the end of the data belong to no tensor", covered, data_bytes);
    return Ok{};
}

}  // namespace

Result<SafetensorsFile> SafetensorsFile::parse(Bytes bytes) {
    if (std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size())
            .starts_with("version https://git-lfs"))
        return fail("is a Git LFS pointer, not the file itself; fetch the file with `git lfs pull`");
    uint64_t header_bytes = 0;
    if (bytes.size() < sizeof header_bytes)
        return fail("not a safetensors file: {} bytes, the header length alone needs 8", bytes.size());
    std::memcpy(&header_bytes, bytes.data(), sizeof header_bytes);
    bytes = bytes.subspan(sizeof header_bytes);
    if (header_bytes > static_cast<uint64_t>(safetensors_header_limit))
        return fail("not a safetensors file: header length {} is over the limit of {}", header_bytes,
                    safetensors_header_limit);
    if (header_bytes > bytes.size())
        return fail("header length {}, but only {} bytes follow: the file is cut short", header_bytes, bytes.size());
    const std::string_view json(reinterpret_cast<const char*>(bytes.data()), header_bytes);
    if (!json.starts_with('{')) return fail("not a safetensors file: the header does not begin with '{{'");
    NIBBLE_TRY(auto header, parse_safetensors_header(json));

    const Bytes data = bytes.subspan(header_bytes);
    auto& entries = header.entries;
    const auto offsets = [](const SafetensorsEntry& e) { return std::pair(e.begin, e.end); };
    std::ranges::stable_sort(entries, {}, offsets);

    SafetensorsFile file;
    file.by_name_.reserve(entries.size());
    for (const SafetensorsEntry& e : entries)
        if (!file.by_name_.emplace(e.name, 0).second) return fail("duplicate tensor name {}", show_name(e.name));
    NIBBLE_CHECK(check_tiling(entries, data.size()));

    file.by_name_.clear();  // its keys refer to names that now move
    file.tensors_.reserve(entries.size());
    for (SafetensorsEntry& e : entries) {
        file.tensors_.push_back(
            {std::move(e.name), e.dtype, std::move(e.shape), data.subspan(e.begin, e.end - e.begin)});
        file.by_name_.emplace(file.tensors_.back().name, file.tensors_.size() - 1);
    }
    file.metadata_ = std::move(header.metadata);
    file.data_bytes_ = static_cast<int64_t>(data.size());
    return file;
}

Result<SafetensorsFile> SafetensorsFile::open(const std::filesystem::path& path) {
    NIBBLE_TRY(auto map, MappedFile::open(path));
    NIBBLE_TRY(auto file, parse(map.bytes()).within(path.string()));
    file.map_ = std::move(map);
    return file;
}

const TensorRecord* SafetensorsFile::find(std::string_view name) const {
    const auto it = by_name_.find(name);
    return it == by_name_.end() ? nullptr : &tensors_[it->second];
}

}  // namespace nibble

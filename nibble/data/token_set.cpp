#include "data/token_set.h"

#include "base/map_faults.h"

#include <algorithm>
#include <cstring>

namespace nibble {
namespace {

namespace fs = std::filesystem;

// Returns the index of the last part that begins at or before `at`.
template <class Parts, class Member>
size_t part_with(const Parts& parts, Member begin, int64_t at) {
    const auto after =
        std::partition_point(parts.begin(), parts.end(), [&](const auto& part) { return part.*begin <= at; });
    return static_cast<size_t>(after - parts.begin()) - 1;
}

Result<std::vector<uint64_t>> read_starts(const fs::path& path, const DataShardEntry& entry) {
    NIBBLE_TRY(const MappedFile file, MappedFile::open(path));
    const Bytes bytes = file.bytes();
    if (static_cast<int64_t>(bytes.size()) != entry.documents * 8)
        return fail("{}: has {} bytes, expected {} for {} documents", path.string(), bytes.size(), entry.documents * 8,
                    entry.documents);
    std::vector<uint64_t> starts(bytes.size() / 8);
    if (!starts.empty()) std::memcpy(starts.data(), bytes.data(), bytes.size());
    NIBBLE_CHECK(check_maps());
    for (size_t i = 0; i < starts.size(); ++i) {
        const bool good = i == 0 ? starts[i] == 0 : starts[i] > starts[i - 1];
        if (!good || starts[i] >= static_cast<uint64_t>(entry.tokens))
            return fail("{}: document {} begins at {}, out of order", path.string(), i, starts[i]);
    }
    return starts;
}

}  // namespace

Result<DataManifest> read_data_manifest(const fs::path& folder) {
    const fs::path path = folder / data_manifest_name;
    std::error_code error;
    if (!fs::exists(path, error))
        return fail("{}: has no {}; `nibble data build` creates such a folder", folder.string(), data_manifest_name);
    NIBBLE_TRY(const Json json, read_json_file(path));
    return data_manifest_from_json(json).within(path.string());
}

Result<TokenSet::Part> TokenSet::open_part(const fs::path& folder, const DataShardEntry& entry, int width) {
    const fs::path path = folder / (entry.name + ".bin");
    NIBBLE_TRY(TokenShard shard, TokenShard::open(path));
    if (shard.tokens() != entry.tokens || shard.width() != width)
        return fail("{}: has {} tokens of {} bytes; according to {} there are {} of {}", path.string(), shard.tokens(),
                    shard.width(), data_manifest_name, entry.tokens, width);
    if (entry.tokens == 0) return fail("{}: is empty", path.string());
    Part part{.shard = std::move(shard), .hash = entry.hash};
    NIBBLE_TRY(part.starts, read_starts(folder / (entry.name + ".docs"), entry));
    if (!entry.masked) return part;
    NIBBLE_TRY(part.mask, MappedFile::open(folder / (entry.name + ".mask")));
    const int64_t bytes = (entry.tokens + 7) / 8;
    if (static_cast<int64_t>(part.mask->bytes().size()) != bytes)
        return fail("{}: has {} bytes, expected {}", part.mask->path().string(), part.mask->bytes().size(), bytes);
    return part;
}

Result<TokenSet> TokenSet::open(const fs::path& folder, const DataManifest& manifest, bool validation) {
    TokenSet set;
    set.vocab_ = manifest.vocab;
    const DataSplit& split = validation ? manifest.validation : manifest.train;
    for (const DataShardEntry& entry : split.shards) {
        NIBBLE_TRY(Part part, open_part(folder, entry, token_width(manifest.vocab)));
        part.begin = set.tokens_;
        part.first_document = set.documents_;
        set.tokens_ += entry.tokens;
        set.documents_ += entry.documents;
        set.parts_.push_back(std::move(part));
    }
    return set;
}

Status TokenSet::read(int64_t begin, int64_t count, Slice& out) const {
    out.ids.resize(static_cast<size_t>(count));
    out.learned.assign(static_cast<size_t>(count), true);
    out.starts.clear();
    for (int64_t done = 0; done < count;) {
        const Part& part = parts_[part_with(parts_, &Part::begin, begin + done)];
        const int64_t from = begin + done - part.begin, n = std::min(count - done, part.shard.tokens() - from);
        NIBBLE_CHECK(part.shard.read(from, std::span(out.ids).subspan(size_t(done), size_t(n)), vocab_));
        auto start = std::ranges::lower_bound(part.starts, static_cast<uint64_t>(from));
        for (; start != part.starts.end() && *start < static_cast<uint64_t>(from + n); ++start)
            out.starts.push_back(done + static_cast<int64_t>(*start) - from);
        if (part.mask)
            for (int64_t i = 0; i < n; ++i)
                out.learned[size_t(done + i)] =
                    (part.mask->bytes()[size_t(from + i) / 8] & std::byte(1u << size_t(from + i) % 8)) != std::byte(0);
        done += n;
    }
    return check_maps();
}

Status TokenSet::read_document(int64_t index, Slice& out) const {
    const Part& part = parts_[part_with(parts_, &Part::first_document, index)];
    const auto i = static_cast<size_t>(index - part.first_document);
    const auto begin = static_cast<int64_t>(part.starts[i]);
    const int64_t end = i + 1 < part.starts.size() ? static_cast<int64_t>(part.starts[i + 1]) : part.shard.tokens();
    return read(part.begin + begin, end - begin, out);
}

Status TokenSet::check_contents() const {
    constexpr int64_t step = 1 << 16;
    std::vector<TokenId> ids;
    for (const Part& part : parts_) {
        for (int64_t at = 0; at < part.shard.tokens(); at += step) {
            ids.resize(static_cast<size_t>(std::min(step, part.shard.tokens() - at)));
            NIBBLE_CHECK(part.shard.read(at, ids, vocab_));
        }
        if (const std::string hash = part.shard.hash(); hash != part.hash)
            return fail("{}: its tokens have changed: the hash is {}; in {} it is {}", part.shard.path().string(), hash,
                        data_manifest_name, part.hash);
    }
    return Ok{};
}

}  // namespace nibble

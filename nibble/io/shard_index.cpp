#include "io/shard_index.h"

#include "io/json_events.h"

#include <filesystem>
#include <limits>
#include <map>

namespace nibble {
namespace {

bool stays_in_folder(const std::string& shard) {
    const std::filesystem::path path(shard);
    if (shard.empty() || shard.find('\0') != shard.npos || !path.is_relative() || !path.has_filename()) return false;
    if (path.lexically_normal().native() != shard || path == ".") return false;
    return *path.begin() != "..";  // in the normal form, '..' can only be the first part
}

class IndexReader : public JsonEvents {
public:
    std::map<std::string, std::vector<std::string>> tensors_of;  // by shard
    std::optional<int64_t> total_size;
    bool seen_map = false;

    bool open_object() override {
        if (in_map_) return unexpected("an object");
        if (depth_ == 1 && top_ == "weight_map") {
            if (seen_map) return stop("duplicate key 'weight_map'");
            in_map_ = seen_map = true;
        }
        return deeper();
    }
    bool close_object() override {
        if (depth_ == 2) in_map_ = false;
        --depth_;
        return true;
    }
    bool open_array() override { return scalar_allowed("an array") && deeper(); }
    bool close_array() override {
        --depth_;
        return true;
    }
    bool key(std::string& k) override {
        if (depth_ == 1) top_ = k;
        key_ = std::move(k);
        return true;
    }
    bool text(std::string& v) override {
        if (!in_map_) return scalar_allowed("a string");
        if (!stays_in_folder(v))
            return stop(fmt::format("weight_map: tensor {}: {} is not a plain path inside the folder", show_name(key_),
                                    show_name(v)));
        tensors_of[v].push_back(std::move(key_));
        return true;
    }
    bool whole_number(uint64_t v) override {
        if (depth_ == 2 && top_ == "metadata" && key_ == "total_size" &&
            v <= static_cast<uint64_t>(std::numeric_limits<int64_t>::max()))
            total_size = static_cast<int64_t>(v);
        return scalar_allowed("a number");
    }
    bool other(std::string_view what) override { return scalar_allowed(what); }

    bool unexpected(std::string_view what) override {
        if (!in_map_) return stop(fmt::format("unexpected {}", what));
        return stop(fmt::format("weight_map: tensor {}: expected a file name, found {}", show_name(key_), what));
    }

private:
    bool deeper() {
        constexpr int limit = 64;
        return ++depth_ <= limit || stop(fmt::format("nested deeper than {} levels", limit));
    }
    // Values outside weight_map are ignored, but the document and weight_map must be objects.
    bool scalar_allowed(std::string_view what) {
        if (in_map_) return unexpected(what);
        if (depth_ == 0) return stop("the index is not a JSON object");
        if (depth_ == 1 && top_ == "weight_map")
            return stop(fmt::format("weight_map must be an object, found {}", what));
        return true;
    }

    int depth_ = 0;
    bool in_map_ = false;
    std::string top_, key_;  // top_: last key of the outer object; key_: last key at any level
};

}  // namespace

Result<ShardIndex> parse_shard_index(std::string_view json) {
    IndexReader reader;
    NIBBLE_CHECK(read_json_events(json, reader));
    if (!reader.seen_map) return fail("has no weight_map");
    ShardIndex index{.total_size = reader.total_size};
    for (auto& [shard, tensors] : reader.tensors_of) {
        const int place = static_cast<int>(index.shards.size());
        index.shards.push_back(shard);
        for (std::string& name : tensors)
            if (const auto [at, fresh] = index.shard_of.emplace(std::move(name), place); !fresh)
                return fail("weight_map: duplicate tensor name {}", show_name(at->first));
    }
    return index;
}

}  // namespace nibble

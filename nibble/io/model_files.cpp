#include "io/model_files.h"

#include "base/model_place.h"
#include "io/json_events.h"
#include "io/shard_index.h"

#include <algorithm>
#include <system_error>

namespace nibble {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view single_name = "model.safetensors";
constexpr std::string_view index_name = "model.safetensors.index.json";
constexpr size_t index_limit = size_t{256} << 20;  // bytes

// Returns the names in the folder with this ending, sorted.
Result<std::vector<std::string>> names_ending(const fs::path& folder, std::string_view suffix) {
    std::vector<std::string> names;
    std::error_code error;
    for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error))
        if (std::string name = it->path().filename().string(); name.ends_with(suffix)) names.push_back(std::move(name));
    if (error) return fail("{}: cannot list: {}", folder.string(), error.message());
    std::ranges::sort(names);
    return names;
}

// Returns the index file to use; empty: there is none.
Result<std::string> choose_index(const fs::path& folder) {
    NIBBLE_TRY(const auto names, names_ending(folder, ".safetensors.index.json"));
    if (names.empty()) return std::string();
    if (std::ranges::find(names, index_name) != names.end()) return std::string(index_name);
    if (names.size() > 1)
        return fail("{}: several indexes ({}, {}) and none is {}", folder.string(), names[0], names[1], index_name);
    return names[0];
}

// Error: index and shards disagree.
Status check_index(const ShardIndex& index, const ModelFiles& model) {
    for (const ModelTensor& t : model.tensors()) {
        const std::string& shard = model.shard_names()[t.shard];
        const auto listed = index.shard_of.find(t.record->name);
        if (listed == index.shard_of.end())
            return fail("tensor {} is in {} but not in the index", show_name(t.record->name), show_name(shard));
        if (index.shards[listed->second] != shard)
            return fail("tensor {} is in {}, the index says {}", show_name(t.record->name), show_name(shard),
                        show_name(index.shards[listed->second]));
    }
    if (model.tensors().size() == index.shard_of.size()) return Ok{};
    const std::string* first = nullptr;  // the smallest name, so that the message does not depend on hashing
    for (const auto& [name, shard] : index.shard_of)
        if (!model.find(name) && (!first || name < *first)) first = &name;
    return fail("tensor {} is in the index but not in its file {}", show_name(*first),
                show_name(index.shards[index.shard_of.at(*first)]));
}

}  // namespace

Status ModelFiles::open_shards(const fs::path& folder, std::vector<std::string> names) {
    shard_names_ = std::move(names);
    size_t count = 0;
    shards_.reserve(shard_names_.size());
    for (const std::string& name : shard_names_) {
        std::error_code error;
        if (!fs::exists(folder / name, error)) return fail("{}: shard {} is missing", folder.string(), show_name(name));
        NIBBLE_TRY(auto file, SafetensorsFile::open(folder / name));
        count += file.tensors().size();
        total_bytes_ += file.data_bytes();
        shards_.push_back(std::move(file));
    }
    tensors_.reserve(count);
    by_name_.reserve(count);
    for (int shard = 0; shard < static_cast<int>(shards_.size()); ++shard) {
        for (const TensorRecord& record : shards_[shard].tensors()) {
            const auto [at, fresh] = by_name_.emplace(record.name, tensors_.size());
            if (!fresh)
                return fail("{}: tensor {} is in both {} and {}", folder.string(), show_name(record.name),
                            show_name(shard_names_[tensors_[at->second].shard]), show_name(shard_names_[shard]));
            tensors_.push_back({&record, shard});
        }
    }
    return Ok{};
}

Result<ModelFiles> ModelFiles::open(const fs::path& path) {
    ModelFiles model;
    std::error_code error;
    if (fs::is_regular_file(path, error)) {
        NIBBLE_CHECK(model.open_shards(path.parent_path(), {path.filename().string()}));
        return model;
    }
    if (!fs::is_directory(path, error)) return no_such_model(path);

    NIBBLE_TRY(const auto index_file, choose_index(path));
    NIBBLE_TRY(auto files, names_ending(path, ".safetensors"));
    const bool single = std::ranges::find(files, single_name) != files.end();
    if (!index_file.empty()) {
        const fs::path index_path = path / index_file;
        NIBBLE_TRY(const auto text, read_text_file(index_path, index_limit));
        NIBBLE_TRY(const auto index, parse_shard_index(text).within(index_path.string()));
        if (index.shards.empty()) return fail("{}: names no files", index_path.string());
        if (single && index.shards != std::vector{std::string(single_name)})
            return fail("{}: has both {} and {}, which names other files: remove the one that is stale", path.string(),
                        single_name, index_file);
        NIBBLE_CHECK(model.open_shards(path, index.shards));
        NIBBLE_CHECK(check_index(index, model).within(index_path.string()));
        return model;
    }
    if (single) files = {std::string(single_name)};
    if (files.empty()) return no_safetensors(path);
    NIBBLE_CHECK(model.open_shards(path, std::move(files)));
    return model;
}

const ModelTensor* ModelFiles::find(std::string_view name) const {
    const auto it = by_name_.find(name);
    return it == by_name_.end() ? nullptr : &tensors_[it->second];
}

}  // namespace nibble

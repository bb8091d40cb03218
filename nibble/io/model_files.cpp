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
constexpr std::string_view torch_name = "pytorch_model.bin", torch_index_name = "pytorch_model.bin.index.json";
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

static const std::vector<TensorRecord>& records_of(const std::variant<SafetensorsFile, TorchFile>& shard) {
    return std::visit([](const auto& file) -> const std::vector<TensorRecord>& { return file.tensors(); }, shard);
}

Status ModelFiles::open_shards(const fs::path& folder, std::vector<std::string> names) {
    shard_names_ = std::move(names);
    size_t count = 0;
    shards_.reserve(shard_names_.size());
    for (const std::string& name : shard_names_) {
        std::error_code error;
        if (!fs::exists(folder / name, error)) return fail("{}: shard {} is missing", folder.string(), show_name(name));
        if (name.ends_with(".bin")) {
            NIBBLE_TRY(auto file, TorchFile::open(folder / name));
            shards_.emplace_back(std::move(file));
        } else {
            NIBBLE_TRY(auto file, SafetensorsFile::open(folder / name));
            shards_.emplace_back(std::move(file));
        }
        count += records_of(shards_.back()).size();
    }
    tensors_.reserve(count);
    by_name_.reserve(count);
    for (int shard = 0; shard < static_cast<int>(shards_.size()); ++shard) {
        for (const TensorRecord& record : records_of(shards_[size_t(shard)])) {
            total_bytes_ += std::ssize(record.data);
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
    if (files.empty()) {
        NIBBLE_TRY(const bool opened, model.open_torch(path));
        return opened ? Result<ModelFiles>(std::move(model)) : no_safetensors(path);
    }
    NIBBLE_CHECK(model.open_shards(path, std::move(files)));
    return model;
}

Result<bool> ModelFiles::open_torch(const fs::path& folder) {
    std::error_code error;
    const fs::path index_path = folder / torch_index_name;
    const bool single = fs::exists(folder / torch_name, error);
    if (!fs::exists(index_path, error)) {
        if (single) NIBBLE_CHECK(open_shards(folder, {std::string(torch_name)}));
        return single;
    }
    if (single)
        return fail("{}: has both {} and {}: remove the one that is stale", folder.string(), torch_name,
                    torch_index_name);
    NIBBLE_TRY(const auto text, read_text_file(index_path, index_limit));
    NIBBLE_TRY(const auto index, parse_shard_index(text).within(index_path.string()));
    if (index.shards.empty()) return fail("{}: names no files", index_path.string());
    NIBBLE_CHECK(open_shards(folder, index.shards));
    NIBBLE_CHECK(check_index(index, *this).within(index_path.string()));
    return true;
}

const MappedFile* ModelFiles::map(int shard) const {
    return std::visit([](const auto& file) { return file.map(); }, shards_[static_cast<size_t>(shard)]);
}

Status ModelFiles::rename(const std::function<std::string(const std::string&)>& name) {
    by_name_.clear();
    for (size_t i = 0; i < tensors_.size(); ++i) {
        TensorRecord& record = renamed_.emplace_back(*tensors_[i].record);
        record.name = name(record.name);
        if (!by_name_.emplace(record.name, i).second)
            return fail("tensors {} and {} have one name in Hugging Face's layout", show_name(tensors_[i].record->name),
                        show_name(record.name));
        tensors_[i].record = &record;
    }
    return Ok{};
}

const ModelTensor* ModelFiles::find(std::string_view name) const {
    const auto it = by_name_.find(name);
    return it == by_name_.end() ? nullptr : &tensors_[it->second];
}

}  // namespace nibble

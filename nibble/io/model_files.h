// The weights of a Hugging Face folder, one file or many, as one list of tensors.
//
//   NIBBLE_TRY(auto model, ModelFiles::open("/models/Qwen3-8B"));
//   for (const ModelTensor& t : model.tensors()) use(t.record->name, t.record->data, model.shard_names()[t.shard]);
#pragma once

#include "io/safetensors.h"

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace nibble {

struct ModelTensor {
    const TensorRecord* record = nullptr;  // owned by the ModelFiles
    int shard = 0;                         // place in shard_names()
};

class ModelFiles {
public:
    // `path`: a folder, or one .safetensors file. In a folder: model.safetensors; or the files that
    // model.safetensors.index.json (else the only other *.safetensors.index.json) names; or, without either, every
    // *.safetensors. Links are followed. Errors: no weights, a shard that is missing or broken, a tensor in two shards,
    // a tensor that is in the index but not in its shard or the other way round, and both model.safetensors and an
    // index of other files (loaders disagree on which wins).
    static Result<ModelFiles> open(const std::filesystem::path& path);

    // By shard name, then by place in the shard.
    const std::vector<ModelTensor>& tensors() const { return tensors_; }
    const ModelTensor* find(std::string_view name) const;  // null when absent

    const std::vector<std::string>& shard_names() const { return shard_names_; }  // sorted, relative to the folder
    const SafetensorsFile& shard(int i) const { return shards_[i]; }

    // Of all tensors.
    int64_t total_bytes() const { return total_bytes_; }

private:
    ModelFiles() = default;
    Status open_shards(const std::filesystem::path& folder, std::vector<std::string> names);

    std::vector<std::string> shard_names_;
    std::vector<SafetensorsFile> shards_;
    std::vector<ModelTensor> tensors_;
    std::unordered_map<std::string_view, size_t> by_name_;  // keys view the names in shards_
    int64_t total_bytes_ = 0;
};

}  // namespace nibble

// The weights of a Hugging Face folder, in one or several files, as one list of tensors.
//
// NIBBLE_TRY(auto model, ModelFiles::open("/models/Qwen3-8B"));
// for (const ModelTensor& t : model.tensors()) use(t.record->name, t.record->data, model.shard_names()[t.shard]);
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
    int shard = 0;                         // index in shard_names()
};

class ModelFiles {
public:
    // Opens a folder or one .safetensors file. In a folder, the weights are model.safetensors; or the files listed in
    // model.safetensors.index.json (else in the only other *.safetensors.index.json); or, without both, every
    // *.safetensors. Links are followed. Errors: no weights; a missing or damaged shard; a tensor in two shards; a
    // tensor that is in the index but not in its shard, or the reverse; both model.safetensors and an index of other
    // files (loaders differ in which they use).
    static Result<ModelFiles> open(const std::filesystem::path& path);

    // Returns the tensors by shard name, then in the order of the shard.
    const std::vector<ModelTensor>& tensors() const { return tensors_; }
    const ModelTensor* find(std::string_view name) const;  // null: there is none

    // sorted, relative to the folder
    const std::vector<std::string>& shard_names() const { return shard_names_; }
    const SafetensorsFile& shard(int i) const { return shards_[i]; }

    // Returns the bytes of all tensors.
    int64_t total_bytes() const { return total_bytes_; }

private:
    ModelFiles() = default;
    Status open_shards(const std::filesystem::path& folder, std::vector<std::string> names);

    std::vector<std::string> shard_names_;
    std::vector<SafetensorsFile> shards_;
    std::vector<ModelTensor> tensors_;
    std::unordered_map<std::string_view, size_t> by_name_;  // keys refer to names in shards_
    int64_t total_bytes_ = 0;
};

}  // namespace nibble

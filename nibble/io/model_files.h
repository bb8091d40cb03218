// The weights of a folder, in one or several files (safetensors or files of torch.save()), as one list of tensors.
//
// NIBBLE_TRY(auto model, ModelFiles::open("/models/Qwen3-8B"));
// for (const ModelTensor& t : model.tensors()) use(t.record->name, t.record->data, model.shard_names()[t.shard]);
#pragma once

#include "io/safetensors.h"
#include "io/torch_file.h"

#include <deque>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <variant>
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
    // *.safetensors; or, without any, pytorch_model.bin or the files of its index. Links are followed. Errors: no
    // weights; a missing or damaged shard; a tensor in two shards; a tensor that is in the index but not in its shard,
    // or the reverse; both model.safetensors and an index of other files (loaders differ in which they use).
    static Result<ModelFiles> open(const std::filesystem::path& path);

    // Returns the tensors by shard name, then in the order of the shard.
    const std::vector<ModelTensor>& tensors() const { return tensors_; }
    const ModelTensor* find(std::string_view name) const;  // null: there is none

    // sorted, relative to the folder
    const std::vector<std::string>& shard_names() const { return shard_names_; }
    // Returns the map of a shard, for done_with(); null: the shard is not mapped.
    const MappedFile* map(int shard) const;

    // Gives every tensor the name that `name` returns for its own. Error: two tensors have the same new name.
    Status rename(const std::function<std::string(const std::string&)>& name);

    // Returns the bytes of all tensors.
    int64_t total_bytes() const { return total_bytes_; }

private:
    ModelFiles() = default;
    Status open_shards(const std::filesystem::path& folder, std::vector<std::string> names);
    // Opens pytorch_model.bin. Returns false if the folder has none.
    Result<bool> open_torch(const std::filesystem::path& folder);

    std::vector<std::string> shard_names_;
    std::vector<std::variant<SafetensorsFile, TorchFile>> shards_;
    std::deque<TensorRecord> renamed_;
    std::vector<ModelTensor> tensors_;
    std::unordered_map<std::string_view, size_t> by_name_;  // keys refer to names of records
    int64_t total_bytes_ = 0;
};

}  // namespace nibble

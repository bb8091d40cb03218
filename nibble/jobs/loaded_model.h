// A checkpoint that is loaded to run.
#pragma once

#include "base/json.h"
#include "base/progress.h"
#include "chat/model_text.h"
#include "model/cpu/model.h"
#include "nibble/model_settings.h"
#include "tensor/device.h"

#include <memory>
#include <string>
#include <vector>

namespace nibble {

// Errors of kind usage: unknown words.
Result<ModelOptions> model_options(const ModelSettings& settings);
Json to_json(const ModelSettings& settings);  // the settings that results depend on

Result<std::unique_ptr<LanguageModel>> load_model(std::shared_ptr<const Checkpoint> checkpoint,
                                                  const ModelOptions& options, const DeviceChoice& device,
                                                  ThreadPool& pool);

// Moves; what it points to stays where it is.
struct LoadedModel {
    std::filesystem::path path;
    std::shared_ptr<const Checkpoint> checkpoint;
    std::shared_ptr<LanguageModel> model;

    // prediction: with its layers for multi-token prediction. Error: it has none. Notes of the checkpoint and of the
    // model go to hooks.note.
    static Result<LoadedModel> open(const std::filesystem::path& path, const ModelSettings& settings, ThreadPool& pool,
                                    const JobHooks& hooks, bool prediction = false);
};

// generation_config.json next to the weights, or the one of a GGUF file; an empty object when there is none.
Result<Json> generation_config(const Checkpoint& checkpoint);

// The tokens that end an answer: those of the config, of generation_config.json and the tokenizer's eos_token.
Result<std::vector<int32_t>> end_tokens(const LoadedModel& loaded, const ModelText& text);
Result<std::vector<int32_t>> end_tokens(const ModelConfig& model, const Checkpoint& checkpoint, const ModelText& text);

// Names of a checkpoint for people and for caches: the path's last component; a hash of its tensors' names, shapes and
// sizes, its files' sizes and times of change, and `settings`.
std::string name_of(const std::filesystem::path& path);
Result<std::string> fingerprint(const Checkpoint& checkpoint, const ModelSettings& settings);

}  // namespace nibble

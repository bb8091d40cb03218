// Loads a checkpoint for running it.
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

// Converts settings to options. Errors of kind usage: unknown words.
Result<ModelOptions> model_options(const ModelSettings& settings);
Json to_json(const ModelSettings& settings);  // returns the settings that affect results

Result<std::unique_ptr<LanguageModel>> load_model(std::shared_ptr<const Checkpoint> checkpoint,
                                                  const ModelOptions& options, const DeviceChoice& device,
                                                  ThreadPool& pool);

// Movable; the objects it points to keep their addresses.
struct LoadedModel {
    std::filesystem::path path;
    std::shared_ptr<const Checkpoint> checkpoint;
    std::shared_ptr<LanguageModel> model;

    // Opens and loads a checkpoint. prediction: with its layers for multi-token prediction (error: it has none).
    // most_tokens: the longest sequence, 0: the model's context. Notes about checkpoint and model go to hooks.note.
    // Errors: those of Checkpoint::open() and load_model().
    static Result<LoadedModel> open(const std::filesystem::path& path, const ModelSettings& settings, ThreadPool& pool,
                                    const JobHooks& hooks, bool prediction = false, int64_t most_tokens = 0);
};

// Returns generation_config.json next to the weights, or that of a GGUF file; an empty object if there is none.
Result<Json> generation_config(const Checkpoint& checkpoint);

// Returns the tokens that end an answer: those of the config, of generation_config.json, and the tokenizer's eos_token.
Result<std::vector<int32_t>> end_tokens(const LoadedModel& loaded, const ModelText& text);
Result<std::vector<int32_t>> end_tokens(const ModelConfig& model, const Checkpoint& checkpoint, const ModelText& text);

// Names of a checkpoint. name_of(): the last component of the path. fingerprint(): a hash of tensor names, shapes and
// sizes, of the files' sizes and modification times, and of `settings`, for caches.
std::string name_of(const std::filesystem::path& path);
Result<std::string> fingerprint(const Checkpoint& checkpoint, const ModelSettings& settings);

}  // namespace nibble

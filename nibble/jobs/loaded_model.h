// A checkpoint that is loaded to run, and the settings that decide how it computes.
#pragma once

#include "base/json.h"
#include "base/progress.h"
#include "chat/model_text.h"
#include "model/cpu/model.h"
#include "tensor/device.h"

#include <memory>
#include <string>
#include <vector>

namespace nibble {

// Words as the command line has them.
struct ModelSettings {
    std::string compute = "bf16";  // rounding between operators: bf16, or f32 for none
    std::string kv;  // KV cache: bf16, fp8, fp8_cast, fp8_page, nvfp4, nvfp4_cast; empty: the checkpoint's
    std::string ssm_state = "f32";  // Mamba-2 states between tokens: f32, bf16, fp16, fp16_stochastic
    std::string kernels;            // CPU kernels: avx512, avx2, amx, ref; empty: the fastest
    std::string sums = "lanes";     // order of sums in products: lanes, tiles
    std::string device = "cpu";     // cpu, cuda, cuda:N
    int threads = 0;                // 0: one per core
    bool weights_only = false;      // inputs of products stay unquantized
};
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

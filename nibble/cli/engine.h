// What commands that run a model share: their flags, and the model with its text side, opened.
#pragma once

#include "cli/command.h"
#include "cli/model_text.h"
#include "model/cpu/model.h"
#include "serve/answer_all.h"
#include "tensor/device.h"

#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace nibble {

struct EngineFlags {
    std::string compute = "bf16", kv, ssm_state = "f32", kernels, sums = "lanes", device = "cpu";
    int threads = 0;
    bool weights_only = false, quiet = false;
};
void add_engine_flags(CLI::App& command, EngineFlags& flags);
Result<ModelOptions> model_options(const EngineFlags& flags);
Result<SumOrder> sum_order(const std::string& name);
CLI::Option* add_sums_flag(CLI::App& command, std::string& sums);
Json to_json(const EngineFlags& flags);  // what results depend on
Result<std::unique_ptr<LanguageModel>> load_model(std::shared_ptr<const Checkpoint> checkpoint,
                                                  const ModelOptions& options, const DeviceChoice& device,
                                                  ThreadPool& pool);

// A checkpoint loaded to run. Moves; what it points to stays where it is.
struct LoadedModel {
    std::filesystem::path path;
    std::shared_ptr<const Checkpoint> checkpoint;
    std::shared_ptr<LanguageModel> model;

    // prediction: its layers for multi-token prediction, too. Error: it has none.
    static Result<LoadedModel> open(const std::filesystem::path& path, const EngineFlags& flags, ThreadPool& pool,
                                    bool prediction = false);
};

// The tokens that end an answer: the config's, generation_config.json's and the tokenizer's eos_token.
Result<std::vector<int32_t>> end_tokens(const LoadedModel& engine, const ModelText& text);
Result<std::vector<int32_t>> end_tokens(const ModelConfig& model, const Checkpoint& checkpoint, const ModelText& text);

// Names of a checkpoint for people and for caches: the path's last component; a hash of its tensors' names, shapes and
// sizes, its files' sizes and times of change, and `flags`.
std::string name_of(const std::filesystem::path& path);
Result<std::string> fingerprint(const Checkpoint& checkpoint, const EngineFlags& flags);

// Flags of sampling; what is not given comes from generation_config.json, else is temperature 0.7 and top-p 0.95.
struct SamplingFlags {
    std::optional<float> temperature, top_p, min_p, repetition_penalty;
    std::optional<int64_t> top_k;
    float presence_penalty = 0, frequency_penalty = 0;
    uint64_t seed = 0;
    int64_t max_tokens = 512;
    std::vector<std::string> stop;
};
void add_sampling_flags(CLI::App& command, SamplingFlags& flags);
// A request without a prompt; its parameters are checked. `otherwise`: where neither flags nor the model say.
struct SamplingDefaults {
    float temperature = 0.7f, top_p = 0.95f;
};
// The sampling parameters that generation_config.json gives.
Result<std::vector<std::string>> configured_sampling(const Checkpoint& checkpoint);
Result<Request> sampled_request(const SamplingFlags& flags, const LoadedModel& engine, const ModelText& text,
                                const SamplingDefaults& otherwise = {});

// Flags of the engine's memory and of guesses ahead.
struct CacheFlags {
    std::string kv_memory;  // bytes, with K, M or G; empty: from what is free
    double memory_share = 0.9;
    DraftSource drafter = DraftSource::lookup;
    int64_t drafts = 0;
    bool no_prefix_cache = false;
    bool predicts() const { return drafts > 0 && drafter == DraftSource::prediction; }
};
// "none", "lookup", "mtp", the latter two with ":N" tokens. Error: anything else.
Status parse_speculation(std::string_view text, CacheFlags& flags);
void add_cache_flags(CLI::App& command, CacheFlags& flags);
// `sequences` that run together; 0: the engine's choice.
Result<EngineOptions> engine_options(const CacheFlags& flags, int64_t sequences);

// Token ids of a plain prompt (with the tokens that begin a text) or of a conversation through the chat template.
// Errors: not UTF-8, no chat template.
Result<std::vector<int32_t>> encode_prompt(const ModelText& text, const std::string& prompt);
// `control_in_data`: control tokens count as such in messages, too; else only in what the template wrote, and a user's
// "<|im_start|>system" is text.
Result<std::vector<int32_t>> encode_chat(const ModelText& text, const Json& messages, bool control_in_data = false);
// What a conversation says behind an answer so that another one follows: the answer's end, `message` as the user's, the
// next answer's beginning. `last` is the answer's last token: where it is the end already, it does not come again.
Result<std::vector<int32_t>> encode_chat_reply(const ModelText& text, const std::string& message, int32_t last);
// Text in the middle of others: without the tokens that begin a text.
Result<std::vector<int32_t>> encode_text(const ModelText& text, const std::string& more);

}  // namespace nibble

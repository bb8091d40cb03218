// How a model's tokens are drawn, and the memory and guesses of the engine that runs it.
#pragma once

#include "jobs/loaded_model.h"
#include "serve/engine.h"

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace nibble {

// A parameter that is not given comes from generation_config.json, otherwise from SamplingDefaults.
struct SamplingSettings {
    std::optional<float> temperature, top_p, min_p, repetition_penalty;
    std::optional<int64_t> top_k;
    float presence_penalty = 0, frequency_penalty = 0;
    uint64_t seed = 0;
    int64_t max_tokens = 512;
    std::vector<std::string> stop;
};
struct SamplingDefaults {
    float temperature = 0.7f, top_p = 0.95f;
};
// The names of the sampling parameters that generation_config.json gives.
Result<std::vector<std::string>> configured_sampling(const Checkpoint& checkpoint);
// A request without a prompt; its parameters are checked.
Result<Request> sampled_request(const SamplingSettings& settings, const LoadedModel& loaded, const ModelText& text,
                                const SamplingDefaults& otherwise = {});

struct CacheSettings {
    std::string kv_memory;  // bytes as parse_size() reads them; empty: a share of the free memory
    double memory_share = 0.9;
    DraftSource drafter = DraftSource::lookup;
    int64_t drafts = 0;  // tokens guessed ahead
    bool no_prefix_cache = false;
    bool predicts() const { return drafts > 0 && drafter == DraftSource::prediction; }
};
// "none", "lookup", "mtp", the latter two with ":N" tokens. Error: anything else.
Status parse_speculation(std::string_view text, CacheSettings& settings);
// `sequences` that run together; 0: the engine's choice.
Result<EngineOptions> engine_options(const CacheSettings& settings, int64_t sequences);

}  // namespace nibble

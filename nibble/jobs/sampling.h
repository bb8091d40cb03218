// Converts sampling and engine settings to values.
#pragma once

#include "engine/engine.h"
#include "jobs/loaded_model.h"
#include "nibble/sampling.h"

#include <string>
#include <string_view>
#include <vector>

namespace nibble {

// Used for parameters that neither the settings nor the model define.
struct SamplingDefaults {
    float temperature = 0.7f, top_p = 0.95f;
};
// Returns the names of the sampling parameters in generation_config.json.
Result<std::vector<std::string>> configured_sampling(const Checkpoint& checkpoint);
// Returns a request without a prompt, with checked parameters. Error: a parameter out of range.
Result<Request> sampled_request(const SamplingSettings& settings, const LoadedModel& loaded, const ModelText& text,
                                const SamplingDefaults& otherwise = {});

// The value of CacheSettings::speculate.
struct Speculation {
    DraftSource drafter = DraftSource::lookup;
    int64_t drafts = 0;  // most draft tokens; 0: none
    bool predicts() const { return drafts > 0 && drafter == DraftSource::prediction; }
};
Result<Speculation> parse_speculation(std::string_view word);

// Returns the engine's options. sequences: answers that run together; 0: the engine's default. Error of kind usage: a
// bad size or word.
Result<EngineOptions> engine_options(const CacheSettings& settings, int64_t sequences);

}  // namespace nibble

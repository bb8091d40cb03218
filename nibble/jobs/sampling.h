// From settings of sampling and of the engine to its values.
#pragma once

#include "jobs/loaded_model.h"
#include "nibble/sampling.h"
#include "serve/engine.h"

#include <string>
#include <string_view>
#include <vector>

namespace nibble {

// For parameters that neither the settings nor the model give.
struct SamplingDefaults {
    float temperature = 0.7f, top_p = 0.95f;
};
// The names of the sampling parameters that generation_config.json gives.
Result<std::vector<std::string>> configured_sampling(const Checkpoint& checkpoint);
// A request without a prompt; its parameters are checked.
Result<Request> sampled_request(const SamplingSettings& settings, const LoadedModel& loaded, const ModelText& text,
                                const SamplingDefaults& otherwise = {});

// CacheSettings::speculate as a value.
struct Speculation {
    DraftSource drafter = DraftSource::lookup;
    int64_t drafts = 0;  // 0: none
    bool predicts() const { return drafts > 0 && drafter == DraftSource::prediction; }
};
Result<Speculation> parse_speculation(std::string_view word);

// `sequences` that run together; 0: the engine's choice.
Result<EngineOptions> engine_options(const CacheSettings& settings, int64_t sequences);

}  // namespace nibble

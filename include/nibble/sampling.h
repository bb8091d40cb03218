// Settings of sampling, and of the memory and drafts of the engine.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace nibble {

// Sampling settings. A parameter without a value comes from generation_config.json, else temperature is 0.7 and top-p
// 0.95 (for requests to a server: 1 and 1).
struct SamplingSettings {
    std::optional<float> temperature, top_p, min_p, repetition_penalty;
    std::optional<int64_t> top_k;
    float presence_penalty = 0, frequency_penalty = 0;
    uint64_t seed = 0;
    int64_t max_tokens = 512;
    std::vector<std::string> stop;
};

// Memory and drafts of the engine. None of these settings changes a bit of an answer.
struct CacheSettings {
    std::string kv_memory;      // bytes for keys, values and states: "512M", "4GB", "1024"; empty: a share of the free
                                // memory
    double memory_share = 0.9;  // share of the device's free memory; for a model on the host, of a third of the host's
    std::string speculate = "none";  // source of draft tokens: none, lookup[:N] (the text so far), mtp[:N] (layers for
                                     // multi-token prediction); N: most draft tokens. Does not change the answer
    bool no_prefix_cache = false;    // do not reuse the computation of shared prompt prefixes
};

}  // namespace nibble

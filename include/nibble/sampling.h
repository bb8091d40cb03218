// How tokens are drawn, and the memory and guesses of the engine that runs a model.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace nibble {

// A parameter that is not given comes from generation_config.json, otherwise it is
// temperature 0.7 and top-p 0.95 (1 and 1 for requests to a server).
struct SamplingSettings {
    std::optional<float> temperature, top_p, min_p, repetition_penalty;
    std::optional<int64_t> top_k;
    float presence_penalty = 0, frequency_penalty = 0;
    uint64_t seed = 0;
    int64_t max_tokens = 512;
    std::vector<std::string> stop;
};

struct CacheSettings {
    std::string kv_memory;      // for keys, values and states: "512M", "4GB", bytes; empty: a share of the free memory
    double memory_share = 0.9;  // of the device's free memory; of a host, where the model runs there, a third of it
    std::string speculate = "none";  // tokens guessed ahead: none, lookup[:N] (in the text so far), mtp[:N] (by layers
                                     // for multi-token prediction); the answer is the same
    bool no_prefix_cache = false;    // compute equal beginnings of prompts again
};

}  // namespace nibble

// Maps the name of a golden file's configuration to a recipe of nibble.
#pragma once

#include <algorithm>
#include <cctype>
#include <optional>
#include <string>

namespace nibble::test {

struct GoldenPreset {
    std::string recipe, kv;
};

// Returns {"nvfp4", "fp8"} for "NVFP4_DEFAULT_CFG+FP8_KV_CFG"; no value: the weights depend on activations.
inline std::optional<GoldenPreset> golden_preset(std::string config) {
    GoldenPreset preset;
    if (const size_t plus = config.find('+'); plus != std::string::npos) {
        if (config.substr(plus) != "+FP8_KV_CFG") return std::nullopt;
        preset.kv = "fp8";
        config.resize(plus);
    }
    if (config == "NVFP4_4O6") {
        preset.recipe = "huggingface/models/nvidia/NVIDIA-Nemotron-3-Ultra-550B-A55B-BF16/ptq/nvfp4-4o6";
        return preset;
    }
    if (config.ends_with("_GPTQ") || config.ends_with("_LOCAL_HESSIAN")) return std::nullopt;
    config = config.substr(0, config.size() - 4);
    if (config.ends_with("_DEFAULT")) config.resize(config.size() - 8);
    std::transform(config.begin(), config.end(), config.begin(), [](unsigned char c) { return std::tolower(c); });
    preset.recipe = config;
    return preset;
}

}  // namespace nibble::test

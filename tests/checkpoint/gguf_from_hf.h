// Makes GGUF files from Hugging Face tensors as llama.cpp's converters do: the inverse of the tested code, with
// permutations written as reshape and transpose.
#pragma once

#include "base/json.h"
#include "io/gguf_writer.h"

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

namespace nibble::test {

struct HfTensor {
    std::string name;
    std::vector<int64_t> shape;
    std::vector<float> values;  // BF16 or FP32 numbers
};

struct HfModel {
    Json config;
    std::vector<HfTensor> tensors;
};

// Reads a folder with config.json and model.safetensors (BF16 and F32 tensors).
HfModel read_hf_model(const std::filesystem::path& folder);

// Returns random BF16 weights with the shapes of config.json (llama, gemma3_text).
HfModel random_model(Json config, uint32_t seed);

struct GgufFromHf {
    std::string architecture;
    GgufMetadata metadata;  // the metadata that the converters write for the config; tests may add keys
    std::vector<GgufTensorSpec> specs;
    std::vector<std::vector<std::byte>> data;                          // matrices in BF16, everything else in F32
    std::vector<std::shared_ptr<const std::vector<uint32_t>>> kept{};  // arrays that the metadata refer to

    void add(std::string name, std::vector<int64_t> shape, const std::vector<float>& values);
    void add_array(std::string_view key, std::vector<uint32_t> values);
    void remove(std::string_view name);
    void write(const std::filesystem::path& file) const;
};
GgufFromHf convert_to_gguf(const HfModel& model);

}  // namespace nibble::test

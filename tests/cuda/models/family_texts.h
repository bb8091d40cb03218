// Texts and expected logits of the tiny reference models.
#pragma once

#include "cuda/models/compare.h"
#include "model/family_folders.h"

namespace nibble::bench {

// The families of tests/data/golden/families.tar.gz that run on a GPU.
inline constexpr const char* gpu_families[] = {"cohere2",
                                               "dots1",
                                               "ernie4_5_moe",
                                               "exaone4",
                                               "falcon_h1",
                                               "gemma2",
                                               "gemma4_26b",
                                               "gemma4_31b",
                                               "gemma4_e",
                                               "glm4_moe",
                                               "glm4_moe_lite",
                                               "gpt_oss",
                                               "granite",
                                               "granitemoe",
                                               "granitemoehybrid",
                                               "granitemoeshared",
                                               "hunyuan_v1_dense",
                                               "hunyuan_v1_moe",
                                               "kimi_linear",
                                               "lfm2",
                                               "lfm2_moe",
                                               "llama4_text",
                                               "mimo_v2_flash",
                                               "minimax_m2",
                                               "ministral3",
                                               "mistral4",
                                               "olmo2",
                                               "olmo3",
                                               "phi3",
                                               "phi3_longrope",
                                               "phimoe",
                                               "qwen3_5",
                                               "qwen3_5_moe",
                                               "qwen3_5_text",
                                               "qwen3_next",
                                               "qwen3_vl_moe",
                                               "seed_oss",
                                               "smollm3",
                                               "stablelm",
                                               "starcoder2",
                                               "step3p7"};

// Returns input_ids with the FP32 logits of `exact`, a model on the CPU; at the rows that expect.safetensors lists, the
// logits are those of transformers. Error: the two are more than 2e-5 of the largest logit apart.
Result<Texts> family_texts(const std::filesystem::path& folder, const LanguageModel& exact);

}  // namespace nibble::bench

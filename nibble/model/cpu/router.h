// Chooses the experts of a token and their weights (as in transformers' mixtral, qwen3_moe, deepseek_v3, nemotron_h).
#pragma once

#include "architecture/model_config.h"
#include "base/error.h"

#include <cstdint>
#include <span>

namespace nibble {

// Checks that the counts are consistent. Loaders call it. Error: names the key.
Status check(const MoeConfig& config);

// Routes one token. logits [experts] are replaced by the scores p: softmax (exp_f32; the sum in FP64, ascending) or
// sigmoid. Experts are chosen by p + bias (`bias` may be empty). With groups, the kept_groups groups with the largest
// sum of their two best scores are kept, then the top_k best experts inside them; on a tie the lower index wins.
// experts and weights [top_k] are ascending by expert, the order in which outputs are added. weight = p, divided by
// (the sum of the chosen p + smallest_sum) when `normalize` is set, times routed_scaling.
// sparse_mixer: the logits stay, the weights are those of MoeConfig::Router, times routed_scaling.
void route(const MoeConfig& config, std::span<float> logits, std::span<const float> bias, std::span<int32_t> experts,
           std::span<float> weights);

// Weighs the given experts of a token, ascending, as route() does; logits [experts] are replaced by the scores.
void weigh(const MoeConfig& config, std::span<float> logits, std::span<const int32_t> experts,
           std::span<float> weights);

// Computes the gradient of one token's logits. p [experts]: the scores that route() left. d_weights [top_k]: the
// gradients of the weights. Gradients flow through the weights, not through the choice, as in autograd.
void route_backward(const MoeConfig& config, std::span<const float> p, std::span<const int32_t> experts,
                    std::span<const float> d_weights, std::span<float> d_logits);

}  // namespace nibble

// Which experts a token goes to, and with what weight (reference/serving.md 6.1, transformers' mixtral, qwen3_moe,
// deepseek_v3, nemotron_h).
#pragma once

#include "architecture/model_config.h"
#include "base/error.h"

#include <cstdint>
#include <span>

namespace nibble {

// Counts that fit together; called where a model is loaded.
Status check(const MoeConfig& config);

// One token. logits [experts] become the scores p: softmax (exp_f32; the sum in FP64, ascending) or sigmoid.
// Choice: by p + bias (`bias` may be empty). With groups, first the kept_groups groups with the largest sum of their
// two best, then the top_k best inside them; on a tie the lower index. experts and weights [top_k], ascending by
// expert: the order in which a token's experts are added. weight = p, divided by the sum of the chosen + 1e-20 when
// `normalize`, times routed_scaling.
void route(const MoeConfig& config, std::span<float> logits, std::span<const float> bias, std::span<int32_t> experts,
           std::span<float> weights);

// The gradient with respect to the logits, of one token: p the scores that `route` left, d_weights [top_k] the
// gradients of the weights. As autograd has it: through the weights, not through the choice.
void route_backward(const MoeConfig& config, std::span<const float> p, std::span<const int32_t> experts,
                    std::span<const float> d_weights, std::span<float> d_logits);

}  // namespace nibble

// The routing of a mixture of experts on a GPU; its products are in operand_matmul_cuda.h and w4a16_matmul_cuda.h.
//
// The choice equals model/cpu/router.h for the same logits (ties: the lower index). A token's experts are in ascending
// order and their outputs are added in that order, so results do not depend on the batch or on the order of arrival.
// Pointers are device pointers. Functions queue work and return at once.
#pragma once

#include "kernels/elementwise_cuda.h"

namespace nibble::cuda {

struct RouterConfig {
    int experts = 0, top_k = 0;  // at most 1024 and 32
    int groups = 1, kept_groups = 1;
    bool sigmoid = false;  // else softmax
    bool round = false;    // rounds logits to BF16 first (softmax routers in a BF16 model)
    bool normalize = true;
    float smallest_sum = 1e-20f;  // added to the sum by which `normalize` divides
    float scaling = 1.0f;
    // The router of MoeConfig::Router::sparse_mixer, with its jitter; neither groups nor bias. Not for a choice inside
    // a product kernel.
    bool sparse_mixer = false;
    float jitter = 0.0f;
    const float* expert_scales = nullptr;  // [experts]: factors of the weights; null: none. Only route() reads them
};
struct Routing {
    int32_t* experts = nullptr;  // [tokens, top_k], ascending
    float* weights = nullptr;    // [tokens, top_k]
    int32_t* begin = nullptr;    // [experts + 1]: first sorted slot of each expert
    int32_t* rows = nullptr;     // [tokens * top_k]: token of each sorted slot; slots of an expert are ordered by token
    int32_t* places = nullptr;   // [tokens, top_k]: sorted slot of each (token, expert)
};
// logits [tokens, experts]. bias [experts] changes the choice but not the weights; may be null.
Status route(const RouterConfig& config, const float* logits, const float* bias, int64_t tokens, const Routing& out,
             bool overlap, const Stream& stream);

// out[t] = bf16(sum over the token's experts, ascending, of weight * bf16(y[place])) (FP32: product, then sum); if
// `shared` is given, then bf16(that + bf16(shared[t])); with `shared_gate`, shared[t] is bf16(bf16(shared[t]) *
// sigmoid(bf16(shared_gate[t]))). Without `weighed` all weights are 1. Written to `sum` as FP32 (AddNorm::update) or to
// `rows` as BF16 (the next product's input), whichever is given.
struct CombineExperts {
    int64_t tokens = 0, width = 0;
    int top_k = 0;
    const float* y = nullptr;            // [tokens * top_k, y_stride]
    int64_t y_stride = 0;                // 0: width
    const float* shared = nullptr;       // [tokens, width]
    const float* shared_gate = nullptr;  // [tokens]; null: none
    float* sum = nullptr;                // [tokens, width]
    std::byte* rows = nullptr;           // [tokens, width]
    bool weighed = true;
};
Status combine_experts(const CombineExperts& c, const Routing& routing, bool overlap, const Stream& stream);

// out[place] = bf16(weight * x[token]) for every (token, chosen expert): inputs sorted by expert, for experts whose
// inputs are weighed. x [tokens, width] BF16, width a multiple of 8.
Status weigh_inputs(const std::byte* x, int64_t tokens, int64_t width, int top_k, const Routing& routing,
                    std::byte* out, bool overlap, const Stream& stream);

}  // namespace nibble::cuda

// What a step costs by count, whatever computes it: floating-point operations, and what tensor cores for FP4 would
// change.
#pragma once

#include "model/cpu/model.h"
#include "train/step_products.h"

#include <span>
#include <string>

namespace nibble {

// Floating-point operations of one token forward and back, as MaxText counts: 6 for every weight of a linear that a
// token meets (experts: the chosen ones; the head, not the embedding), and 6 * seq * heads * (k_dim + v_dim) / 2 for
// each attention, which is causal attention at one half. What is computed again counts once.
double train_flops(std::span<const Block> blocks, const Head& head, int64_t seq);

// The share of a step's tokens that meet a linear of the block: of routed experts top_k / experts, else 1.
double token_share(const BlockConfig& block, const std::string& linear);

// Products of two FP4 operands, and the FP4 operands of all products, each counted once a step.
struct Fp4Savings {
    double share = 0;       // of the floating-point operations of a step
    double time = 1;        // of them all, in BF16's time, where FP4 products take a quarter of it
    double bytes = 0;       // of a step's FP4 operands: 4 bits, and 8 of a scale for every 16
    double bf16_bytes = 0;  // of the same in BF16

    // "a step on FP4 tensor cores: ...", or empty where there are no FP4 operands.
    std::string text() const;
};
// `flops`: train_flops(), of a token. tokens: of a step.
Fp4Savings fp4_savings(std::span<const UnitLine> table, double flops, int64_t tokens);

}  // namespace nibble

// Counts the floating-point operations of a step and estimates the gain of FP4 tensor cores, independent of the device.
#pragma once

#include "model/cpu/model.h"
#include "train/step_products.h"

#include <span>
#include <string>

namespace nibble {

// Returns the floating-point operations of one token, forward and backward, counted like MaxText: 6 per weight of a
// linear that a token uses (experts: the selected ones; the head, not the embedding), and 6 * seq * heads * (k_dim +
// v_dim) / 2 per attention, where causal attention counts one half. Recomputation is not counted.
double train_flops(std::span<const Block> blocks, const Head& head, int64_t seq);

// Returns the share of tokens that use a linear of the block: top_k / experts for routed experts, else 1.
double token_share(const BlockConfig& block, const std::string& linear);

// Effect of FP4 on a step: products of two FP4 operands, and the FP4 operands of all products, each counted once.
struct Fp4Savings {
    double share = 0;       // share of the step's floating-point operations
    double time = 1;        // time of all of them, relative to BF16, if FP4 products take a quarter of the time
    double bytes = 0;       // bytes of the FP4 operands: 4 bits per value and 8 bits of scale per 16 values
    double bf16_bytes = 0;  // bytes of the same operands in BF16

    // "a step on FP4 tensor cores: ...", or empty if there are no FP4 operands.
    std::string text() const;
};
// `flops`: train_flops(), per token. tokens: per step.
Fp4Savings fp4_savings(std::span<const UnitLine> table, double flops, int64_t tokens);

}  // namespace nibble

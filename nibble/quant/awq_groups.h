// Finds the groups to which AWQ can be applied: linears that read the same values, and the tensor that produces these
// values and can absorb the inverse of the scale without additional operations.
//
//   producer            readers
//   norm weight         q/k/v; gate/up; router, shared and routed experts; in_proj; MLA's a and b projections; out_proj
//                       of Mamba-2 (its gated norm)
//   rows of up_proj     down_proj of a gated MLP or expert: act(gate(x)) * up(x) is linear in up(x)
//   rows of v_proj      o_proj; query heads that share a key head share the scales of its channels
//   rows of fc1_latent  experts in a latent space
//
// Other linears (down_proj of relu^2 without a gate, MLA's o_proj, fc2_latent_proj, lm_head) stay unscaled and are
// listed.
#pragma once

#include "architecture/model_config.h"
#include "checkpoint/checkpoint.h"
#include "quant/plan.h"

#include <string>
#include <vector>

namespace nibble {

struct AwqGroup {
    size_t block = 0;
    std::vector<size_t> readers;   // plan entries: all matrices whose columns are multiplied
    std::vector<size_t> members;   // the readers in nvfp4 or int4, for which the scale is searched
    size_t producer = 0;           // plan entry that is divided: a norm's weight, or the rows of a linear
    std::optional<size_t> bias;    // plan entry of the producer's bias
    bool norm = false;             // the producer is a norm
    std::vector<int32_t> classes;  // [columns] channel of the producer that each column reads; empty: column i reads
                                   // channel i
    std::vector<std::string> watched;  // modules whose inputs are the scaled values
    // One of the changed tensors stays unquantized or is rounded to its dtype. Scales are then powers of two, which
    // change no value's mantissa.
    bool powers_of_two = false;
};

struct AwqPlan {
    std::vector<AwqGroup> groups;       // ordered by block
    std::vector<std::string> unscaled;  // linears in nvfp4 or int4 that stay unscaled: one line per reason
};

// Finds the groups of a plan. Error: the plan has no linear in these formats.
Result<AwqPlan> awq_groups(const Plan& plan, const ModelConfig& config, std::span<const CheckpointTensor> tensors);

}  // namespace nibble

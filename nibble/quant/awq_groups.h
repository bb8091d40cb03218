// Where AWQ can act: linears that read the same values, and what makes those values and can take the inverse of a scale
// with nothing but multiplications that the model does anyway.
//
//   norm weight         q/k/v; gate/up; router, shared and routed experts; in_proj; MLA's a and b projections; out_proj
//                       of Mamba-2 (its gated norm)
//   rows of up_proj     down_proj of a gated MLP or expert: act(gate(x)) * up(x) is linear in up(x)
//   rows of v_proj      o_proj; query heads that read one key head share its channels' scales
//   rows of fc1_latent  experts in a latent space
//
// Others (down_proj of relu^2 without a gate, MLA's o_proj, fc2_latent_proj, lm_head) stay as they are and are listed.
#pragma once

#include "architecture/model_config.h"
#include "checkpoint/checkpoint.h"
#include "quant/plan.h"

#include <string>
#include <vector>

namespace nibble {

struct AwqGroup {
    size_t block = 0;
    std::vector<size_t> readers;       // plan entries: all matrices whose columns are multiplied
    std::vector<size_t> members;       // those of them in nvfp4: the scale is searched for their sake
    size_t producer = 0;               // plan entry that is divided: a norm's weight or the rows of a linear
    std::optional<size_t> bias;        // of the producer
    bool norm = false;                 // the producer is one
    std::vector<int32_t> classes;      // [columns] channel of the producer that a column reads; empty: its own
    std::vector<std::string> watched;  // modules whose inputs are the values
    // Something touched stays unquantized, or is rounded to its dtype for good: scales are powers of two, which are
    // exact.
    bool exact = false;
};

struct AwqPlan {
    std::vector<AwqGroup> groups;       // by block
    std::vector<std::string> unscaled;  // why linears in nvfp4 stay as they are, one line per reason
};

// Errors: a plan without linears in nvfp4.
Result<AwqPlan> awq_groups(const Plan& plan, const ModelConfig& config, std::span<const CheckpointTensor> tensors);

}  // namespace nibble

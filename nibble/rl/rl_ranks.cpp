#include "rl/rl_ranks.h"

#include "train/train_rules.h"

#include <bit>

namespace nibble {
namespace {

// Returns true for a recipe in which a quantized layer's bits depend on other rows of the batch.
bool rollouts_see_neighbours(const TrainPrecision& p) {
    return sees_neighbours(
        unit_rules(p, {.layer = p.first_bf16, .layers = p.first_bf16 + p.last_bf16 + 1, .mlp = true}, false));
}

}  // namespace

Status check_rl_ranks(const RlConfig& c, int ranks, bool gpus) {
    if (ranks <= 1) return Ok{};
    if (c.prompts < ranks)
        return fail("grpo.num_prompts_per_step {}: {} ranks need at least as many prompts", c.prompts, ranks);
    const bool apart = c.generation.precision.has_value();
    const TrainPrecision& rollouts = apart ? *c.generation.precision : c.precision;
    if (rollouts_see_neighbours(rollouts))
        return fail(
            "policy.{}precision {}: per-tensor scales; rollouts depend on the other answers of a batch, so {} ranks "
            "would not give the bits of one",
            apart ? "generation." : "", train_precision_name(rollouts), ranks);
    if (gpus && !std::has_single_bit(static_cast<unsigned>(ranks)))
        return fail("{} GPUs: the number must be a power of two to divide rows", ranks);
    return Ok{};
}

}  // namespace nibble

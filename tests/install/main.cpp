// Opens a checkpoint, resolves a recipe for it and prints how many of its tensors the recipe quantizes, and what a text
// is worth to reinforcement learning: through the installed headers and the installed library alone.
#include "checkpoint/checkpoint.h"
#include "quant/resolve.h"
#include "rl/answer_rule.h"

#include <cstdio>

int main(int argc, char** argv) {
    if (argc != 3) return 2;
    const auto checkpoint = nibble::Checkpoint::open(argv[1]);
    if (!checkpoint.ok()) return std::fprintf(stderr, "%s\n", checkpoint.error().message().c_str()), 1;
    const auto recipe = nibble::load_recipe(argv[2]);
    if (!recipe.ok()) return std::fprintf(stderr, "%s\n", recipe.error().message().c_str()), 1;
    const auto plan = nibble::resolve(*recipe, (*checkpoint)->tensors(), (*checkpoint)->config());
    if (!plan.ok()) return std::fprintf(stderr, "%s\n", plan.error().message().c_str()), 1;
    int quantized = 0;
    for (const nibble::PlanEntry& entry : plan->entries) quantized += entry.spec.format != nibble::Format::none;
    const auto reward = nibble::AnswerReward::create({.rule = nibble::AnswerRule::math});
    const auto worth = reward.ok() ? (*reward)("so it is \\boxed{42}", "42") : nibble::Result<double>(reward.error());
    if (!worth.ok()) return std::fprintf(stderr, "%s\n", worth.error().message().c_str()), 1;
    std::printf("%d of %zu tensors, reward %g\n", quantized, plan->entries.size(), *worth);
    return quantized > 0 ? 0 : 1;
}

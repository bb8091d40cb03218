#include "rl/rl_host_plan.h"

#include "base/checked.h"
#include "kernels/attention.h"
#include "rl/policy_trainer.h"

#include <algorithm>

namespace nibble {
namespace {

constexpr int64_t step_rows = 512;         // rows of an engine step on a CPU (EngineOptions::step_rows)
constexpr double engine_share = 0.9 / 3;   // share of free memory for keys and values (EngineOptions::memory_share)
constexpr int64_t state_copies_share = 4;  // sequences per copy of recurrent states for the prefix cache

Result<std::vector<StateLayout>> state_layouts(const RlConfig& c, const Checkpoint& model, ThreadPool& pool) {
    const TrainPrecision& p = c.generation.precision.value_or(c.precision);
    WeightOptions like{.compute = p.recipe == TrainRecipe::fp32 ? Compute::f32 : Compute::bf16, .kv = KvFormat::none};
    // Pages under a checkpoint's scales have the same size.
    if (c.generation.cache.format != KvFormat::none) like.kv = KvFormat::fp8_page;
    NIBBLE_TRY(const ModelConfig config, model_config(model));
    NIBBLE_TRY(const ModelParts parts, load_parts(config, model, like, pool, WeightSource::Mode::outline));
    std::vector<StateLayout> layouts;
    for (const Block& block : parts.blocks) layouts.push_back(block.state());
    return layouts;
}

}  // namespace

Result<TrainMemoryPlan> plan_rl_memory(const RlConfig& c, const Checkpoint& model, int ranks, bool saves,
                                       int64_t available, ThreadPool& pool) {
    const int64_t answers = c.prompts * c.generations, of_update = c.train_batch > 0 ? c.train_batch : answers;
    const int64_t rows = most_rollout_rows(of_update, c.length, c.row_tokens);
    const int64_t sequences = std::min(host_rollouts, c.batch_prompts() * c.generations);
    TrainConfig like;
    like.precision = c.precision, like.optimizer = c.optimizer;
    const HostRun run{.rows = (rows + ranks - 1) / ranks,
                      .seq = std::max(c.length, c.row_tokens),
                      .saves = saves,
                      .ranks = ranks,
                      .rollouts = std::min(step_rows, sequences * c.length)};
    NIBBLE_TRY(TrainMemoryPlan plan, plan_host_memory(like, model, run, pool));
    int64_t elements = 0;
    for (const CheckpointTensor& t : model.tensors()) elements += t.rows() * t.cols();
    const auto add = [&](const char* name, int64_t bytes) {
        // before the last item, the program itself
        if (bytes > 0) plan.items.insert(plan.items.end() - 1, {name, bytes});
    };
    if (c.loss.kl_penalty > 0) {  // masters, published weights, and operands of the reference
        NIBBLE_TRY(const int64_t packed, plan_forward_weights(c.precision, model, pool));
        add("reference", (4 + (c.precision.recipe == TrainRecipe::fp32 ? 4 : 2)) * elements + packed);
    }
    if (c.generation.precision) {
        NIBBLE_TRY(const int64_t packed, plan_forward_weights(*c.generation.precision, model, pool));
        add("weights of rollouts", packed);
    }
    NIBBLE_TRY(const ModelConfig config, model_config(model));
    add("logits of rollouts", 4 * sequences * config.vocab);
    NIBBLE_TRY(const auto layouts, state_layouts(c, model, pool));
    const int64_t whole = round_up(c.length, kv_page_tokens);
    int64_t cache = pool_bytes(layouts, sequences * whole, sequences + sequences / state_copies_share);
    if (available >= 0) cache = std::min(cache, static_cast<int64_t>(engine_share * static_cast<double>(available)));
    add("rollout caches", cache);
    return plan;
}

}  // namespace nibble

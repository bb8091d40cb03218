// Tests training with several ranks, which gives the bits of one. Most ranks here are threads; the last tests start
// processes.
#include "train/rank_threads.h"
#include "train/small_trainer.h"
#include "train/tiny_families.h"

#include "support/files.h"
#include "train/train_shapes.h"

#include <atomic>
#include <cmath>
#include <thread>

namespace nibble::test {
namespace {

struct Seen {
    std::vector<double> losses, norms;
    std::vector<float> masters, log_probs;
    TrainState state;
    std::string error;
};

struct RanksRun {
    TrainerOptions options;
    Json config = small_llama();
    std::vector<TrainBatch> batches;
    int steps = 3;
};

TrainBatch held_out() { return random_batch(3, 24, 48, 77); }

Status train_rank(const RanksRun& run, RankGroup* group, Seen& seen) {
    ThreadPool pool(1);
    TrainerOptions options = run.options;
    options.ranks = group;
    NIBBLE_TRY(auto parameters, random_start(run.config, DType::bf16, 5, pool));
    NIBBLE_TRY(const auto trainer, options.lora.rank > 0 ? Trainer::create_adapters(parameters, options, pool)
                                                         : Trainer::create(parameters, options, pool));
    trainer->begin(0, run.steps);
    for (int s = 0; s < run.steps; ++s) {
        NIBBLE_TRY(const TrainStep step, trainer->step(run.batches, 0.01));
        seen.losses.push_back(step.loss);
        seen.norms.push_back(step.gradient_norm);
        NIBBLE_CHECK(trainer->sync());
    }
    const TrainBatch other = held_out();
    seen.log_probs.resize(static_cast<size_t>(other.size()));
    NIBBLE_CHECK(trainer->log_probs(other, seen.log_probs));
    if (!group || group->rank() == 0) {
        NIBBLE_TRY(seen.state, trainer->state());
    }
    NIBBLE_CHECK(trainer->sync());
    seen.masters = all_masters(trainer->parameters());
    return Ok{};
}

std::vector<Seen> train_ranks(const RanksRun& run, int size) {
    std::vector<Seen> seen(static_cast<size_t>(size));
    const auto errors = run_ranks(
        size, [&](RankGroup* group, int rank) { return train_rank(run, group, seen[static_cast<size_t>(rank)]); });
    for (size_t r = 0; r < seen.size(); ++r) seen[r].error = errors[r];
    return seen;
}

void expect_same(const RanksRun& run, const std::string& what, const std::vector<int>& sizes = {2, 3, 4}) {
    Seen want;
    const Status alone = train_rank(run, nullptr, want);
    ASSERT_TRUE(alone.ok()) << alone.error().message();
    for (const int size : sizes) {
        const std::vector<Seen> all = train_ranks(run, size);
        for (const Seen& seen : all) {
            ASSERT_EQ(seen.error, "") << what << ", " << size << " ranks";
            EXPECT_EQ(seen.losses, want.losses) << what << ", " << size << " ranks";
            EXPECT_EQ(seen.norms, want.norms) << what << ", " << size << " ranks";
            EXPECT_EQ(seen.masters, want.masters) << what << ", " << size << " ranks";
            EXPECT_EQ(seen.log_probs, want.log_probs) << what << ", " << size << " ranks";
        }
        EXPECT_EQ(all[0].state.m, want.state.m) << what << ", " << size << " ranks";
        EXPECT_EQ(all[0].state.recipe, want.state.recipe) << what << ", " << size << " ranks";
        EXPECT_EQ(all[0].state.v, want.state.v) << what << ", " << size << " ranks";
    }
}

// Covers seven rows, two batches, and fewer rows than ranks.
TEST(TrainRanks, AnyNumberGivesTheBitsOfOne) {
    const TrainBatch all = random_batch(7, 24, 48, 9);
    for (const auto& [name, batches] : {std::pair{"seven rows", std::vector{all}},
                                        {"two batches", std::vector{rows_of(all, 0, 3), rows_of(all, 3, 3)}},
                                        {"two rows", std::vector{rows_of(all, 2, 2)}}})
        expect_same({.batches = batches}, name);
}

TEST(TrainRanks, EveryRecipeGivesTheBitsOfOneRank) {
    for (const char* recipe :
         {"fp32", "fp8", "fp8_delayed", "fp8_block", "mxfp8", "nvfp4", "nvfp4_no_rht", "nvfp4_w4a4"}) {
        RanksRun run{.batches = {random_batch(5, 32, 48, 3)}};
        run.options.precision = *train_precision_from_name(recipe);
        run.config["hidden_size"] = 64;
        if (run.options.precision.recipe == TrainRecipe::fp32) continue;  // random_start() publishes BF16 here
        expect_same(run, recipe);
    }
}

TEST(TrainRanks, MuonAndBf16StatesGiveTheBitsOfOneRank) {
    RanksRun run{.batches = {random_batch(5, 24, 48, 4)}};
    run.options.optimizer.kind = OptimizerKind::muon;
    run.options.optimizer.bf16_states = true;
    expect_same(run, "muon");
}

// Experts without tokens in some rows have no gradient there.
TEST(TrainRanks, ExpertsThatSomeRowsDoNotChooseGiveTheBitsOfOneRank) {
    for (const char* family : {"qwen3_moe", "nemotron_h"}) {
        RanksRun run{.config = tiny(family), .batches = {random_batch(6, 5, 48, 6)}};
        expect_same(run, family);
        run.options.precision = *train_precision_from_name("nvfp4_w4a4");  // experts share the scale of their inputs
        expect_same(run, fmt::format("{} in nvfp4_w4a4", family).c_str());
    }
}

TEST(TrainRanks, AdaptersGiveTheBitsOfOneRank) {
    for (const char* family : {"qwen3", "qwen3_moe", "deepseek_v3", "nemotron_h"}) {
        RanksRun run{.config = tiny(family), .batches = {random_batch(6, 5, 48, 6)}};
        run.options.lora = {.rank = 4, .alpha = 10};
        expect_same(run, family, {2, 4});
    }
}

// Directions are computed from the first 4096 tokens of a step. These must belong to rank 0; otherwise the step is
// refused.
TEST(TrainRanks, DirectionsComeFromTheFirstRows) {
    RanksRun run{.batches = {random_batch(16, 512, 48, 3)}};
    run.options.precision = *train_precision_from_name("nibble_nvfp4_late");
    run.config["hidden_size"] = 64;
    run.config["max_position_embeddings"] = 512;
    expect_same(run, "nibble_nvfp4_late", {2});
    run.batches = {random_batch(4, 24, 48, 3)};
    for (const Seen& seen : train_ranks(run, 2))
        EXPECT_NE(seen.error.find("the first rank has 48 tokens of a step"), std::string::npos) << seen.error;
    for (const bool backward : {false, true}) {  // no directions without a rank-r term, or if the forward pass has none
        run.options.precision = *train_precision_from_name("nibble_nvfp4");
        if (backward)
            run.options.precision.passes = TrainPasses::backward;
        else
            run.options.precision.rank = 0;
        expect_same(run, "nibble_nvfp4 without directions", {2});
    }
}

TEST(TrainRanks, OwnersShareParametersBySize) {
    RankGroup* none = nullptr;
    EXPECT_TRUE(TrainRanks::make(none, std::vector<int64_t>{3, 4}).owns(1));
    const auto said = [] {
        TempDir dir;
        std::vector<std::vector<int>> owners(2);
        std::vector<std::thread> threads;
        for (int r = 0; r < 2; ++r)
            threads.emplace_back([&, r] {
                const auto g = RankGroup::meet({.rank = r, .size = 2, .address = "unix:" + (dir / "m").string()}, {});
                if (g.ok()) owners[size_t(r)] = TrainRanks::make(g->get(), std::vector<int64_t>{1, 5, 4, 2}).owner;
            });
        for (std::thread& t : threads) t.join();
        return owners;
    }();
    EXPECT_EQ(said[0], (std::vector<int>{0, 0, 1, 1}));
    EXPECT_EQ(said[1], said[0]);
}

}  // namespace
}  // namespace nibble::test

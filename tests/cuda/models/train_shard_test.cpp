// Tests training with everything sharded (Sharding::all), which gives the bits of one GPU. Ranks are threads on one GPU
// that exchange bytes by copies. tools/gpu ranks compares whole runs with NCCL, one GPU per rank.
#include "cuda/models/lora_bases.h"
#include "cuda/models/train_same_bits.h"
#include "support/files.h"
#include "train/rank_threads.h"
#include "train/tiny_families.h"
#include "train/train_shapes.h"

#include <gmock/gmock.h>

#include <condition_variable>
#include <map>
#include <mutex>
#include <thread>

namespace nibble::test {
namespace {

using testing::HasSubstr;

// Exchanges bytes between ranks, which all call it in the same order. No rank waits forever for one that has failed.
class Loopback {
public:
    explicit Loopback(int size) : size_(size), sends_(static_cast<size_t>(size)) {}

    DeviceGroup of(int rank) {
        return DeviceGroup::over([this, rank](std::span<const DeviceGroup::Part> send,
                                              std::span<const DeviceGroup::Part> receive,
                                              const Stream& stream) { return exchange(rank, send, receive, stream); });
    }

private:
    Status exchange(int rank, std::span<const DeviceGroup::Part> send, std::span<const DeviceGroup::Part> receive,
                    const Stream& stream) {
        NIBBLE_CHECK(stream.synchronize());
        sends_[static_cast<size_t>(rank)].assign(send.begin(), send.end());
        NIBBLE_CHECK(meet());
        std::vector<size_t> next(static_cast<size_t>(size_));
        for (const DeviceGroup::Part& to : receive) {
            const auto& from = sends_[static_cast<size_t>(to.rank)];
            size_t& i = next[static_cast<size_t>(to.rank)];
            while (i < from.size() && from[i].rank != rank) ++i;
            if (i == from.size() || from[i].bytes != to.bytes)
                return fail("rank {} waits for {} bytes that rank {} does not send", rank, to.bytes, to.rank);
            if (to.bytes > 0) NIBBLE_CHECK(copy_on_device(to.data, from[i].data, to.bytes, stream));
            ++i;
        }
        NIBBLE_CHECK(stream.synchronize());
        return meet();
    }
    Status meet() {
        std::unique_lock lock(mutex_);
        const int64_t round = round_;
        if (++here_ == size_) {
            here_ = 0, ++round_;
            all_.notify_all();
            return Ok{};
        }
        if (!all_.wait_for(lock, std::chrono::seconds(60), [&] { return round_ != round; }))
            return fail("the other ranks do not come");
        return Ok{};
    }

    const int size_;
    std::vector<std::vector<DeviceGroup::Part>> sends_;
    std::mutex mutex_;
    std::condition_variable all_;
    int here_ = 0;
    int64_t round_ = 0;
};

// The model has more blocks than slots (sharded_units.h).
Json sharded_model(int layers = 2) {
    Json model = recipe_model();
    model["num_hidden_layers"] = layers;
    return model;
}

struct ShardedRun {
    TrainPrecision precision;
    Json config = sharded_model();
    std::vector<TrainBatch> batches;
    int64_t micro_batch = 1;
    Recompute recompute = Recompute::automatic;
    TrainOptimizer optimizer;
    std::shared_ptr<const Checkpoint> base;  // base of adapters; null: the model is trained
    bool taught = false;
    int first = 0, steps = 3;
    std::filesystem::path begin;  // a checkpoint; empty: none
};
struct Seen {
    std::vector<double> losses, norms;
    std::vector<bool> skipped;
    std::vector<float> log_probs;
    std::vector<std::byte> state;
    std::string error;
};

Status train_rank(const ShardedRun& run, Sharding sharding, RankGroup* group, Loopback& loopback,
                  const std::filesystem::path& saved, Seen& seen) {
    ThreadPool pool(1);
    NIBBLE_TRY(auto parameters, random_start(run.config, DType::bf16, 7, pool));
    const int64_t seq = run.batches[0].seq;
    DeviceTrainerOptions options{.train = {.precision = run.precision, .optimizer = run.optimizer, .ranks = group},
                                 .device = recipe_device(),
                                 .seq = seq,
                                 .micro_batch = run.micro_batch,
                                 .recompute = run.recompute,
                                 .sharding = sharding};
    for (const TrainBatch& b : run.batches) options.rows += b.size() / b.seq;
    if (group) options.link = [&]() -> Result<DeviceGroup> { return loopback.of(group->rank()); };
    if (run.taught) {
        NIBBLE_TRY(options.teacher, random_start(run.config, DType::bf16, 8, pool));
    }
    if (run.base) options.train.lora = lora_of().lora;
    NIBBLE_TRY(const auto trainer, run.base ? DeviceTrainer::create_adapters(run.base, options, pool)
                                            : DeviceTrainer::create(parameters, options, pool));
    if (!run.begin.empty()) NIBBLE_CHECK(read_state(run.begin, {""}, *trainer));
    for (int s = run.first; s < run.steps; ++s) {
        trainer->begin(s, run.steps);
        NIBBLE_TRY(const TrainStep step, trainer->step(run.batches, 0.003));
        seen.losses.push_back(step.loss);
        seen.norms.push_back(step.gradient_norm);
        seen.skipped.push_back(step.skipped);
        NIBBLE_CHECK(trainer->sync());
    }
    const TrainBatch other = random_batch(4, seq, trainer->config().vocab, 77);
    seen.log_probs.resize(static_cast<size_t>(other.size()));
    NIBBLE_CHECK(trainer->log_probs(other, seen.log_probs));
    if (!group || group->rank() == 0) {
        seen.state = all_state(*trainer);
        if (!saved.empty()) {
            NIBBLE_TRY(auto copy, copy_state(*trainer, {.step = run.steps}));
            NIBBLE_CHECK(write_state(saved, copy));
        }
    }
    return trainer->sync();
}

// size 1: without a group.
std::vector<Seen> train_ranks(const ShardedRun& run, Sharding sharding, int size,
                              const std::filesystem::path& saved = {}) {
    std::vector<Seen> seen(static_cast<size_t>(size));
    Loopback loopback(size);
    const auto errors = run_ranks(size, [&](RankGroup* group, int rank) {
        return train_rank(run, sharding, group, loopback, saved, seen[static_cast<size_t>(rank)]);
    });
    for (size_t r = 0; r < seen.size(); ++r) seen[r].error = errors[r];
    return seen;
}

void expect_same(const ShardedRun& run, const std::string& what, const std::vector<int>& sizes,
                 const std::vector<Seen>& want, Sharding sharding = Sharding::all) {
    ASSERT_EQ(want[0].error, "") << what;
    for (const int size : sizes) {
        const std::vector<Seen> all = train_ranks(run, sharding, size);
        for (const Seen& seen : all) {
            ASSERT_EQ(seen.error, "") << what << ", " << size << " ranks";
            EXPECT_EQ(seen.losses, want[0].losses) << what << ", " << size << " ranks";
            EXPECT_EQ(seen.norms, want[0].norms) << what << ", " << size << " ranks";
            EXPECT_EQ(seen.skipped, want[0].skipped) << what << ", " << size << " ranks";
            EXPECT_TRUE(seen.log_probs == want[0].log_probs) << what << ", " << size << " ranks";
        }
        EXPECT_TRUE(all[0].state == want[0].state) << what << ", " << size << " ranks";
    }
}
void expect_same(const ShardedRun& run, const std::string& what, const std::vector<int>& sizes) {
    expect_same(run, what, sizes, train_ranks(run, Sharding::states, 1));
}

std::vector<TrainBatch> some_rows(int64_t rows, int64_t vocab = recipe_vocab, int64_t seq = recipe_seq) {
    return {random_batch(rows, seq, vocab, 3)};
}

TEST(CudaSharded, AnyNumberOfRanksGivesTheBitsOfOne) {
    expect_same({.batches = some_rows(8)}, "one row at a time", {1, 2, 4});
    expect_same({.batches = some_rows(8), .micro_batch = 2}, "two rows at a time", {1, 2, 4});
    expect_same({.batches = some_rows(8), .recompute = Recompute::block}, "blocks computed again", {1, 2});
    expect_same({.batches = some_rows(6)}, "three turns of two", {2});
    expect_same({.batches = some_rows(3)}, "three ranks, a row each", {3});
}

TEST(CudaSharded, StatesInBf16DrawByPlaceAlone) {
    const ShardedRun run{.batches = some_rows(8), .optimizer = {.bf16_states = true}};
    const std::vector<Seen> want = train_ranks(run, Sharding::states, 1), two = train_ranks(run, Sharding::states, 2);
    expect_same(run, "states in BF16", {1, 2, 4}, want);
    EXPECT_EQ(two[0].error, "");
    EXPECT_TRUE(two[0].state == want[0].state);
}

TEST(CudaSharded, TrainsWithATeacher) { expect_same({.batches = some_rows(4), .taught = true}, "a teacher", {1, 2}); }

// After a skipped step the copies that every step redraws are redrawn too, although their weights are still in place.
TEST(CudaSharded, AgreesAfterASkippedStep) {
    const ShardedRun run{.precision = named("nibble_nvfp4"),
                         .config = sharded_model(1),
                         .batches = some_rows(4),
                         .optimizer = {.skip_above = 0.01, .skip_window = 1},
                         .steps = 4};
    const std::vector<Seen> want = train_ranks(run, Sharding::states, 1);
    EXPECT_EQ(want[0].skipped, (std::vector<bool>{false, true, true, true}));
    expect_same(run, "outliers", {1}, want);
}

TEST(CudaSharded, OtherShardingsAgree) {
    const ShardedRun run{.batches = some_rows(8)};
    const std::vector<Seen> want = train_ranks(run, Sharding::states, 1), two = train_ranks(run, Sharding::states, 2);
    ASSERT_EQ(two[1].error, "");
    EXPECT_EQ(two[0].losses, want[0].losses);
    EXPECT_TRUE(two[0].state == want[0].state);
}

TEST(CudaSharded, InEveryFamily) {
    const Json wide{{"hidden_size", 256},       {"head_dim", 64},           {"num_attention_heads", 4},
                    {"intermediate_size", 384}, {"num_key_value_heads", 2}, {"vocab_size", recipe_vocab}};
    const std::vector<std::pair<const char*, Json>> families{
        {"llama", {{"tie_word_embeddings", false}, {"num_hidden_layers", 1}}},
        {"mistral", Json::object()},
        {"mixtral", {{"num_local_experts", 8}}},
        {"qwen2", {{"num_hidden_layers", 3}}},
        {"qwen3", Json::object()},
        {"qwen3_moe", {{"num_experts", 16}, {"moe_intermediate_size", 136}}},
        {"gemma3_text",
         {{"head_dim", 256}, {"num_attention_heads", 2}, {"num_key_value_heads", 1}, {"query_pre_attn_scalar", 256}}},
        {"nemotron_h",
         {{"hybrid_override_pattern", "M*E-"},
          {"num_hidden_layers", 4},
          {"n_routed_experts", 16},
          {"moe_intermediate_size", 128},
          {"moe_shared_expert_intermediate_size", 320},
          {"mamba_num_heads", 8},
          {"mamba_head_dim", 64},
          {"n_groups", 2},
          {"ssm_state_size", 128}}},
        {"deepseek_v3",
         {{"q_lora_rank", 96},
          {"kv_lora_rank", 64},
          {"qk_nope_head_dim", 128},
          {"qk_rope_head_dim", 64},
          {"v_head_dim", 128},
          {"num_key_value_heads", 4},
          {"n_routed_experts", 16},
          {"n_group", 1},
          {"topk_group", 1},
          {"moe_intermediate_size", 128}}}};
    for (const auto& [family, more] : families) {
        Json config = tiny(family);
        config.update(wide);
        config.update(more);
        if (std::string_view(family) == "deepseek_v3") config.erase("head_dim");
        expect_same({.config = config, .batches = some_rows(4)}, family, {1, 2});
    }
    Json odd = sharded_model(3);
    odd.update({{"intermediate_size", 136}, {"attention_bias", true}});
    expect_same({.config = odd, .batches = some_rows(4)}, "edges of tiles", {1, 2});
}

class CudaShardedRecipe : public testing::TestWithParam<Trained> {};

// Directions are computed from the first 4,096 tokens of a step, which must belong to one rank.
TEST_P(CudaShardedRecipe, HasTheBitsOfOneGpu) {
    const bool many = GetParam().precision.recipe == TrainRecipe::nibble_nvfp4;
    ShardedRun run{.precision = GetParam().precision, .batches = some_rows(4), .steps = 5};
    if (many) {
        run.batches = some_rows(2, recipe_vocab, 4096);
    }
    expect_same(run, GetParam().name, {1, 2});
}

INSTANTIATE_TEST_SUITE_P(All, CudaShardedRecipe, testing::ValuesIn(trained_recipes()),
                         [](const auto& info) { return std::string(info.param.name); });

// Checkpoints do not depend on the sharding.
TEST(CudaSharded, ResumesFromAnyOtherSharding) {
    TempDir dir;
    const ShardedRun first{.precision = named("fp8_delayed"), .batches = some_rows(4), .steps = 2};
    ShardedRun rest = first;
    rest.first = 2, rest.steps = 4;
    const auto file = [&](const std::string& name) { return dir / (name + ".safetensors"); };
    struct Share {
        const char* name;
        Sharding sharding;
        int size;
    };
    const std::vector<Share> shares{{"one", Sharding::states, 1},
                                    {"two", Sharding::states, 2},
                                    {"one all", Sharding::all, 1},
                                    {"two all", Sharding::all, 2},
                                    {"four all", Sharding::all, 4}};
    std::optional<Seen> want;
    for (const Share& from : shares)
        ASSERT_EQ(train_ranks(first, from.sharding, from.size, file(from.name))[0].error, "");
    for (const Share& from : shares)
        for (const Share& to : shares) {
            rest.begin = file(from.name);
            const Seen seen = train_ranks(rest, to.sharding, to.size)[0];
            ASSERT_EQ(seen.error, "") << from.name << " to " << to.name;
            if (!want) want = seen;
            EXPECT_EQ(seen.losses, want->losses) << from.name << " to " << to.name;
            EXPECT_TRUE(seen.state == want->state) << from.name << " to " << to.name;
        }
}

TEST(CudaSharded, TrainsAdapters) {
    ThreadPool pool;
    const std::vector<LoraBase> bases{{"llama", "nvfp4_w4a16"}, {"mixtral", "nvfp4_w4a16", "mixtral"}};
    for (const LoraBase& b : bases) {
        const LoraFolder folder(fmt::format("ranks-{}", b.name));
        ShardedRun run{.batches = some_rows(8), .micro_batch = 2};
        run.base = stored_base(b, folder.path / "base", false, pool);
        ASSERT_TRUE(run.base);
        const auto same = [&](const ShardedRun& of, const std::vector<int>& sizes) {
            expect_same(of, b.name, sizes, train_ranks(of, Sharding::states, 1), Sharding::states);
        };
        same(run, {2, 4});
        ShardedRun narrow = run;
        narrow.optimizer.bf16_states = true;
        same(narrow, {2});
        // A run of two ranks is completed by one.
        const auto saved = folder.path / "two.safetensors";
        ShardedRun begun = run, rest = run;
        begun.steps = 2, rest.first = 2, rest.begin = saved;
        ASSERT_EQ(train_ranks(begun, Sharding::states, 2, saved)[0].error, "");
        const Seen ended = train_ranks(rest, Sharding::states, 1)[0], whole = train_ranks(run, Sharding::states, 1)[0];
        ASSERT_EQ(ended.error, "");
        ASSERT_EQ(whole.error, "");
        EXPECT_TRUE(ended.state == whole.state);
    }
}

// GPU spans lie within the step, and spans of one lane follow each other.
TEST(CudaSharded, AreTraced) {
    ThreadPool pool(1);
    for (const Sharding sharding : {Sharding::states, Sharding::all}) {
        Trace trace;
        auto parameters = random_start(sharded_model(), DType::bf16, 7, pool);
        ASSERT_TRUE(parameters.ok());
        const auto trainer = DeviceTrainer::create(
            *parameters,
            {.train = {.trace = &trace}, .device = recipe_device(), .rows = 2, .seq = recipe_seq, .sharding = sharding},
            pool);
        ASSERT_TRUE(trainer.ok()) << trainer.error().message();
        const std::vector<TrainBatch> batches = some_rows(2);
        for (const bool on : {false, true, true, false}) {
            trace.record(on);
            const TraceSpan span(&trace, "step");
            ASSERT_TRUE((*trainer)->step(batches, 1e-3).ok());
        }
        const Json json = trace.to_json();
        std::map<std::string, int> count;
        std::map<int, double> end;  // end of a lane's last span
        std::vector<std::pair<double, double>> steps;
        for (const Json& event : json["traceEvents"])
            if (event["ph"] == "X" && event["name"] == "step") steps.emplace_back(event["ts"], event["dur"]);
        ASSERT_EQ(steps.size(), 2U);
        std::vector<Json> events;
        for (const Json& event : json["traceEvents"])
            if (event["ph"] == "X" && event["name"] != "step") events.push_back(event);
        std::ranges::sort(events, {}, [](const Json& e) { return e["ts"].get<double>(); });
        for (const Json& event : events) {
            ++count[event["name"]];
            const double begin = event["ts"], length = event["dur"];
            double& last = end[event["tid"]];
            EXPECT_GE(begin, last - 1) << event.dump();  // microseconds
            last = begin + length;
            EXPECT_TRUE(std::ranges::any_of(steps, [&](const auto& s) {
                return begin > s.first - 1000 && begin + length < s.first + s.second + 1000;
            })) << event.dump();
        }
        for (const char* name : {"embedding", "forward 0", "forward 3", "head and loss", "back 3", "back 0",
                                 "embedding back", "sums and norm", "optimizer", "weights for the next step"})
            EXPECT_EQ(count[name], 2) << name;
        for (const char* name : {"gather part 1", "add part 0", "add part 1", "add part 5", "add vectors"})
            EXPECT_EQ(count[name] > 0, sharding == Sharding::all) << name;
    }
}

TEST(CudaSharded, RefusesWhatItCannotDo) {
    ThreadPool pool(1);
    const auto create = [&](const std::function<void(DeviceTrainerOptions&)>& change, const Json& config) {
        auto parameters = random_start(config, DType::bf16, 7, pool);
        EXPECT_TRUE(parameters.ok());
        DeviceTrainerOptions options{
            .device = recipe_device(), .rows = 2, .seq = recipe_seq, .sharding = Sharding::all};
        change(options);
        return DeviceTrainer::create(*parameters, options, pool);
    };
    const auto error = [&](const std::function<void(DeviceTrainerOptions&)>& change,
                           const Json& config = sharded_model()) {
        const auto made = create(change, config);
        EXPECT_FALSE(made.ok());
        return made.ok() ? "" : made.error().message();
    };
    const auto made = create([](DeviceTrainerOptions&) {}, sharded_model());
    ASSERT_TRUE(made.ok()) << made.error().message();
    const auto serving = (*made)->serving();
    ASSERT_FALSE(serving.ok());
    EXPECT_THAT(serving.error().message(), HasSubstr("no GPU has the whole model"));
    EXPECT_THAT(error([](auto& o) { o.reference = true; }), HasSubstr("no GPU has the whole model"));
    EXPECT_THAT(error([](auto& o) { o.generation = named("fp8_block"); }), HasSubstr("no GPU has the whole model"));
    EXPECT_THAT(error([](auto& o) { o.train.optimizer.kind = OptimizerKind::muon; }),
                HasSubstr("parallel.shard: all: Muon needs whole matrices"));
    Json experts = tiny("mixtral");
    experts.update({{"hidden_size", 256},
                    {"head_dim", 64},
                    {"num_attention_heads", 4},
                    {"num_key_value_heads", 2},
                    {"intermediate_size", 384},
                    {"vocab_size", recipe_vocab},
                    {"num_local_experts", 8}});
    EXPECT_THAT(error([](auto& o) { o.train.precision = named("fp8_block"); }, experts),
                HasSubstr("experts under a quantized recipe"));
    EXPECT_THAT(train_ranks({.batches = some_rows(6)}, Sharding::all, 3)[0].error,
                HasSubstr("cannot be divided between 3 ranks"));
}

}  // namespace
}  // namespace nibble::test

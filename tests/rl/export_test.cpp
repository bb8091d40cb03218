// Tests the second export of a run: a reader turns its codes and cache scales into the policy, bit for bit.
#include "checkpoint/convert.h"
#include "rl/policy_export.h"
#include "rl/policy_trainer.h"
#include "rl/token_task.h"
#include "run/deadline.h"
#include "support/files.h"
#include "train/check_forward.h"
#include "train/small_trainer.h"

namespace nibble::test {
namespace {

// Sizes are multiples of 128.
Json tiled_llama() {
    Json config = small_llama();
    config["hidden_size"] = 128;
    config["intermediate_size"] = 256;
    config["num_hidden_layers"] = 2;
    config["head_dim"] = 64;
    return config;
}

RlConfig export_config() {
    RlConfig c{.prompts = 2, .generations = 3, .steps = 2, .length = 40};
    c.optimizer.learning_rate = 3e-3;
    c.loss.kl_penalty = 0;
    c.generation.most_tokens = 16;
    return c;
}

void learn(const RlConfig& config, Trainer& trainer, PolicyTrainerOptions options = {}) {
    TokenTask task(share_of_even_tokens);
    options.end_tokens = {3};
    const auto policy = PolicyTrainer::create(config, trainer, task, std::move(options));
    ASSERT_TRUE(policy.ok()) << policy.error().message();
    for (int s = 0; s < config.steps; ++s) {
        const auto step = (*policy)->step(s);
        ASSERT_TRUE(step.ok()) << step.error().message();
        EXPECT_GT(step->update.gradient_norm, 0);
    }
}

std::shared_ptr<const Checkpoint> written(const Checkpoint& policy, const std::filesystem::path& out,
                                          ThreadPool& pool) {
    const auto report = convert(policy, {.to = policy.dialect(), .out = out}, pool, {});
    EXPECT_TRUE(report.ok()) << report.error().message();
    if (!report.ok()) return nullptr;
    auto read = Checkpoint::open(out);
    EXPECT_TRUE(read.ok()) << read.error().message();
    return read.ok() ? *std::move(read) : nullptr;
}

struct ExportCase {
    const char* precision;
    Format format;
};

class PolicyExport : public testing::TestWithParam<std::tuple<ExportCase, TrainCache>> {};

TEST_P(PolicyExport, AReaderHasTheBitsOfThePolicy) {
    const auto& [c, cache] = GetParam();
    ThreadPool pool(2);
    TempDir dir;
    const TrainPrecision precision = *train_precision_from_name(c.precision);
    const RlConfig config = export_config();
    const auto trainer =
        small_trainer(pool, {.precision = precision, .optimizer = config.optimizer, .cache = cache}, tiled_llama());
    learn(config, *trainer);
    EXPECT_EQ(*policy_codes_format(*trainer, nullptr, config.steps), c.format);
    const auto policy = policy_codes(*trainer, nullptr, config.steps, pool);
    ASSERT_TRUE(policy.ok()) << policy.error().message();
    const auto read = written(**policy, dir / "out", pool);
    ASSERT_TRUE(read);
    EXPECT_EQ(read->kv(), cache.format);
    const auto engine = Model::load(read, {}, pool);
    ASSERT_TRUE(engine.ok()) << engine.error().message();
    const TrainBatch batch = random_batch(3, 80, 48, 2);
    const auto check = check_forward(*trainer, batch, *engine);
    ASSERT_TRUE(check.ok()) << check.error().message();
    for (const ForwardWay& way : check->ways) {
        EXPECT_GT(way.labels, 100);
        EXPECT_EQ(way.mismatches, 0) << way.name << ": " << way.apart;
    }
    // Negative controls: another scale of inputs or of the cache gives another model.
    if (const auto scales = *trainer->recipe().input_scales(); !scales.empty()) {
        auto nudged = scales;
        nudged.back() *= 1.02f;
        ASSERT_TRUE(trainer->recipe().set_input_scales(nudged).ok());
        const auto other = check_forward(*trainer, batch, *engine);
        ASSERT_TRUE(other.ok());
        EXPECT_GT(other->mismatches(), 50);
        ASSERT_TRUE(trainer->recipe().set_input_scales(scales).ok());
    }
    for (size_t side = 0; trainer->cache_scales() && side < trainer->cache_scales()->sides(); ++side) {
        const auto state = trainer->cache_scales()->state();
        auto nudged = state;
        nudged[side] *= 1.02f;
        ASSERT_TRUE(trainer->set_cache_scales(nudged).ok());
        const auto other = check_forward(*trainer, batch, *engine);
        ASSERT_TRUE(other.ok());
        EXPECT_GT(other->mismatches(), 50) << side;
        ASSERT_TRUE(trainer->set_cache_scales(state).ok());
    }
}

INSTANTIATE_TEST_SUITE_P(
    All, PolicyExport,
    testing::Combine(testing::Values(ExportCase{"fp8_block", Format::fp8_block128}, ExportCase{"mxfp8", Format::mxfp8},
                                     ExportCase{"nvfp4_w4a16", Format::nvfp4}, ExportCase{"nvfp4_w4a4", Format::nvfp4}),
                     testing::Values(TrainCache{}, TrainCache{.format = KvFormat::fp8},
                                     TrainCache{.format = KvFormat::fp8, .queries = true})),
    [](const auto& i) {
        const TrainCache& cache = std::get<1>(i.param);
        return fmt::format("{}_{}{}", std::get<0>(i.param).precision, kv_name(cache.format), cache.queries ? "_q" : "");
    });

// Rollouts in FP8 with updates in BF16: the export is the generator.
TEST(GeneratorExport, CodesAreItsOwn) {
    ThreadPool pool(2);
    TempDir dir;
    const RlConfig config = export_config();
    const TrainCache cache{.format = KvFormat::fp8, .mirrored = false};
    const auto parameters = small_parameters(pool, DType::bf16, tiled_llama());
    const auto trainer = Trainer::create(parameters, {.optimizer = config.optimizer, .cache = cache}, pool);
    ASSERT_TRUE(trainer.ok()) << trainer.error().message();
    EXPECT_NE(policy_codes_format(**trainer, nullptr, 2).error().message().find("quantize nothing"), std::string::npos);
    const auto generator =
        GenerationPolicy::create(parameters, **trainer, *train_precision_from_name("fp8_block"), cache, "", pool);
    ASSERT_TRUE(generator.ok()) << generator.error().message();
    learn(config, **trainer,
          {.generator = (*generator)->model(), .renew_generator = [&] { return (*generator)->renew(); }});
    const auto policy = policy_codes(**trainer, generator->get(), config.steps, pool);
    ASSERT_TRUE(policy.ok()) << policy.error().message();
    const auto read = written(**policy, dir / "out", pool);
    ASSERT_TRUE(read);
    const auto engine = Model::load(read, {}, pool);
    ASSERT_TRUE(engine.ok()) << engine.error().message();
    // A trainer whose forward pass is the generator's, with the same weights and scales.
    const auto twin = Trainer::create(
        parameters, {.precision = *train_precision_from_name("fp8_block"), .cache = {.format = KvFormat::fp8}}, pool);
    ASSERT_TRUE(twin.ok()) << twin.error().message();
    ASSERT_TRUE((*twin)->cache_scales()->set_state((*trainer)->cache_scales()->state()).ok());
    ASSERT_TRUE((*twin)->renew().ok());
    const auto check = check_forward(**twin, random_batch(3, 80, 48, 2), *engine);
    ASSERT_TRUE(check.ok()) << check.error().message();
    EXPECT_EQ(check->mismatches(), 0);
}

TEST(RunDeadline, ReadsTimes) {
    const std::pair<const char*, double> good[] = {
        {"00:03:45:00", 13500}, {"1:00:00:00", 86400}, {"03:45:00", 13500}, {"30:00", 1800}, {"5", 5},
        {"0:90", 90},           {"0:0.25", 0.25}};
    for (const auto& [text, seconds] : good) EXPECT_EQ(*seconds_of_limit(text), seconds) << text;
    for (const char* text : {"", ":", "0", "00:00:00:00", "1:", "a", "1:2:3:4:5", "-1", "1e5", "inf", "nan", "1 h"})
        EXPECT_EQ(seconds_of_limit(text).error().message(),
                  fmt::format("'{}' is not a time DD:HH:MM:SS above 0", text));
}

TEST(RunDeadline, EndsBeforeTheStepThatWouldBeLate) {
    using namespace std::chrono_literals;
    const auto start = RunDeadline::Clock::now() - 10s;  // the model was opened meanwhile
    RunDeadline limit(25, start);
    const auto first = start + 10s;
    EXPECT_FALSE(limit.is_due(first + 4s));  // 14 s elapsed, about 4 s per step
    EXPECT_FALSE(limit.is_due(first + 9s));  // 19 s elapsed, 4.5 s per step
    EXPECT_TRUE(limit.is_due(first + 12s));  // 22 s elapsed, 4 s per step
    RunDeadline none(0, start);
    EXPECT_FALSE(none.is_due(first + 1000s));
}

}  // namespace
}  // namespace nibble::test

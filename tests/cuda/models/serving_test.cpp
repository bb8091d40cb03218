// Tests the serving engine on a GPU: random requests under load give the bits of each request alone. A step that is
// launched before the previous step's tokens are known equals the step launched afterwards.
#include "checkpoint/random_checkpoint.h"
#include "engine/random_load.h"
#include "model/device/model.h"
#include "model/made_up_model.h"

#include <cstdlib>
#include <numeric>

namespace nibble::test {
namespace {

struct ServedShape {
    const char* shape;
    const char* format;
    int layers;
    KvFormat kv = KvFormat::none;  // cache format; none is BF16
    bool repeats = true;           // see expect_same_under_load()
};
void PrintTo(const ServedShape& s, std::ostream* out) { *out << s.shape << " " << s.format << " " << kv_name(s.kv); }

class CudaServing : public testing::TestWithParam<ServedShape> {
protected:
    Result<std::unique_ptr<DeviceModel>> load() {
        const char* device = std::getenv("NIBBLE_DEVICE");
        NIBBLE_TRY(const DeviceChoice choice, parse_device(device ? device : "cuda"));
        NIBBLE_TRY(
            std::shared_ptr<const Checkpoint> checkpoint,
            random_checkpoint(
                {.shape = GetParam().shape, .format = GetParam().format, .layers = GetParam().layers, .vocab = 8192}));
        ModelOptions options;
        options.kv = GetParam().kv;
        return DeviceModel::load(std::move(checkpoint), options, choice, pool_);
    }
    ThreadPool pool_;
};

TEST_P(CudaServing, AnswersUnderLoadAreThoseOfEachRequestAlone) {
    const auto model = load();
    ASSERT_TRUE(model.ok()) << model.error().message();
    expect_same_under_load(model->get(), model->get(), 250, false, 0, GetParam().repeats);
    expect_same_under_load(model->get(), model->get(), 250, true);
    expect_same_under_load(model->get(), model->get(), 100, true, 1.5);
}

// Continues greedy texts of several lengths, once with choose() and once with launches that use each other's tokens.
TEST_P(CudaServing, ALaunchWithTokensOfThePreviousLaunchEqualsAStepWithKnownTokens) {
    const auto loaded = load();
    ASSERT_TRUE(loaded.ok()) << loaded.error().message();
    const DeviceModel& model = **loaded;
    constexpr int64_t texts = 9, steps = 70;
    const auto pool = model.make_pool(2 * texts * 256, 2 * texts);
    ASSERT_TRUE(pool.ok()) << pool.error().message();
    std::vector<std::vector<int32_t>> prompts(texts), one(texts), other(texts);
    std::vector<Sequence> first, second;
    for (int64_t t = 0; t < texts; ++t) {
        for (int64_t i = 0; i < 3 + 13 * t; ++i) prompts[size_t(t)].push_back(int32_t((i * 37 + t * 11) % 8000));
        first.push_back((*pool)->sequence());
        second.push_back((*pool)->sequence());
    }
    const auto requests = [&](int64_t step) {
        std::vector<TokenRequest> r;
        for (int64_t t = 0; t < texts; ++t)
            r.push_back({.params = {.temperature = t % 2 == 0 ? 0.0f : 0.9f, .seed = 5},
                         .sequence = uint64_t(t),
                         .position = std::ssize(prompts[size_t(t)]) + step});
        return r;
    };
    std::vector<ChosenToken> chosen(texts);
    const auto segments = [&](std::vector<Sequence>& sequences, std::vector<std::vector<int32_t>>& said, int64_t step) {
        std::vector<Segment> s;
        for (size_t t = 0; t < size_t(texts); ++t) {
            const std::span<const int32_t> tokens =
                step == 0 ? std::span<const int32_t>(prompts[t]) : std::span<const int32_t>(said[t]).last(1);
            s.push_back({&sequences[t], tokens, std::ssize(tokens) - 1});
        }
        return s;
    };
    for (int64_t step = 0; step < steps; ++step) {
        const Status s = model.choose(Batch(segments(first, one, step)), requests(step), chosen);
        ASSERT_TRUE(s.ok()) << s.error().message();
        for (size_t t = 0; t < size_t(texts); ++t) one[t].push_back(chosen[t].id);
    }
    std::vector<int64_t> carried(texts);
    for (int64_t t = 0; t < texts; ++t) carried[size_t(t)] = t;
    std::vector<std::vector<int32_t>> unknown(texts, std::vector<int32_t>{0});
    for (int64_t step = 0; step < steps; ++step) {
        const Status s = model.launch(Batch(segments(second, unknown, step)), requests(step),
                                      step == 0 ? std::span<const int64_t>() : std::span<const int64_t>(carried));
        ASSERT_TRUE(s.ok()) << s.error().message();
        if (step == 0) continue;
        ASSERT_TRUE(model.collect(chosen).ok());
        for (size_t t = 0; t < size_t(texts); ++t) other[t].push_back(chosen[t].id);
        std::vector<float> logits(8192);
        EXPECT_FALSE(model.logits_of(0, logits).ok()) << "they are being overwritten";
        EXPECT_FALSE(model.choose(Batch(segments(second, unknown, 1)), requests(step), chosen).ok());
    }
    ASSERT_TRUE(model.collect(chosen).ok());
    for (size_t t = 0; t < size_t(texts); ++t) other[t].push_back(chosen[t].id);
    EXPECT_EQ(one, other);
    EXPECT_FALSE(model.collect(chosen).ok());
}

// A device model that returns logits, so that the host chooses every token.
class HandsOverLogits : public LanguageModel {
public:
    explicit HandsOverLogits(const DeviceModel& inner) : inner_(inner) {}
    const ModelConfig& config() const override { return inner_.config(); }
    Result<std::unique_ptr<KvPool>> make_pool(int64_t tokens, int64_t sequences) const override {
        return inner_.make_pool(tokens, sequences);
    }
    std::vector<StateLayout> states() const override { return inner_.states(); }
    Result<int64_t> free_bytes(int64_t rows, int64_t wanted) const override { return inner_.free_bytes(rows, wanted); }
    Status forward(const Batch& batch, std::span<float> logits, Observer* observer) const override {
        return inner_.forward(batch, logits, observer);
    }
    Workspace& workspace() const override { return inner_.workspace(); }
    std::string kernels() const override { return inner_.kernels(); }

private:
    const DeviceModel& inner_;
};

// Constrained answers, answers with bad words or penalties, and free ones in one batch: masks and penalties are copied
// to the device while it computes, no row of logits comes to the host, and steps overlap as if all answers were free.
TEST_P(CudaServing, ConstraintsApplyOnTheDeviceAsOnTheHost) {
    const auto model = load();
    ASSERT_TRUE(model.ok()) << model.error().message();
    const HandsOverLogits host(**model);
    std::vector<Request> requests;
    for (int32_t k = 0; k < 48; ++k) {
        Request& r = requests.emplace_back();
        for (int32_t i = 0; i < 20 + 7 * k; ++i) r.prompt.push_back((i % (9 + k) * 131 + 17 * k + 3) % 8000);
        r.max_tokens = 60;
        r.sampling = {.temperature = k % 2 == 0 ? 0.0f : 0.9f, .seed = uint64_t(k)};
        if (k % 5 == 1) r.sampling.top_k = 40, r.sampling.top_p = 0.95f;
        if (k % 7 == 2) r.sampling.repetition_penalty = 1.2f, r.sampling.frequency_penalty = 0.3f;
        if (k % 8 == 3) r.bad_words = {{k}, {17, 20}, {4000 + k}};
        if (k % 8 == 5) r.allowed = {5, 100 * k % 8192, 8191, 4000 + k};
        if (k % 6 == 4) r.eos = {int32_t(k * 100)}, r.min_tokens = 20;
        if (k % 3 != 0)
            r.constraint = std::make_shared<ToyConstraint>(
                ToyLanguage{.vocab = 8192, .seed = uint32_t(k), .share = k % 4 == 1 ? 4000 : 2 + k, .length = 30 + k});
        if (r.constraint) r.bad_words.clear(), r.allowed.clear();
    }
    for (const int64_t drafts : {0, 3}) {
        const EngineOptions options{.sequences = 32, .step_rows = 512, .kv_memory = int64_t{1} << 30, .drafts = drafts};
        const auto on_device = make_engine(**model, options), on_host = make_engine(host, options);
        const auto got = run_all(*on_device, requests), want = run_all(*on_host, requests);
        for (size_t i = 0; i < requests.size(); ++i) {
            EXPECT_EQ(got[i].choices, want[i].choices) << i << " with drafts of " << drafts << got[i].error;
            EXPECT_NE(got[i].choices[0].finish, FinishReason::error) << got[i].error;
        }
        const EngineStats s = on_device->stats();
        EXPECT_GT(s.deferred_rows, 1000);
        EXPECT_LT(s.host_rows, s.deferred_rows / 50);  // bins that are too full; see sampling_cuda.h
        EXPECT_GT(drafts > 0 ? s.draft_tokens : s.overlapped_steps - s.steps * 3 / 4, 0);
        EXPECT_EQ(on_host->stats().deferred_rows, 0);
    }
}

// Drafts of prediction layers on a GPU: the answers equal those without drafts. Small models whose layers predict well
// give the CPU's drafts.
class CudaPrediction : public testing::TestWithParam<bool> {
protected:
    Result<std::unique_ptr<DeviceModel>> load(std::shared_ptr<const Checkpoint> checkpoint) {
        const char* device = std::getenv("NIBBLE_DEVICE");
        NIBBLE_TRY(const DeviceChoice choice, parse_device(device ? device : "cuda"));
        ModelOptions options;
        options.prediction = true;
        return DeviceModel::load(std::move(checkpoint), options, choice, pool_);
    }
    static Json config() { return GetParam() ? predicting_nemotron() : predicting_deepseek(); }
    ThreadPool pool_;
};

TEST_P(CudaPrediction, AnswersUnderLoadAreThoseOfEachRequestAlone) {
    const auto model = load(agreeing_model(config(), 0.15f));
    ASSERT_TRUE(model.ok()) << model.error().message();
    expect_same_under_load(model->get(), model->get(), 250, false);
}

TEST_P(CudaPrediction, AcceptedDraftTokensAreCountedByPosition) {
    const auto model = load(agreeing_model(config(), 0.0f));
    ASSERT_TRUE(model.ok()) << model.error().message();
    for (const int64_t drafts : {1, 3, 7}) {
        std::vector<Request> requests;
        for (int32_t k = 0; k < 5; ++k) {
            Request& r = requests.emplace_back();
            for (int32_t i = 0; i < 60 + 31 * k; ++i) r.prompt.push_back((i * 31 + 7 * k + 3) % 256);
            r.max_tokens = 1 + 6 * (drafts + 1);
            r.sampling.temperature = 0;
        }
        const auto engine = make_engine(
            **model, {.sequences = 8, .step_rows = 48, .drafts = drafts, .drafter = DraftSource::prediction});
        const auto heard = run_all(*engine, requests);
        for (size_t i = 0; i < requests.size(); ++i)
            EXPECT_EQ(heard[i].choices, run_alone(**model, requests[i]).choices) << i;
        const EngineStats s = engine->stats();
        // The layers compute a token differently from the model, so a near tie may differ: once in 210 drafts.
        EXPECT_NEAR(s.drafts, 30, 2);
        EXPECT_NEAR(s.accepted_tokens, 30 * drafts, 2);
        for (int64_t i = 0; i < most_drafts; ++i) EXPECT_NEAR(s.accepted_at[size_t(i)], i < drafts ? 30 : 0, 2) << i;
        for (int64_t i = drafts; i < most_drafts; ++i) EXPECT_EQ(s.accepted_at[size_t(i)], 0) << i;
        EXPECT_EQ(s.failed_drafts, 0);
    }
}

// The layers' drafts equal the CPU's, except for near ties: over a text in pieces, the next tokens of each row.
TEST_P(CudaPrediction, DraftTokensEqualThoseOfTheCpu) {
    const auto checkpoint = made_up_model(config());
    const auto device = load(checkpoint);
    ASSERT_TRUE(device.ok()) << device.error().message();
    ModelOptions options;
    options.prediction = true;
    const auto cpu = Model::load(checkpoint, options, pool_);
    ASSERT_TRUE(cpu.ok()) << cpu.error().message();
    std::vector<int32_t> text;
    for (int i = 0; i < 200; ++i) text.push_back((i * i * 3 + i * 37 + 5) % 250);
    const auto drafted_tokens = [&](const LanguageModel& model) {
        std::vector<int32_t> out;
        const auto pool = model.make_pool(512, 2);
        EXPECT_TRUE(pool.ok());
        Sequence s = (*pool)->sequence();
        std::vector<float> logits(size_t(model.config().vocab));
        for (int64_t at = 0, piece = 1; at + piece < std::ssize(text); at += piece, piece = piece % 23 + 4) {
            const auto rows = std::span(text).subspan(size_t(at), size_t(piece));
            EXPECT_TRUE(model.evaluate(Batch({{&s, rows, piece - 1}}), logits).ok());
            std::vector<int32_t> places(size_t(piece), 0);
            std::iota(places.begin(), places.end(), 0);
            std::vector<ChosenToken> chosen(static_cast<size_t>(piece));
            std::vector<TokenRequest> requests(size_t(piece), {.params = {.temperature = 0}});
            const Status done = model.predict(Batch({{.sequence = &s,
                                                      .tokens = std::span(text).subspan(size_t(at + 1), size_t(piece)),
                                                      .position = at}}),
                                              places, false, requests, chosen);
            EXPECT_TRUE(done.ok()) << (done.ok() ? "" : done.error().message());
            for (const ChosenToken& c : chosen) out.push_back(c.id);
            EXPECT_TRUE(s.reserve(2).ok());
            std::vector<ChosenToken> second(1);
            const int32_t token = text[size_t(at + piece)], last = static_cast<int32_t>(piece) - 1;
            EXPECT_TRUE(model
                            .predict(Batch({{.sequence = &s, .tokens = {&token, 1}, .position = at + piece}}),
                                     {&last, 1}, true, {requests.data(), 1}, second)
                            .ok());
            out.push_back(second[0].id);
        }
        return out;
    };
    const auto mine = drafted_tokens(**device), want = drafted_tokens(*cpu);
    ASSERT_EQ(mine.size(), want.size());
    int64_t same = 0;
    for (size_t i = 0; i < mine.size(); ++i) same += mine[i] == want[i];
    EXPECT_GT(same, std::ssize(want) * 9 / 10) << same << " of " << want.size();
}

INSTANTIATE_TEST_SUITE_P(Families, CudaPrediction, testing::Bool(),
                         [](const auto& info) { return info.param ? "nemotron_h" : "deepseek_v3"; });

// With the sizes of a published model.
TEST(CudaPredictionShapes, AnswersUnderLoadAreThoseOfEachRequestAlone) {
    const char* device = std::getenv("NIBBLE_DEVICE");
    const auto choice = parse_device(device ? device : "cuda");
    ASSERT_TRUE(choice.ok());
    auto checkpoint = random_checkpoint(
        {.shape = "nemotron-3-nano", .format = "nvfp4", .prediction = true, .layers = 7, .vocab = 8192});
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.error().message();
    ModelOptions options;
    options.prediction = true;
    ThreadPool pool;
    const auto model = DeviceModel::load(*std::move(checkpoint), options, *choice, pool);
    ASSERT_TRUE(model.ok()) << model.error().message();
    std::vector<Request> requests;
    for (int32_t k = 0; k < 12; ++k) {
        Request& r = requests.emplace_back();
        for (int32_t i = 0; i < 40 + 29 * k; ++i) r.prompt.push_back((i * 131 + 17 * k + 3) % 8000);
        r.max_tokens = 40;
        r.sampling.temperature = k % 2 == 0 ? 0.0f : 0.8f;
        r.sampling.seed = uint64_t(k);
    }
    const auto engine = make_engine(**model, {.sequences = 8,
                                              .step_rows = 128,
                                              .kv_memory = int64_t{1} << 30,
                                              .drafts = 3,
                                              .drafter = DraftSource::prediction});
    const auto heard = run_all(*engine, requests);
    for (size_t i = 0; i < requests.size(); ++i)
        EXPECT_EQ(heard[i].choices, run_alone(**model, requests[i]).choices) << i;
    EXPECT_GT(engine->stats().draft_tokens, 500);
    EXPECT_EQ(engine->stats().failed_drafts, 0);
}

INSTANTIATE_TEST_SUITE_P(Shapes, CudaServing,
                         testing::Values(ServedShape{"llama-8b", "nvfp4", 2}, ServedShape{"llama-8b", "fp8", 2},
                                         ServedShape{"llama-8b", "fp8", 2, KvFormat::fp8_cast},
                                         ServedShape{"nemotron-3-nano", "nvfp4", 7, KvFormat::fp8_cast},
                                         ServedShape{"qwen3-30b-a3b", "nvfp4", 2},
                                         ServedShape{"qwen3.5-35b-a3b", "nvfp4", 4, KvFormat::none, false},
                                         ServedShape{"nemotron-3-nano", "nvfp4", 7}));

}  // namespace
}  // namespace nibble::test

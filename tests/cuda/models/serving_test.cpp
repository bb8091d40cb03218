// The serving engine on a GPU: random requests under load give the bits of each alone, and a step that is launched
// before the tokens of the step before it are known is the step that knows them.
#include "checkpoint/random_checkpoint.h"
#include "model/device/model.h"
#include "serve/random_load.h"

#include <cstdlib>

namespace nibble::test {
namespace {

struct ServedShape {
    const char* shape;
    const char* format;
    int layers;
};
void PrintTo(const ServedShape& s, std::ostream* out) { *out << s.shape << " " << s.format; }

class CudaServing : public testing::TestWithParam<ServedShape> {
protected:
    Result<std::unique_ptr<DeviceModel>> load() {
        const char* device = std::getenv("NIBBLE_DEVICE");
        NIBBLE_TRY(const DeviceChoice choice, parse_device(device ? device : "cuda"));
        NIBBLE_TRY(
            std::shared_ptr<const Checkpoint> checkpoint,
            random_checkpoint(
                {.shape = GetParam().shape, .format = GetParam().format, .layers = GetParam().layers, .vocab = 8192}));
        return DeviceModel::load(std::move(checkpoint), {}, choice, pool_);
    }
    ThreadPool pool_;
};

TEST_P(CudaServing, AnswersUnderLoadAreThoseOfEachRequestAlone) {
    const auto model = load();
    ASSERT_TRUE(model.ok()) << model.error().message();
    expect_same_under_load(model->get(), model->get(), 250, false);
    expect_same_under_load(model->get(), model->get(), 250, true);
}

// Greedy texts of several lengths go on together, once by choose() and once by launches that carry each other's tokens.
TEST_P(CudaServing, ALaunchThatCarriesTokensOnIsTheStepThatKnowsThem) {
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

INSTANTIATE_TEST_SUITE_P(Shapes, CudaServing,
                         testing::Values(ServedShape{"llama-8b", "nvfp4", 2}, ServedShape{"llama-8b", "fp8", 2},
                                         ServedShape{"qwen3-30b-a3b", "nvfp4", 2},
                                         ServedShape{"nemotron-3-nano", "nvfp4", 7}));

}  // namespace
}  // namespace nibble::test

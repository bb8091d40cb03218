// Tokens chosen on the GPU against serve/sampler.h, log-probabilities against log_softmax.
#include "cuda/device.h"
#include "kernels/elementwise.h"
#include "kernels/sampling_cuda.h"
#include "serve/sampler.h"

#include <cmath>

namespace nibble::bench {
namespace {

struct Case {
    std::string name;
    SamplingParams params;
    int64_t seen = 0;
};

std::vector<Case> cases() {
    return {{"greedy", {.temperature = 0}},
            {"greedy, penalties", {.temperature = 0, .repetition_penalty = 1.3f, .frequency_penalty = 0.7f}, 900},
            {"temperature 1", {}},
            {"temperature 0.3, min-p", {.temperature = 0.3f, .min_p = 0.05f}},
            {"top-k 1", {.top_k = 1}},
            {"top-k 50", {.temperature = 0.8f, .top_k = 50}},
            {"top-p 0.95", {.temperature = 0.7f, .top_p = 0.95f}},
            {"top-p 0.1", {.temperature = 1.5f, .top_p = 0.1f}},
            {"top-k 200, top-p 0.9, min-p", {.temperature = 1.1f, .top_k = 200, .top_p = 0.9f, .min_p = 0.001f}},
            {"top-k of all", {.top_k = 1 << 20, .top_p = 0.999f}},
            {"everything",
             {.temperature = 0.9f,
              .top_k = 100,
              .top_p = 0.97f,
              .min_p = 0.002f,
              .repetition_penalty = 1.1f,
              .presence_penalty = 0.4f,
              .frequency_penalty = 0.2f},
             5000}};
}

class Checker : Kit {
public:
    Checker(const Kit& kit, const ElementwiseKernels& ref) : Kit(kit), ref_(ref) {}

    // Logits of this spread; `ties`: every value occurs many times.
    Result<Check> choices(int64_t width, float sigma, bool ties);
    Result<Check> refusals();

private:
    const ElementwiseKernels& ref_;
};

Result<Check> Checker::choices(int64_t width, float sigma, bool ties) {
    Check check{fmt::format("sample {} logits, spread {}{}", width, sigma, ties ? ", ties" : "")};
    const DeviceArena::Mark mark = arena.mark();
    constexpr int64_t draws = 12;
    int64_t left_open = 0;
    for (const Case& c : cases()) {
        std::vector<std::vector<SeenToken>> seen(draws);
        std::vector<TokenRequest> requests;
        std::vector<float> logits = normal(draws * width, sigma);
        if (ties)
            for (float& v : logits) v = std::round(v * 4.0f) / 4.0f;
        std::vector<Sampler> samplers;
        for (int64_t t = 0; t < draws; ++t) {
            SamplingParams params = c.params;
            params.seed = random();
            std::vector<int32_t> prompt;
            for (int64_t i = 0; i < c.seen; ++i) prompt.push_back(static_cast<int32_t>(random() % uint64_t(width)));
            Sampler& sampler = samplers.emplace_back(params, static_cast<uint64_t>(t), prompt);
            for (int64_t i = 0; i < c.seen / 2; ++i) sampler.accept(static_cast<int32_t>(random() % uint64_t(width)));
        }
        std::vector<cuda::SampleRow> rows;
        std::vector<cuda::SeenSlot> slots;
        for (int64_t t = 0; t < draws; ++t) {
            const TokenRequest request = samplers[size_t(t)].request(1000 + t);
            rows.push_back(cuda::sample_row(request, std::ssize(slots)));
            for (const SeenToken& s : request.seen) slots.push_back({s});
        }
        const DeviceArena::Mark inner = arena.mark();
        NIBBLE_TRY(float* device_logits, upload(logits));
        NIBBLE_TRY(const cuda::SampleRow* device_rows, upload(rows));
        NIBBLE_TRY(cuda::SeenSlot * device_slots, upload(slots));
        NIBBLE_TRY(std::byte * out, poisoned(draws * int64_t{sizeof(ChosenToken)}));
        NIBBLE_CHECK(cuda::sample({.rows = draws,
                                   .width = width,
                                   .logits = device_logits,
                                   .requests = device_rows,
                                   .seen = device_slots,
                                   .out = reinterpret_cast<ChosenToken*>(out)},
                                  true, stream));
        NIBBLE_TRY(const auto chosen, download<ChosenToken>(out, draws));
        NIBBLE_TRY(const auto after, download<float>(device_logits, draws * width));
        arena.release(inner);
        ref_.round_bf16(logits.data(), std::ssize(logits));
        for (size_t i = 0; i < logits.size(); ++i)
            if (after[i] != logits[i]) {
                check.note(fmt::format("{}: logit {} is {} afterwards, not {}", c.name, i, after[i], logits[i]));
                break;
            }
        std::vector<float> log_probs(static_cast<size_t>(width));
        for (int64_t t = 0; t < draws; ++t, ++check.compared) {
            float* row = logits.data() + t * width;
            ref_.log_softmax(row, width, log_probs.data());
            const int32_t want = samplers[size_t(t)].sample({row, size_t(width)}, 1000 + t);
            const ChosenToken got = chosen[size_t(t)];
            if (got.id == -1) {
                ++left_open;
                continue;
            }
            const float logprob = log_probs[static_cast<size_t>(want)];
            if (got.id != want || float_bits(got.logprob) != float_bits(logprob))
                check.note(fmt::format("{}, row {}: token {} at {} instead of {} at {}", c.name, t, got.id, got.logprob,
                                       want, logprob));
        }
    }
    // Only bins of thousands of equal tokens may be left to the host.
    if (left_open > 0) check.name += fmt::format(", {} left open", left_open);
    if (left_open > 0 && !ties) check.note(fmt::format("{} rows left to the host", left_open));
    arena.release(mark);
    return check;
}

Result<Check> Checker::refusals() {
    Check check{"sample: NaN, infinities, logits all equal"};
    const DeviceArena::Mark mark = arena.mark();
    constexpr int64_t width = 128256;
    std::vector<float> logits = normal(5 * width, 1.0f);
    logits[static_cast<size_t>(width - 1)] = NAN;
    logits[static_cast<size_t>(width)] = INFINITY;
    logits[static_cast<size_t>(2 * width + 77777)] = -INFINITY;
    std::fill_n(logits.begin() + 3 * width, 2 * width, 1.5f);
    std::vector<cuda::SampleRow> rows(5);
    for (cuda::SampleRow& r : rows) r.lowest = -INFINITY;
    rows[3].temperature = rows[4].temperature = 1;
    rows[3].top_p = 0.5f;  // one bin of 128256
    rows[4].seed = 4;
    NIBBLE_TRY(float* device_logits, upload(logits));
    NIBBLE_TRY(const cuda::SampleRow* device_rows, upload(rows));
    NIBBLE_TRY(std::byte * out, poisoned(5 * int64_t{sizeof(ChosenToken)}));
    NIBBLE_CHECK(cuda::sample({.rows = 5,
                               .width = width,
                               .logits = device_logits,
                               .requests = device_rows,
                               .out = reinterpret_cast<ChosenToken*>(out)},
                              false, stream));
    NIBBLE_TRY(const auto got, download<ChosenToken>(out, 5));
    std::vector<float> row(static_cast<size_t>(width), 1.5f);
    const int32_t want[5] = {-2, -2, -2, -1, Sampler({.seed = 4}, 0, {}).sample(row, 0)};
    for (size_t i = 0; i < 5; ++i, ++check.compared)
        if (got[i].id != want[i]) check.note(fmt::format("row {}: {} instead of {}", i, got[i].id, want[i]));
    arena.release(mark);
    return check;
}

Result<std::vector<Check>> check_sampling(const Kit& kit) {
    NIBBLE_TRY(const ElementwiseKernels* ref, select_elementwise_kernels("ref"));
    Checker checker(kit, *ref);
    std::vector<Check> checks;
    for (const auto& [width, sigma, ties] : {std::tuple<int64_t, float, bool>{128256, 2.5f, false},
                                             {128256, 12.0f, false},
                                             {152064, 3.0f, false},
                                             {262144, 2.0f, false},
                                             {1000, 1.0f, false},
                                             {17, 4.0f, false},
                                             {50257, 2.0f, true}}) {
        NIBBLE_TRY(Check c, checker.choices(width, sigma, ties));
        checks.push_back(std::move(c));
    }
    NIBBLE_TRY(Check c, checker.refusals());
    checks.push_back(std::move(c));
    return checks;
}

}  // namespace

TEST(CudaKernels, Sampling) { expect_all(check_sampling(kit())); }

}  // namespace nibble::bench

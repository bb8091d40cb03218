// Compares tokens chosen on the GPU with engine/sampler.h, and log-probabilities with log_softmax.
#include "cuda/device.h"
#include "engine/sampler.h"
#include "kernels/elementwise.h"
#include "kernels/sampling_cuda.h"

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
            {"temperature 1, penalties", {.repetition_penalty = 1.2f, .presence_penalty = -3.0f}, 4000},
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

    // sigma: spread of the logits. `ties`: every value occurs many times. share: masks allow one token in `share`, in
    // rows that were deferred; 0: no masks. draws: number of rows; few and many use different kernels.
    Result<Check> choices(int64_t draws, int64_t width, float sigma, bool ties, int64_t share);
    Result<Check> refusals(int64_t rows);

private:
    const ElementwiseKernels& ref_;
};

Result<Check> Checker::choices(int64_t draws, int64_t width, float sigma, bool ties, int64_t share) {
    Check check{fmt::format("sample {} rows of {} logits, spread {}{}{}", draws, width, sigma, ties ? ", ties" : "",
                            share > 0 ? fmt::format(", one of {} allowed", share) : "")};
    const DeviceArena::Mark mark = arena.mark();
    int64_t left_open = 0;
    for (const Case& c : cases()) {
        std::vector<std::vector<SeenToken>> seen(static_cast<size_t>(draws));
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
        // Masks in reverse order of rows; every third row has none.
        std::vector<cuda::SampleRow> rows, now;
        std::vector<cuda::SeenSlot> slots;
        std::vector<int32_t> places;
        std::vector<uint32_t> masks;
        const auto allowed = [&](int64_t t, int64_t i) {
            if (share == 0 || rows[size_t(draws - 1 - t)].mask < 0) return true;
            return (masks[size_t(rows[size_t(draws - 1 - t)].mask * cuda::mask_pitch(width) + i / 32)] >> i % 32 & 1) !=
                   0;
        };
        for (int64_t t = 0; t < draws; ++t) {
            TokenRequest request = samplers[size_t(t)].request(1000 + t);
            if (share == 0) {
                rows.push_back(cuda::sample_row(request, std::ssize(slots)));
                for (const SeenToken& s : request.seen) slots.push_back({s});
            } else {
                request.deferred = true;
                now.push_back(cuda::sample_row(request, 0));
            }
        }
        for (int64_t t = draws - 1; share > 0 && t >= 0; --t) {
            const TokenRequest request = samplers[size_t(t)].request(1000 + t);
            rows.push_back(cuda::sample_row(request, std::ssize(slots)));
            for (const SeenToken& s : request.seen) slots.push_back({s});
            places.push_back(static_cast<int32_t>(t));
            if (t % 3 == 2) continue;
            rows.back().mask = static_cast<int32_t>(std::ssize(masks) / cuda::mask_pitch(width));
            masks.resize(masks.size() + size_t(cuda::mask_pitch(width)));
            uint32_t* const mask = masks.data() + std::ssize(masks) - cuda::mask_pitch(width);
            for (int64_t i = 0; i < width; ++i)
                if (random() % uint64_t(share) == 0 || i == 5 * t % width) mask[i / 32] |= 1u << i % 32;
        }
        const DeviceArena::Mark inner = arena.mark();
        NIBBLE_TRY(float* device_logits, upload(logits));
        NIBBLE_TRY(const cuda::SampleRow* device_rows, upload(rows));
        NIBBLE_TRY(cuda::SeenSlot * device_slots, upload(slots));
        NIBBLE_TRY(std::byte * out, poisoned(draws * int64_t{sizeof(ChosenToken)}));
        cuda::Sampling sampling{.rows = draws,
                                .width = width,
                                .logits = device_logits,
                                .requests = device_rows,
                                .seen = device_slots,
                                .out = reinterpret_cast<ChosenToken*>(out)};
        if (share > 0) {
            NIBBLE_TRY(sampling.requests, upload(now));
            NIBBLE_CHECK(cuda::sample(sampling, true, stream));
            NIBBLE_TRY(const auto open, download<ChosenToken>(out, draws));
            NIBBLE_TRY(const auto kept, download<float>(device_logits, draws * width));
            for (const ChosenToken& token : open)
                if (token.id != -1) check.note(fmt::format("a deferred row has token {}", token.id));
            if (kept != logits) check.note("deferred rows have other logits");
            sampling.requests = device_rows;
            NIBBLE_TRY(sampling.places, upload(places));
            NIBBLE_TRY(sampling.masks, upload(masks));
        }
        NIBBLE_CHECK(cuda::sample(sampling, share == 0, stream));
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
            for (int64_t i = 0; i < width; ++i)
                if (!allowed(t, i)) row[i] = -INFINITY;
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

Result<Check> Checker::refusals(int64_t count) {
    Check check{fmt::format("sample {} rows: NaN, infinities, logits all equal", count)};
    const DeviceArena::Mark mark = arena.mark();
    constexpr int64_t width = 128256;
    std::vector<float> logits = normal(count * width, 1.0f);
    logits[static_cast<size_t>(width - 1)] = NAN;
    logits[static_cast<size_t>(width)] = INFINITY;
    logits[static_cast<size_t>(2 * width + 77777)] = -INFINITY;
    std::fill_n(logits.begin() + 3 * width, 2 * width, 1.5f);
    std::vector<cuda::SampleRow> rows(static_cast<size_t>(count));
    for (cuda::SampleRow& r : rows) r.lowest = -INFINITY;
    rows[3].temperature = rows[4].temperature = 1;
    rows[3].top_p = 0.5f;  // one bin of 128256 tokens
    rows[4].seed = 4;
    NIBBLE_TRY(float* device_logits, upload(logits));
    NIBBLE_TRY(const cuda::SampleRow* device_rows, upload(rows));
    NIBBLE_TRY(std::byte * out, poisoned(count * int64_t{sizeof(ChosenToken)}));
    NIBBLE_CHECK(cuda::sample({.rows = count,
                               .width = width,
                               .logits = device_logits,
                               .requests = device_rows,
                               .out = reinterpret_cast<ChosenToken*>(out)},
                              false, stream));
    NIBBLE_TRY(const auto got, download<ChosenToken>(out, 5));
    // Masks that allow no token, in a finite row and in one that is not.
    std::vector<cuda::SampleRow> held(2);
    held[0].mask = held[1].mask = 0;
    NIBBLE_TRY(const cuda::SampleRow* device_held, upload(held));
    NIBBLE_TRY(const int32_t* places, upload(std::vector<int32_t>{4, 1}));
    NIBBLE_TRY(const uint32_t* masks, upload(std::vector<uint32_t>(size_t(cuda::mask_pitch(width)))));
    NIBBLE_TRY(std::byte * other, poisoned(5 * int64_t{sizeof(ChosenToken)}));
    NIBBLE_CHECK(cuda::sample({.rows = 2,
                               .width = width,
                               .logits = device_logits,
                               .requests = device_held,
                               .out = reinterpret_cast<ChosenToken*>(other),
                               .places = places,
                               .masks = masks},
                              false, stream));
    NIBBLE_TRY(const auto none, download<ChosenToken>(other, 5));
    if (none[4].id != -1 || none[1].id != -2) check.note("a mask without tokens");
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
        for (const int64_t share : {0, 3, 5000}) {
            for (const int64_t draws : {4, 20}) {
                if (draws > 4 && (width > 128256 || sigma > 10)) continue;  // sorting on the host takes long
                NIBBLE_TRY(Check c, checker.choices(draws, width, sigma, ties, share));
                checks.push_back(std::move(c));
            }
        }
    }
    for (const int64_t rows : {5, 17}) {
        NIBBLE_TRY(Check c, checker.refusals(rows));
        checks.push_back(std::move(c));
    }
    return checks;
}

}  // namespace

TEST(CudaKernels, Sampling) { expect_all(check_sampling(kit())); }

}  // namespace nibble::bench

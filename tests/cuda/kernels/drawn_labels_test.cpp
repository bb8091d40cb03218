// Tests log-probabilities under the sampling distribution, of labels and of sampled tokens, against
// kernels/token_filter.h and log_softmax; and the gradient against double precision.
#include "cuda/device.h"
#include "kernels/elementwise.h"
#include "kernels/loss_cuda.h"
#include "kernels/prepare_training_cuda.h"
#include "kernels/sampling_cuda.h"
#include "kernels/token_filter.h"

#include <cmath>

namespace nibble::bench {
namespace {

struct DrawnCase {
    std::string name;
    SamplingParams params;
};

std::vector<DrawnCase> drawn_cases(int64_t width) {
    return {{"temperature 0.7", {.temperature = 0.7f}},
            {"temperature 2.5", {.temperature = 2.5f}},
            {"top-k 1", {.top_k = 1}},
            {"top-k 50", {.temperature = 0.8f, .top_k = 50}},
            {"top-k of all but one", {.top_k = width - 1}},
            {"top-k of more", {.top_k = 2 * width}},
            {"top-p 0.95", {.temperature = 0.7f, .top_p = 0.95f}},
            {"top-p 0.1", {.temperature = 1.5f, .top_p = 0.1f}},
            {"top-p 0.9999", {.top_p = 0.9999f}},
            {"min-p", {.min_p = 0.05f}},
            {"all", {.temperature = 1.1f, .top_k = 200, .top_p = 0.9f, .min_p = 0.001f}}};
}

class DrawnChecker : Kit {
public:
    DrawnChecker(const Kit& kit, const ElementwiseKernels& ref) : Kit(kit), ref_(ref) {}
    // `step`: logits are multiples of it; 0: arbitrary.
    Result<Check> labels(int64_t width, float sigma, float step);
    // Tests label_loss() for the raw distribution.
    Result<Check> raw_labels(int64_t width, float sigma);

private:
    Result<std::byte*> upload_narrow(const std::vector<float>& values) {
        std::vector<uint16_t> narrow;
        for (const float v : values) narrow.push_back(bf16_from_float(v));
        NIBBLE_TRY(uint16_t * p, upload(narrow));
        return reinterpret_cast<std::byte*>(p);
    }
    const ElementwiseKernels& ref_;
};

Result<Check> DrawnChecker::labels(int64_t width, float sigma, float step) {
    Check check{fmt::format("drawn labels of {} logits, spread {}, multiples of {}", width, sigma, step)};
    constexpr int64_t rows = 16;
    NIBBLE_CHECK(cuda::prepare_training(device));
    for (const DrawnCase& c : drawn_cases(width)) {
        const DeviceArena::Mark mark = arena.mark();
        std::vector<float> logits = normal(rows * width, sigma);
        if (step > 0)
            for (float& v : logits) v = std::round(v / step) * step;
        // One sharp row: tokens far more than 32 below the largest may be kept by top-k.
        for (int64_t i = 0; i < width; ++i) logits[static_cast<size_t>(i)] *= 40;
        std::vector<int32_t> labels(rows);
        std::vector<float> slopes = normal(rows, 1.0f);
        std::vector<cuda::SampleRow> requests;
        TokenFilter filter;
        for (int64_t r = 0; r < rows; ++r) {
            // Some labels are sampled, so that filters keep them.
            std::vector<float> row(logits.begin() + r * width, logits.begin() + (r + 1) * width);
            ref_.round_bf16(row.data(), width);
            const TokenRequest request{
                .params = c.params, .sequence = static_cast<uint64_t>(r), .position = 7, .sampled_logprob = true};
            requests.push_back(cuda::sample_row(request, 0));
            const int32_t drawn = filter.choose(row, request);
            labels[static_cast<size_t>(r)] = r % 4 == 3   ? static_cast<int32_t>(random() % uint64_t(width))
                                             : r % 8 == 6 ? -1
                                                          : drawn;
        }
        slopes[1] = 0;
        NIBBLE_TRY(float* device_logits, upload(logits));
        NIBBLE_TRY(std::byte * narrow_logits, upload_narrow(logits));
        NIBBLE_TRY(const int32_t* device_labels, upload(labels));
        NIBBLE_TRY(const float* device_slopes, upload(slopes));
        NIBBLE_TRY(std::byte * out, poisoned(4 * rows));
        // The gradient overwrites the logits.
        NIBBLE_CHECK(cuda::drawn_label_loss({.rows = rows,
                                             .vocab = width,
                                             .logits = narrow_logits,
                                             .labels = device_labels,
                                             .slopes = device_slopes,
                                             .log_probs = reinterpret_cast<float*>(out),
                                             .d_logits = narrow_logits},
                                            cuda::drawn_from(c.params), stream));
        NIBBLE_TRY(const auto got, download<float>(out, rows));
        NIBBLE_TRY(const auto gradient, download<uint16_t>(narrow_logits, rows * width));
        NIBBLE_TRY(const cuda::SampleRow* device_requests, upload(requests));
        NIBBLE_TRY(std::byte * chosen_out, poisoned(rows * int64_t{sizeof(ChosenToken)}));
        NIBBLE_CHECK(cuda::sample({.rows = rows,
                                   .width = width,
                                   .logits = device_logits,
                                   .requests = device_requests,
                                   .scored = true,
                                   .out = reinterpret_cast<ChosenToken*>(chosen_out)},
                                  true, stream));
        NIBBLE_TRY(const auto chosen, download<ChosenToken>(chosen_out, rows));
        arena.release(mark);
        ref_.round_bf16(logits.data(), std::ssize(logits));
        std::vector<float> log_probs(static_cast<size_t>(width));
        for (int64_t r = 0; r < rows; ++r, ++check.compared) {
            const std::span row(logits.data() + r * width, static_cast<size_t>(width));
            filter.restrict(row, c.params);
            ref_.log_softmax(row.data(), width, log_probs.data());
            const int32_t label = labels[static_cast<size_t>(r)];
            const float want = label < 0 ? 0.0f : log_probs[static_cast<size_t>(label)];
            if (float_bits(got[static_cast<size_t>(r)]) != float_bits(want))
                check.note(fmt::format("{}, row {}: {} instead of {}", c.name, r, got[static_cast<size_t>(r)], want));
            const ChosenToken token = chosen[static_cast<size_t>(r)];
            if (token.id >= 0 && float_bits(token.logprob) != float_bits(log_probs[static_cast<size_t>(token.id)]))
                check.note(fmt::format("{}, row {}: drawn at {} instead of {}", c.name, r, token.logprob,
                                       log_probs[static_cast<size_t>(token.id)]));
            if (token.id < 0 && (token.id != -1 || step == 0))
                check.note(fmt::format("{}, row {}: token {}", c.name, r, token.id));
            const double slope =
                label < 0 ? 0.0 : double{slopes[static_cast<size_t>(r)]} / double{c.params.temperature};
            for (int64_t i = 0; i < width; ++i) {
                const double p = std::exp(double{log_probs[static_cast<size_t>(i)]});
                const double expected = slope * ((i == label ? 1.0 : 0.0) - p);
                const double d = double{bf16_to_float(gradient[static_cast<size_t>(r * width + i)])};
                const double apart = std::abs(d - expected);
                check.worst = std::max(check.worst, apart);
                if (!(apart <= 0.005 * std::abs(expected) + 1e-6 * std::abs(slope)))
                    check.note(fmt::format("{}, row {}, token {}: d {} instead of {}", c.name, r, i, d, expected));
            }
        }
    }
    return check;
}

Result<Check> DrawnChecker::raw_labels(int64_t width, float sigma) {
    Check check{fmt::format("labels of {} logits, spread {}", width, sigma)};
    constexpr int64_t rows = 9;
    NIBBLE_CHECK(cuda::prepare_training(device));
    const DeviceArena::Mark mark = arena.mark();
    std::vector<float> logits = normal(rows * width, sigma);
    ref_.round_bf16(logits.data(), std::ssize(logits));
    std::vector<int32_t> labels;
    std::vector<float> slopes = normal(rows, 1.0f);
    for (int64_t r = 0; r < rows; ++r) labels.push_back(static_cast<int32_t>(random() % uint64_t(width)));
    labels[0] = 0, labels[1] = static_cast<int32_t>(width - 1), labels[2] = -1;
    slopes[3] = 0;
    logits[static_cast<size_t>(4 * width + labels[4])] = 60;                       // far above all others
    logits[static_cast<size_t>(5 * width + (labels[5] + 3) % width)] = -INFINITY;  // excluded by a mask
    logits[static_cast<size_t>(6 * width + (labels[6] + 1) % width)] = NAN;
    logits[static_cast<size_t>(7 * width + (labels[7] + 1) % width)] = INFINITY;
    NIBBLE_TRY(std::byte * device_logits, upload_narrow(logits));
    NIBBLE_TRY(const int32_t* device_labels, upload(labels));
    NIBBLE_TRY(const float* device_slopes, upload(slopes));
    NIBBLE_TRY(std::byte * out, poisoned(8 * rows));
    auto* log_probs = reinterpret_cast<float*>(out);
    cuda::LabelLoss loss{
        .rows = rows, .vocab = width, .logits = device_logits, .labels = device_labels, .log_probs = log_probs};
    NIBBLE_CHECK(cuda::label_loss(loss, stream));
    loss.slopes = device_slopes, loss.log_probs = log_probs + rows, loss.d_logits = device_logits;
    NIBBLE_CHECK(cuda::label_loss(loss, stream));
    NIBBLE_TRY(const auto got, download<float>(out, 2 * rows));
    NIBBLE_TRY(const auto gradient, download<uint16_t>(device_logits, rows * width));
    arena.release(mark);
    std::vector<float> all(static_cast<size_t>(width));
    for (int64_t r = 0; r < rows; ++r, check.compared += 2) {
        ref_.log_softmax(logits.data() + r * width, width, all.data());
        const auto at = static_cast<size_t>(r);
        const int32_t label = labels[at];
        const float want = label < 0 ? 0.0f : all[static_cast<size_t>(label)];
        const bool bad = r == 6 || r == 7;
        for (const float p : {got[at], got[at + rows]})
            if (bad ? !std::isnan(p) : float_bits(p) != float_bits(want))
                check.note(fmt::format("row {}: {} instead of {}", r, p, want));
        const double slope = label < 0 ? 0.0 : double{slopes[at]};
        for (int64_t i = 0; i < width; ++i) {
            const double d = double{bf16_to_float(gradient[static_cast<size_t>(r * width + i)])};
            const double expected = slope * ((i == label ? 1.0 : 0.0) - std::exp(double{all[static_cast<size_t>(i)]}));
            const double apart = std::abs(d - expected);
            if (!bad) check.worst = std::max(check.worst, apart);
            if (bad ? !std::isnan(d) : !(apart <= 0.005 * std::abs(expected) + 1e-7 * std::abs(slope)))
                check.note(fmt::format("row {}, token {}: d {} instead of {}", r, i, d, expected));
        }
    }
    return check;
}

// A NaN or an infinity anywhere in a row is reported, and invalid arguments are refused.
Result<Check> bad_rows(const Kit& kit) {
    Kit k = kit;
    Check check{"drawn labels: NaN, infinities, refusals"};
    const DeviceArena::Mark mark = k.arena.mark();
    constexpr int64_t width = 4096;
    std::vector<float> logits = k.normal(4 * width, 1.0f);
    logits[17] = NAN;
    logits[width + 9] = INFINITY;
    logits[2 * width + 100] = -INFINITY;
    std::vector<uint16_t> narrow;
    for (const float v : logits) narrow.push_back(bf16_from_float(v));
    NIBBLE_TRY(const std::byte* device_logits, k.upload_bytes(narrow));
    NIBBLE_TRY(const int32_t* labels, k.upload(std::vector<int32_t>{5, 5, 5, 5}));
    NIBBLE_TRY(std::byte * out, k.poisoned(16));
    const cuda::LabelLoss loss{.rows = 4,
                               .vocab = width,
                               .logits = device_logits,
                               .labels = labels,
                               .log_probs = reinterpret_cast<float*>(out)};
    for (const cuda::Drawn& drawn :
         {cuda::Drawn{.temperature = 2}, cuda::Drawn{.top_k = 3}, cuda::Drawn{.top_p = 0.5f}}) {
        NIBBLE_CHECK(cuda::drawn_label_loss(loss, drawn, k.stream));
        NIBBLE_TRY(const auto got, k.download<float>(out, 4));
        for (size_t r = 0; r < 4; ++r, ++check.compared)
            if (std::isnan(got[r]) != (r < 3)) check.note(fmt::format("row {}: {}", r, got[r]));
    }
    for (const auto& [rows, vocab, temperature] :
         {std::tuple{int64_t{0}, width, 1.0f}, {4, 4095, 1.0f}, {4, int64_t{1} << 20, 1.0f}, {4, width, 0.0f}}) {
        cuda::LabelLoss other = loss;
        other.rows = rows, other.vocab = vocab;
        ++check.compared;
        if (cuda::drawn_label_loss(other, {.temperature = temperature}, k.stream).ok())
            check.note(fmt::format("{} rows of {} at {} were taken", rows, vocab, temperature));
    }
    k.arena.release(mark);
    return check;
}

Result<std::vector<Check>> check_drawn_labels(const Kit& kit) {
    NIBBLE_TRY(const ElementwiseKernels* ref, select_elementwise_kernels("ref"));
    DrawnChecker checker(kit, *ref);
    std::vector<Check> checks;
    for (const auto& [width, sigma, step] : {std::tuple<int64_t, float, float>{128256, 2.5f, 0.0f},
                                             {49152, 8.0f, 0.0f},
                                             {1000, 1.0f, 0.0f},
                                             {8, 1.0f, 0.0f},
                                             {4104, 2.0f, 0.0f},
                                             {50264, 2.0f, 0.25f},   // ties
                                             {20000, 1.0f, 16.0f}})  // nearly all logits are equal
    {
        NIBBLE_TRY(Check c, checker.labels(width, sigma, step));
        checks.push_back(std::move(c));
    }
    // One thread block per row, and clusters of two, four and eight; rows of any length.
    for (const auto& [width, sigma] : {std::pair<int64_t, float>{8, 1.0f},
                                       {1000, 1.0f},
                                       {4104, 2.0f},
                                       {49152, 8.0f},
                                       {53256, 2.0f},
                                       {128256, 2.5f},
                                       {262144, 1.0f},
                                       {cuda::softmax_most_vocab, 3.0f}}) {
        NIBBLE_TRY(Check raw, checker.raw_labels(width, sigma));
        checks.push_back(std::move(raw));
    }
    NIBBLE_TRY(Check c, bad_rows(kit));
    checks.push_back(std::move(c));
    return checks;
}

}  // namespace

TEST(CudaKernels, DrawnLabels) { expect_all(check_drawn_labels(kit())); }

}  // namespace nibble::bench

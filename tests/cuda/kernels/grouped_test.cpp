// Tests W4A16 products of experts: every tile of tokens and way of sharing rows against matmul() bit for bit and
// against double precision, and activated outputs against activate().
#include "base/thread_pool.h"
#include "cuda/device.h"
#include "kernels/elementwise_cuda.h"
#include "kernels/quantize.h"
#include "kernels/w4a16_matmul_cuda.h"

#include <algorithm>
#include <cmath>

namespace nibble::bench {
namespace {

constexpr double bound = 4e-6;
constexpr int experts = 37;
constexpr int64_t few_inputs = 50;  // rows of x that slots share
constexpr int rounds = 24;          // for crowded cases

struct Case {
    Format format = Format::nvfp4;
    int64_t n = 0, k = 0, slots = 0;
    bool gated = false;    // gate rows, then up rows
    bool crowded = false;  // like a model: six experts have all slots, every row of x is different, many repetitions
};

class Grouped : Kit {
public:
    Grouped(const Kit& kit, const Case& c) : Kit(kit), c_(c) {}
    Result<Check> run();

private:
    Status make_weights();
    void make_slots();
    // Computes y [slots, n], expert by expert, with matmul().
    Result<std::vector<float>> one_by_one();
    void against_double(Check& check, const std::vector<float>& got);
    // Expects `want` from many launches: an expert's weights are read from L2 again while x is cold.
    Status again(Check& check, const cuda::ExpertsInput& in, const std::vector<float>& want);
    Status activated(Check& check, const cuda::ExpertsInput& in);
    // Compares the kernel for one token, which also chooses the experts, with route() and the other kernels.
    Status one_token(Check& check, bool sigmoid);
    // Compares its second product, which includes the weighted sum, with combine_experts().
    Status combined(Check& check, const cuda::ExpertsInput& first, const cuda::ExpertsInput& second,
                    const cuda::PackedExperts& w, const cuda::Routing& want, const cuda::Routing& got);

    Case c_;
    ThreadPool pool_;
    int64_t bytes_ = 0;  // bytes per expert's records
    cuda::PackedExperts plain_, paired_;
    std::vector<std::vector<float>> values_;  // by expert
    std::vector<float> scales_, bias_;        // [experts, n]
    std::vector<int32_t> begin_{0}, rows_;
    std::vector<uint16_t> x_;
    const std::byte* device_x_ = nullptr;
    const int32_t* device_rows_ = nullptr;
};

Status Grouped::make_weights() {
    bytes_ = cuda::packed_bytes(c_.n, c_.k);
    scales_ = normal(experts * c_.n, 1.0f), bias_ = normal(experts * c_.n, 1.0f);
    NIBBLE_TRY(std::byte * records, poisoned(bytes_ * experts));
    NIBBLE_TRY(std::byte * pairs, poisoned(bytes_ * experts));
    NIBBLE_TRY(uint32_t * refused, upload(std::vector<uint32_t>{0}));
    NIBBLE_TRY(const QuantizeKernels* kernels, select_quantize_kernels("ref"));
    const bool mx = c_.format == Format::mxfp4;
    for (int64_t e = 0; e < experts; ++e) {
        const DeviceArena::Mark mark = arena.mark();
        QuantMatrix q(c_.format, c_.n, c_.k);
        for (uint8_t& code : q.codes) code = static_cast<uint8_t>(random());
        for (uint8_t& s : q.block_scales) s = static_cast<uint8_t>(mx ? 110 + random() % 26 : 1 + random() % 126);
        QuantView view = q.view();
        values_.emplace_back(static_cast<size_t>(c_.crowded ? 0 : c_.n * c_.k));
        if (!c_.crowded) kernels->decode(view, values_.back().data());
        NIBBLE_TRY(view.codes, upload(q.codes));
        NIBBLE_TRY(view.block_scales, upload(q.block_scales));
        const cuda::PackedSpan to{c_.n, c_.k, records + e * bytes_, c_.format};
        NIBBLE_CHECK(cuda::prepack(view, 0, to, refused, stream));
        if (c_.gated) {
            const cuda::PackedSpan pair{c_.n, c_.k, pairs + e * bytes_, c_.format};
            view.rows = c_.n / 2;
            NIBBLE_CHECK(cuda::prepack(view, 0, pair, refused, stream, {8, 16}));
            view.codes += code_bytes(c_.format, view.rows, c_.k);
            view.block_scales += block_scale_bytes(c_.format, view.rows, c_.k);
            NIBBLE_CHECK(cuda::prepack(view, 8, pair, refused, stream, {8, 16}));
        }
        NIBBLE_CHECK(stream.synchronize());
        arena.release(mark);
    }
    NIBBLE_TRY(const auto count, download<uint32_t>(refused, 1));
    if (count[0]) return fail("prepack refused {} scales", count[0]);
    plain_ = {.count = experts, .first = {c_.n, c_.k, records, c_.format}};
    NIBBLE_TRY(plain_.row_scales, upload(scales_));
    NIBBLE_TRY(plain_.bias, upload(bias_));
    paired_ = plain_;
    paired_.first.records = pairs;
    std::vector<float> pair_scales(scales_.size()), pair_bias(bias_.size());
    for (int64_t e = 0; e < experts; ++e)
        for (int64_t i = 0; i < c_.n; ++i) {
            const int64_t half = c_.n / 2, at = i % half / 8 * 16 + i % half % 8 + i / half * 8;
            if (at >= c_.n) continue;  // gated cases only
            pair_scales[size_t(e * c_.n + at)] = scales_[size_t(e * c_.n + i)];
            pair_bias[size_t(e * c_.n + at)] = bias_[size_t(e * c_.n + i)];
        }
    NIBBLE_TRY(paired_.row_scales, upload(pair_scales));
    NIBBLE_TRY(paired_.bias, upload(pair_bias));
    return Ok{};
}

// Leaves many experts without a row, and gives some more than a tile.
void Grouped::make_slots() {
    std::vector<int32_t> of(experts);
    for (int64_t i = 0; i < c_.slots; ++i) {
        const auto r = static_cast<int>(random() % 100);
        ++of[static_cast<size_t>(c_.crowded       ? 3 + i % 6 * 5
                                 : r < 25         ? 7
                                 : r < 35         ? 36
                                 : r * 7 % 5 == 0 ? 0
                                                  : r % experts)];
    }
    for (const int32_t n : of) begin_.push_back(begin_.back() + n);
    for (int64_t i = 0; i < c_.slots; ++i)
        rows_.push_back(static_cast<int32_t>(c_.crowded ? i : static_cast<int64_t>(random() % few_inputs)));
}

Result<std::vector<float>> Grouped::one_by_one() {
    std::vector<float> want;
    for (int64_t e = 0; e < experts; ++e) {
        const int64_t first = begin_[size_t(e)], m = begin_[size_t(e) + 1] - first;
        if (m == 0) continue;
        const DeviceArena::Mark mark = arena.mark();
        NIBBLE_TRY(const auto plan, cuda::plan_matmul({.m = m, .n = c_.n, .k = c_.k, .weights = c_.format}, device));
        std::vector<uint16_t> own;
        for (int64_t i = first; i < first + m; ++i)
            own.insert(own.end(), x_.begin() + rows_[size_t(i)] * c_.k, x_.begin() + (rows_[size_t(i)] + 1) * c_.k);
        NIBBLE_TRY(const std::byte* x, upload_bytes(own));
        NIBBLE_TRY(std::byte * workspace, arena.allocate(plan.workspace_bytes + 256));
        NIBBLE_CHECK(fill_device(workspace, 0, plan.workspace_bytes + 256, stream));
        if (plan.permuted_bytes) {
            NIBBLE_TRY(std::byte * permuted, arena.allocate(plan.permuted_bytes));
            NIBBLE_CHECK(cuda::permute(plan, x, permuted, {}, stream));
            x = permuted;
        }
        NIBBLE_TRY(float* y, arena.allocate_array<float>(m * c_.n));
        cuda::PackedMatrix w = plain_.first;
        w.records += e * bytes_;
        NIBBLE_CHECK(cuda::matmul(plan, x, w,
                                  {.row_scales = plain_.row_scales + e * c_.n, .bias = plain_.bias + e * c_.n}, y,
                                  workspace, {}, stream));
        NIBBLE_TRY(const auto host, download<float>(y, m * c_.n));
        want.insert(want.end(), host.begin(), host.end());
        arena.release(mark);
    }
    return want;
}

void Grouped::against_double(Check& check, const std::vector<float>& got) {
    std::vector<double> worst(static_cast<size_t>(c_.slots));
    pool_.parallel_for(c_.slots, [&](int64_t i) {
        const auto e = static_cast<int64_t>(std::ranges::upper_bound(begin_, i) - begin_.begin()) - 1;
        const uint16_t* x = x_.data() + rows_[size_t(i)] * c_.k;
        for (int64_t r = i % 5; r < c_.n; r += 5) {
            const double scale = scales_[size_t(e * c_.n + r)];
            double sum = bias_[size_t(e * c_.n + r)], terms = std::abs(sum);
            for (int64_t j = 0; j < c_.k; ++j) {
                const double term = values_[size_t(e)][size_t(r * c_.k + j)] * scale * bf16_to_float(x[j]);
                sum += term, terms += std::abs(term);
            }
            const double d = std::abs(got[size_t(i * c_.n + r)] - sum) / terms;
            worst[size_t(i)] = d <= worst[size_t(i)] ? worst[size_t(i)] : d;  // keeps NaN
        }
    });
    for (int64_t i = 0; i < c_.slots; ++i, ++check.compared) {
        if (!(worst[size_t(i)] <= bound)) check.note(fmt::format("slot {}: {:.2e} of its terms", i, worst[size_t(i)]));
        check.worst = std::max(check.worst, worst[size_t(i)]);
    }
}

Status Grouped::again(Check& check, const cuda::ExpertsInput& in, const std::vector<float>& want) {
    const DeviceArena::Mark mark = arena.mark();
    NIBBLE_TRY(std::byte * y, poisoned(c_.slots * c_.n * 4));
    for (int round = 0; round < rounds; ++round) {
        NIBBLE_CHECK(fill_device(y, poison, c_.slots * c_.n * 4, stream));
        NIBBLE_CHECK(cuda::grouped_matmul(in, plain_, {.y = reinterpret_cast<float*>(y)}, true, stream));
        NIBBLE_TRY(const auto got, download<float>(y, c_.slots * c_.n));
        for (size_t i = 0; i < got.size(); ++i, ++check.compared)
            if (float_bits(got[i]) != float_bits(want[i]))
                check.note(fmt::format("launch {}: slot {} row {}", round, int64_t(i) / c_.n, int64_t(i) % c_.n));
    }
    arena.release(mark);
    return Ok{};
}

Status Grouped::activated(Check& check, const cuda::ExpertsInput& in) {
    for (const Activation a : {Activation::silu, Activation::relu2}) {
        const DeviceArena::Mark mark = arena.mark();
        const int64_t width = c_.gated ? c_.n / 2 : c_.n, words = c_.slots * width + 64;
        if (width % 8) return Ok{};
        NIBBLE_TRY(float* y, arena.allocate_array<float>(c_.slots * c_.n));
        NIBBLE_TRY(std::byte * want_out, poisoned(words * 2));
        NIBBLE_TRY(std::byte * out, poisoned(words * 2));
        NIBBLE_CHECK(cuda::grouped_matmul(in, plain_, {.y = y}, true, stream));
        NIBBLE_CHECK(cuda::activate(a, c_.gated, y, 0, c_.slots, width, cuda::RowsOut{.data = want_out}, true, stream));
        NIBBLE_CHECK(cuda::grouped_matmul(in, c_.gated ? paired_ : plain_,
                                          {.out = out, .activation = a, .gated = c_.gated}, true, stream));
        NIBBLE_TRY(const auto want, download<uint16_t>(want_out, words));
        NIBBLE_TRY(const auto got, download<uint16_t>(out, words));
        for (int64_t i = 0; i < words; ++i, ++check.compared)
            if (want[size_t(i)] != got[size_t(i)])
                check.note(fmt::format("activation {}: slot {} column {}", static_cast<int>(a), i / width, i % width));
        arena.release(mark);
    }
    return Ok{};
}

Status Grouped::one_token(Check& check, bool sigmoid) {
    const DeviceArena::Mark mark = arena.mark();
    const int top_k = c_.n > 2000 ? 10 : 6;  // also tests four chunks per warp
    const cuda::RouterConfig config{
        .experts = experts, .top_k = top_k, .sigmoid = sigmoid, .round = !sigmoid, .scaling = 2.5f};
    if (!cuda::takes_one_token(config, plain_)) return fail("no kernel for one token of [{}, {}]", c_.n, c_.k);
    std::vector<float> logits = normal(experts, 1.0f);
    std::fill_n(logits.begin() + 9, 5, 1.25f);  // equal logits
    NIBBLE_TRY(const float* device_logits, upload(logits));
    NIBBLE_TRY(const float* bias, upload(normal(experts, 0.3f)));
    if (!sigmoid) bias = nullptr;
    cuda::Routing want, got;
    for (cuda::Routing* r : {&want, &got}) {
        NIBBLE_TRY(std::byte * at, poisoned(4 * (4 * top_k + experts + 1)));
        r->experts = reinterpret_cast<int32_t*>(at);
        r->weights = reinterpret_cast<float*>(at) + top_k;
        r->rows = r->experts + 2 * top_k, r->places = r->experts + 3 * top_k, r->begin = r->experts + 4 * top_k;
    }
    NIBBLE_CHECK(cuda::route(config, device_logits, bias, 1, want, true, stream));
    const int64_t width = c_.gated ? c_.n / 2 : c_.n, words = top_k * c_.n + 64;
    NIBBLE_TRY(std::byte * want_y, poisoned(words * 4));
    NIBBLE_TRY(std::byte * got_y, poisoned(words * 4));
    const auto same = [&](std::string_view what) -> Status {
        NIBBLE_TRY(const auto a, download<uint32_t>(want_y, words));
        NIBBLE_TRY(const auto b, download<uint32_t>(got_y, words));
        for (size_t i = 0; i < a.size(); ++i, ++check.compared)
            if (a[i] != b[i]) check.note(fmt::format("one token, {}: word {}", what, i));
        return Ok{};
    };
    const cuda::ExpertChoice choice{.config = config, .logits = device_logits, .bias = bias, .routing = got};
    cuda::ExpertsInput first{.x = device_x_, .rows = want.rows, .slots = top_k}, second{.x = device_x_, .slots = top_k};
    cuda::ExpertsInput one = first, early = second;
    one.choice = early.choice = &choice;
    early.routed = true;
    cuda::PackedExperts plain = plain_, paired = c_.gated ? paired_ : plain_;
    plain.begin = paired.begin = want.begin;
    const auto y = [&](std::byte* to) { return cuda::ExpertsOutput{.y = reinterpret_cast<float*>(to)}; };
    // A plain product in the same launch.
    constexpr int other = 5;
    NIBBLE_TRY(const auto plan, cuda::plan_matmul({.m = 1, .n = c_.n, .k = c_.k, .weights = c_.format}, device));
    NIBBLE_TRY(float* dense, arena.allocate_array<float>((c_.n + 3) / 4 * 8));
    one.dense = {.x = device_x_,
                 .w = plain_.first,
                 .factors = {.row_scales = plain_.row_scales + other * c_.n, .bias = plain_.bias + other * c_.n},
                 .y = dense};
    one.dense.w.records += other * bytes_;
    if (!cuda::takes_dense(config, plain_, one.dense.w)) return fail("no joint product with [{}, {}]", c_.n, c_.k);
    float* const alone = dense + (c_.n + 3) / 4 * 4;
    NIBBLE_CHECK(cuda::matmul(plan, device_x_, one.dense.w, one.dense.factors, alone, nullptr, {}, stream));
    NIBBLE_CHECK(cuda::grouped_matmul(first, plain, y(want_y), true, stream));
    NIBBLE_CHECK(cuda::grouped_matmul(one, plain, y(got_y), true, stream));
    NIBBLE_CHECK(same("first"));
    NIBBLE_TRY(const auto want_dense, download<uint32_t>(alone, c_.n));
    NIBBLE_TRY(const auto got_dense, download<uint32_t>(dense, c_.n));
    for (size_t i = 0; i < want_dense.size(); ++i, ++check.compared)
        if (want_dense[i] != got_dense[i]) check.note(fmt::format("joint with one token: row {}", i));
    one.dense = {};
    NIBBLE_TRY(const auto a, download<uint32_t>(want.experts, 4 * top_k + experts + 1));
    NIBBLE_TRY(const auto b, download<uint32_t>(got.experts, 4 * top_k + experts + 1));
    for (size_t i = 0; i < a.size(); ++i, ++check.compared)
        if (a[i] != b[i]) check.note(fmt::format("one token, sigmoid {}: routing, word {}", sigmoid, i));
    if (width % 8 == 0) {
        const auto out = [&](std::byte* to) {
            return cuda::ExpertsOutput{.out = to, .activation = Activation::silu, .gated = c_.gated};
        };
        NIBBLE_CHECK(cuda::grouped_matmul(first, paired, out(want_y), true, stream));
        NIBBLE_CHECK(cuda::grouped_matmul(one, paired, out(got_y), true, stream));
        NIBBLE_CHECK(same("activated"));
    }
    // After a first product, as in a mixture; then with experts that were chosen before.
    NIBBLE_CHECK(cuda::grouped_matmul(second, plain, y(want_y), true, stream));
    NIBBLE_CHECK(cuda::grouped_matmul(one, plain, y(got_y), true, stream));
    NIBBLE_CHECK(cuda::grouped_matmul(early, plain, y(got_y), true, stream));
    NIBBLE_CHECK(same("second"));
    NIBBLE_CHECK(combined(check, one, early, plain, want, got));
    cuda::ExpertChoice chosen = choice;
    chosen.logits = nullptr, chosen.routing = want;
    early.choice = &chosen, early.routed = false;
    NIBBLE_CHECK(fill_device(got_y, poison, words * 4, stream));
    NIBBLE_CHECK(cuda::grouped_matmul(early, plain, y(got_y), true, stream));
    NIBBLE_CHECK(same("chosen before"));
    arena.release(mark);
    return Ok{};
}

Status Grouped::combined(Check& check, const cuda::ExpertsInput& first, const cuda::ExpertsInput& second,
                         const cuda::PackedExperts& w, const cuda::Routing& want, const cuda::Routing& got) {
    const cuda::RouterConfig& config = second.choice->config;
    if (!cuda::takes_combine(config, w)) return Ok{};  // a case with empty chunks
    NIBBLE_TRY(const float* shared, upload(normal(c_.n, 1.0f)));
    NIBBLE_TRY(float* y, arena.allocate_array<float>(config.top_k * c_.n));
    for (const float* addend : {shared, static_cast<const float*>(nullptr)}) {
        const DeviceArena::Mark mark = arena.mark();
        NIBBLE_TRY(std::byte * want_sum, poisoned((c_.n + 16) * 4));
        NIBBLE_TRY(std::byte * got_sum, poisoned((c_.n + 16) * 4));
        NIBBLE_CHECK(cuda::grouped_matmul(first, w, {.y = y}, true, stream));
        NIBBLE_CHECK(cuda::grouped_matmul(second, w, {.y = y}, true, stream));
        NIBBLE_CHECK(cuda::combine_experts({.tokens = 1,
                                            .width = c_.n,
                                            .top_k = config.top_k,
                                            .y = y,
                                            .shared = addend,
                                            .sum = reinterpret_cast<float*>(want_sum)},
                                           want, true, stream));
        NIBBLE_CHECK(cuda::grouped_matmul(first, w, {.y = y}, true, stream));
        const cuda::ExpertsOutput::Combine combine{got.weights, addend, reinterpret_cast<float*>(got_sum)};
        NIBBLE_CHECK(cuda::grouped_matmul(second, w, {.combine = combine}, true, stream));
        NIBBLE_TRY(const auto a, download<uint32_t>(want_sum, c_.n + 16));
        NIBBLE_TRY(const auto b, download<uint32_t>(got_sum, c_.n + 16));
        for (size_t i = 0; i < a.size(); ++i, ++check.compared)
            if (a[i] != b[i]) check.note(fmt::format("combined, {} shared: row {}", addend ? "with" : "without", i));
        arena.release(mark);
    }
    return Ok{};
}

Result<Check> Grouped::run() {
    Check check{fmt::format("experts W4A16 {} {}x{}, {} slots{}", format_name(c_.format), c_.n, c_.k, c_.slots,
                            c_.gated     ? ", gated"
                            : c_.crowded ? ", crowded"
                                         : "")};
    const DeviceArena::Mark mark = arena.mark();
    NIBBLE_CHECK(make_weights());
    make_slots();
    x_ = normal_bf16((c_.crowded ? c_.slots : few_inputs) * c_.k, 1.0f);
    NIBBLE_TRY(device_x_, upload_bytes(x_));
    NIBBLE_TRY(device_rows_, upload(rows_));
    NIBBLE_TRY(plain_.begin, upload(begin_));
    paired_.begin = plain_.begin;
    const cuda::ExpertsInput in{.x = device_x_, .rows = device_rows_, .slots = c_.slots};
    const int64_t stride = c_.n + 5, words = c_.slots * stride + 64;
    NIBBLE_TRY(std::byte * y, poisoned(words * 4));
    NIBBLE_CHECK(
        cuda::grouped_matmul(in, plain_, {.y = reinterpret_cast<float*>(y), .y_stride = stride}, true, stream));
    NIBBLE_TRY(const auto strided, download<float>(y, words));
    std::vector<float> got;
    for (int64_t i = 0; i < words; ++i) {
        if (i < c_.slots * stride && i % stride < c_.n)
            got.push_back(strided[size_t(i)]);
        else if (float_bits(strided[size_t(i)]) != 0xA5A5A5A5u)
            check.note(fmt::format("wrote outside its output, word {}", i));
    }
    NIBBLE_TRY(const auto want, one_by_one());
    for (size_t i = 0; i < got.size(); ++i, ++check.compared)
        if (float_bits(got[i]) != float_bits(want[i]))
            check.note(
                fmt::format("slot {} row {}: {} instead of {}", int64_t(i) / c_.n, int64_t(i) % c_.n, got[i], want[i]));
    // Sorted rows, with weights prefetched right after another launch: like the second product of a mixture.
    std::vector<uint16_t> sorted;
    for (const int32_t row : rows_) sorted.insert(sorted.end(), x_.begin() + row * c_.k, x_.begin() + (row + 1) * c_.k);
    NIBBLE_TRY(const std::byte* sorted_x, upload_bytes(sorted));
    NIBBLE_TRY(float* second_y, arena.allocate_array<float>(c_.slots * c_.n));
    NIBBLE_CHECK(cuda::grouped_matmul(in, plain_, {.y = second_y}, true, stream));
    NIBBLE_CHECK(cuda::grouped_matmul({.x = sorted_x, .slots = c_.slots, .routed = true}, plain_, {.y = second_y}, true,
                                      stream));
    NIBBLE_TRY(const auto second, download<float>(second_y, c_.slots * c_.n));
    for (size_t i = 0; i < got.size(); ++i, ++check.compared)
        if (float_bits(got[i]) != float_bits(second[i])) check.note(fmt::format("sorted, early: word {}", i));
    if (!c_.crowded) against_double(check, got);
    NIBBLE_CHECK(activated(check, in));
    if (c_.crowded) NIBBLE_CHECK(again(check, in, want));
    if (!c_.crowded)
        for (const bool sigmoid : {false, true}) NIBBLE_CHECK(one_token(check, sigmoid));
    arena.release(mark);
    return check;
}

Result<std::vector<Check>> check_grouped(const Kit& kit, bool small) {
    NIBBLE_CHECK(cuda::prepare_grouped_matmul(kit.device));
    std::vector<Check> results;
    std::vector<Case> cases{{Format::nvfp4, 208, 160, 6},         {Format::nvfp4, 100, 48, 20},
                            {Format::nvfp4, 64, 2688, 1},         {Format::nvfp4, 96, 1856, 300, true},
                            {Format::mxfp4, 208, 416, 100},       {Format::nvfp4, 72, 592, 700},
                            {Format::mxfp4, 128, 1056, 15, true}, {Format::nvfp4, 160, 336, 1000, true},
                            {Format::nvfp4, 208, 160, 1500, true}};
    // Every tile of tokens for more than four slots per expert.
    for (const int64_t slots : {300, 700, 1110})
        cases.push_back({.n = 1856, .k = 2688, .slots = slots, .crowded = true});
    // Many row tiles: each warp has all of K, with tiles of eight tokens.
    if (!small) cases.push_back({Format::nvfp4, 1856, 2688, 140});
    if (!small) cases.push_back({Format::nvfp4, 1536, 2048, 120, true});
    if (!small) cases.push_back({Format::mxfp4, 2688, 1856, 900});
    // Chunks of several records: six and eight.
    if (!small) cases.push_back({Format::nvfp4, 400, 2688, 400});
    if (!small) cases.push_back({Format::mxfp4, 72, 4096, 1400});
    for (const Case& c : cases) {
        NIBBLE_TRY(auto check, Grouped(kit, c).run());
        results.push_back(std::move(check));
    }
    return results;
}

}  // namespace

TEST(CudaKernels, GroupedProducts) { expect_all(check_grouped(kit(), extent() != Extent::all)); }

}  // namespace nibble::bench

// Compares each kernel of a mixture's backward pass, and sums of columns, with double precision.
#include "cuda/device.h"
#include "kernels/elementwise.h"
#include "kernels/elementwise_backward_cuda.h"
#include "kernels/moe_backward_cuda.h"
#include "kernels/operand_matmul_cuda.h"
#include "kernels/prepare_training_cuda.h"
#include "model/cpu/router.h"

#include <algorithm>
#include <cmath>

namespace nibble::bench {
namespace {

double value(uint16_t bits) { return double{bf16_to_float(bits)}; }

// Tolerance for a sum of `terms` products whose magnitudes add up to `scale`, in FP32 in any order, then optionally
// rounded to BF16.
bool near(double got, double want, double scale, int64_t terms, bool rounded) {
    const double bound = scale * static_cast<double>(terms + 4) * 0x1p-24 + (rounded ? std::abs(want) * 0x1p-8 : 0);
    return std::abs(got - want) <= bound + 1e-30;
}

// Returns the offsets of rows sorted by expert; expert e has counts[e] rows.
std::vector<int32_t> begins(const std::vector<int>& counts) {
    std::vector<int32_t> begin{0};
    for (const int n : counts) begin.push_back(begin.back() + n);
    return begin;
}

Result<Check> check_products(Kit& kit, const std::vector<int>& counts, int64_t rows, int64_t cols) {
    const std::vector<int32_t> begin = begins(counts);
    const int64_t slots = begin.back(), experts = std::ssize(counts);
    Check check{fmt::format("gradients of {} experts [{}, {}] over {} rows", experts, rows, cols, slots)};
    const DeviceArena::Mark mark = kit.arena.mark();
    const auto dy = kit.normal_bf16(slots * rows, 1), x = kit.normal_bf16(slots * cols, 1),
               w = kit.normal_bf16(experts * rows * cols, 0.1f);
    NIBBLE_TRY(const int32_t* d_begin, kit.upload(begin));
    NIBBLE_TRY(const std::byte* d_dy, kit.upload_bytes(dy));
    NIBBLE_TRY(const std::byte* d_x, kit.upload_bytes(x));
    NIBBLE_TRY(const std::byte* d_w, kit.upload_bytes(w));
    NIBBLE_TRY(std::byte * dx, kit.poisoned(2 * slots * cols));
    NIBBLE_TRY(std::byte * dw, kit.poisoned(4 * experts * rows * cols));
    const cuda::ExpertsShape shape{.experts = static_cast<int>(experts), .slots = slots, .rows = rows, .cols = cols};
    NIBBLE_CHECK(cuda::experts_input_gradient(shape, d_begin, d_dy, d_w, dx, kit.stream));
    NIBBLE_CHECK(cuda::experts_weight_gradient(shape, d_begin, d_dy, d_x, reinterpret_cast<float*>(dw), kit.stream));
    NIBBLE_TRY(const auto got_dx, kit.download<uint16_t>(dx, slots * cols));
    NIBBLE_TRY(const auto got_dw, kit.download<float>(dw, experts * rows * cols));
    const auto at = [](const std::vector<uint16_t>& m, int64_t row, int64_t width, int64_t col) {
        return value(m[static_cast<size_t>(row * width + col)]);
    };
    for (int64_t e = 0; e < experts; ++e) {
        const int64_t first = begin[size_t(e)], last = begin[size_t(e) + 1];
        for (int64_t s = first; s < last; ++s)
            for (int64_t c = s % 3; c < cols; c += 3, ++check.compared) {
                double sum = 0, scale = 0;
                for (int64_t r = 0; r < rows; ++r) {
                    const double part = at(dy, s, rows, r) * at(w, e * rows + r, cols, c);
                    sum += part, scale += std::abs(part);
                }
                const double got = value(got_dx[size_t(s * cols + c)]);
                if (!near(got, sum, scale, rows, true))
                    check.note(fmt::format("dx of row {}, {}: {} instead of {}", s, c, got, sum));
            }
        for (int64_t r = 0; r < rows; ++r)
            for (int64_t c = r % 5; c < cols; c += 5, ++check.compared) {
                double sum = 0, scale = 0;
                for (int64_t s = first; s < last; ++s) {
                    const double part = at(dy, s, rows, r) * at(x, s, cols, c);
                    sum += part, scale += std::abs(part);
                }
                const double got = double{got_dw[size_t((e * rows + r) * cols + c)]};
                if (!near(got, sum, scale, last - first, false))
                    check.note(fmt::format("dw of expert {}, {}, {}: {} instead of {}", e, r, c, got, sum));
            }
    }
    kit.arena.release(mark);
    return check;
}

// Slots are in order of tokens; `places` are their positions among the sorted rows.
Result<Check> check_activation(Kit& kit, Activation activation, bool gated, int64_t slots, int64_t width) {
    Check check{fmt::format("experts_activate_backward {}{}, {} rows of {}", static_cast<int>(activation),
                            gated ? " gated" : "", slots, width)};
    const DeviceArena::Mark mark = kit.arena.mark();
    const int64_t wide = gated ? 2 * width : width;
    const auto in = kit.normal_bf16(slots * wide, 1), d_mid = kit.normal_bf16(slots * width, 1);
    const auto weights = kit.normal(slots, 0.5f);
    std::vector<int32_t> places(static_cast<size_t>(slots));
    for (int64_t i = 0; i < slots; ++i) places[size_t(i)] = static_cast<int32_t>(i);
    std::shuffle(places.begin(), places.end(), kit.random);
    cuda::ExpertsActivateBackward a{.activation = activation, .gated = gated, .slots = slots, .width = width};
    NIBBLE_TRY(a.places, kit.upload(places));
    NIBBLE_TRY(a.weights, kit.upload(weights));
    NIBBLE_TRY(a.in, kit.upload_bytes(in));
    NIBBLE_TRY(a.d_mid, kit.upload_bytes(d_mid));
    NIBBLE_TRY(a.d_in, kit.poisoned(2 * slots * wide));
    NIBBLE_TRY(a.mid, kit.poisoned(2 * slots * width));
    NIBBLE_TRY(a.d_weights, kit.arena.allocate_array<float>(slots));
    NIBBLE_CHECK(cuda::experts_activate_backward(a, kit.stream));
    NIBBLE_TRY(const auto got_in, kit.download<uint16_t>(a.d_in, slots * wide));
    NIBBLE_TRY(const auto got_mid, kit.download<uint16_t>(a.mid, slots * width));
    NIBBLE_TRY(const auto got_weights, kit.download<float>(a.d_weights, slots));
    const auto act_of = [&](double x) {
        if (activation == Activation::silu) return x / (1 + std::exp(-x));
        if (activation == Activation::relu2) return x > 0 ? x * x : 0.0;
        return 0.5 * x * (1 + std::tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)));
    };
    const auto slope_of = [&](double x) {  // a central difference, exact to about 1e-9 for such values
        constexpr double h = 1e-5;
        if (activation == Activation::relu2) return x > 0 ? 2 * x : 0.0;
        return (act_of(x + h) - act_of(x - h)) / (2 * h);
    };
    const auto compare = [&](double got, double want, double scale, std::string_view what, int64_t i) {
        ++check.compared;
        if (std::abs(got - want) > std::abs(want) * 0x1p-7 + scale * 1e-5)
            check.note(fmt::format("{} {}: {} instead of {}", what, i, got, want));
    };
    for (int64_t slot = 0; slot < slots; ++slot) {
        const int64_t row = places[size_t(slot)];
        double dot = 0, scale = 0;
        for (int64_t c = 0; c < width; ++c) {
            const double x = value(in[size_t(row * wide + c)]),
                         up = gated ? value(in[size_t(row * wide + width + c)]) : 1;
            const double d = value(d_mid[size_t(row * width + c)]), weight = double{weights[size_t(slot)]};
            const double mid = act_of(x) * up;
            dot += d * mid, scale += std::abs(d * mid);
            compare(value(got_mid[size_t(row * width + c)]), weight * mid, 1, "mid", row * width + c);
            compare(value(got_in[size_t(row * wide + c)]), weight * d * up * slope_of(x), 1, "gate", row * wide + c);
            if (gated)
                compare(value(got_in[size_t(row * wide + width + c)]), weight * d * act_of(x), 1, "up", row * wide + c);
        }
        ++check.compared;
        if (std::abs(double{got_weights[size_t(slot)]} - dot) > scale * 0x1p-8)  // mid is rounded
            check.note(fmt::format("weight {}: {} instead of {}", slot, got_weights[size_t(slot)], dot));
    }
    kit.arena.release(mark);
    return check;
}

Result<Check> check_router(Kit& kit, const MoeConfig& config, bool round, int64_t tokens) {
    Check check{fmt::format("route_backward {} of {}, {}", config.top_k, config.experts,
                            config.router == MoeConfig::Router::sigmoid ? "sigmoid" : "softmax")};
    const DeviceArena::Mark mark = kit.arena.mark();
    const auto n = static_cast<size_t>(config.experts), k = static_cast<size_t>(config.top_k);
    const std::vector<float> logits = kit.normal(tokens * config.experts, 1.5f),
                             dw = kit.normal(tokens * config.top_k, 1);
    std::vector<float> p = logits, weights(size_t(tokens) * k), want(p.size());
    std::vector<int32_t> experts(weights.size());
    if (round)
        for (float& x : p) x = round_to_bf16(x);
    for (size_t t = 0; t < size_t(tokens); ++t) {
        route(config, std::span(p).subspan(t * n, n), {}, std::span(experts).subspan(t * k, k),
              std::span(weights).subspan(t * k, k));
        route_backward(config, std::span(p).subspan(t * n, n), std::span(experts).subspan(t * k, k),
                       std::span(dw).subspan(t * k, k), std::span(want).subspan(t * n, n));
    }
    cuda::RouteBackward r{.config = {.experts = config.experts,
                                     .top_k = config.top_k,
                                     .sigmoid = config.router == MoeConfig::Router::sigmoid,
                                     .round = round,
                                     .normalize = config.normalize,
                                     .scaling = config.routed_scaling},
                          .tokens = tokens};
    NIBBLE_TRY(r.logits, kit.upload(logits));
    NIBBLE_TRY(r.experts, kit.upload(experts));
    NIBBLE_TRY(r.d_weights, kit.upload(dw));
    NIBBLE_TRY(r.d_logits, kit.poisoned(2 * tokens * config.experts));
    NIBBLE_CHECK(cuda::route_backward(r, kit.stream));
    NIBBLE_TRY(const auto got, kit.download<uint16_t>(r.d_logits, tokens * config.experts));
    for (size_t i = 0; i < got.size(); ++i, ++check.compared) {
        double most = 0;  // sum of magnitudes, because terms cancel
        for (size_t e = 0; e < n; ++e) most = std::max(most, std::abs(double{want[i / n * n + e]}));
        if (std::abs(value(got[i]) - double{want[i]}) > std::abs(double{want[i]}) * 0x1p-8 + most * 1e-5)
            check.note(fmt::format("token {} expert {}: {} instead of {}", i / n, i % n, value(got[i]), want[i]));
    }
    kit.arena.release(mark);
    return check;
}

Result<Check> check_sums(Kit& kit, int64_t tokens, int64_t width, int top_k, int more) {
    Check check{fmt::format("sum_slots and column_sums, {} rows of {}, {} slots, {} more", tokens, width, top_k, more)};
    const DeviceArena::Mark mark = kit.arena.mark();
    const int64_t slots = tokens * top_k;
    const auto rows = kit.normal_bf16(slots * width, 1);
    std::vector<int32_t> places(static_cast<size_t>(slots));
    for (int64_t i = 0; i < slots; ++i) places[size_t(i)] = static_cast<int32_t>(i);
    std::shuffle(places.begin(), places.end(), kit.random);
    cuda::SumSlots s{.tokens = tokens, .width = width, .top_k = top_k};
    NIBBLE_TRY(s.places, kit.upload(places));
    NIBBLE_TRY(s.rows, kit.upload_bytes(rows));
    NIBBLE_TRY(s.out, kit.poisoned(2 * tokens * width));
    std::vector<std::vector<uint16_t>> others;
    for (int m = 0; m < more; ++m) {
        others.push_back(kit.normal_bf16(tokens * width, 1));
        NIBBLE_TRY(s.more[m], kit.upload_bytes(others.back()));
    }
    NIBBLE_CHECK(cuda::sum_slots(s, kit.stream));
    NIBBLE_TRY(const auto got, kit.download<uint16_t>(s.out, tokens * width));
    std::vector<double> sums(static_cast<size_t>(width)), scales(sums.size());
    for (int64_t i = 0; i < tokens * width; ++i, ++check.compared) {
        const int64_t t = i / width, c = i % width;
        float sum = 0;
        for (int k = 0; k < top_k; ++k) sum += bf16_to_float(rows[size_t(places[size_t(t * top_k + k)] * width + c)]);
        for (const auto& other : others) sum += bf16_to_float(other[size_t(i)]);
        if (got[size_t(i)] != bf16_from_float(sum))
            check.note(fmt::format("sum {}: {} instead of {}", i, value(got[size_t(i)]), sum));
        sums[size_t(c)] += value(got[size_t(i)]), scales[size_t(c)] += std::abs(value(got[size_t(i)]));
    }
    cuda::ColumnSums columns{.tokens = tokens, .width = width, .x = s.out};
    NIBBLE_TRY(columns.sums, kit.arena.allocate_array<float>(width));
    NIBBLE_TRY(columns.workspace, kit.arena.allocate(cuda::column_sums_workspace(width)));
    NIBBLE_CHECK(cuda::column_sums(columns, kit.stream));
    NIBBLE_TRY(const auto of_columns, kit.download<float>(columns.sums, width));
    for (size_t c = 0; c < sums.size(); ++c, ++check.compared)
        if (!near(double{of_columns[c]}, sums[c], scales[c], tokens, false))
            check.note(fmt::format("column {}: {} instead of {}", c, of_columns[c], sums[c]));
    kit.arena.release(mark);
    return check;
}

// All operands in one launch must have the bytes of make_operand().
Result<Check> check_operands(Kit& kit, int64_t experts, int64_t rows, int64_t cols) {
    Check check{fmt::format("operands of {} experts [{}, {}]", experts, rows, cols)};
    const DeviceArena::Mark mark = kit.arena.mark();
    const int64_t each = cuda::operand_bytes(rows, cols), all = experts * each;
    NIBBLE_TRY(const std::byte* w, kit.upload_bytes(kit.normal_bf16(experts * rows * cols, 1)));
    NIBBLE_TRY(std::byte * together, kit.arena.allocate(all));
    NIBBLE_TRY(std::byte * apart, kit.arena.allocate(all));
    for (std::byte* tiles : {together, apart}) NIBBLE_CHECK(fill_device(tiles, 0, all, kit.stream));
    NIBBLE_CHECK(cuda::experts_operands({.experts = static_cast<int>(experts), .rows = rows, .cols = cols}, w, together,
                                        kit.stream));
    for (int64_t e = 0; e < experts; ++e) {
        const MatrixView one{DType::bf16, rows, cols, w + 2 * e * rows * cols};
        NIBBLE_CHECK(cuda::make_operand(one, rows, 0, apart + e * each, kit.stream));
    }
    NIBBLE_TRY(const auto got, kit.download<uint16_t>(together, all / 2));
    NIBBLE_TRY(const auto want, kit.download<uint16_t>(apart, all / 2));
    for (size_t i = 0; i < got.size(); ++i, ++check.compared)
        if (got[i] != want[i]) check.note(fmt::format("element {}: {:#06x} instead of {:#06x}", i, got[i], want[i]));
    kit.arena.release(mark);
    return check;
}

Result<std::vector<Check>> check_all(const Kit& given) {
    Kit kit = given;
    NIBBLE_CHECK(cuda::prepare_training(kit.device));
    std::vector<Check> results;
    const auto add = [&](Result<Check> check) -> Status {
        NIBBLE_TRY(results.emplace_back(), std::move(check));
        return Ok{};
    };
    // Experts without rows at the beginning, end and between; one row more than a tile of 128; edges of tiles.
    NIBBLE_CHECK(add(check_products(kit, {0, 130, 1, 0, 0, 64, 257, 0}, 136, 72)));
    NIBBLE_CHECK(add(check_products(kit, {129}, 8, 264)));
    NIBBLE_CHECK(add(check_products(kit, {3, 0, 40, 128}, 256, 128)));
    std::vector<int> many(1024, 0);
    for (size_t e = 0; e < many.size(); e += 7) many[e] = static_cast<int>(e % 5);
    NIBBLE_CHECK(add(check_products(kit, many, 16, 24)));
    for (const Activation a : {Activation::silu, Activation::gelu_tanh, Activation::relu2})
        for (const bool gated : {true, false}) NIBBLE_CHECK(add(check_activation(kit, a, gated, 61, 1032)));
    using R = MoeConfig::Router;
    NIBBLE_CHECK(add(check_router(kit, {.experts = 128, .top_k = 8, .router = R::softmax}, true, 101)));
    NIBBLE_CHECK(
        add(check_router(kit, {.experts = 8, .top_k = 2, .router = R::softmax, .normalize = false}, true, 64)));
    NIBBLE_CHECK(
        add(check_router(kit, {.experts = 256, .top_k = 8, .router = R::sigmoid, .routed_scaling = 2.5f}, false, 33)));
    NIBBLE_CHECK(
        add(check_router(kit, {.experts = 1024, .top_k = 32, .router = R::sigmoid, .normalize = false}, false, 7)));
    NIBBLE_CHECK(add(check_operands(kit, 5, 8, 200)));
    NIBBLE_CHECK(add(check_operands(kit, 3, 144, 16)));
    NIBBLE_CHECK(add(check_operands(kit, 4, 128, 256)));
    NIBBLE_CHECK(add(check_sums(kit, 301, 136, 3, 3)));
    NIBBLE_CHECK(add(check_sums(kit, 5, 8, 1, 0)));
    NIBBLE_CHECK(add(check_sums(kit, 1000, 2056, 0, 2)));
    return results;
}

}  // namespace

TEST(CudaKernels, ExpertsBackward) { expect_all(check_all(kit())); }

}  // namespace nibble::bench

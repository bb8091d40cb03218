// Compares the operations between the products of a block that only some families need with `ref` of
// kernels/elementwise.h and model/cpu/router.h, bit for bit.
#include "cuda/device.h"
#include "kernels/elementwise_cuda.h"
#include "kernels/exp.h"
#include "kernels/moe_cuda.h"
#include "model/cpu/router.h"

#include <algorithm>
#include <cmath>

namespace nibble::bench {
namespace {

constexpr int64_t row_count = 21;

const ElementwiseKernels& row_reference() { return **select_elementwise_kernels("ref"); }

void compare_rows(Check& check, const std::vector<float>& want, const std::vector<uint16_t>& got) {
    for (size_t i = 0; i < want.size(); ++i, ++check.compared)
        if (got[i] != bf16_from_float(want[i]) && !(std::isnan(want[i]) && std::isnan(bf16_to_float(got[i]))))
            check.note(fmt::format("element {}: {} instead of {}", i, bf16_to_float(got[i]), want[i]));
}

std::vector<float> rounded_values(std::vector<float> x) {
    for (float& v : x) v = round_to_bf16(v);
    return x;
}

// h = sum_scale * (h + update_scale * norm(update)), then the norm of h.
Result<Check> check_norms(Kit& kit, int64_t width, bool centered, bool biased, bool post) {
    Check check{fmt::format("{} of {}{}{}", centered ? "layer_norm" : "rms_norm", width, biased ? ", bias" : "",
                            post ? ", after the mixer" : "")};
    const DeviceArena::Mark mark = kit.arena.mark();
    constexpr float eps = 1e-5f, update_scale = 0.22f, sum_scale = 0.7f;
    const ElementwiseKernels& ref = row_reference();
    std::vector<uint16_t> h_bits = kit.normal_bf16(row_count * width, 3.0f);
    const std::vector<float> update = kit.normal(row_count * width, 1.0f), weight = kit.normal(width, 1.0f);
    const std::vector<float> bias = kit.normal(width, 0.5f), post_norm = kit.normal(width, 1.0f);
    NIBBLE_TRY(uint16_t * h, kit.upload(h_bits));
    NIBBLE_TRY(const float* device_update, kit.upload(update));
    NIBBLE_TRY(const float* device_weight, kit.upload(weight));
    NIBBLE_TRY(const float* device_bias, kit.upload(bias));
    NIBBLE_TRY(const float* device_post, kit.upload(post_norm));
    NIBBLE_TRY(std::byte * out, kit.poisoned(2 * row_count * width));
    NIBBLE_CHECK(cuda::add_norm({.tokens = row_count,
                                 .width = width,
                                 .h = reinterpret_cast<std::byte*>(h),
                                 .update = device_update,
                                 .post_norm = post ? device_post : nullptr,
                                 .post_bias = post && biased ? device_bias : nullptr,
                                 .weight = device_weight,
                                 .bias = biased ? device_bias : nullptr,
                                 .eps = eps,
                                 .update_scale = update_scale,
                                 .sum_scale = sum_scale,
                                 .centered = centered,
                                 .out = {out}},
                                true, kit.stream));
    const auto norm = [&](const float* x, const std::vector<float>& w, float* y) {
        if (centered)
            ref.layer_norm(x, w.data(), biased ? bias.data() : nullptr, width, eps, true, y);
        else
            ref.rms_norm(x, w.data(), width, eps, true, y);
    };
    std::vector<float> sums(update.size()), want(update.size());
    for (int64_t t = 0; t < row_count; ++t) {
        std::vector<float> u(update.begin() + t * width, update.begin() + (t + 1) * width);
        ref.round_bf16(u.data(), width);
        if (post) norm(u.data(), post_norm, u.data());
        float* sum = sums.data() + t * width;
        for (int64_t j = 0; j < width; ++j) {
            const float part = round_to_bf16(u[static_cast<size_t>(j)] * update_scale);
            const float x = bf16_to_float(h_bits[static_cast<size_t>(t * width + j)]);
            sum[j] = round_to_bf16(round_to_bf16(x + part) * sum_scale);
        }
        norm(sum, weight, want.data() + t * width);
    }
    NIBBLE_TRY(const auto got, kit.download<uint16_t>(out, row_count * width));
    compare_rows(check, want, got);
    NIBBLE_TRY(const auto got_h, kit.download<uint16_t>(h, row_count * width));
    compare_rows(check, sums, got_h);
    kit.arena.release(mark);
    return check;
}

Result<Check> check_clamped(Kit& kit, const ClampedGlu& glu) {
    Check check{fmt::format("clamped unit, limit {}, alpha {}", glu.limit, glu.alpha)};
    const DeviceArena::Mark mark = kit.arena.mark();
    constexpr int64_t width = 264;
    std::vector<float> in = kit.normal(row_count * 2 * width, 4.0f);
    in[3] = INFINITY, in[4] = -INFINITY, in[width + 5] = INFINITY, in[width + 6] = -INFINITY;
    NIBBLE_TRY(const float* device_in, kit.upload(in));
    std::vector<uint16_t> bits;
    for (const float x : in) bits.push_back(bf16_from_float(x));
    NIBBLE_TRY(const std::byte* device_bits, kit.upload_bytes(bits));
    NIBBLE_TRY(std::byte * out, kit.poisoned(2 * row_count * width));
    NIBBLE_TRY(std::byte * second, kit.poisoned(2 * row_count * width));
    NIBBLE_CHECK(
        cuda::activate(Activation::silu, true, device_in, 0, row_count, width, {out}, true, kit.stream, false, glu));
    NIBBLE_CHECK(cuda::activate(Activation::silu, true, device_bits, row_count, width, {second}, true, kit.stream,
                                nullptr, glu));
    const std::vector<float> rows = rounded_values(in);
    std::vector<float> want(static_cast<size_t>(row_count * width));
    for (int64_t t = 0; t < row_count; ++t)
        row_reference().clamped_glu(glu, &rows[static_cast<size_t>(2 * t * width)],
                                    &rows[static_cast<size_t>((2 * t + 1) * width)], width, true,
                                    want.data() + t * width);
    for (const std::byte* each : {out, second}) {
        NIBBLE_TRY(const auto got, kit.download<uint16_t>(each, row_count * width));
        compare_rows(check, want, got);
    }
    kit.arena.release(mark);
    return check;
}

Result<Check> check_logits(Kit& kit, const cuda::LogitFactors& factors) {
    Check check{fmt::format("logits times {}, cap {}", factors.scale, factors.cap)};
    const DeviceArena::Mark mark = kit.arena.mark();
    std::vector<float> x = kit.normal(10007, 20.0f);
    x[0] = 1e30f, x[1] = -1e30f, x[2] = 0;
    NIBBLE_TRY(float* device, kit.upload(x));
    NIBBLE_CHECK(cuda::round_rows(device, std::ssize(x), true, kit.stream, factors));
    NIBBLE_TRY(const auto got, kit.download<float>(device, std::ssize(x)));
    for (size_t i = 0; i < x.size(); ++i, ++check.compared) {
        float want = round_to_bf16(round_to_bf16(x[i]) * factors.scale);
        if (factors.cap > 0) row_reference().soft_cap(&want, 1, factors.cap, true);
        if (got[i] != want) check.note(fmt::format("{}: {} instead of {}", x[i], got[i], want));
    }
    kit.arena.release(mark);
    return check;
}

Result<Check> check_gates(Kit& kit, bool by_head, bool in_rows) {
    Check check{fmt::format("gates of {}{}", by_head ? "heads" : "elements", in_rows ? ", rounded" : "")};
    const DeviceArena::Mark mark = kit.arena.mark();
    constexpr int heads = 5, dim = 24, pitch = 2 * dim;
    const int64_t stride = heads * pitch;
    const std::vector<uint16_t> x = kit.normal_bf16(row_count * heads * dim, 2.0f);
    const std::vector<float> gates = kit.normal(row_count * stride, 3.0f);
    std::vector<uint16_t> gate_bits;
    for (const float g : gates) gate_bits.push_back(bf16_from_float(g));
    NIBBLE_TRY(uint16_t * device, kit.upload(x));
    NIBBLE_TRY(const float* device_gates, kit.upload(gates));
    NIBBLE_TRY(const std::byte* device_bits, kit.upload_bytes(gate_bits));
    NIBBLE_CHECK(cuda::gate_heads({.tokens = row_count,
                                   .heads = heads,
                                   .dim = dim,
                                   .x = reinterpret_cast<std::byte*>(device),
                                   .gates = in_rows ? nullptr : device_gates,
                                   .gate_rows = in_rows ? device_bits : nullptr,
                                   .stride = stride,
                                   .pitch = pitch,
                                   .by_head = by_head},
                                  true, kit.stream));
    std::vector<float> want;
    for (int64_t i = 0; i < std::ssize(x); ++i) {
        const int64_t token = i / (heads * dim), head = i / dim % heads;
        const float g =
            bf16_to_float(gate_bits[static_cast<size_t>(token * stride + head * pitch + (by_head ? 0 : i % dim))]);
        const float value = bf16_to_float(x[static_cast<size_t>(i)]), below = 1.0f + exp_f32(-g);
        want.push_back(by_head ? value * round_to_bf16(1.0f / below) : value / below);
    }
    NIBBLE_TRY(const auto got, kit.download<uint16_t>(device, std::ssize(x)));
    compare_rows(check, want, got);
    kit.arena.release(mark);
    return check;
}

Result<Check> check_per_layer_rows(Kit& kit, int64_t width) {
    Check check{fmt::format("per-layer rows of {}", width)};
    const DeviceArena::Mark mark = kit.arena.mark();
    constexpr int64_t vocab = 50;
    constexpr float eps = 1e-6f, root = 0.03f, half = 0.70710678f;
    const std::vector<float> projected = kit.normal(row_count * width, 30.0f),
                             gate = kit.normal(row_count * width, 2.0f);
    const std::vector<float> norm = kit.normal(width, 1.0f);
    const std::vector<uint16_t> table = kit.normal_bf16(vocab * width, 1.0f);
    std::vector<int32_t> ids;
    for (int64_t t = 0; t < row_count; ++t) ids.push_back(static_cast<int32_t>(t * 17 % vocab));
    cuda::PerLayerRows p{.tokens = row_count, .width = width, .eps = eps, .root = root, .half = half};
    NIBBLE_TRY(p.projected, kit.upload(projected));
    NIBBLE_TRY(p.table, kit.upload_bytes(table));
    NIBBLE_TRY(p.ids, kit.upload(ids));
    NIBBLE_TRY(p.norm, kit.upload(norm));
    NIBBLE_TRY(p.gate, kit.upload(gate));
    NIBBLE_TRY(p.out, kit.poisoned(2 * row_count * width));
    NIBBLE_CHECK(cuda::per_layer_rows(p, true, kit.stream));
    const ElementwiseKernels& ref = row_reference();
    std::vector<float> want = rounded_values(gate);
    for (int64_t t = 0; t < row_count; ++t) {
        std::vector<float> row(projected.begin() + t * width, projected.begin() + (t + 1) * width), of_token;
        for (float& x : row) x = round_to_bf16(round_to_bf16(x) * root);
        for (int64_t j = 0; j < width; ++j)
            of_token.push_back(bf16_to_float(table[static_cast<size_t>(ids[static_cast<size_t>(t)] * width + j)]));
        ref.rms_norm(row.data(), norm.data(), width, eps, true, row.data());
        ref.add(of_token.data(), width, true, row.data());
        for (float& x : row) x = round_to_bf16(x * half);
        ref.activate(Activation::gelu_tanh, want.data() + t * width, row.data(), width, true, want.data() + t * width);
    }
    NIBBLE_TRY(const auto got, kit.download<uint16_t>(p.out, row_count * width));
    compare_rows(check, want, got);
    kit.arena.release(mark);
    return check;
}

Result<Check> check_sparse_mixer(Kit& kit, int experts, int64_t tokens) {
    Check check{fmt::format("sparse mixer of {} experts, {} tokens", experts, tokens)};
    const DeviceArena::Mark mark = kit.arena.mark();
    MoeConfig config;
    config.router = MoeConfig::Router::sparse_mixer;
    config.experts = experts, config.top_k = 2, config.jitter = 0.1f;
    const std::vector<float> logits = kit.normal(tokens * experts, 0.5f), scales = kit.normal(experts, 1.0f);
    cuda::Routing out;
    NIBBLE_TRY(out.experts, kit.arena.allocate_array<int32_t>(2 * tokens));
    NIBBLE_TRY(out.weights, kit.arena.allocate_array<float>(2 * tokens));
    NIBBLE_TRY(out.begin, kit.arena.allocate_array<int32_t>(experts + 1));
    NIBBLE_TRY(out.rows, kit.arena.allocate_array<int32_t>(2 * tokens));
    NIBBLE_TRY(out.places, kit.arena.allocate_array<int32_t>(2 * tokens));
    NIBBLE_TRY(const float* device_logits, kit.upload(logits));
    NIBBLE_TRY(const float* device_scales, kit.upload(scales));
    NIBBLE_CHECK(cuda::route({.experts = experts,
                              .top_k = 2,
                              .round = true,
                              .sparse_mixer = true,
                              .jitter = config.jitter,
                              .expert_scales = device_scales},
                             device_logits, nullptr, tokens, out, true, kit.stream));
    NIBBLE_TRY(const auto chosen, kit.download<int32_t>(out.experts, 2 * tokens));
    NIBBLE_TRY(const auto weights, kit.download<float>(out.weights, 2 * tokens));
    for (int64_t t = 0; t < tokens; ++t) {
        std::vector<float> row(logits.begin() + t * experts, logits.begin() + (t + 1) * experts), w(2);
        std::vector<int32_t> e(2);
        row = rounded_values(std::move(row));
        route(config, row, {}, e, w);
        for (size_t k = 0; k < 2; ++k, ++check.compared) {
            const auto at = static_cast<size_t>(2 * t) + k;
            const float want = w[k] * scales[static_cast<size_t>(e[k])];
            if (chosen[at] != e[k] || weights[at] != want)
                check.note(
                    fmt::format("token {}: expert {} {} instead of {} {}", t, chosen[at], weights[at], e[k], want));
        }
    }
    // Inputs of the experts, times the weights.
    constexpr int64_t width = 72;
    const std::vector<uint16_t> x = kit.normal_bf16(tokens * width, 1.0f);
    NIBBLE_TRY(const std::byte* device_x, kit.upload_bytes(x));
    NIBBLE_TRY(std::byte * weighed, kit.poisoned(4 * tokens * width));
    NIBBLE_CHECK(cuda::weigh_inputs(device_x, tokens, width, 2, out, weighed, true, kit.stream));
    NIBBLE_TRY(const auto places, kit.download<int32_t>(out.places, 2 * tokens));
    NIBBLE_TRY(const auto got, kit.download<uint16_t>(weighed, 2 * tokens * width));
    for (int64_t i = 0; i < 2 * tokens * width; ++i, ++check.compared) {
        const auto slot = static_cast<size_t>(i / width);
        const float want = bf16_to_float(x[slot / 2 * width + static_cast<size_t>(i % width)]) * weights[slot];
        if (got[static_cast<size_t>(places[slot] * width + i % width)] != bf16_from_float(want))
            check.note(fmt::format("input {} of slot {}", i % width, slot));
    }
    kit.arena.release(mark);
    return check;
}

Result<Check> check_gated_sum(Kit& kit) {
    Check check{"sum over experts without weights, with a gated shared expert"};
    const DeviceArena::Mark mark = kit.arena.mark();
    constexpr int64_t width = 72;
    const std::vector<float> y = kit.normal(row_count * width, 1.0f), shared = kit.normal(row_count * width, 1.0f);
    const std::vector<float> gate = kit.normal(row_count, 2.0f);
    std::vector<int32_t> places;
    for (int32_t t = 0; t < row_count; ++t) places.push_back(static_cast<int32_t>(row_count) - 1 - t);
    cuda::CombineExperts c{.tokens = row_count, .width = width, .top_k = 1, .weighed = false};
    cuda::Routing routing;
    NIBBLE_TRY(c.y, kit.upload(y));
    NIBBLE_TRY(c.shared, kit.upload(shared));
    NIBBLE_TRY(c.shared_gate, kit.upload(gate));
    NIBBLE_TRY(routing.places, kit.upload(places));
    NIBBLE_TRY(c.rows, kit.poisoned(2 * row_count * width));
    NIBBLE_CHECK(cuda::combine_experts(c, routing, true, kit.stream));
    std::vector<float> want;
    for (int64_t i = 0; i < row_count * width; ++i) {
        const auto token = static_cast<size_t>(i / width);
        const float factor = 1.0f / (1.0f + exp_f32(-round_to_bf16(gate[token])));
        want.push_back(round_to_bf16(y[static_cast<size_t>(places[token] * width + i % width)]) +
                       round_to_bf16(round_to_bf16(shared[static_cast<size_t>(i)]) * factor));
    }
    NIBBLE_TRY(const auto got, kit.download<uint16_t>(c.rows, row_count * width));
    compare_rows(check, want, got);
    kit.arena.release(mark);
    return check;
}

Result<std::vector<Check>> check_block_rows(Kit& kit) {
    std::vector<Check> all;
    const auto add = [&](Result<Check> check) -> Status {
        if (!check.ok()) return std::move(check).error();
        all.push_back(*std::move(check));
        return Ok{};
    };
    for (const int64_t width : {64, 2048, 5120})
        for (const auto& [centered, biased] : {std::pair{false, false}, {true, false}, {true, true}})
            for (const bool post : {false, true}) NIBBLE_CHECK(add(check_norms(kit, width, centered, biased, post)));
    NIBBLE_CHECK(add(check_clamped(kit, {.limit = 7.0f, .alpha = 1.702f, .up_offset = 1.0f})));
    NIBBLE_CHECK(add(check_clamped(kit, {.limit = 2.5f, .activation_first = true})));
    NIBBLE_CHECK(add(check_logits(kit, {.scale = 0.0625f})));
    NIBBLE_CHECK(add(check_logits(kit, {.cap = 30.0f})));
    for (const bool by_head : {false, true})
        for (const bool in_rows : {false, true}) NIBBLE_CHECK(add(check_gates(kit, by_head, in_rows)));
    for (const int64_t width : {8, 256}) NIBBLE_CHECK(add(check_per_layer_rows(kit, width)));
    for (const int64_t tokens : {1, 21, 200}) NIBBLE_CHECK(add(check_sparse_mixer(kit, 16, tokens)));
    NIBBLE_CHECK(add(check_gated_sum(kit)));
    return all;
}

}  // namespace

TEST(CudaKernels, BlockRows) { expect_all(check_block_rows(kit())); }

}  // namespace nibble::bench

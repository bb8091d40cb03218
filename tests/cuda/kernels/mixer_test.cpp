// Compares the routed part of MoE blocks and Mamba-2 with the CPU.
#include "cuda/device.h"
#include "kernels/elementwise.h"
#include "kernels/moe_cuda.h"
#include "kernels/ssm.h"
#include "kernels/ssm_cuda.h"
#include "model/cpu/router.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace nibble::bench {
namespace {

Result<Check> check_routing(Kit& kit, const MoeConfig& config, int64_t tokens, bool round, bool biased) {
    Check check{fmt::format("route {} of {}, {} of {} groups, {}{}, {} tokens", config.top_k, config.experts,
                            config.kept_groups, config.groups,
                            config.router == MoeConfig::Router::sigmoid ? "sigmoid" : "softmax", biased ? ", bias" : "",
                            tokens)};
    constexpr int64_t width = 72;
    const DeviceArena::Mark mark = kit.arena.mark();
    std::vector<float> logits = kit.normal(tokens * config.experts, 1.5f);
    std::fill_n(logits.begin(), config.experts, 0.25f);  // all equal
    if (tokens > 1)
        for (int e = 0; e < config.experts; ++e) logits[static_cast<size_t>(config.experts + e)] = e % 3;
    const std::vector<float> bias = kit.normal(config.experts, 0.3f),
                             y = kit.normal(tokens * config.top_k * width, 1.0f);
    const std::vector<float> shared = kit.normal(tokens * width, 1.0f);
    cuda::Routing out;
    const int64_t slots = tokens * config.top_k;
    NIBBLE_TRY(out.experts, kit.arena.allocate_array<int32_t>(slots));
    NIBBLE_TRY(out.weights, kit.arena.allocate_array<float>(slots));
    NIBBLE_TRY(out.begin, kit.arena.allocate_array<int32_t>(config.experts + 1));
    NIBBLE_TRY(out.rows, kit.arena.allocate_array<int32_t>(slots));
    NIBBLE_TRY(out.places, kit.arena.allocate_array<int32_t>(slots));
    NIBBLE_TRY(const float* device_logits, kit.upload(logits));
    NIBBLE_TRY(const float* device_bias, kit.upload(bias));
    NIBBLE_CHECK(cuda::route({.experts = config.experts,
                              .top_k = config.top_k,
                              .groups = config.groups,
                              .kept_groups = config.kept_groups,
                              .sigmoid = config.router == MoeConfig::Router::sigmoid,
                              .round = round,
                              .normalize = config.normalize,
                              .smallest_sum = config.smallest_sum,
                              .scaling = config.routed_scaling},
                             device_logits, biased ? device_bias : nullptr, tokens, out, true, kit.stream));
    NIBBLE_TRY(const auto experts, kit.download<int32_t>(out.experts, slots));
    NIBBLE_TRY(const auto weights, kit.download<float>(out.weights, slots));
    NIBBLE_TRY(const auto begin, kit.download<int32_t>(out.begin, config.experts + 1));
    NIBBLE_TRY(const auto rows, kit.download<int32_t>(out.rows, slots));
    NIBBLE_TRY(const auto places, kit.download<int32_t>(out.places, slots));
    std::vector<int32_t> want(static_cast<size_t>(slots));
    std::vector<float> want_weights(want.size());
    for (int64_t t = 0; t < tokens; ++t) {
        std::vector<float> row(logits.begin() + t * config.experts, logits.begin() + (t + 1) * config.experts);
        if (round)
            for (float& x : row) x = round_to_bf16(x);
        const auto at = static_cast<size_t>(t * config.top_k), k = static_cast<size_t>(config.top_k);
        route(config, row, biased ? std::span<const float>(bias) : std::span<const float>{},
              std::span(want).subspan(at, k), std::span(want_weights).subspan(at, k));
    }
    std::vector<std::vector<int32_t>> of_expert(static_cast<size_t>(config.experts));
    for (int64_t i = 0; i < slots; ++i, ++check.compared) {
        const auto at = static_cast<size_t>(i);
        if (experts[at] != want[at] || float_bits(weights[at]) != float_bits(want_weights[at]))
            check.note(fmt::format("slot {}: expert {} {} instead of {} {}", i, experts[at], weights[at], want[at],
                                   want_weights[at]));
        of_expert[static_cast<size_t>(want[at])].push_back(static_cast<int32_t>(i));
    }
    int32_t at = 0;
    for (int e = 0; e < config.experts; ++e) {
        if (begin[static_cast<size_t>(e)] != at) check.note(fmt::format("expert {} begins elsewhere", e));
        for (const int32_t slot : of_expert[static_cast<size_t>(e)]) {
            if (rows[static_cast<size_t>(at)] != slot / config.top_k || places[static_cast<size_t>(slot)] != at)
                check.note(fmt::format("slot {} of expert {} has another place", slot, e));
            ++at;
        }
    }
    if (begin.back() != slots) check.note("the last expert ends elsewhere");
    // Sums outputs like Moe::run_experts and the addition of the shared expert.
    NIBBLE_TRY(const float* device_y, kit.upload(y));
    NIBBLE_TRY(const float* device_shared, kit.upload(shared));
    NIBBLE_TRY(std::byte * sum, kit.poisoned(tokens * width * 4));
    for (const bool with_shared : {false, true}) {
        NIBBLE_CHECK(cuda::combine_experts({.tokens = tokens,
                                            .width = width,
                                            .top_k = config.top_k,
                                            .y = device_y,
                                            .shared = with_shared ? device_shared : nullptr,
                                            .sum = with_shared ? reinterpret_cast<float*>(sum) : nullptr,
                                            .rows = with_shared ? nullptr : sum},
                                           out, true, kit.stream));
        NIBBLE_TRY(const auto floats, kit.download<float>(sum, tokens * width));
        const auto* halves = reinterpret_cast<const uint16_t*>(floats.data());
        for (int64_t i = 0; i < tokens * width; ++i, ++check.compared) {
            float acc = 0.0f;
            for (int k = 0; k < config.top_k; ++k) {
                const auto slot = static_cast<size_t>(i / width * config.top_k + k);
                acc += want_weights[slot] * round_to_bf16(y[static_cast<size_t>(places[slot] * width + i % width)]);
            }
            acc = round_to_bf16(acc);
            if (with_shared) acc = round_to_bf16(acc + round_to_bf16(shared[static_cast<size_t>(i)]));
            const float got = with_shared ? floats[static_cast<size_t>(i)] : bf16_to_float(halves[i]);
            if (got != acc) check.note(fmt::format("sum {}: {} instead of {}", i, got, acc));
        }
    }
    kit.arena.release(mark);
    return check;
}

struct MambaCase {
    cuda::MambaShape shape;
    std::vector<int32_t> lengths;
    SsmNorm order = SsmNorm::after_gate;
};

float softplus(float x) {
    const double wide = x;
    return static_cast<float>(wide > 0 ? wide + std::log1p(std::exp(-wide)) : std::log1p(std::exp(wide)));
}

// Computes Mamba::forward between its products, in BF16.
class MambaReference {
public:
    std::vector<float> conv_weight, conv_bias, a, d, dt_bias, norm;
    float dt_min = 0.001f, eps = 1e-5f;
    SsmNorm order = SsmNorm::after_gate;
    PhiloxStream stream{.seed = 77, .role = 3};

    Result<std::vector<float>> run(const cuda::MambaShape& s, std::vector<float> projected, int64_t tokens) const {
        NIBBLE_TRY(const ElementwiseKernels* elements, select_elementwise_kernels("ref"));
        NIBBLE_TRY(const SsmKernels* kernels, select_ssm_kernels("ref"));
        const int64_t channels = s.channels(), inner = s.inner(), stride = inner + channels + s.heads;
        elements->round_bf16(projected.data(), static_cast<int64_t>(projected.size()));
        std::vector<float> xbc(static_cast<size_t>(tokens * channels)), dt, decay,
            y(static_cast<size_t>(tokens * inner));
        const std::vector<float> nothing(static_cast<size_t>(channels));
        for (int64_t t = 0; t < tokens; ++t) {
            const float* taps[16];
            for (int64_t j = 0; j < s.conv; ++j) {
                const int64_t from = t - (s.conv - 1) + j;
                taps[j] = from >= 0 ? projected.data() + from * stride + inner : nothing.data();
            }
            kernels->convolve(taps, s.conv, conv_weight.data(), conv_bias.data(), channels, xbc.data() + t * channels);
            for (int h = 0; h < s.heads; ++h) {
                const auto at = static_cast<size_t>(h);
                dt.push_back(std::max(
                    softplus(projected[static_cast<size_t>(t * stride + inner + channels + h)] + dt_bias[at]), dt_min));
                decay.push_back(static_cast<float>(std::exp(double{dt.back()} * a[at])));
            }
        }
        elements->activate(Activation::silu, xbc.data(), nullptr, tokens * channels, true, xbc.data());
        std::vector<float> state(static_cast<size_t>(ssm_state_elements(s.heads, s.head_dim, s.state)));
        ThreadPool pool(1);
        ssm_scan(*kernels,
                 {.heads = s.heads,
                  .head_dim = s.head_dim,
                  .groups = s.groups,
                  .state_size = s.state,
                  .x = xbc.data(),
                  .b = xbc.data() + inner,
                  .c = xbc.data() + inner + s.groups * s.state,
                  .stride = channels,
                  .decay = decay.data(),
                  .dt = dt.data(),
                  .d = d.data(),
                  .y = y.data(),
                  .tokens = tokens,
                  .format = s.format,
                  .stream = stream},
                 reinterpret_cast<std::byte*>(state.data()), pool);
        const int64_t group = inner / s.groups;
        for (int64_t t = 0; t < tokens; ++t) {
            float* row = y.data() + t * inner;
            const auto normalize = [&] {
                for (int64_t at = 0; at < inner; at += group)
                    elements->rms_norm(row + at, norm.data() + at, group, eps, true, row + at);
            };
            if (order == SsmNorm::before_gate) normalize();
            elements->activate(Activation::silu, projected.data() + t * stride, row, inner,
                               order != SsmNorm::after_gate, row);
            if (order == SsmNorm::after_gate) normalize();
        }
        return y;
    }
};

Result<Check> check_mamba_case(Kit& kit, const MambaCase& c) {
    const cuda::MambaShape& s = c.shape;
    constexpr const char* formats[] = {"f32", "bf16", "fp16", "fp16 stochastic"};
    Check check{fmt::format("mamba {} heads of {}, {} groups, state {} {}, conv {}", s.heads, s.head_dim, s.groups,
                            s.state, formats[static_cast<int>(s.format)], s.conv)};
    const DeviceArena::Mark mark = kit.arena.mark();
    const int64_t stride = s.inner() + s.channels() + s.heads;
    MambaReference ref;
    ref.order = c.order;
    ref.conv_weight = kit.normal(s.conv * s.channels(), 0.5f), ref.conv_bias = kit.normal(s.channels(), 0.2f);
    for (int h = 0; h < s.heads; ++h) ref.a.push_back(-0.5f - 0.3f * static_cast<float>(h));
    ref.d = kit.normal(s.heads, 1.0f), ref.dt_bias = kit.normal(s.heads, 1.0f), ref.norm = kit.normal(s.inner(), 1.0f);
    int64_t tokens = 0;
    for (const int32_t n : c.lengths) tokens += n;
    const std::vector<float> projected = kit.normal(tokens * stride, 1.0f);
    cuda::MambaStep m{
        .shape = s, .tokens = tokens, .dt_min = ref.dt_min, .order = c.order, .eps = ref.eps, .stream = ref.stream};
    NIBBLE_TRY(m.conv_weight, kit.upload(ref.conv_weight));
    NIBBLE_TRY(m.conv_bias, kit.upload(ref.conv_bias));
    NIBBLE_TRY(m.a, kit.upload(ref.a));
    NIBBLE_TRY(m.d, kit.upload(ref.d));
    NIBBLE_TRY(m.dt_bias, kit.upload(ref.dt_bias));
    if (c.order != SsmNorm::none) {
        NIBBLE_TRY(m.norm, kit.upload(ref.norm));
    }
    NIBBLE_TRY(m.workspace, kit.arena.allocate(cuda::mamba_workspace_bytes(s, tokens)));
    const int64_t floats = s.state_floats(), segments = std::ssize(c.lengths);
    NIBBLE_TRY(float* states, kit.arena.allocate_array<float>(floats * segments));
    NIBBLE_TRY(const float* device_projected, kit.upload(projected));
    NIBBLE_TRY(std::byte * out, kit.poisoned(tokens * s.inner() * 2));
    std::vector<float> want;
    int64_t row = 0;
    for (const int32_t n : c.lengths) {
        NIBBLE_TRY(const auto y,
                   ref.run(s, {projected.begin() + row * stride, projected.begin() + (row + n) * stride}, n));
        want.insert(want.end(), y.begin(), y.end());
        row += n;
    }
    // Whole texts without a state; whole texts with one; cut after three tokens; token by token.
    for (const int cut : {0, -1, 3, 1}) {
        NIBBLE_CHECK(fill_device(reinterpret_cast<std::byte*>(states), 0, floats * segments * 4, kit.stream));
        NIBBLE_CHECK(fill_device(out, Kit::poison, tokens * s.inner() * 2, kit.stream));
        for (int32_t done = 0; done < *std::ranges::max_element(c.lengths);) {
            std::vector<cuda::StateSegment> list;
            int32_t first = 0, longest = 0;
            for (size_t i = 0; i < c.lengths.size(); first += c.lengths[i++]) {
                const int32_t here = cut < 1 ? c.lengths[i] : std::min(cut, c.lengths[i] - done);
                if (here < 1) continue;
                list.push_back(
                    {first + done, here, cut == 0 ? nullptr : states + static_cast<int64_t>(i) * floats, done});
                longest = std::max(longest, here);
            }
            cuda::MambaStep step = m;
            step.projected = device_projected, step.out = out, step.longest = longest;
            step.segments = static_cast<int>(list.size());
            NIBBLE_TRY(step.list, kit.upload(list));
            NIBBLE_CHECK(cuda::mamba_step(step, true, kit.stream));
            NIBBLE_CHECK(kit.stream.synchronize());
            done += cut < 1 ? *std::ranges::max_element(c.lengths) : cut;
        }
        NIBBLE_TRY(const auto got, kit.download<uint16_t>(out, tokens * s.inner()));
        for (size_t i = 0; i < got.size(); ++i, ++check.compared)
            if (got[i] != bf16_from_float(want[i]))
                check.note(fmt::format("cut {}: token {} channel {}: {} instead of {}", cut,
                                       i / static_cast<size_t>(s.inner()), i % static_cast<size_t>(s.inner()),
                                       bf16_to_float(got[i]), want[i]));
    }
    kit.arena.release(mark);
    return check;
}

Result<std::vector<Check>> check_experts(const Kit& given) {
    Kit kit = given;
    std::vector<Check> results;
    const auto add = [&](MoeConfig config, bool round, bool biased) -> Status {
        // Many tokens; few enough for the single thread block that also sorts (64 slots); one token.
        for (const int64_t tokens : {int64_t{517}, int64_t{64 / config.top_k}, int64_t{1}}) {
            NIBBLE_TRY(auto check, check_routing(kit, config, tokens, round, biased));
            results.push_back(std::move(check));
        }
        return Ok{};
    };
    using R = MoeConfig::Router;
    NIBBLE_CHECK(add({.experts = 128, .top_k = 8, .router = R::softmax}, true, false));
    NIBBLE_CHECK(add({.experts = 8, .top_k = 2, .router = R::softmax, .normalize = false}, true, false));
    NIBBLE_CHECK(add({.experts = 5, .top_k = 5, .router = R::softmax, .routed_scaling = 2.5f}, false, false));
    NIBBLE_CHECK(add({.experts = 256,
                      .top_k = 8,
                      .router = R::sigmoid,
                      .selection_bias = true,
                      .groups = 8,
                      .kept_groups = 4,
                      .routed_scaling = 2.5f},
                     false, true));
    NIBBLE_CHECK(add({.experts = 16, .top_k = 3, .router = R::sigmoid, .groups = 16, .kept_groups = 5}, false, false));
    NIBBLE_CHECK(add({.experts = 12, .top_k = 2, .router = R::sigmoid, .smallest_sum = 0.125f}, false, true));
    NIBBLE_CHECK(add({.experts = 1000, .top_k = 32, .router = R::sigmoid}, false, true));
    return results;
}

Result<std::vector<Check>> check_mamba(const Kit& given) {
    Kit kit = given;
    std::vector<Check> results;
    for (const MambaCase& c : {MambaCase{{4, 16, 2, 16, 4}, {1, 7, 20}}, MambaCase{{6, 24, 3, 20, 2}, {5, 9}},
                               MambaCase{{8, 64, 2, 128, 4}, {33, 2}}, MambaCase{{16, 64, 2, 128, 4}, {5, 1, 3}},
                               MambaCase{{2, 80, 1, 64, 1}, {11}}, MambaCase{{8, 64, 2, 128, 4}, {100}},
                               // More segments than the kernel for one token supports.
                               MambaCase{{4, 16, 2, 16, 4}, {2, 2, 3, 2, 4, 2, 2, 2, 2}},
                               MambaCase{{6, 24, 3, 20, 2}, {3, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2}},
                               MambaCase{{8, 64, 2, 128, 4}, {2, 2, 3, 2, 2, 2, 2, 2, 2, 2, 2, 2}},
                               MambaCase{{2, 80, 1, 64, 1}, {2, 2, 2, 2, 2, 2, 2, 2, 2}}}) {
        for (const auto format :
             {SsmStateFormat::f32, SsmStateFormat::bf16, SsmStateFormat::fp16, SsmStateFormat::fp16_stochastic}) {
            MambaCase each = c;
            each.shape.format = format;
            NIBBLE_TRY(auto check, check_mamba_case(kit, each));
            results.push_back(std::move(check));
        }
    }
    return results;
}

}  // namespace

TEST(CudaKernels, Experts) { expect_all(check_experts(kit())); }

// The first two shapes decode with one kernel, the third does not.
Result<std::vector<Check>> check_mamba_norms(const Kit& given) {
    Kit kit = given;
    std::vector<Check> results;
    for (const SsmNorm order : {SsmNorm::before_gate, SsmNorm::none})
        for (const MambaCase& c :
             {MambaCase{{4, 16, 1, 16, 4}, {1, 7, 20}, order}, MambaCase{{8, 128, 2, 128, 4}, {33, 2}, order},
              MambaCase{{24, 64, 1, 128, 4}, {9, 1, 3}, order}}) {
            NIBBLE_TRY(auto check, check_mamba_case(kit, c));
            results.push_back(std::move(check));
        }
    return results;
}

TEST(CudaKernels, MambaWithOtherNormsHasTheBitsOfTheCpu) { expect_all(check_mamba_norms(kit())); }

TEST(CudaKernels, Mamba) { expect_all(check_mamba(kit())); }

}  // namespace nibble::bench

// Compares the backward pass of the rotary embedding and of the norms of heads with double precision.
#include "cuda/device.h"
#include "kernels/elementwise_backward_cuda.h"

#include <cmath>

namespace nibble::bench {
namespace {

struct Shape {
    int q_heads, kv_heads, dim, turned;
    bool interleaved = false, q_norm = false, k_norm = false;
    int64_t tokens = 37;
    std::string name() const {
        return fmt::format("way back through rope, {} + {} heads of {}, {} turned{}{}{}", q_heads, kv_heads, dim,
                           turned, interleaved ? ", interleaved" : "", q_norm ? ", norm of q" : "",
                           k_norm ? ", norm of k" : "");
    }
};

constexpr double eps = 1e-5;

Result<Check> check_shape(Kit& kit, const Shape& s) {
    Check check{s.name()};
    const DeviceArena::Mark mark = kit.arena.mark();
    const int half = s.turned / 2, heads = s.q_heads + s.kv_heads, all = heads + s.kv_heads;
    constexpr int positions = 50;
    const auto size = [](int64_t n) { return static_cast<size_t>(n); };
    std::vector<float> cos, sin;
    for (int i = 0; i < positions * half; ++i) {
        const double angle = i / half * std::pow(1e4, -2.0 * (i % half) / s.turned);
        cos.push_back(static_cast<float>(std::cos(angle))), sin.push_back(static_cast<float>(std::sin(angle)));
    }
    std::vector<int32_t> position;
    for (int64_t t = 0; t < s.tokens; ++t) position.push_back(static_cast<int32_t>(t * 7 % positions));
    const std::vector<uint16_t> qkv = kit.normal_bf16(s.tokens * all * s.dim, 2.0f);
    const std::vector<uint16_t> dy = kit.normal_bf16(s.tokens * all * s.dim, 1.0f);
    const std::vector<float> weights[2] = {kit.normal(s.dim, 1.0f), kit.normal(s.dim, 1.0f)};
    cuda::RopeRows r{.tokens = s.tokens,
                     .q_heads = s.q_heads,
                     .kv_heads = s.kv_heads,
                     .dim = s.dim,
                     .eps = static_cast<float>(eps),
                     .rope_dims = s.turned,
                     .interleaved = s.interleaved};
    NIBBLE_TRY(r.qkv, kit.upload_bytes(qkv));
    NIBBLE_TRY(r.cos, kit.upload(cos));
    NIBBLE_TRY(r.sin, kit.upload(sin));
    NIBBLE_TRY(r.positions, kit.upload(position));
    if (s.q_norm) {
        NIBBLE_TRY(r.q_norm, kit.upload(weights[0]));
    }
    if (s.k_norm) {
        NIBBLE_TRY(r.k_norm, kit.upload(weights[1]));
    }
    NIBBLE_TRY(uint16_t * d_qkv, kit.upload(dy));
    NIBBLE_TRY(std::byte * norms, kit.poisoned(2 * 4 * s.dim));
    NIBBLE_TRY(std::byte * workspace, kit.poisoned(cuda::rope_backward_workspace(s.dim)));
    auto* of_norms = reinterpret_cast<float*>(norms);
    NIBBLE_CHECK(cuda::rope_backward(r, reinterpret_cast<std::byte*>(d_qkv), s.q_norm ? of_norms : nullptr,
                                     s.k_norm ? of_norms + s.dim : nullptr, workspace, kit.stream));
    NIBBLE_TRY(const auto got, kit.download<uint16_t>(d_qkv, std::ssize(dy)));
    NIBBLE_TRY(const auto got_norms, kit.download<float>(norms, 2 * s.dim));
    kit.arena.release(mark);

    std::vector<double> sums(size(2 * s.dim)), sizes(size(2 * s.dim));
    for (int64_t i = 0; i < s.tokens * all; ++i) {
        const int head = static_cast<int>(i % all), kind = head < s.q_heads ? 0 : 1;
        const bool normed = kind == 0 ? s.q_norm : s.k_norm;
        std::vector<double> x, g;
        for (int64_t at = i * s.dim; at < (i + 1) * s.dim; ++at)
            x.push_back(double{bf16_to_float(qkv[size(at)])}), g.push_back(double{bf16_to_float(dy[size(at)])});
        if (head < heads) {
            const int at = position[size(i / all)] * half;
            for (int p = 0; p < half; ++p) {
                double &a = g[size(s.interleaved ? 2 * p : p)], &b = g[size(s.interleaved ? 2 * p + 1 : p + half)];
                const double c = double{cos[size(at + p)]}, n = double{sin[size(at + p)]}, first = a * c + b * n;
                b = b * c - a * n, a = first;
            }
        }
        if (head < heads && normed) {
            double squares = 0, dot = 0;
            for (const double v : x) squares += v * v;
            const double scale = 1 / std::sqrt(squares / s.dim + eps);
            for (size_t j = 0; j < x.size(); ++j) {
                const double part = g[j] * x[j] * scale;
                sums[size(kind * s.dim) + j] += part, sizes[size(kind * s.dim) + j] += std::abs(part);
                g[j] *= double{weights[kind][j]};
                dot += g[j] * x[j];
            }
            for (size_t j = 0; j < x.size(); ++j) g[j] = scale * (g[j] - x[j] * dot / s.dim * scale * scale);
        }
        for (size_t j = 0; j < g.size(); ++j, ++check.compared) {
            const double value = double{bf16_to_float(got[size(i * s.dim) + j])}, apart = std::abs(value - g[j]);
            check.worst = std::max(check.worst, apart);
            // Values are rounded to BF16 once, by at most 1 / 256; values of v are unchanged.
            if (!(apart <= (head < heads ? 0.004 * std::abs(g[j]) + 1e-5 : 0)))
                check.note(fmt::format("row {}, head {}, column {}: {} instead of {}", i / all, head, j, value, g[j]));
        }
    }
    for (int i = 0; i < 2 * s.dim; ++i) {
        if (!(i < s.dim ? s.q_norm : s.k_norm)) continue;
        const double value = double{got_norms[size(i)]}, apart = std::abs(value - sums[size(i)]);
        if (!(apart <= 1e-5 * sizes[size(i)]))
            check.note(fmt::format("norm, column {}: {} instead of {}", i, value, sums[size(i)]));
    }
    return check;
}

}  // namespace

TEST(CudaKernels, RopeBackward) {
    std::vector<Check> checks;
    for (const Shape& s : {Shape{12, 4, 64, 64},
                           {4, 2, 64, 32, true},
                           {5, 1, 80, 48},
                           {3, 2, 96, 24},
                           {2, 2, 96, 24, true, true, true},
                           {4, 2, 64, 64, false, true, true, 3000},
                           {16, 8, 128, 128, false, true, true, 1500},
                           {3, 1, 256, 64, false, true, false},
                           {2, 1, 192, 192, true, false, true}}) {
        auto check = check_shape(kit(), s);
        ASSERT_TRUE(check.ok()) << check.error().message();
        checks.push_back(*std::move(check));
    }
    expect_all(checks);
}

}  // namespace nibble::bench

#include "gpu_bench/attention_backward.h"

#include "kernels/attention_backward_cuda.h"
#include "kernels/prepare_training_cuda.h"

#include <array>
#include <cmath>
#include <numbers>

namespace nibble::bench {
namespace {

class AttentionBackward {
public:
    AttentionBackward(Kit& kit, const AttentionBackwardShape& shape, const Noise<uint16_t>& noise)
        : kit_(kit), s_(shape), noise_(noise) {}

    Status load();
    Status launch() const { return cuda::attention_backward(a_, kit_.stream); }
    Result<Check> check() const;
    double bytes() const { return 2.0 * static_cast<double>(tokens() * (4 * q_cols() + 4 * kv_cols())); }
    // Counts five products, as is usual. The kernels compute seven, because scores and dP are computed twice.
    double operations() const {
        const double pairs = 0.5 * s_.documents * s_.tokens * (s_.tokens + 1.0) * s_.q_heads;
        return 10.0 * pairs * s_.head_dim;
    }

private:
    static constexpr double bound = 1e-2;  // P and dS are rounded to BF16 before they multiply, gradients afterwards
    // Offsets in the noise; queries begin at 0.
    static constexpr int64_t keys_from = 1234567, values_from = 2345678, outputs_from = 3456789, slopes_from = 456789;

    int64_t tokens() const { return int64_t{s_.documents} * s_.tokens; }
    int64_t q_cols() const { return int64_t{s_.q_heads} * s_.head_dim; }
    int64_t kv_cols() const { return int64_t{s_.kv_heads} * s_.head_dim; }
    double value(int64_t from, int64_t at) const { return bf16_to_float(noise_.at(from + at)); }
    // Returns an invented log sum, close to that of scores with a spread of 1. The backward pass uses it unchanged.
    double log_sum(int64_t token) const {
        return static_cast<float>(std::log2(static_cast<double>(token % s_.tokens + 1)) + 0.72);
    }
    struct Pair {
        double p, ds;
    };
    Pair pair(int64_t query, int64_t key, int head) const;
    std::vector<double> dq(int64_t query, int head) const;
    std::array<std::vector<double>, 2> dkv(int64_t key, int kv_head) const;

    Kit& kit_;
    AttentionBackwardShape s_;
    const Noise<uint16_t>& noise_;
    cuda::AttentionBackward a_;
};

Status AttentionBackward::load() {
    std::vector<int32_t> first;
    std::vector<float> log_sums;
    for (int64_t t = 0; t < tokens(); ++t) {
        first.push_back(static_cast<int32_t>(t / s_.tokens * s_.tokens));
        log_sums.insert(log_sums.end(), static_cast<size_t>(s_.q_heads), static_cast<float>(log_sum(t)));
    }
    const auto noise = [&](int64_t cols, int64_t from) -> Result<std::byte*> {
        NIBBLE_TRY(std::byte * p, kit_.arena.allocate(2 * tokens() * cols));
        NIBBLE_CHECK(noise_.fill(kit_, p, tokens() * cols, from));
        return p;
    };
    a_ = {.tokens = tokens(),
          .q_heads = s_.q_heads,
          .kv_heads = s_.kv_heads,
          .dim = s_.head_dim,
          .scale = 1.0f / std::sqrt(static_cast<float>(s_.head_dim)),
          .d_stride = q_cols() + 2 * kv_cols()};
    NIBBLE_TRY(a_.first, kit_.upload(first));
    NIBBLE_TRY(a_.q, noise(q_cols(), 0));
    NIBBLE_TRY(a_.k, noise(kv_cols(), keys_from));
    NIBBLE_TRY(a_.v, noise(kv_cols(), values_from));
    NIBBLE_TRY(a_.o, noise(q_cols(), outputs_from));
    NIBBLE_TRY(a_.d_o, noise(q_cols(), slopes_from));
    NIBBLE_TRY(a_.log_sums, kit_.upload(log_sums));
    NIBBLE_TRY(a_.dq, kit_.poisoned(2 * tokens() * a_.d_stride));
    a_.dk = a_.dq + 2 * q_cols(), a_.dv = a_.dk + 2 * kv_cols();
    NIBBLE_TRY(a_.workspace, kit_.poisoned(cuda::attention_backward_workspace(tokens(), s_.q_heads)));
    return Ok{};
}

AttentionBackward::Pair AttentionBackward::pair(int64_t query, int64_t key, int head) const {
    const int64_t dim = s_.head_dim, of_q = query * q_cols() + head * dim,
                  of_kv = key * kv_cols() + head / (s_.q_heads / s_.kv_heads) * dim;
    double s = 0, dp = 0, delta = 0;
    for (int64_t d = 0; d < dim; ++d) {
        const double slope = value(slopes_from, of_q + d);
        s += value(0, of_q + d) * value(keys_from, of_kv + d);
        dp += slope * value(values_from, of_kv + d);
        delta += slope * value(outputs_from, of_q + d);
    }
    const double p = std::exp2(s * double{a_.scale} * std::numbers::log2e - log_sum(query));
    return {p, p * (dp - delta) * double{a_.scale}};
}

std::vector<double> AttentionBackward::dq(int64_t query, int head) const {
    const int64_t dim = s_.head_dim, of_head = head / (s_.q_heads / s_.kv_heads) * dim;
    std::vector<double> sum(static_cast<size_t>(dim));
    for (int64_t key = query / s_.tokens * s_.tokens; key <= query; ++key) {
        const double ds = pair(query, key, head).ds;
        for (int64_t d = 0; d < dim; ++d) sum[size_t(d)] += ds * value(keys_from, key * kv_cols() + of_head + d);
    }
    return sum;
}

std::array<std::vector<double>, 2> AttentionBackward::dkv(int64_t key, int kv_head) const {
    const int64_t dim = s_.head_dim, end = (key / s_.tokens + 1) * s_.tokens;
    const int group = s_.q_heads / s_.kv_heads;
    std::array<std::vector<double>, 2> sums;
    for (auto& sum : sums) sum.resize(static_cast<size_t>(dim));
    for (int head = kv_head * group; head < (kv_head + 1) * group; ++head)
        for (int64_t query = key; query < end; ++query) {
            const Pair x = pair(query, key, head);
            const int64_t of_q = query * q_cols() + head * dim;
            for (int64_t d = 0; d < dim; ++d) {
                sums[0][size_t(d)] += x.ds * value(0, of_q + d);
                sums[1][size_t(d)] += x.p * value(slopes_from, of_q + d);
            }
        }
    return sums;
}

Result<Check> AttentionBackward::check() const {
    NIBBLE_CHECK(launch());
    Check check;
    const int64_t dim = s_.head_dim;
    const auto compare = [&](const std::byte* row, int head, const std::vector<double>& want,
                             const std::string& where) -> Status {
        NIBBLE_TRY(const auto got, kit_.download<uint16_t>(row + 2 * head * dim, dim));
        double square = 0, norm = 0;
        for (size_t d = 0; d < want.size(); ++d) {
            const double off = bf16_to_float(got[d]) - want[d];
            square += off * off, norm += want[d] * want[d];
        }
        const double error = std::sqrt(square / norm);
        check.compared += dim;
        if (!(error <= bound)) check.note(fmt::format("{}: {:.2e} off", where, error));
        check.worst = std::max(check.worst, error);
        return Ok{};
    };
    for (const int64_t token : {int64_t{1}, tokens() / 3, tokens() - s_.tokens, tokens() - 1}) {
        const int64_t at = 2 * token * a_.d_stride;
        for (const int head : {0, s_.q_heads - 1})
            NIBBLE_CHECK(compare(a_.dq + at, head, dq(token, head), fmt::format("dq of {}, head {}", token, head)));
        const int kv_head = s_.kv_heads - 1;
        const auto [dk, dv] = dkv(token, kv_head);
        NIBBLE_CHECK(compare(a_.dk + at, kv_head, dk, fmt::format("dk of {}", token)));
        NIBBLE_CHECK(compare(a_.dv + at, kv_head, dv, fmt::format("dv of {}", token)));
    }
    return check;
}

}  // namespace

std::vector<AttentionBackwardShape> target_attention_backward() {
    return {{.documents = 2, .tokens = 8192},
            {.documents = 8, .tokens = 2048, .head_dim = 64},
            {.documents = 32, .tokens = 1024, .q_heads = 12, .kv_heads = 12, .head_dim = 64}};
}

Status bench_attention_backward(Kit& kit, const std::vector<AttentionBackwardShape>& shapes,
                                const Noise<uint16_t>& noise, int repeats, KernelTable& table) {
    NIBBLE_CHECK(cuda::prepare_training(kit.device));
    for (const AttentionBackwardShape& s : shapes) {
        const DeviceArena::Mark mark = kit.arena.mark();
        AttentionBackward backward(kit, s, noise);
        NIBBLE_CHECK(backward.load());
        KernelRow row{"way back",
                      fmt::format("{}x{}, {}/{} of {}", s.documents, s.tokens, s.q_heads, s.kv_heads, s.head_dim),
                      int64_t{s.documents} * s.tokens};
        NIBBLE_TRY(row.check, backward.check());
        if (row.check.wrong == 0) {
            NIBBLE_TRY(row.time, time_graph(kit.stream, {2, repeats}, [&](int) { return backward.launch(); }));
        }
        row.bytes = backward.bytes(), row.operations = backward.operations();
        table.add(row);
        kit.arena.release(mark);
    }
    return Ok{};
}

}  // namespace nibble::bench

// Tests the backward pass of attention: gradients against double precision, and equal bits wherever a document begins.
#include "cuda/device.h"
#include "kernels/attention_backward_cuda.h"
#include "kernels/prepare_training_cuda.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace nibble::bench {
namespace {

// P and dS are rounded to BF16 before they multiply, gradients afterwards.
constexpr double gradient_bound = 8e-3;

struct Shape {
    int heads, kv_heads, dim;
    int64_t window = 0;
    std::vector<int> documents;  // tokens per document
    std::string name() const {
        return fmt::format("way back through attention, {}/{} heads of {}, {} documents{}", heads, kv_heads, dim,
                           documents.size(), window ? fmt::format(", window {}", window) : "");
    }
};

// Gradients of tokens, each [tokens, heads or kv_heads, dim].
template <class T>
struct Gradients {
    std::vector<T> dq, dk, dv;
};

class Problem {
public:
    Problem(Kit& kit, const Shape& shape) : kit_(kit), shape_(shape) {
        for (const int n : shape.documents) {
            first_.insert(first_.end(), static_cast<size_t>(n), static_cast<int32_t>(first_.size()));
        }
        q_ = kit.normal_bf16(tokens() * q_cols(), 1.5f), d_o_ = kit.normal_bf16(tokens() * q_cols(), 1.0f);
        k_ = kit.normal_bf16(tokens() * kv_cols(), 1.0f), v_ = kit.normal_bf16(tokens() * kv_cols(), 1.0f);
        o_.resize(q_.size());
        log_sums_.resize(static_cast<size_t>(tokens()) * shape.heads);
    }

    int64_t tokens() const { return std::ssize(first_); }
    int64_t q_cols() const { return int64_t{shape_.heads} * shape_.dim; }
    int64_t kv_cols() const { return int64_t{shape_.kv_heads} * shape_.dim; }

    // Also computes the outputs of the forward pass, which run() reads.
    Gradients<double> reference();
    // Computes only the tokens [begin, end), which must be whole documents.
    Result<Gradients<uint16_t>> run(int64_t begin, int64_t end);

private:
    static double at(const std::vector<uint16_t>& x, int64_t i) { return bf16_to_float(x[static_cast<size_t>(i)]); }
    float scale() const { return 1.0f / std::sqrt(static_cast<float>(shape_.dim)); }

    Kit& kit_;
    const Shape& shape_;
    std::vector<int32_t> first_;
    std::vector<uint16_t> q_, k_, v_, o_, d_o_;
    std::vector<float> log_sums_;  // [tokens, heads]
};

Gradients<double> Problem::reference() {
    const int64_t dim = shape_.dim;
    Gradients<double> d{std::vector<double>(q_.size()), std::vector<double>(k_.size()), std::vector<double>(v_.size())};
    for (int64_t t = 0; t < tokens(); ++t)
        for (int64_t h = 0; h < shape_.heads; ++h) {
            const int64_t of_q = t * q_cols() + h * dim, of_head = h / (shape_.heads / shape_.kv_heads) * dim;
            int64_t from = first_[static_cast<size_t>(t)];
            if (shape_.window) from = std::max(from, t - shape_.window + 1);
            std::vector<double> p(static_cast<size_t>(t - from + 1)), dp(p.size()), o(static_cast<size_t>(dim));
            for (size_t i = 0; i < p.size(); ++i) {
                const int64_t of_kv = (from + static_cast<int64_t>(i)) * kv_cols() + of_head;
                for (int64_t c = 0; c < dim; ++c) {
                    p[i] += at(q_, of_q + c) * at(k_, of_kv + c) * double{scale()};
                    dp[i] += at(d_o_, of_q + c) * at(v_, of_kv + c);
                }
            }
            const double top = *std::ranges::max_element(p);
            double sum = 0, delta = 0;
            for (double& x : p) sum += x = std::exp(x - top);
            log_sums_[static_cast<size_t>(t * shape_.heads + h)] =
                static_cast<float>(top * std::numbers::log2e + std::log2(sum));
            for (size_t i = 0; i < p.size(); ++i) {
                p[i] /= sum;
                for (int64_t c = 0; c < dim; ++c)
                    o[size_t(c)] += p[i] * at(v_, (from + static_cast<int64_t>(i)) * kv_cols() + of_head + c);
            }
            for (int64_t c = 0; c < dim; ++c) {
                o_[static_cast<size_t>(of_q + c)] = bf16_from_float(static_cast<float>(o[size_t(c)]));
                delta += o[size_t(c)] * at(d_o_, of_q + c);
            }
            for (size_t i = 0; i < p.size(); ++i) {
                const int64_t of_kv = (from + static_cast<int64_t>(i)) * kv_cols() + of_head;
                const double ds = p[i] * (dp[i] - delta) * double{scale()};
                for (int64_t c = 0; c < dim; ++c) {
                    d.dq[static_cast<size_t>(of_q + c)] += ds * at(k_, of_kv + c);
                    d.dk[static_cast<size_t>(of_kv + c)] += ds * at(q_, of_q + c);
                    d.dv[static_cast<size_t>(of_kv + c)] += p[i] * at(d_o_, of_q + c);
                }
            }
        }
    return d;
}

Result<Gradients<uint16_t>> Problem::run(int64_t begin, int64_t end) {
    const DeviceArena::Mark mark = kit_.arena.mark();
    const int64_t n = end - begin, stride = q_cols() + 2 * kv_cols();
    const auto rows = [&](const auto& x, int64_t width) {
        return std::vector(x.begin() + begin * width, x.begin() + end * width);
    };
    std::vector<int32_t> first = rows(first_, 1);
    for (int32_t& f : first) f -= static_cast<int32_t>(begin);
    cuda::AttentionBackward a{.tokens = n,
                              .q_heads = shape_.heads,
                              .kv_heads = shape_.kv_heads,
                              .dim = shape_.dim,
                              .scale = scale(),
                              .window = shape_.window,
                              .d_stride = stride};
    NIBBLE_TRY(a.first, kit_.upload(first));
    NIBBLE_TRY(a.q, kit_.upload_bytes(rows(q_, q_cols())));
    NIBBLE_TRY(a.k, kit_.upload_bytes(rows(k_, kv_cols())));
    NIBBLE_TRY(a.v, kit_.upload_bytes(rows(v_, kv_cols())));
    NIBBLE_TRY(a.o, kit_.upload_bytes(rows(o_, q_cols())));
    NIBBLE_TRY(a.d_o, kit_.upload_bytes(rows(d_o_, q_cols())));
    NIBBLE_TRY(a.log_sums, kit_.upload(rows(log_sums_, shape_.heads)));
    NIBBLE_TRY(std::byte * out, kit_.poisoned(2 * n * stride));
    a.dq = out, a.dk = out + 2 * q_cols(), a.dv = out + 2 * (q_cols() + kv_cols());
    NIBBLE_TRY(a.workspace, kit_.poisoned(cuda::attention_backward_workspace(n, shape_.heads)));
    NIBBLE_CHECK(cuda::attention_backward(a, kit_.stream));
    NIBBLE_TRY(const auto all, kit_.download<uint16_t>(out, n * stride));
    kit_.arena.release(mark);
    Gradients<uint16_t> d;
    for (int64_t t = 0; t < n; ++t) {
        const auto row = all.begin() + t * stride;
        d.dq.insert(d.dq.end(), row, row + q_cols());
        d.dk.insert(d.dk.end(), row + q_cols(), row + q_cols() + kv_cols());
        d.dv.insert(d.dv.end(), row + q_cols() + kv_cols(), row + stride);
    }
    return d;
}

Result<std::vector<Check>> check_shape(Kit& kit, const Shape& shape) {
    Check error{shape.name() + ": distance from double precision"}, bits{shape.name() + ": same bits alone"};
    Problem problem(kit, shape);
    const Gradients<double> want = problem.reference();
    NIBBLE_TRY(const Gradients<uint16_t> got, problem.run(0, problem.tokens()));
    const auto compare = [&](const char* which, const std::vector<uint16_t>& x, const std::vector<double>& y) {
        double square = 0, norm = 0;
        for (size_t i = 0; i < y.size(); ++i) {
            const double off = bf16_to_float(x[i]) - y[i];
            square += off * off, norm += y[i] * y[i];
        }
        // A query that sees only one key has no gradient.
        const double distance = std::sqrt(square / std::max(norm, 1e-4 * static_cast<double>(y.size())));
        if (!(distance <= gradient_bound)) error.note(fmt::format("{}: {:.2e}", which, distance));
        error.worst = std::max(error.worst, distance), error.compared += std::ssize(y);
    };
    compare("dq", got.dq, want.dq);
    compare("dk", got.dk, want.dk);
    compare("dv", got.dv, want.dv);
    const auto same = [&](const char* which, const std::vector<uint16_t>& part, const std::vector<uint16_t>& whole,
                          int64_t begin) {
        bits.compared += std::ssize(part);
        if (!std::equal(part.begin(), part.end(), whole.begin() + begin))
            bits.note(fmt::format("{} from {} on", which, begin));
    };
    // The order of a document's sums depends on its position within a tile of 64 rows.
    int64_t begin = 0;
    for (const int n : shape.documents) {
        if (begin % 64 == 0) {
            NIBBLE_TRY(const Gradients<uint16_t> alone, problem.run(begin, begin + n));
            same("dq", alone.dq, got.dq, begin * problem.q_cols());
            same("dk", alone.dk, got.dk, begin * problem.kv_cols());
            same("dv", alone.dv, got.dv, begin * problem.kv_cols());
        }
        begin += n;
    }
    return std::vector{error, bits};
}

Result<std::vector<Check>> check_backward(Kit& kit, bool tiny) {
    NIBBLE_CHECK(cuda::prepare_training(kit.device));
    std::vector<Check> results;
    for (const int dim : {64, 96, 128, 192, 256}) {
        const std::vector<Shape> shapes{{2, 2, dim, 0, {1}},
                                        {4, 2, dim, 0, {64, 1, 127, 64, 200}},
                                        {6, 2, dim, 0, {37, 155, 128, 130}},
                                        {4, 1, dim, 70, {320, 3, 200}},
                                        {2, 1, dim, 7, {130}},
                                        {2, 2, dim, 0, {450}}};
        for (const Shape& shape : shapes) {
            if (tiny && shape.documents.size() < 4) continue;
            NIBBLE_TRY(auto checks, check_shape(kit, shape));
            results.insert(results.end(), checks.begin(), checks.end());
        }
    }
    return results;
}

}  // namespace

TEST(CudaKernels, AttentionBackward) { expect_all(check_backward(kit(), extent() == Extent::tiny)); }

}  // namespace nibble::bench

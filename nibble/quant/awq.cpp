#include "quant/awq.h"

#include "formats/nvfp4.h"
#include "kernels/ref/load.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace nibble {
namespace {

constexpr int64_t block = nvfp4_block;
constexpr float tiny = std::numeric_limits<float>::min();

// [rows, cols] -> [cols, rows]
std::vector<float> transposed(const std::vector<float>& m, int64_t rows, int64_t cols) {
    std::vector<float> t(m.size());
    for (int64_t i = 0; i < rows; ++i)
        for (int64_t j = 0; j < cols; ++j) t[static_cast<size_t>(j * rows + i)] = m[static_cast<size_t>(i * cols + j)];
    return t;
}

std::vector<float> column_importance(const std::vector<float>& w, int64_t rows, int64_t cols) {
    std::vector<double> sum(static_cast<size_t>(cols));
    for (int64_t r = 0; r < rows; ++r)
        for (int64_t b = 0; b < cols; b += block) {
            const float* x = w.data() + r * cols + b;
            float amax = 0;
            for (int64_t k = 0; k < block; ++k) amax = std::max(amax, magnitude(x[k]));
            for (int64_t k = 0; k < block; ++k)
                sum[static_cast<size_t>(b + k)] += double{magnitude(x[k]) / (amax + tiny)};
        }
    std::vector<float> v(sum.size());
    std::transform(sum.begin(), sum.end(), v.begin(),
                   [&](double s) { return static_cast<float>(s / static_cast<double>(rows)); });
    return v;
}

std::vector<float> scales_of(std::span<const float> a, const std::vector<float>& v, float alpha) {
    std::vector<float> s(v.size());
    float low = std::numeric_limits<float>::max(), high = 0;
    for (size_t k = 0; k < s.size(); ++k) {
        s[k] = std::clamp(std::pow(a[k], alpha) / (std::pow(v[k], 1.0f - alpha) + tiny), 1e-4f, 1e4f);
        low = std::min(low, s[k]), high = std::max(high, s[k]);
    }
    const float middle = std::sqrt(high * low);
    for (float& x : s) x /= middle;
    return s;
}

void fake_quantize_rows(std::vector<float>& x, Arithmetic arithmetic) {
    float g = 0;
    for (float v : x) g = std::max(g, magnitude(v));
    for (size_t b = 0; b < x.size(); b += block) {
        float amax = 0;
        for (size_t k = b; k < b + block; ++k) amax = std::max(amax, magnitude(x[k]));
        const float scale = nvfp4_fake_dynamic_scale(amax, g, arithmetic);
        for (size_t k = b; k < b + block; ++k) x[k] = nvfp4_fake_value(x[k], scale);
    }
}

class OutputError {
public:
    OutputError(const MatrixView& weight, const AwqInputs& inputs, const WeightSpec& spec,
                const QuantizeKernels& quantize, const SolverKernels& solver, ThreadPool& pool)
        : n_(weight.rows),
          k_(weight.cols),
          inputs_(inputs),
          spec_(spec),
          quantize_(quantize),
          solver_(solver),
          pool_(pool),
          w_(static_cast<size_t>(n_ * k_)),
          x_(inputs.rows, inputs.rows + inputs.count * k_) {
        for (int64_t i = 0; i < n_ * k_; ++i) w_[static_cast<size_t>(i)] = ref::load(weight, i / k_, i % k_);
        target_ = product(w_, x_);
    }

    std::vector<float> importance() const { return column_importance(w_, n_, k_); }

    double loss(const std::vector<float>& s) const {
        Matrix scaled(DType::f32, n_, k_);
        float* w = reinterpret_cast<float*>(scaled.data.data());
        for (int64_t i = 0; i < n_ * k_; ++i)
            w[i] = round_to_bf16(w_[static_cast<size_t>(i)] * s[static_cast<size_t>(i % k_)]);
        const float g = quantize_.scan(scaled.view()).amax;
        QuantMatrix q(spec_.format, n_, k_);
        q.tensor_scale = tensor_scale(spec_, {g, g});
        QuantStats stats;
        quantize_.quantize(scaled.view(), spec_, {g, g}, q.span(), stats);
        std::vector<float> decoded(w_.size()), x = x_;
        quantize_.decode(q.view(), decoded.data());
        for (size_t i = 0; i < x.size(); ++i) x[i] *= 1.0f / s[i % static_cast<size_t>(k_)];
        if (inputs_.quantized) fake_quantize_rows(x, spec_.arithmetic);
        const std::vector<float> y = product(decoded, x);
        double sum = 0;
        for (size_t i = 0; i < y.size(); ++i) {
            const double d = double{y[i]} - double{target_[i]};
            sum += d * d;
        }
        return sum / static_cast<double>(y.size());
    }

private:
    // x w^T [rows, n]
    std::vector<float> product(const std::vector<float>& w, const std::vector<float>& x) const {
        constexpr int64_t chunk = 96;
        const int64_t t = inputs_.count;
        const std::vector<float> a = transposed(x, t, k_), b = transposed(w, n_, k_);
        std::vector<float> y(static_cast<size_t>(t * n_));
        pool_.parallel_for((t + chunk - 1) / chunk, [&](int64_t c) {
            const int64_t begin = c * chunk;
            solver_.rank_update(
                {std::min(chunk, t - begin), n_, k_, a.data() + begin, t, b.data(), n_, y.data() + begin * n_, n_});
        });
        return y;
    }

    const int64_t n_, k_;
    const AwqInputs& inputs_;
    const WeightSpec& spec_;
    const QuantizeKernels& quantize_;
    const SolverKernels& solver_;
    ThreadPool& pool_;
    std::vector<float> w_, x_, target_;
};

}  // namespace

Result<AwqScales> awq_lite(const MatrixView& weight, const AwqInputs& inputs, const WeightSpec& spec, float step,
                           const QuantizeKernels& quantize, const SolverKernels& solver, ThreadPool& pool) {
    if (spec.format != Format::nvfp4) return fail("awq_lite quantizes to nvfp4, not {}", format_name(spec.format));
    if (weight.cols % block) return fail("{} columns are not whole blocks of 16", weight.cols);
    if (static_cast<int64_t>(inputs.mean_magnitude.size()) != weight.cols)
        return fail("statistics of {} inputs for {} columns", inputs.mean_magnitude.size(), weight.cols);
    if (!(step > 0.0f && step <= 1.0f)) return fail("a step of alpha of {} is not in (0, 1]", step);
    const bool seen =
        std::any_of(inputs.mean_magnitude.begin(), inputs.mean_magnitude.end(), [](float a) { return a > 0; });
    if (inputs.count < 1 || !seen) return fail("no token reached this linear: awq_lite has nothing to go by");
    const OutputError error(weight, inputs, spec, quantize, solver, pool);
    const std::vector<float> importance = error.importance();
    AwqScales best;
    const int64_t last = std::lround(1.0f / step);
    for (int64_t i = 0; i <= last; ++i) {
        const float alpha = std::min(static_cast<float>(i) * step, 1.0f);
        std::vector<float> s = scales_of(inputs.mean_magnitude, importance, alpha);
        best.loss.push_back(error.loss(s));
        if (best.scale.empty() || best.loss.back() < *std::min_element(best.loss.begin(), best.loss.end() - 1)) {
            best.alpha = alpha;
            best.scale = std::move(s);
        }
    }
    return best;
}

}  // namespace nibble

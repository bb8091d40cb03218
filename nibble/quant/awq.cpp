#include "quant/awq.h"

#include "formats/fp8.h"
#include "formats/nvfp4.h"
#include "kernels/load.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace nibble {
namespace {

constexpr int64_t awq_block = nvfp4_block;
constexpr float tiny = std::numeric_limits<float>::min();

// Returns [cols, rows] for [rows, cols].
std::vector<float> transposed(const std::vector<float>& m, int64_t rows, int64_t cols) {
    std::vector<float> t(m.size());
    for (int64_t i = 0; i < rows; ++i)
        for (int64_t j = 0; j < cols; ++j) t[static_cast<size_t>(j * rows + i)] = m[static_cast<size_t>(i * cols + j)];
    return t;
}

// Adds |w| / (maximum of its block + tiny) to the sums, row by row.
void add_importance(const MatrixView& w, int64_t block, std::vector<double>& sum) {
    std::vector<float> x(static_cast<size_t>(block));
    for (int64_t r = 0; r < w.rows; ++r)
        for (int64_t b = 0; b < w.cols; b += block) {
            float amax = 0;
            for (int64_t k = 0; k < block; ++k) {
                x[static_cast<size_t>(k)] = magnitude(ref::load(w, r, b + k));
                amax = std::max(amax, x[static_cast<size_t>(k)]);
            }
            for (int64_t k = 0; k < block; ++k)
                sum[static_cast<size_t>(b + k)] += double{x[static_cast<size_t>(k)] / (amax + tiny)};
        }
}

// Replaces the values of each class by their mean.
void average(std::span<const int32_t> classes, std::vector<float>& values) {
    if (classes.empty()) return;
    std::vector<double> sum(values.size()), count(values.size());
    for (size_t k = 0; k < values.size(); ++k) {
        sum[static_cast<size_t>(classes[k])] += double{values[k]};
        count[static_cast<size_t>(classes[k])] += 1;
    }
    for (size_t k = 0; k < values.size(); ++k) {
        const auto c = static_cast<size_t>(classes[k]);
        values[k] = static_cast<float>(sum[c] / count[c]);
    }
}

std::vector<float> scales_of(const std::vector<float>& a, const std::vector<float>& v, float alpha,
                             bool powers_of_two) {
    std::vector<float> s(v.size());
    float low = std::numeric_limits<float>::max(), high = 0;
    for (size_t k = 0; k < s.size(); ++k) {
        s[k] = std::clamp(std::pow(a[k], alpha) / (std::pow(v[k], 1.0f - alpha) + tiny), 1e-4f, 1e4f);
        low = std::min(low, s[k]), high = std::max(high, s[k]);
    }
    const float middle = std::sqrt(high * low);
    for (float& x : s) {
        x /= middle;
        if (powers_of_two) x = std::exp2(std::nearbyint(std::log2(x)));
    }
    return s;
}

void fake_quantize_rows(std::vector<float>& x, Arithmetic arithmetic) {
    float g = 0;
    for (float v : x) g = std::max(g, magnitude(v));
    for (size_t b = 0; b < x.size(); b += awq_block) {
        float amax = 0;
        for (size_t k = b; k < b + awq_block; ++k) amax = std::max(amax, magnitude(x[k]));
        const float scale = nvfp4_fake_dynamic_scale(amax, g, arithmetic);
        for (size_t k = b; k < b + awq_block; ++k) x[k] = nvfp4_fake_value(x[k], scale);
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

    // Returns the sum of squared errors.
    double operator()(const std::vector<float>& s) const {
        Matrix scaled(DType::f32, n_, k_);
        float* w = reinterpret_cast<float*>(scaled.data.data());
        for (int64_t i = 0; i < n_ * k_; ++i)
            w[i] = rounded_to_dtype(w_[static_cast<size_t>(i)] * s[static_cast<size_t>(i % k_)], spec_.weights);
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
        return sum;
    }

private:
    // Returns x w^T [rows, n].
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

Result<AwqScales> awq_lite(const AwqWeights& weights, const AwqInputs& inputs, const WeightSpec& spec, float step,
                           const QuantizeKernels& quantize, const SolverKernels& solver, ThreadPool& pool) {
    const int64_t cols = std::ssize(inputs.mean_magnitude);
    if (spec.format != Format::nvfp4 && spec.format != Format::int4)
        return fail("awq_lite quantizes to nvfp4 or int4, not {}", format_name(spec.format));
    if (!format_fits(spec.format, cols))
        return fail("{} columns are not whole blocks of {}", cols, format_name(spec.format));
    if (!inputs.classes.empty() && std::ssize(inputs.classes) != cols)
        return fail("{} classes for {} columns", inputs.classes.size(), cols);
    if (!(step > 0.0f && step <= 1.0f)) return fail("a step of alpha of {} is not in (0, 1]", step);
    std::vector<float> a(inputs.mean_magnitude.begin(), inputs.mean_magnitude.end());
    if (inputs.count < 1) return fail("no token reached this linear: awq_lite has no data for its search");
    if (std::ranges::none_of(a, [](float x) { return x > 0; }))
        return fail("all inputs are zero: awq_lite has no data for its search");
    std::vector<double> sum(a.size());
    int64_t rows = 0;
    for (size_t i = 0; i < weights.count; ++i) {
        NIBBLE_TRY(const MatrixView w, weights.read(i));
        if (w.cols != cols)
            return fail("calibration statistics have {} inputs, the matrix has {} columns", cols, w.cols);
        add_importance(w, format_layout(spec.format).whole_inputs(), sum);
        rows += w.rows;
    }
    std::vector<float> v(sum.size());
    std::ranges::transform(sum, v.begin(), [&](double s) { return static_cast<float>(s / static_cast<double>(rows)); });
    average(inputs.classes, a);
    average(inputs.classes, v);
    std::vector<std::vector<float>> scales;
    std::vector<float> alphas;
    for (int64_t i = 0, last = std::lround(1.0f / step); i <= last; ++i) {
        alphas.push_back(std::min(static_cast<float>(i) * step, 1.0f));
        scales.push_back(scales_of(a, v, alphas.back(), inputs.powers_of_two));
    }
    AwqScales best;
    best.loss.resize(scales.size());
    for (size_t i = 0; i < weights.count; ++i) {
        NIBBLE_TRY(const MatrixView w, weights.read(i));
        const OutputError error(w, inputs, spec, quantize, solver, pool);
        for (size_t k = 0; k < scales.size(); ++k) best.loss[k] += error(scales[k]);
        best.unscaled += error(std::vector<float>(a.size(), 1.0f));
    }
    const auto outputs = static_cast<double>(inputs.count * rows);
    for (double& loss : best.loss) loss /= outputs;
    best.unscaled /= outputs;
    const auto at = static_cast<size_t>(std::ranges::min_element(best.loss) - best.loss.begin());
    best.alpha = alphas[at];
    best.scale = std::move(scales[at]);
    return best;
}

}  // namespace nibble

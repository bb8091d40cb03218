#include "quant/gptq.h"

#include "formats/fp8.h"
#include "formats/int4.h"
#include "formats/nvfp4.h"
#include "kernels/load.h"
#include "quant/cholesky.h"

#include <algorithm>

namespace nibble {
namespace {

constexpr int64_t gptq_block = nvfp4_block;
constexpr int64_t rows_together = 16;

float block_amax(const float* w) {
    float amax = 0;
    for (int64_t k = 0; k < gptq_block; ++k) amax = std::max(amax, magnitude(w[k]));
    return amax;
}

// Returns the upper factor U of the inverse of the damped Hessian, H^-1 = U^T U, in FP32; empty: the damped Hessian is
// not positive definite.
std::vector<float> gptq_factor(const MatrixView& weight, std::span<const float> hessian, float damping,
                               const SolverKernels& kernels, ThreadPool& pool) {
    const int64_t n = weight.cols;
    std::vector<char> dead(static_cast<size_t>(n), 1);
    for (int64_t r = 0; r < weight.rows; ++r)
        for (int64_t j = 0; j < n; ++j)
            if (ref::load(weight, r, j) != 0.0f) dead[static_cast<size_t>(j)] = 0;
    std::vector<double> h(hessian.begin(), hessian.end());
    double mean = 0;
    for (int64_t i = 0; i < n; ++i) {
        for (int64_t j = 0; j < n; ++j)
            if (dead[static_cast<size_t>(i)] || dead[static_cast<size_t>(j)])
                h[static_cast<size_t>(i * n + j)] = i == j ? 1.0 : 0.0;
        mean += h[static_cast<size_t>(i * n + i)];
    }
    mean /= static_cast<double>(std::max<int64_t>(n, 1));
    for (int64_t i = 0; i < n; ++i) h[static_cast<size_t>(i * n + i)] += double{damping} * mean;
    const auto u = inverse_factor(h, n, kernels, pool);
    return u.ok() ? std::vector<float>(u->begin(), u->end()) : std::vector<float>();
}

// Returns the factor with which each column is rounded independently.
std::vector<float> no_feedback(int64_t n) {
    std::vector<float> u(static_cast<size_t>(n * n));
    for (int64_t i = 0; i < n; ++i) u[static_cast<size_t>(i * n + i)] = 1.0f;
    return u;
}

class Gptq {
public:
    Gptq(const MatrixView& weight, const std::vector<float>& u, const WeightSpec& spec, const TensorAmax& amax,
         int64_t group, const SolverKernels& kernels, const QuantSpan& out)
        : weight_(weight),
          u_(u),
          spec_(spec),
          amax_(amax),
          group_(group),
          kernels_(kernels),
          out_(out),
          fake_(nvfp4_fake_scale(amax.search, spec.normalization, spec.arithmetic)) {}

    // Solves rows [first, first + rows).
    void run(int64_t first, int64_t rows) const {
        const int64_t n = weight_.cols;
        std::vector<float> w(static_cast<size_t>(rows * n)), values(w.size()), answer(w.size());
        std::vector<float> error(static_cast<size_t>(group_ * rows));  // [column of the group, row]
        for (int64_t r = 0; r < rows; ++r)
            for (int64_t j = 0; j < n; ++j) w[static_cast<size_t>(r * n + j)] = ref::load(weight_, first + r, j);
        for (int64_t begin = 0; begin < n; begin += group_) {
            const int64_t end = std::min(begin + group_, n), rest = n - end;
            for (int64_t r = 0; r < rows; ++r)
                solve_group(first + r, begin, end, w.data() + r * n, values.data() + r * n, error.data() + r, rows);
            std::fill(answer.begin(), answer.end(), 0.0f);
            kernels_.rank_update(
                {rows, rest, end - begin, error.data(), rows, u_.data() + begin * n + end, n, answer.data(), n});
            for (int64_t r = 0; r < rows; ++r)
                for (int64_t j = 0; j < rest; ++j)
                    w[static_cast<size_t>(r * n + end + j)] -= answer[static_cast<size_t>(r * n + j)];
        }
        for (int64_t r = 0; r < rows; ++r) store(first + r, values.data() + r * n);
    }

private:
    // Solves columns [begin, end) of one row.
    void solve_group(int64_t row, int64_t begin, int64_t end, float* w, float* values, float* error,
                     int64_t stride) const {
        const int64_t n = weight_.cols;
        float scale = 0;
        for (int64_t i = begin; i < end; ++i) {
            if (spec_.format == Format::int4)
                scale = group_scale(row, w, i);
            else if (!spec_.static_scales)
                scale = dynamic_scale(w, i);
            else if (i % gptq_block == 0 || i == begin)
                scale = nvfp4_fake_block_scale(original_amax(row, i), fake_, spec_.arithmetic);
            const float* u = u_.data() + i * n;
            values[i] = spec_.format == Format::int4 ? int4_to_float(int4_code(w[i], scale, DType::f32)) * scale
                                                     : nvfp4_fake_value(w[i], scale);
            const float e = (w[i] - values[i]) / u[i];
            error[(i - begin) * stride] = e;
            for (int64_t j = i; j < end; ++j) w[j] -= e * u[j];
        }
    }

    // Returns the scale of the column's INT4 group. The group's first column determines it from the compensated values.
    float group_scale(int64_t row, const float* w, int64_t column) const {
        float& scale = out_.float_scales[(row * weight_.cols + column) / int4_group];
        if (column % int4_group == 0) {
            float amax = 0;
            for (int64_t k = 0; k < int4_group; ++k) amax = std::max(amax, magnitude(w[column + k]));
            scale = int4_scale(amax);
        }
        return scale;
    }

    float original_amax(int64_t row, int64_t column) const {
        return ref::region_amax(weight_, {row, 1, column / gptq_block * gptq_block, gptq_block});
    }

    // Returns the scale of a block whose columns before `column` hold their compensated values.
    float dynamic_scale(const float* w, int64_t column) const {
        return nvfp4_fake_dynamic_scale(block_amax(w + column / gptq_block * gptq_block), amax_.search,
                                        spec_.arithmetic);
    }

    void store_int4(int64_t row, const float* values) const {
        for (int64_t k = 0; k < weight_.cols; k += 2) {
            const float scale = out_.float_scales[(row * weight_.cols + k) / int4_group];
            const auto code = [&](float v) { return int4_code(v, scale, DType::f32); };
            out_.codes[(row * weight_.cols + k) / 2] = static_cast<uint8_t>(code(values[k]) | code(values[k + 1]) << 4);
        }
    }

    void store(int64_t row, const float* values) const {
        if (spec_.format == Format::int4) return store_int4(row, values);
        for (int64_t b = 0; b < weight_.cols / gptq_block; ++b) {
            float v[gptq_block];
            for (int64_t k = 0; k < gptq_block; ++k) v[k] = rounded_to_dtype(values[b * gptq_block + k], spec_.weights);
            const int64_t index = row * (weight_.cols / gptq_block) + b;
            const uint8_t scale = spec_.static_scales
                                      ? nvfp4_static_scale(original_amax(row, b * gptq_block), amax_.store,
                                                           spec_.normalization, spec_.arithmetic)
                                      : nvfp4_dynamic_scale(block_amax(v), out_.tensor_scale);
            const float decode_scale = nvfp4_decode_scale(scale, out_.tensor_scale);
            out_.block_scales[index] = scale;
            for (int64_t k = 0; k < gptq_block; k += 2)
                out_.codes[index * (gptq_block / 2) + k / 2] =
                    static_cast<uint8_t>(nvfp4_code(v[k], decode_scale) | nvfp4_code(v[k + 1], decode_scale) << 4);
        }
    }

    const MatrixView& weight_;
    const std::vector<float>& u_;
    const WeightSpec& spec_;
    const TensorAmax& amax_;
    const int64_t group_;
    const SolverKernels& kernels_;
    const QuantSpan& out_;
    const FakeScale fake_;
};

}  // namespace

Result<SolveGaps> quantize_gptq(const MatrixView& weight, std::span<const float> hessian, const WeightSpec& spec,
                                const TensorAmax& amax, const GptqOptions& options, const SolverKernels& kernels,
                                ThreadPool& pool, const QuantSpan& out) {
    const int64_t n = weight.cols;
    const bool int4 = spec.format == Format::int4;
    if ((spec.format != Format::nvfp4 && !int4) || spec.search.kind != Search::Kind::max)
        return fail("gptq quantizes to nvfp4 or int4 with the maximum's scales, not {}", to_string(spec));
    if (!format_fits(spec.format, n)) return fail("{} columns are not whole blocks of {}", n, format_name(spec.format));
    if (static_cast<int64_t>(hessian.size()) != n * n)
        return fail("a Hessian of {} entries for {} columns", hessian.size(), n);
    if (options.group < 1) return fail("gptq's block_size must be positive, not {}", options.group);
    std::vector<float> u = gptq_factor(weight, hessian, options.damping, kernels, pool);
    const SolveGaps gaps{.no_feedback = u.empty()};
    if (gaps.no_feedback) u = no_feedback(n);
    const Gptq solver(weight, u, spec, amax, options.group, kernels, out);
    pool.parallel_for((weight.rows + rows_together - 1) / rows_together, [&](int64_t p) {
        solver.run(p * rows_together, std::min(rows_together, weight.rows - p * rows_together));
    });
    return gaps;
}

}  // namespace nibble

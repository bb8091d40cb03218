#include "quant/output_error.h"

#include "kernels/load.h"

#include <algorithm>
#include <vector>

namespace nibble {
namespace {

// Returns x^T H x, with the whole matrix or only its diagonal blocks of 16.
double quadratic(const std::vector<double>& x, const LinearStatistics& s) {
    const auto n = static_cast<int64_t>(x.size());
    double sum = 0;
    if (s.inputs) {
        const std::span<const double> h = s.inputs->sums();
        for (int64_t i = 0; i < n; ++i) {
            double row = 0;
            for (int64_t j = 0; j < n; ++j) row += h[static_cast<size_t>(i * n + j)] * x[static_cast<size_t>(j)];
            sum += row * x[static_cast<size_t>(i)];
        }
        return sum;
    }
    constexpr int64_t block = LocalGram::block;
    for (int64_t b = 0; b < n / block; ++b)
        for (int64_t i = 0; i < block; ++i)
            for (int64_t j = 0; j < block; ++j)
                sum += double{s.local[static_cast<size_t>((b * block + i) * block + j)]} *
                       x[static_cast<size_t>(b * block + i)] * x[static_cast<size_t>(b * block + j)];
    return sum;
}

}  // namespace

LayerOutputError measure_output_error(std::string module, const MatrixView& weight, const WeightSpec& spec,
                                      const TensorAmax& amax, const LinearStatistics& statistics,
                                      const QuantView& solved, const QuantizeKernels& kernels) {
    LayerOutputError error{.module = std::move(module)};
    if (statistics.tokens == 0 || (!statistics.inputs && statistics.local.empty())) return error;
    WeightSpec plain = spec;
    plain.search = {};
    const auto n = static_cast<size_t>(weight.cols);
    std::vector<float> decoded(n);
    std::vector<double> w(n), difference(n);
    error.rows = std::min(weight.rows, output_error_rows);
    for (int64_t k = 0; k < error.rows; ++k) {
        const int64_t row = k * weight.rows / error.rows;
        for (size_t j = 0; j < n; ++j) w[j] = ref::load(weight, row, static_cast<int64_t>(j));
        error.energy += quadratic(w, statistics);
        const auto add = [&](const QuantView& q, double& to) {
            kernels.decode(q, decoded.data());
            for (size_t j = 0; j < n; ++j) difference[j] = w[j] - double{decoded[j]};
            to += quadratic(difference, statistics);
        };
        QuantMatrix nearest(spec.format, 1, weight.cols);
        nearest.tensor_scale = solved.tensor_scale;
        QuantStats ignored;
        kernels.quantize(weight.panel(row, 1), plain, amax, nearest.span(), ignored);
        add(nearest.view(), error.before);
        add(solved.panel(row, 1), error.after);
    }
    return error;
}

}  // namespace nibble

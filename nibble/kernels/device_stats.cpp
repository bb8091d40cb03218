#include "formats/minifloat.h"
#include "kernels/quantize_cuda.h"

#include <cmath>

namespace nibble::cuda {

void add_stats(const DeviceStats& found, std::span<const RowSums> rows, const QuantView& panel, QuantStats& stats) {
    for (const RowSums& row : rows) {
        stats.squared_error += row.error;
        stats.squared_weight += row.weight;
    }
    const float max_error = float_from_bits(found.max_error_bits);
    if (!(max_error <= stats.max_error) && !std::isnan(stats.max_error)) stats.max_error = max_error;
    stats.zeros += found.zeros;
    stats.saturated += found.saturated;
    stats.sign_flips += found.sign_flips;
    stats.raised_blocks += static_cast<int64_t>(found.raised_blocks);
    for (size_t i = 0; i < 256; ++i) {
        stats.codes[i] += found.codes[i];
        stats.scales[i] += found.scales[i];
    }
    stats.elements += panel.rows * panel.cols;
    stats.blocks += block_scale_bytes(panel.format, panel.rows, panel.cols) +
                    float_scale_count(panel.format, panel.rows, panel.cols);
}

}  // namespace nibble::cuda

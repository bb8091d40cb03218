// How a matrix is cut into row panels: the unit of work, of reading and of writing. Fixed by format and shape alone, so
// that sums over panels in row order give the same bits on any machine and in `verify`.
#pragma once

#include "checkpoint/checkpoint.h"
#include "formats/fp8.h"
#include "kernels/quantize.h"

#include <algorithm>

namespace nibble {

inline constexpr int64_t panel_elements = int64_t{1}
                                          << 20;  // 2 MiB of BF16: stays in a core's cache between scan and encode

struct Panels {
    int64_t rows = 0;        // of the matrix
    int64_t panel_rows = 1;  // of all panels but the last

    // Whole tiles for fp8_block128; multiples of 128 rows wherever that many fit, fewer for very wide matrices.
    Panels(Format format, int64_t matrix_rows, int64_t cols) : rows(matrix_rows) {
        panel_rows = std::max<int64_t>(panel_elements / std::max<int64_t>(cols, 1), 1);
        if (panel_rows >= fp8_tile || format == Format::fp8_block128)
            panel_rows = std::max<int64_t>(panel_rows / fp8_tile * fp8_tile, fp8_tile);
    }
    int64_t count() const { return ceil_div(rows, panel_rows); }
    int64_t begin(int64_t panel) const { return panel * panel_rows; }
    int64_t size(int64_t panel) const { return std::min(panel_rows, rows - begin(panel)); }
};

// The format that decides the panels of a tensor on its way from one format to another: tiles on either side stay
// whole.
inline Format panel_format(Format from, Format to) {
    return from == Format::fp8_block128 || to == Format::none ? from : to;
}

// Buffers of one worker, reused from panel to panel.
struct PanelScratch {
    Matrix read;       // where the checkpoint cannot hand out its own pages
    Matrix wide;       // F16 widened, or quantized sources decoded
    Matrix unrounded;  // on the way to a narrower dtype
    QuantMatrix read_quant;
    QuantMatrix out;
};

// The dtype that a loader gives a weight, and Model Optimizer its codes: the one that config.json declares, else the
// stored one (F32 for F64).
DType weight_dtype(const CheckpointTensor& tensor, const Json& config);

// What is read: weights in their weight_dtype(), as they are quantized, or the exact values of the file, for measuring.
enum class DecodedTo : uint8_t { own_dtype, fp32 };

// Rows of tensor `index` as the kernels take them: BF16, or F32 (also for F16, widened). F64 must fit F32. Error: a
// value that the declared dtype cannot hold. The view lives as long as the scratch is not used again.
Result<MatrixView> read_weights(const Checkpoint& source, size_t index, int64_t begin, int64_t count,
                                const QuantizeKernels& kernels, PanelScratch& scratch,
                                DecodedTo decoded_to = DecodedTo::own_dtype);

// Makes `matrix` [rows, cols] of `format` without giving memory back.
QuantSpan reshape(QuantMatrix& matrix, Format format, int64_t rows, int64_t cols);

}  // namespace nibble

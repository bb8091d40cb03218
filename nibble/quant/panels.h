// The division of a matrix into row panels, the unit of work, reading and writing. It depends only on format and shape,
// so that sums over panels in row order give the same bits on any machine and in `verify`.
#pragma once

#include "checkpoint/checkpoint.h"
#include "formats/fp8.h"
#include "kernels/quantize.h"

#include <algorithm>

namespace nibble {

inline constexpr int64_t panel_elements = int64_t{1} << 20;  // 2 MiB of BF16, which stays in a core's cache between
                                                             // scan and encode

struct Panels {
    int64_t rows = 0;        // rows of the matrix
    int64_t panel_rows = 1;  // rows of every panel except the last

    // Panels of fp8_block128 consist of whole tiles. Other panels have multiples of 128 rows if 128 rows fit; very wide
    // matrices have fewer rows.
    Panels(Format format, int64_t matrix_rows, int64_t cols) : rows(matrix_rows) {
        panel_rows = std::max<int64_t>(panel_elements / std::max<int64_t>(cols, 1), 1);
        if (panel_rows >= fp8_tile || format == Format::fp8_block128)
            panel_rows = std::max<int64_t>(panel_rows / fp8_tile * fp8_tile, fp8_tile);
    }
    int64_t count() const { return ceil_div(rows, panel_rows); }
    int64_t begin(int64_t panel) const { return panel * panel_rows; }
    int64_t size(int64_t panel) const { return std::min(panel_rows, rows - begin(panel)); }
};

// Returns the format that determines the panels of a tensor when it is converted: tiles of both formats stay whole.
inline Format panel_format(Format from, Format to) {
    return from == Format::fp8_block128 || to == Format::none ? from : to;
}

// Buffers of one worker, reused for every panel.
struct PanelScratch {
    Matrix read;       // used if the checkpoint cannot return its own pages
    Matrix wide;       // F16 widened to F32, or decoded quantized sources
    Matrix unrounded;  // values before they are rounded to a narrower dtype
    QuantMatrix read_quant;
    QuantMatrix out;
};

// Returns the dtype to which loaders convert a weight, and from which Model Optimizer computes its codes: the one that
// config.json declares, else the stored one (F32 for F64).
DType weight_dtype(const CheckpointTensor& tensor, const Json& config);

// The values to read: weights in their weight_dtype(), as they are quantized, or the exact values of the file, for
// measuring.
enum class DecodedTo : uint8_t { own_dtype, fp32 };

// Returns rows of tensor `index` as the kernels require them: BF16, or F32 (also for F16, widened). Errors: an F64
// value beyond F32, a value that the declared dtype cannot represent. The view is valid until the scratch is used
// again.
Result<MatrixView> read_weights(const Checkpoint& source, size_t index, int64_t begin, int64_t count,
                                const QuantizeKernels& kernels, PanelScratch& scratch,
                                DecodedTo decoded_to = DecodedTo::own_dtype);

// Resizes `matrix` to [rows, cols] of `format` without freeing memory.
QuantSpan reshape(QuantMatrix& matrix, Format format, int64_t rows, int64_t cols);

}  // namespace nibble

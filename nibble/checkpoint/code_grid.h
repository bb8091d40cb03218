// Quantized tensors for which nibble has no Format (integers, stacks of experts). They are decoded to BF16 while they
// are read. A CodeGrid is a stack of matrices [rows, cols] of codes in the orientation of the file, with a grid of
// scales:
//
//   value(e, r, c) = values[code(e, r, c)] * (scale[e][r / block_rows][c / block_cols] * factor[e])   rounded once
#pragma once

#include "base/dtype.h"
#include "base/error.h"
#include "base/mapped_file.h"

#include <cstdint>
#include <span>
#include <vector>

namespace nibble {

struct CodeGrid {
    Bytes codes;
    int bits = 8;             // 4: two codes per byte, the first in the low bits
    bool pairs_down = false;  // with 4 bits: a byte holds rows 2r and 2r + 1 of a column, not two columns of a row
    std::span<const float> values;  // value of each code
    int64_t experts = 1, rows = 0, cols = 0;
    int64_t row_bytes = 0;  // bytes from one stored row to the next

    Bytes scales;
    DType scale_dtype = DType::f32;
    bool scales_per_expert = true;  // false: all experts share one grid
    int64_t scale_rows = 1, scale_cols = 1;
    int64_t block_rows = 1, block_cols = 1;
    std::vector<float> factors{1};  // one, or one per expert

    int64_t expert_bytes() const { return (pairs_down ? rows / 2 : rows) * row_bytes; }
};

std::span<const float> e4m3_code_values();
std::span<const float> e2m1_code_values();
std::span<const float> int4_code_values();   // codes 0 to 15 are -8 to 7
std::span<const float> uint8_code_values();  // codes 0 to 255 are -128 to 127
std::span<const float> int8_code_values();   // two's complement

// Decodes columns [c, c + out.size()) of a row to BF16. Error: a scale that is not finite, unless `raw`.
Status decode_grid(const CodeGrid& grid, int64_t expert, int64_t row, int64_t c, std::span<uint16_t> out, bool raw);

// One matrix of the stack. Its rows are the stored rows from `first` on, or (turned) the stored columns.
struct GridMatrix {
    int64_t expert = 0, first = 0;
    bool turned = false;
};

// Decodes rows [begin, begin + out.size() / cols) of a matrix with `cols` columns to BF16. Error: see decode_grid().
Status decode_grid_rows(const CodeGrid& grid, const GridMatrix& matrix, int64_t begin, int64_t cols,
                        std::span<uint16_t> out, bool raw);

}  // namespace nibble

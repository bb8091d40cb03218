// Quantized tensors for which nibble has no Format (integers, stacks of experts). They are decoded to BF16 while they
// are read. A CodeGrid is a stack of matrices [rows, cols] of codes in the orientation of the file, with a grid of
// scales:
//
//   value(e, r, c) = values[code(e, r, c)] * (scale[e][r / block_rows][c / block_cols] * factor[e])   rounded once
//
// With zero points it is (code(e, r, c) - zero[r / block_rows][c / block_cols]) * scale instead.
#pragma once

#include "base/dtype.h"
#include "base/error.h"
#include "base/mapped_file.h"

#include <cstdint>
#include <span>
#include <vector>

namespace nibble {

// The order of codes. In words, a little-endian 32-bit word holds 32 / bits codes, the first in its lowest bits.
enum class CodeOrder : uint8_t {
    bytes,       // along a row; with 4 bits two per byte, the first in the low bits
    pairs_down,  // with 4 bits: a byte holds rows 2r and 2r + 1 of a column
    words_down,  // a word holds adjacent rows of a column (GPTQ)
    awq,         // a word holds columns 0, 2, 4, 6, 1, 3, 5, 7 of eight (AWQ)
};

// Zero points of a matrix, stored like codes, one per scale.
struct ZeroPoints {
    Bytes codes;
    CodeOrder order = CodeOrder::bytes;
    int64_t row_bytes = 0;
    int added = 0;  // the zero point is the code plus this number
};

struct CodeGrid {
    Bytes codes;
    int bits = 8;  // 4 or 8
    CodeOrder order = CodeOrder::bytes;
    std::span<const float> values;  // value of each code
    int64_t experts = 1, rows = 0, cols = 0;
    int64_t row_bytes = 0;  // bytes from one stored row (of words or pairs) to the next

    Bytes scales;
    DType scale_dtype = DType::f32;
    bool scales_per_expert = true;  // false: all experts share one grid
    int64_t scale_rows = 1, scale_cols = 1;
    int64_t block_rows = 1, block_cols = 1;
    std::vector<float> factors{1};  // one, or one per expert
    ZeroPoints zeros;               // no codes: none
    Bytes row_groups;               // 32-bit row of the scales of every row, instead of row / block_rows; empty: none

    int64_t expert_bytes() const {
        const int64_t together = order == CodeOrder::pairs_down ? 2 : order == CodeOrder::words_down ? 32 / bits : 1;
        return rows / together * row_bytes;
    }
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

// The layout of adapters for the functions of kernels/lora_cuda.h: a plain value for host and device code.
#pragma once

#include <cstdint>

namespace nibble::cuda {

// Linears that read the same rows are stacked into a unit; some of them, the parts, have adapters. The B matrices of
// the parts are stored in two forms:
//
//   narrow   [experts * narrow_rows(), rank]    rows of all parts, stacked
//   wide     [experts * rows, width()]          part p in its own rows and in columns from p * rank on, zeros elsewhere
//
// `experts` equal units are stacked.
struct AdapterBlocks {
    static constexpr int most_parts = 4;
    struct Part {
        int64_t first = 0, rows = 0;  // rows [first, first + rows) of the unit
    };
    int64_t experts = 1, rows = 0, rank = 0;
    int parts = 0;
    Part part[most_parts];

    int64_t width() const { return parts * rank; }
    int64_t narrow_rows() const {
        int64_t sum = 0;
        for (int p = 0; p < parts; ++p) sum += part[p].rows;
        return sum;
    }
};

}  // namespace nibble::cuda

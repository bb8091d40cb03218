// What the functions of kernels/lora_cuda.h are given: where adapters lie. A plain value, for host and device code.
#pragma once

#include <cstdint>

namespace nibble::cuda {

// Linears that read the same rows lie one below the other; some of them, the parts, have adapters. Their B are kept
//
//   narrow   [experts * narrow_rows(), rank]    one part's rows below the other's
//   wide     [experts * rows, width()]          part p's in its own rows and in columns from p * rank on, zeros beside
//
// experts: so many such units, all alike, one below the other.
struct AdapterBlocks {
    static constexpr int most_parts = 4;
    struct Part {
        int64_t first = 0, rows = 0;  // of the unit's
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

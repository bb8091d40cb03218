// Test weights that expose rounding errors. Each kind is a pure function of (kind, seed, index).
#pragma once

#include "tensor/matrix.h"

#include <cstdint>
#include <span>
#include <string_view>

namespace nibble::bench {

enum class Data : uint8_t {
    bell,         // normal with sigma 0.02, like weights
    all_bf16,     // every finite BF16 pattern
    narrow_bf16,  // every pattern with an exponent of 2^-7 ... 1
    ties,         // one to four significant bits: quotients on and near midpoints
    structured,   // fractions of the maximum whose quotients by the block scale are midpoints, except for rounding
    wide,         // exponents 2^-60 ... 2^10, zeros of both signs
    large,        // up to 1e37
    tiny,         // BF16 subnormals and their neighbours
    zero,
};
std::span<const Data> all_data();
std::string_view data_name(Data data);

// Returns BF16, or F32 with random low bits and without values that overflow BF16. Uses all cores.
Matrix make_data(Data data, DType dtype, int64_t rows, int64_t cols, uint64_t seed);

}  // namespace nibble::bench

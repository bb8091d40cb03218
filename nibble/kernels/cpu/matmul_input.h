// Inputs of the product as its tiles read them: rows cut into tiles of nearly equal height, quantized where the
// product asks for it, and interleaved.
#pragma once

#include "kernels/cpu/matmul_tiles.h"
#include "kernels/cpu/rows.h"
#include "kernels/panels.h"

#include <vector>

namespace nibble::cpu {

// `rows` in as few tiles of at most `most` as possible.
struct RowTiles {
    int64_t rows, tiles;
    RowTiles(int64_t r, int64_t most) : rows(r), tiles((r + most - 1) / most) {}
    int64_t begin(int64_t tile) const { return tile * (rows / tiles) + std::min(tile, rows % tiles); }
    int count(int64_t tile) const { return static_cast<int>(begin(tile + 1) - begin(tile)); }
};

struct FloatInputs {
    int64_t k = 0;              // of a row, padded with zeros to whole words of the weight
    int64_t blocks = 0;         // of the contract's B
    const float* x = nullptr;   // tile at m * k: [k][R]
    const float* g = nullptr;   // tile at m * blocks: [blocks][R]; null when every factor is 1
    std::vector<float> scales;  // per row
    AlignedArray<float> x_owned, g_owned;
};
FloatInputs float_inputs(const MatmulTiles& isa, const RowKernels& kernels, const MatmulInput& in,
                         const RowTiles& tiles, const PackedMatrix::Panels& w, int64_t block, ThreadPool& pool);

struct IntegerInputs {
    int64_t blocks = 0;
    AlignedArray<uint32_t> x;      // tile at m * blocks * 4: [k / 4][R]
    AlignedArray<int32_t> offset;  // tile at m * blocks: [blocks][R]
    AlignedArray<float> sx;        // the same
};
IntegerInputs integer_inputs(const MatmulTiles& isa, const RowKernels& kernels, const MatmulInput& in,
                             const RowTiles& tiles, int64_t cols, ThreadPool& pool);

}  // namespace nibble::cpu

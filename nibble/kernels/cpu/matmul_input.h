// Inputs of the product in the layout of its tiles: rows split into tiles of nearly equal height, quantized if the
// product requires it. Inputs that need no conversion are read in place.
#pragma once

#include "kernels/cpu/matmul_tiles.h"
#include "kernels/cpu/rows.h"
#include "kernels/panels.h"

#include <vector>

namespace nibble::cpu {

// Splits `rows` into as few tiles of at most `most` rows as possible.
struct RowTiles {
    int64_t rows, tiles;
    RowTiles(int64_t r, int64_t most) : rows(r), tiles((r + most - 1) / most), each_(r / tiles), higher_(r % tiles) {}
    int64_t begin(int64_t tile) const { return tile * each_ + std::min(tile, higher_); }
    int count(int64_t tile) const { return static_cast<int>(each_ + (tile < higher_)); }

private:
    int64_t each_, higher_;  // stored, because a division costs as much as a few k of a tile
};

struct FloatInputs {
    int64_t k = 0;              // per row, padded with zeros to whole words of the weight
    int64_t blocks = 0;         // number of blocks of the contract's size B
    const float* x = nullptr;   // [rows][k]
    int64_t x_row = 0;          // floats per row
    const float* g = nullptr;   // [rows][blocks]; null if every factor is 1
    std::vector<float> scales;  // per row
    AlignedArray<float> x_owned, g_owned;
};
// Multiplies every value by `factor`, a power of two.
FloatInputs float_inputs(const RowKernels& kernels, const MatmulInput& in, const PackedMatrix::Panels& w, int64_t block,
                         float factor, ThreadPool& pool);

struct IntegerInputs {
    int64_t blocks = 0;
    AlignedArray<uint32_t> x;      // tile at m * blocks * 4: [k / 4][R]
    AlignedArray<int32_t> offset;  // tile at m * blocks: [blocks][R]
    AlignedArray<float> sx;        // the same
};
IntegerInputs integer_inputs(const MatmulTiles& isa, const RowKernels& kernels, const MatmulInput& in,
                             const RowTiles& tiles, int64_t cols, ThreadPool& pool);

}  // namespace nibble::cpu

// The product over the tiles of one instruction set (matmul_tiles.h): all code around the tiles, compiled for any CPU.
#pragma once

#include "kernels/cpu/matmul_tiles.h"
#include "kernels/cpu/rows.h"
#include "kernels/matmul.h"

namespace nibble::cpu {

void quantize_row(const RowKernels& rows, const float* x, int64_t cols, ActivationFormat format, float input_scale,
                  const ActivationRow& out);
void matmul(const MatmulTiles& tiles, const RowKernels& rows, const PackedMatrix& w, const MatmulInput& x,
            const MatmulOutput& out, ThreadPool& pool);

// The order `tiles`, for a CPU with AMX.
void matmul_amx(const PackedMatrix& w, const MatmulInput& x, const MatmulOutput& out, ThreadPool& pool);

// Makes a table entry.
template <const MatmulTiles& tiles, const RowKernels& rows>
constexpr MatmulKernels matmul_entry(std::string_view name, bool (*supported)()) {
    return {name, supported,
            [](const PackedMatrix& w, const MatmulInput& x, const MatmulOutput& out, ThreadPool& pool) {
                cpu::matmul(tiles, rows, w, x, out, pool);
            },
            [](const float* x, int64_t cols, ActivationFormat format, float input_scale, const ActivationRow& out) {
                cpu::quantize_row(rows, x, cols, format, input_scale, out);
            }};
}

}  // namespace nibble::cpu

// Products of the operands of train_cast.h.
#pragma once

#include "kernels/matmul.h"
#include "train/train_cast.h"

#include <vector>

namespace nibble {

// The right operand in the layout of the kernels: whole, or in blocks of 128 along the reduction if these have scales.
class PackedOperand {
public:
    PackedOperand() = default;
    PackedOperand(CastOperand operand, ThreadPool& pool);
    int64_t rows() const { return like_.rows; }
    int64_t cols() const { return like_.cols; }

private:
    friend void operand_product(const CastOperand&, const PackedOperand&, const MatmulOutput&, const float*,
                                const MatmulKernels&, ThreadPool&);
    CastOperand like_;  // without values
    std::vector<PackedMatrix> packs_;
};

// Computes out.y[i, j] = scale of the operands * sum over k of a[i, k] b[j, k], then adds more[i, j] if given ([rows of
// a, rows of b], contiguous), then the bias, and rounds as `out` requires. The order of sums is that of
// kernels/matmul.h for plain F32 weights; with block scales it is that of fp8_block128: t over 128 k, then fma(t, a's
// scale * b's scale, acc).
void operand_product(const CastOperand& a, const PackedOperand& b, const MatmulOutput& out, const float* more,
                     const MatmulKernels& kernels, ThreadPool& pool);

}  // namespace nibble

#include "train/train_operand.h"

#include "kernels/unpack.h"

#include <algorithm>
#include <cmath>

namespace nibble {
namespace {

constexpr int64_t operand_block = 128;

}  // namespace

PackedOperand::PackedOperand(CastOperand operand, ThreadPool& pool) : like_(std::move(operand)) {
    const int64_t step = like_.block_scales.empty() ? std::max<int64_t>(like_.cols, 1) : operand_block;
    for (int64_t k = 0; k < like_.cols; k += step)
        packs_.push_back(pack_rows(like_.values.data() + k, like_.rows, step, like_.cols, pool));
    std::vector<float>().swap(like_.values);  // `= {}` would keep the memory
}

void operand_product(const CastOperand& a, const PackedOperand& b, const MatmulOutput& out, const float* more,
                     const MatmulKernels& kernels, ThreadPool& pool) {
    const CastOperand& like = b.like_;
    const int64_t m = a.rows, n = like.rows, blocks = std::ssize(b.packs_);
    std::vector<float> sum, part;
    const bool scaled = !a.block_scales.empty();
    if (scaled) part.resize(static_cast<size_t>(m * n));
    sum.resize(static_cast<size_t>(m * n));
    for (int64_t k = 0; k < blocks; ++k) {
        const MatmulInput input{.x = a.values.data() + k * operand_block, .rows = m, .stride = a.cols};
        kernels.matmul(b.packs_[static_cast<size_t>(k)], input, {scaled ? part.data() : sum.data(), n}, pool);
        if (!scaled) break;
        pool.parallel_for(m, [&](int64_t i) {
            const float s = a.block_scales[static_cast<size_t>(i * blocks + k)];
            for (int64_t j = 0; j < n; ++j) {
                float& to = sum[static_cast<size_t>(i * n + j)];
                to = std::fma(part[static_cast<size_t>(i * n + j)],
                              s * like.block_scales[static_cast<size_t>(j * blocks + k)], to);
            }
        });
    }
    const float constant = 1.0f / (a.divisor * like.divisor);
    pool.parallel_for(m, [&](int64_t i) {
        const float scale = a.scale[a.scale.size() > 1 ? static_cast<size_t>(i) : 0] * like.scale[0] * constant;
        float* y = out.y + i * out.stride;
        for (int64_t j = 0; j < n; ++j) {
            float v = sum[static_cast<size_t>(i * n + j)] * scale;
            if (more) v += more[i * n + j];
            if (out.bias) v += out.bias[j];
            y[j] = out.bf16 ? round_to_bf16(v) : v;
        }
    });
}

}  // namespace nibble

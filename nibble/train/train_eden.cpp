#include "train/train_eden.h"

#include <algorithm>

namespace nibble {

CastOperand eden_rows(const float* x, int64_t rows, int64_t cols, int64_t stride, const CastRandom& random,
                      const CastRandom& signs, uint64_t first_sign, ThreadPool& pool) {
    CastOperand o{.rows = rows, .cols = (cols + eden_group - 1) / eden_group * eden_group};
    o.values.resize(static_cast<size_t>(rows * o.cols));
    std::vector<float> sign(static_cast<size_t>(cols)), most(static_cast<size_t>(rows));
    for (int64_t n = 0; n < cols; ++n)
        sign[static_cast<size_t>(n)] = signs.block(first_sign + static_cast<uint64_t>(n), 0).word[0] & 1 ? -1.0f : 1.0f;
    pool.parallel_for(rows, [&](int64_t r) {
        float* z = o.values.data() + r * o.cols;
        for (int64_t c = 0; c < cols; ++c) z[c] = x[r * stride + c] * sign[static_cast<size_t>(c)];
        for (int64_t g = 0; g < o.cols; g += eden_group) {
            hadamard128(z + g);
            for (int64_t i = 0; i < eden_group; ++i) z[g + i] = eden_rotated(z[g + i]);
        }
        for (int64_t c = 0; c < o.cols; ++c)
            most[static_cast<size_t>(r)] = std::max(most[static_cast<size_t>(r)], magnitude(z[c]));
    });
    for (const float m : most) o.amax = std::max(o.amax, m);
    const float d = eden_scale(o.amax);
    o.scale = {d};
    pool.parallel_for(rows, [&](int64_t r) {
        for (int64_t g = 0; g < o.cols / eden_group; ++g)
            eden_encode(o.values.data() + r * o.cols + g * eden_group, 1, d, random, static_cast<uint64_t>(r),
                        static_cast<uint64_t>(g));
    });
    return o;
}

}  // namespace nibble

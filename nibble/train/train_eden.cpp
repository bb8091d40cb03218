#include "train/train_eden.h"

#include <algorithm>
#include <cmath>

namespace nibble {
namespace {

constexpr int64_t eden_group = 128, eden_block = 16;
constexpr float eden_head_room = 6.0f / (17.0f / 16.0f * 0.93f);  // c

void hadamard128(float* z) {
    for (int64_t distance = 1; distance < eden_group; distance *= 2)
        for (int64_t i = 0; i < eden_group; ++i)
            if ((i & distance) == 0) {
                const float a = z[i], b = z[i + distance];
                z[i] = a + b;
                z[i + distance] = a - b;
            }
}

// Spacing of E4M3 at v >= 0.
float e4m3_spacing(float v) {
    int exponent = 0;
    std::frexp(v, &exponent);  // v = m * 2^exponent, m in [0.5, 1)
    return std::ldexp(1.0f, std::max(exponent - 1, -6) - 3);
}

// One group, in place: value(code) * corrected block scale. d multiplies the sum.
void eden_encode(float* z, float d, const CastRandom& random, uint64_t outer, uint64_t group) {
    float scales[eden_group / eden_block], codes[eden_group];
    float squares = 0, dot = 0;
    for (int64_t b = 0; b < eden_group / eden_block; ++b) {
        float most = 0;
        for (int64_t i = 0; i < eden_block; ++i) most = std::max(most, magnitude(z[b * eden_block + i]));
        float s = e4m3_to_float(e4m3_from_float_saturating(most / eden_head_room / d));
        if (s == 0) s = 1;
        scales[b] = s;
        for (int64_t i = b * eden_block; i < (b + 1) * eden_block; ++i) {
            codes[i] = e2m1_to_float(e2m1_from_float(z[i] / (s * d)));
            squares += z[i] * z[i];
            dot += z[i] * (codes[i] * s * d);
        }
    }
    const float gain = dot > 0 ? squares / dot : 1;
    for (int64_t b = 0; b < eden_group / eden_block; ++b) {
        const float wanted = scales[b] * gain, step = e4m3_spacing(wanted);
        const PhiloxBlock bits = random.block(outer, group * (eden_group / eden_block) + static_cast<uint64_t>(b));
        const float u = static_cast<float>(bits.word[0] >> 8) * 0x1p-24f;
        const float s = std::min(step * std::floor(wanted / step + u), e4m3_max);
        for (int64_t i = b * eden_block; i < (b + 1) * eden_block; ++i) z[i] = codes[i] * s;
    }
}

}  // namespace

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
            for (int64_t i = 0; i < eden_group; ++i) z[g + i] = round_to_bf16(z[g + i] * 0.0883883461f);
        }
        for (int64_t c = 0; c < o.cols; ++c)
            most[static_cast<size_t>(r)] = std::max(most[static_cast<size_t>(r)], magnitude(z[c]));
    });
    for (const float m : most) o.amax = std::max(o.amax, m);
    float d = o.amax * (1.0f / (255.99f * eden_head_room));
    if (!(d > 0)) d = 1;
    o.scale = {d};
    pool.parallel_for(rows, [&](int64_t r) {
        for (int64_t g = 0; g < o.cols / eden_group; ++g)
            eden_encode(o.values.data() + r * o.cols + g * eden_group, d, random, static_cast<uint64_t>(r),
                        static_cast<uint64_t>(g));
    });
    return o;
}

}  // namespace nibble

#include "kernels/ref/byte_product_ref.h"

#include "formats/minifloat.h"
#include "kernels/ref/elementwise_ref.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace nibble::ref {
namespace {

int8_t code(uint32_t word, int64_t k) { return static_cast<int8_t>(word >> (8 * k)); }

template <class At>
void pack(const BytePanel& p, At at) {
    const int64_t lanes = (p.cols + byte_block - 1) / byte_block * byte_panel;
    std::fill_n(p.words, lanes * byte_words, 0u);
    std::fill_n(p.sums, lanes, 0);
    std::fill_n(p.scales, lanes, 0.0f);
    for (int64_t begin = 0, b = 0; begin < p.cols; begin += byte_block, ++b)
        for (int64_t r = 0; r < p.rows; ++r) {
            const int64_t count = std::min(byte_block, p.cols - begin);
            uint32_t largest = 0;
            for (int64_t k = 0; k < count; ++k) largest = std::max(largest, float_bits(magnitude(at(r, begin + k))));
            const float amax = float_from_bits(largest);
            const bool tiny = amax < 0x1p-100f;
            const float inverse = tiny ? 0.0f : 127.0f / amax;
            int32_t sum = 0;
            for (int64_t w = 0; w < byte_words; ++w) {
                uint32_t word = 0;
                for (int64_t j = 0; j < 4 && 4 * w + j < count; ++j) {
                    const float v = std::nearbyint(at(r, begin + 4 * w + j) * inverse);
                    const int32_t q = is_finite(v) ? static_cast<int32_t>(v) : 0;
                    word |= static_cast<uint32_t>(q & 255) << (8 * j);
                    sum += q;
                }
                p.words[(b * byte_words + w) * byte_panel + r] = word;
            }
            p.sums[b * byte_panel + r] = sum;
            p.scales[b * byte_panel + r] = tiny ? 0.0f : amax / 127.0f;
        }
}

}  // namespace

void byte_pack_rows(const BytePanel& p) {
    pack(p, [&](int64_t r, int64_t k) { return p.x[r * p.stride + k]; });
}
void byte_pack_columns(const BytePanel& p) {
    pack(p, [&](int64_t r, int64_t k) { return p.x[k * p.stride + r] * (p.factor ? p.factor[k] : 1.0f); });
}

void byte_prepare(const uint32_t* words, int64_t count, uint32_t* out) { std::copy_n(words, count, out); }

void byte_tile(const ByteTile& t) {
    for (int64_t b = 0; b < t.blocks; ++b)
        for (int64_t r = 0; r < byte_tile_rows; ++r)
            for (int64_t n = 0; n < byte_panel; ++n) {
                int32_t sum = 0;
                for (int64_t w = b * byte_words; w < (b + 1) * byte_words; ++w)
                    for (int64_t j = 0; j < 4; ++j)
                        sum += code(t.a[w * byte_panel + r], j) * code(t.b[w * byte_panel + n], j);
                float& acc = t.acc[r * byte_panel + n];
                acc = std::fma(static_cast<float>(sum), t.a_scales[b * byte_panel + r] * t.b_scales[b * byte_panel + n],
                               acc);
            }
}

void byte_put(const ByteOutput& out) {
    std::vector<float> gates(static_cast<size_t>(out.count));
    const auto finish = [&](const float* acc, const float* bias, float* y) {
        for (int64_t j = 0; j < out.count; ++j) {
            const float sum = bias ? acc[j] + bias[j] : acc[j];
            y[j] = out.bf16 ? round_to_bf16(sum) : sum;
        }
    };
    for (int64_t i = 0; i < out.rows; ++i) {
        float* y = out.y + i * out.stride;
        finish(out.acc + i * byte_panel, out.bias, y);
        if (!out.gate) continue;
        finish(out.gate + i * byte_panel, out.gate_bias, gates.data());
        activate(static_cast<Activation>(out.activation), gates.data(), y, out.count, out.bf16, y);
    }
}

}  // namespace nibble::ref

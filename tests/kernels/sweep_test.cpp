// The sweep skips most of the 126 candidates. Blocks at the limits of its decisions must still equal the exhaustive
// search.
#include "formats/nvfp4.h"
#include "kernels/inputs.h"

#include <gtest/gtest.h>

namespace nibble {
namespace {

constexpr int blocks_per_kind = 6000;
constexpr float g = 3.0f;  // the tensor's maximum: 448 * 6 steps of this

// A candidate's scale in the reciprocal profile.
float candidate_scale(int v) {
    return nvfp4_sweep_scale(static_cast<uint8_t>(v), g, FakeScale{1, 1}, Arithmetic::reciprocal);
}
float nudge(float x, int ulps) { return float_from_bits(float_bits(x) + static_cast<uint32_t>(ulps)); }

using R = std::mt19937;
struct Kind {
    const char* name;
    std::function<void(R&, float (&)[16])> fill;
};

// Grid points, midpoints and their FP32 neighbours under one candidate.
void on_the_edge(R& r, float (&w)[16], std::initializer_list<float> points, int ulps, float s) {
    for (float& x : w) {
        x = s * points.begin()[test::pick(r, static_cast<int>(points.size()))];
        if (ulps && x != 0) x = nudge(x, test::pick(r, 2 * ulps + 1) - ulps);
        if (test::pick(r, 2)) x = -x;
    }
}

void on_the_edge(R& r, float (&w)[16], std::initializer_list<float> points, int ulps) {
    on_the_edge(r, w, points, ulps, candidate_scale(1 + test::pick(r, 126)));
}

std::vector<Kind> kinds() {
    return {
        {"bell of any size",
         [](R& r, float(&w)[16]) {
             const float size = std::ldexp(1.0f, -test::pick(r, 22));
             for (float& x : w) x = size * test::bell(r);
         }},
        {"half and one and a half, where doubling a scale changes the grid",
         [](R& r, float(&w)[16]) {
             on_the_edge(r, w, {0.5f, 1.5f, 1, 2, 3, 4, 6}, 1);
         }},
        {"midpoints",
         [](R& r, float(&w)[16]) {
             on_the_edge(r, w, {.25f, .75f, 1.25f, 1.75f, 2.5f, 3.5f, 5, 6}, 2);
         }},
        {"1.75 and 0.25: both octaves err alike",
         [](R& r, float(&w)[16]) {
             on_the_edge(r, w, {0.25f, 1.75f, 1.25f, 0.75f}, 3);
         }},
        {"points of all octaves",
         [](R& r, float(&w)[16]) {
             on_the_edge(r, w, {0, 1, 2, 4, 6}, 0);
         }},
        {"points of all octaves and one stray",
         [](R& r, float(&w)[16]) {
             on_the_edge(r, w, {0, 1, 2, 4, 6}, 0);
             w[test::pick(r, 16)] *= 1.0f + 0.03f * test::bell(r);
         }},
        {"points of all octaves and some just below 1.75",
         [](R& r, float(&w)[16]) {
             const float s = candidate_scale(1 + test::pick(r, 126));
             on_the_edge(r, w, {1, 2, 4, 6}, 0, s);
             for (int n = test::pick(r, 4); n >= 0; --n)
                 w[test::pick(r, 16)] = nudge(s * (test::pick(r, 2) ? 1.75f : 0.25f), test::pick(r, 9) - 6);
         }},
        {"few mantissas",
         [](R& r, float(&w)[16]) {
             const int e = -test::pick(r, 18);
             for (float& x : w) x = std::ldexp(float(test::pick(r, 9) - 4), e - test::pick(r, 3));
         }},
        {"one magnitude",
         [](R& r, float(&w)[16]) {
             const float a = candidate_scale(1 + test::pick(r, 126)) * float(1 + test::pick(r, 12)) / 2;
             for (float& x : w) x = test::pick(r, 2) ? a : -a;
         }},
        {"one outlier clipped or not",
         [](R& r, float(&w)[16]) {
             const float size = std::ldexp(1.0f, -test::pick(r, 14));
             for (float& x : w) x = size * test::bell(r);
             w[test::pick(r, 16)] = size * test::uniform(r, 2.0f, 40.0f);
         }},
        {"at the subnormal candidates",
         [](R& r, float(&w)[16]) {
             const float s = candidate_scale(1) * test::uniform(r, 0.1f, 20.0f);
             for (float& x : w) x = s * test::bell(r);
         }},
        {"above the largest candidate",
         [](R& r, float(&w)[16]) {
             for (float& x : w) x = g * test::uniform(r, 0.5f, 40.0f);
         }},
        {"zeros, and far below the smallest",
         [](R& r, float(&w)[16]) {
             const float size = test::pick(r, 3) ? std::ldexp(1.0f, -20 - test::pick(r, 120)) : 0.0f;
             for (float& x : w) x = test::pick(r, 4) ? size * test::bell(r) : 0.0f;
         }},
    };
}

Matrix blocks_of(const Kind& kind, DType dtype, uint32_t seed) {
    R random(seed);
    Matrix m(dtype, blocks_per_kind / 48, 48 * 16);
    for (int64_t b = 0; b < m.rows * m.cols; b += 16) {
        float w[16];
        kind.fill(random, w);
        for (int k = 0; k < 16; ++k) {
            const uint16_t code = bf16_from_float(w[k]);
            if (dtype == DType::f32)
                std::memcpy(m.data.data() + 4 * (b + k), &w[k], 4);
            else
                std::memcpy(m.data.data() + 2 * (b + k), &code, 2);
        }
    }
    return m;
}

TEST(Sweep, EqualsTheExhaustiveSearchOnAdversarialBlocks) {
    uint32_t seed = 1;
    for (const Kind& kind : kinds())
        for (DType dtype : {DType::bf16, DType::f32}) {
            const Matrix m = blocks_of(kind, dtype, seed++);
            for (Arithmetic arithmetic : {Arithmetic::reciprocal, Arithmetic::true_division}) {
                const WeightSpec spec{Format::nvfp4, true, 448, test::sweep, arithmetic};
                const TensorAmax amax{g, g};
                std::vector<QuantMatrix> results;
                for (const QuantizeKernels& k : quantize_kernels()) {
                    if (!k.supported()) continue;
                    QuantMatrix& q = results.emplace_back(spec.format, m.rows, m.cols);
                    q.tensor_scale = tensor_scale(spec, amax);
                    QuantStats stats;
                    k.quantize(m.view(), spec, amax, q.span(), stats);
                }
                for (const QuantMatrix& q : results) {
                    for (size_t b = 0; b < q.block_scales.size(); ++b)
                        ASSERT_EQ(q.block_scales[b], results.back().block_scales[b]) << kind.name << ", block " << b;
                    ASSERT_EQ(q.codes, results.back().codes) << kind.name;
                }
            }
        }
}

// The theorem that allows skipping octaves, tested directly on the definition.
TEST(Sweep, DoublingAnUnclippedScaleNeverLosesLess) {
    R random(7);
    for (const Kind& kind : kinds())
        for (int n = 0; n < 3000; ++n) {
            float w[16];
            kind.fill(random, w);
            float amax = 0;
            for (float x : w) amax = std::max(amax, std::fabs(x));
            for (int v = 8; v <= 118; ++v) {
                const float s = candidate_scale(v);
                if (6 * s >= amax) {
                    ASSERT_LE(nvfp4_fake_loss(w, s), nvfp4_fake_loss(w, 2 * s)) << kind.name << ", " << v;
                }
            }
        }
}

// The close case of the proof, per element: every FP32 number around 1.25 s and 1.75 s, with random mantissas of s.
TEST(Sweep, OneAndAHalfIsNeverFartherThanItsNeighboursOfTheDoubledGrid) {
    R random(8);
    for (int n = 0; n < 200000; ++n) {
        const float s = float_from_bits(0x3F800000u | (random() & 0x7FFFFFu));
        for (float middle : {1.25f, 1.5f, 1.75f})
            for (int ulps = -3; ulps <= 3; ++ulps) {
                const float w = nudge(s * middle, ulps);
                ASSERT_LE(std::fabs(w - nvfp4_fake_value(w, s)), std::fabs(w - nvfp4_fake_value(w, 2 * s)))
                    << w << " " << s;
            }
    }
}

}  // namespace
}  // namespace nibble

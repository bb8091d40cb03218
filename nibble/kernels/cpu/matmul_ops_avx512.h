// Decoding of weights from words for AVX-512, and the integer block of nvfp4. matmul_avx512.cpp includes this file
// after vec_avx512.h.
#pragma once

#include "kernels/cpu/vec_avx512.h"

namespace nibble::avx512 {

#define NIBBLE_OP [[gnu::always_inline]] inline

// Tile shapes: rows of inputs, vectors of outputs.
constexpr int strip_rows = 7, word_rows = 8, integer_rows = 8;
constexpr int registers = 32;
constexpr int strip_vectors(int) { return 2; }
constexpr int word_vectors(int) { return 2; }
constexpr int integer_vectors = 2;

NIBBLE_OP I load_bits(const std::byte* p) { return _mm512_loadu_si512(p); }

// Each code type has `values` k per word, the factor by which its decoded weights are too small, and use(j, w), called
// for each of them in order; w[v] are the weights of vector v. at(v) is the address of its words.
struct F32Words {
    static constexpr int values = 1, word_bytes = 4;
    static constexpr float shrink = 1;
    static constexpr bool pairs = true;
    template <int V, class At, class Use>
    NIBBLE_OP static void each(At at, Use use) {
        F w[V];
        for (int v = 0; v < V; ++v) w[v] = load(reinterpret_cast<const float*>(at(v)));
        use(0, w);
    }
};

struct Bf16Words {
    static constexpr int values = 2, word_bytes = 4;
    static constexpr float shrink = 1;
    static constexpr bool pairs = true;
    template <int V, class At, class Use>
    NIBBLE_OP static void each(At at, Use use) {
        F even[V], odd[V];
        for (int v = 0; v < V; ++v) {
            const I word = load_bits(at(v));
            even[v] = as_float(shift_left<16>(word));
            odd[v] = as_float(both(word, splat(static_cast<int32_t>(0xFFFF0000))));
        }
        use(0, even);
        use(1, odd);
    }
};

// An E4M3 code read as FP16 is too small by 2^-8, also for subnormals.
struct E4m3Words {
    static constexpr int values = 2, word_bytes = 2;
    static constexpr float shrink = 256;
    static constexpr bool pairs = true;
    template <int V, class At, class Use>
    NIBBLE_OP static void each(At at, Use use) {
        static_assert(V % 2 == 0);
        const I mask = _mm512_set1_epi16(static_cast<int16_t>(0xBF80));
        F even[V], odd[V];
        for (int v = 0; v < V; v += 2) {
            const I word = load_bits(at(v));
            const I low = both(_mm512_srai_epi16(_mm512_slli_epi16(word, 8), 1), mask);
            const I high = both(_mm512_srai_epi16(word, 1), mask);
            even[v] = _mm512_cvtph_ps(_mm512_castsi512_si256(low));
            even[v + 1] = _mm512_cvtph_ps(_mm512_extracti64x4_epi64(low, 1));
            odd[v] = _mm512_cvtph_ps(_mm512_castsi512_si256(high));
            odd[v + 1] = _mm512_cvtph_ps(_mm512_extracti64x4_epi64(high, 1));
        }
        use(0, even);
        use(1, odd);
    }
};

// A lookup reads the low four bits of a lane. Loading at byte j of the words saves half of the shifts; the decoding
// loop has loads to spare.
struct E2m1Words {
    static constexpr int values = 8, word_bytes = 4;
    static constexpr float shrink = 1;
    static constexpr bool pairs = true;
    template <int V, class At, class Use>
    NIBBLE_OP static void each(At at, Use use) {
#pragma GCC unroll 4
        for (int j = 0; j < 4; ++j) {
            F even[V], odd[V];
            for (int v = 0; v < V; ++v) {
                const I word = load_bits(at(v) + j);
                even[v] = e2m1_values(word);
                odd[v] = e2m1_values(shift_right<4>(word));
            }
            use(2 * j, even);
            use(2 * j + 1, odd);
        }
    }
};

// Integers of 4 bits plus 8.
struct Int4Words {
    static constexpr int values = 8, word_bytes = 4;
    static constexpr float shrink = 1;
    static constexpr bool pairs = false;
    template <int V, class At, class Use>
    NIBBLE_OP static void each(At at, Use use) {
        const auto value = [](I code) { return to_float(sub(both(code, splat(15)), splat(8))); };
#pragma GCC unroll 4
        for (int j = 0; j < 4; ++j) {
            F w[V];
            for (int v = 0; v < V; ++v) w[v] = value(load_bits(at(v) + j));
            use(2 * j, w);
            for (int v = 0; v < V; ++v) w[v] = value(shift_right<4>(load_bits(at(v) + j)));
            use(2 * j + 1, w);
        }
    }
};

// Four times: a + the sum of four products of unsigned bytes u and signed bytes s per lane.
NIBBLE_OP I integer_block(I offset, const I (&u)[4], const I (&s)[4]) {
    for (int j = 0; j < 4; ++j) offset = dot4_bytes(offset, u[j], s[j]);
    return offset;
}

NIBBLE_OP I lookup_bytes(__m128i table, I index) { return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(table), index); }

NIBBLE_OP I widen_bytes(const uint8_t* p) { return load_bytes(p); }

#undef NIBBLE_OP

}  // namespace nibble::avx512

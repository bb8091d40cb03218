// Decoding of weights from words for AVX2, and the integer block of nvfp4. matmul_avx2.cpp includes this file after
// vec_avx2.h.
#pragma once

#include "kernels/cpu/vec_avx2.h"

namespace nibble::avx2 {

#define NIBBLE_OP [[gnu::always_inline]] inline

// Tile shapes: rows of inputs, vectors of outputs. 16 registers hold 6 x 2 or 2 x 4 sums.
constexpr int strip_rows = 6, word_rows = 4, integer_rows = 4;
constexpr int registers = 16;
constexpr int strip_vectors(int rows) { return rows <= 2 ? 4 : 2; }
constexpr int word_vectors(int rows) { return rows <= 2 ? 4 : 2; }
constexpr int integer_vectors = 1;

NIBBLE_OP I load_bits(const std::byte* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }

// As in matmul_ops_avx512.h.
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
        F w[V];
        for (int v = 0; v < V; ++v) w[v] = as_float(shift_left<16>(load_bits(at(v))));
        use(0, w);
        for (int v = 0; v < V; ++v) w[v] = as_float(both(load_bits(at(v)), splat(static_cast<int32_t>(0xFFFF0000))));
        use(1, w);
    }
};

struct E4m3Words {
    static constexpr int values = 2, word_bytes = 2;
    static constexpr float shrink = 256;
    static constexpr bool pairs = true;
    template <int V, class At, class Use>
    NIBBLE_OP static void each(At at, Use use) {
        const __m128i mask = _mm_set1_epi16(static_cast<int16_t>(0xBF80));
        F w[V];
        for (int v = 0; v < V; ++v)
            w[v] = _mm256_cvtph_ps(_mm_and_si128(_mm_srai_epi16(_mm_slli_epi16(word(at(v)), 8), 1), mask));
        use(0, w);
        for (int v = 0; v < V; ++v) w[v] = _mm256_cvtph_ps(_mm_and_si128(_mm_srai_epi16(word(at(v)), 1), mask));
        use(1, w);
    }
    NIBBLE_OP static __m128i word(const std::byte* p) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)); }
};

struct E2m1Words {
    static constexpr int values = 8, word_bytes = 4;
    static constexpr float shrink = 1;
    static constexpr bool pairs = false;  // too few registers
    template <int V, class At, class Use>
    NIBBLE_OP static void each(At at, Use use) {
#pragma GCC unroll 4
        for (int j = 0; j < 4; ++j) {
            F w[V];
            for (int v = 0; v < V; ++v) w[v] = e2m1_values(load_bits(at(v) + j));
            use(2 * j, w);
            for (int v = 0; v < V; ++v) w[v] = e2m1_values(shift_right<4>(load_bits(at(v) + j)));
            use(2 * j + 1, w);
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

// Pairs of products add up to at most 576, so eight of them fit 16 bits.
NIBBLE_OP I integer_block(I offset, const I (&u)[4], const I (&s)[4]) {
    const I a = _mm256_add_epi16(_mm256_maddubs_epi16(u[0], s[0]), _mm256_maddubs_epi16(u[1], s[1]));
    const I b = _mm256_add_epi16(_mm256_maddubs_epi16(u[2], s[2]), _mm256_maddubs_epi16(u[3], s[3]));
    return add(offset, _mm256_madd_epi16(_mm256_add_epi16(a, b), _mm256_set1_epi16(1)));
}

NIBBLE_OP I lookup_bytes(__m128i table, I index) {
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(table), index);
}

NIBBLE_OP I widen_bytes(const uint8_t* p) { return load_bytes(p); }

#undef NIBBLE_OP

}  // namespace nibble::avx2

#include "kernels/cpu/amx.h"
#include "kernels/cpu/matmul_ops_avx512.h"

// Tile registers: sums in 0 1 (first 16 rows: outputs 0-15, 16-31) and 2 3 (second 16 rows), inputs in 4 5, weights in
// 6 7.
namespace nibble::amx {
namespace {

using namespace avx512;

#define NIBBLE_INNER __attribute__((always_inline))

constexpr int panel_lanes = 32, vectors = 2;
constexpr int64_t panel_bytes = panel_lanes * 4;    // per pair of k
constexpr int64_t prefetch_bytes = 4096;            // as in matmul_tiles.inc
constexpr int64_t row_bytes = cpu::tile_k * 2;      // per row of an input tile
constexpr int64_t half_sums = cpu::tile_rows * 32;  // floats

// GCC 12 does not know that its tile intrinsics access memory and without this drops or moves stores around them.
NIBBLE_INNER inline void memory_barrier() { asm volatile("" ::: "memory"); }

void configure(int rows) {
    struct alignas(64) {
        uint8_t palette = 1, start = 0, reserved[14] = {};
        uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
        uint8_t rows[16] = {};
    } config;
    for (int i = 0; i < 8; ++i) config.rows[i] = static_cast<uint8_t>(i < 6 ? rows : 16);
    asm volatile("" ::"r"(&config) : "memory");
    _tile_loadconfig(&config);
}

void release() { _tile_release(); }

void round(const float* x, int64_t stride, int64_t rows, int64_t k, uint16_t* tiles) {
    for (int64_t at = 0; at < k; at += cpu::tile_k, tiles += cpu::tile_values)
        for (int64_t r = 0; r < cpu::tile_rows; ++r) {
            const int64_t left = k - at;
            const auto mask = [&](int64_t from) {
                return static_cast<M>(r >= rows || left <= from ? 0
                                      : left - from >= 16       ? 0xFFFF
                                                                : (1 << (left - from)) - 1);
            };
            const float* row = x + r * stride + at;
            const F low = _mm512_maskz_loadu_ps(mask(0), row), high = _mm512_maskz_loadu_ps(mask(16), row + 16);
            const __m512bh both = _mm512_cvtne2ps_pbh(high, low);
            __builtin_memcpy(tiles + r * cpu::tile_k, &both, sizeof both);
        }
}

// One tile of k: 16 pairs of 32 outputs.
template <class Words>
struct Decoder {
    static constexpr int vector_bytes = lanes * Words::word_bytes;
    static constexpr int per_tile = cpu::tile_k / Words::values;

    explicit Decoder(const cpu::AmxWeights& w)
        : words(w.words),
          end(w.words + w.k / Words::values * panel_lanes * Words::word_bytes),
          c(w.c),
          c_step(w.c_step),
          per_block(static_cast<int>(w.block < cpu::tile_k ? w.block : cpu::tile_k) / Words::values) {}

    NIBBLE_INNER void step(uint32_t* pairs) {
        for (int word = 0; word < per_tile; word += per_block, c += c_step) {
            F factor[vectors];
            for (int v = 0; v < vectors; ++v) factor[v] = mul(load(c + v * lanes), splat(Words::shrink));
            for (int i = 0; i < per_block; ++i) {
                if (words == end) {
                    for (int j = 0; j < Words::values / 2 * vectors; ++j) store_pairs(pairs + j * lanes, splat(0));
                    pairs += Words::values / 2 * panel_lanes;
                    continue;
                }
                for (int v = 0; v < vectors; ++v)
                    _mm_prefetch(reinterpret_cast<const char*>(words + v * vector_bytes + prefetch_bytes), _MM_HINT_T0);
                F even[vectors];
                Words::template each<vectors>([&](int v) NIBBLE_INNER { return words + v * vector_bytes; },
                                              [&](int j, const F(&w)[vectors]) NIBBLE_INNER {
                                                  for (int v = 0; v < vectors; ++v) {
                                                      const F value = mul(w[v], factor[v]);
                                                      if (j % 2 == 0)
                                                          even[v] = value;
                                                      else
                                                          store_pairs(pairs + j / 2 * panel_lanes + v * lanes,
                                                                      pair(even[v], value));
                                                  }
                                              });
                pairs += Words::values / 2 * panel_lanes;
                words += panel_lanes * Words::word_bytes;
            }
        }
    }

private:
    NIBBLE_INNER static I pair(F even, F odd) {  // both are exact in BF16
        return _mm512_mask_blend_epi16(0xAAAAAAAA, shift_right<16>(bits(even)), bits(odd));
    }
    NIBBLE_INNER static void store_pairs(uint32_t* p, I x) { _mm512_store_si512(p, x); }

    const std::byte *words, *end;
    const float* c;
    int64_t c_step;
    int per_block;
};

template <class Words>
void pairs(const cpu::AmxWeights& w, uint32_t* to) {
    Decoder<Words> decoder(w);
    for (int64_t k = 0; k < w.k; k += cpu::tile_k, to += cpu::pairs_per_tile) decoder.step(to);
}

// Register numbers are constants in the instruction; the alternative would be macros.
NIBBLE_INNER inline void start(bool first, const float* acc) {
    memory_barrier();
    if (first) {
        _tile_zero(0);
        _tile_zero(1);
    } else {
        _tile_loadd(0, acc, panel_bytes);
        _tile_loadd(1, acc + lanes, panel_bytes);
    }
}
NIBBLE_INNER inline void step(const uint16_t* x, const uint32_t* w) {
    memory_barrier();
    _tile_loadd(4, x, row_bytes);
    _tile_loadd(6, w, panel_bytes);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(7, w + lanes, panel_bytes);
    _tile_dpbf16ps(1, 4, 7);
}
NIBBLE_INNER inline void finish(float* acc) {
    _tile_stored(0, acc, panel_bytes);
    _tile_stored(1, acc + lanes, panel_bytes);
    memory_barrier();
}

void one(const cpu::AmxInputs& x, const uint32_t* w, int64_t steps, bool first, float* acc) {
    start(first, acc);
    for (int64_t i = 0; i < steps; ++i) step(x.tiles + i * cpu::tile_values, w + i * cpu::pairs_per_tile);
    finish(acc);
}

void two(const cpu::AmxInputs& x, const uint32_t* w, int64_t steps, bool first, float* acc) {
    start(first, acc);
    if (first) {
        _tile_zero(2);
        _tile_zero(3);
    } else {
        _tile_loadd(2, acc + half_sums, panel_bytes);
        _tile_loadd(3, acc + half_sums + lanes, panel_bytes);
    }
    const uint16_t* at = x.tiles;
    for (int64_t i = 0; i < steps; ++i, at += cpu::tile_values, w += cpu::pairs_per_tile) {
        step(at, w);
        _tile_loadd(5, at + x.apart, row_bytes);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    finish(acc);
    _tile_stored(2, acc + half_sums, panel_bytes);
    _tile_stored(3, acc + half_sums + lanes, panel_bytes);
    memory_barrier();
}

template <class Words>
void few(const cpu::AmxInputs& x, const cpu::AmxWeights& w, bool first, float* acc) {
    alignas(64) uint32_t ring[2][cpu::pairs_per_tile];
    const int64_t steps = (w.k + cpu::tile_k - 1) / cpu::tile_k;
    Decoder<Words> decoder(w);
    start(first, acc);
    decoder.step(ring[0]);
    for (int64_t i = 0; i < steps; ++i) {
        if (i + 1 < steps) decoder.step(ring[(i + 1) % 2]);
        step(x.tiles + i * cpu::tile_values, ring[i % 2]);
    }
    finish(acc);
}

// Reads BF16 words in place, except for a last step that ends within a tile.
void few_pairs(const cpu::AmxInputs& x, const cpu::AmxWeights& w, bool first, float* acc) {
    const int64_t whole = w.k / cpu::tile_k, rest = w.k % cpu::tile_k;
    const auto* at = reinterpret_cast<const uint32_t*>(w.words);
    start(first, acc);
    for (int64_t i = 0; i < whole; ++i, at += cpu::pairs_per_tile) {
        for (int64_t line = 0; line < cpu::pairs_per_tile; line += 16)
            _mm_prefetch(reinterpret_cast<const char*>(at + line) + prefetch_bytes, _MM_HINT_T0);
        step(x.tiles + i * cpu::tile_values, at);
    }
    if (rest) {
        alignas(64) uint32_t last[cpu::pairs_per_tile];
        pairs<Bf16Words>({reinterpret_cast<const std::byte*>(at), rest, w.c, w.c_step, w.block}, last);
        step(x.tiles + whole * cpu::tile_values, last);
    }
    finish(acc);
}

void add_block(const float* t, int64_t rows, const float* c, const float* g, int64_t g_row, bool first, float* total) {
    for (int64_t r = 0; r < rows; ++r)
        for (int i = 0; i < panel_lanes; i += lanes) {
            const int64_t at = r * panel_lanes + i;
            const F factor = g ? mul(splat(g[r * g_row]), load(c + i)) : load(c + i);
            store(total + at, fma(load(t + at), factor, first ? zero() : load(total + at)));
        }
}

}  // namespace
}  // namespace nibble::amx

namespace nibble::cpu {

constinit const AmxKernels amx_kernels{
    amx::configure,
    amx::release,
    amx::round,
    {nullptr, amx::pairs<avx512::Bf16Words>, amx::pairs<avx512::E4m3Words>, amx::pairs<avx512::E2m1Words>,
     amx::pairs<avx512::Int4Words>},
    amx::one,
    amx::two,
    {nullptr, amx::few_pairs, amx::few<avx512::E4m3Words>, amx::few<avx512::E2m1Words>, amx::few<avx512::Int4Words>},
    amx::add_block};

}  // namespace nibble::cpu

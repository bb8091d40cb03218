#include "kernels/cpu/solver_cpu.h"
#include "kernels/cpu/vec_avx512.h"

namespace nibble::avx512 {
namespace {

#define NIBBLE_OP [[gnu::always_inline]] inline

struct Single {
    using T = float;
    using R = F;
    static constexpr int width = lanes;
    NIBBLE_OP static R load(const T* p) { return avx512::load(p); }
    NIBBLE_OP static void store(T* p, R x) { avx512::store(p, x); }
    NIBBLE_OP static R splat(T x) { return avx512::splat(x); }
    NIBBLE_OP static R fma(R a, R b, R c) { return avx512::fma(a, b, c); }
    NIBBLE_OP static R fnma(R a, R b, R c) { return avx512::fnma(a, b, c); }
};

struct Double {
    using T = double;
    using R = __m512d;
    static constexpr int width = lanes / 2;
    NIBBLE_OP static R load(const T* p) { return _mm512_loadu_pd(p); }
    NIBBLE_OP static void store(T* p, R x) { _mm512_storeu_pd(p, x); }
    NIBBLE_OP static R splat(T x) { return _mm512_set1_pd(x); }
    NIBBLE_OP static R fma(R a, R b, R c) { return _mm512_fmadd_pd(a, b, c); }
    NIBBLE_OP static R fnma(R a, R b, R c) { return _mm512_fnmadd_pd(a, b, c); }
};

NIBBLE_OP unsigned bit_mask(M m) { return m; }

#undef NIBBLE_OP

constexpr int tile_rows = 8, tile_vectors = 3;

}  // namespace
}  // namespace nibble::avx512

#define NIBBLE_ISA avx512
#include "kernels/cpu/solver.inc"

#include "kernels/cpu/solver_cpu.h"
#include "kernels/cpu/vec_avx2.h"

namespace nibble::avx2 {
namespace {

#define NIBBLE_OP [[gnu::always_inline]] inline

struct Single {
    using T = float;
    using R = F;
    static constexpr int width = lanes;
    NIBBLE_OP static R load(const T* p) { return avx2::load(p); }
    NIBBLE_OP static void store(T* p, R x) { avx2::store(p, x); }
    NIBBLE_OP static R splat(T x) { return avx2::splat(x); }
    NIBBLE_OP static R fma(R a, R b, R c) { return avx2::fma(a, b, c); }
    NIBBLE_OP static R fnma(R a, R b, R c) { return avx2::fnma(a, b, c); }
};

struct Double {
    using T = double;
    using R = __m256d;
    static constexpr int width = lanes / 2;
    NIBBLE_OP static R load(const T* p) { return _mm256_loadu_pd(p); }
    NIBBLE_OP static void store(T* p, R x) { _mm256_storeu_pd(p, x); }
    NIBBLE_OP static R splat(T x) { return _mm256_set1_pd(x); }
    NIBBLE_OP static R fma(R a, R b, R c) { return _mm256_fmadd_pd(a, b, c); }
    NIBBLE_OP static R fnma(R a, R b, R c) { return _mm256_fnmadd_pd(a, b, c); }
};

NIBBLE_OP unsigned bit_mask(M m) { return static_cast<unsigned>(_mm256_movemask_ps(as_float(m.m))); }

#undef NIBBLE_OP

constexpr int tile_rows = 4, tile_vectors = 3;

}  // namespace
}  // namespace nibble::avx2

#define NIBBLE_ISA avx2
#include "kernels/cpu/solver.inc"

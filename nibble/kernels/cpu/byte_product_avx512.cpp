#include "kernels/cpu/byte_product_cpu.h"
#include "kernels/cpu/vec_avx512.h"

#define NIBBLE_ISA avx512
#include "kernels/cpu/exp.inc"

#include "kernels/cpu/activations.inc"

namespace nibble::avx512 {
namespace {

#define NIBBLE_OP [[gnu::always_inline]] inline

NIBBLE_OP I load_word(const void* p) { return _mm512_loadu_si512(p); }
NIBBLE_OP void store_word(void* p, I x) { _mm512_storeu_si512(p, x); }
NIBBLE_OP I to_int(F x) { return _mm512_cvtps_epi32(x); }
NIBBLE_OP I add_bytes(I sum, I word) { return dot4_bytes(sum, splat(0x01010101), word); }

// The instruction needs unsigned bytes on one side: those of b plus 128. The chain starts with the correction.
using ByteOperand = I;
NIBBLE_OP I byte_operand(I word) { return word; }
NIBBLE_OP I first_sum(int32_t sum) { return splat(-128 * sum); }
NIBBLE_OP I dot4(I acc, I u, const uint32_t* s) { return dot4_bytes(acc, u, s); }

#undef NIBBLE_OP

constexpr int tile_vectors = 2;

}  // namespace

void byte_prepare(const uint32_t* words, int64_t count, uint32_t* out) {
    for (int64_t i = 0; i < count; i += lanes)
        store_word(out + i, differ(load_word(words + i), splat(static_cast<int32_t>(0x80808080))));
}

}  // namespace nibble::avx512

#include "kernels/cpu/byte_product.inc"

#include "kernels/cpu/byte_product_cpu.h"
#include "kernels/cpu/vec_avx2.h"

#define NIBBLE_ISA avx2
#include "kernels/cpu/exp.inc"

#include "kernels/cpu/activations.inc"

namespace nibble::avx2 {
namespace {

#define NIBBLE_OP [[gnu::always_inline]] inline

NIBBLE_OP I load_word(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }
NIBBLE_OP void store_word(void* p, I x) { _mm256_storeu_si256(static_cast<__m256i*>(p), x); }
NIBBLE_OP I to_int(F x) { return _mm256_cvtps_epi32(x); }
NIBBLE_OP I add_pairs(I sum, I pairs) { return add(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1))); }
NIBBLE_OP I add_bytes(I sum, I word) { return add_pairs(sum, _mm256_maddubs_epi16(_mm256_set1_epi8(1), word)); }

// Two products of at most 127 * 127 fit 16 bits.
struct ByteOperand {
    I code, magnitude;
};
NIBBLE_OP ByteOperand byte_operand(I word) { return {word, _mm256_abs_epi8(word)}; }
NIBBLE_OP I first_sum(int32_t) { return splat(0); }
NIBBLE_OP I dot4(I acc, const ByteOperand& u, const uint32_t* word) {
    const I s = splat(static_cast<int32_t>(*word));
    return add_pairs(acc, _mm256_maddubs_epi16(u.magnitude, _mm256_sign_epi8(s, u.code)));
}

#undef NIBBLE_OP

constexpr int tile_vectors = 1;

}  // namespace

void byte_prepare(const uint32_t* words, int64_t count, uint32_t* out) {
    for (int64_t i = 0; i < count; i += lanes) store_word(out + i, load_word(words + i));
}

}  // namespace nibble::avx2

#include "kernels/cpu/byte_product.inc"

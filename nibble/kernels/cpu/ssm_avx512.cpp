#include "kernels/cpu/ssm_rows.h"
#include "kernels/cpu/vec_avx512.h"

#define NIBBLE_ISA avx512
#include "kernels/cpu/ssm.inc"

namespace nibble::cpu {

void ssm_scan_avx512(const SsmHead& head) { avx512::scan(head); }
void ssm_convolve_avx512(const float* const* taps, int conv, const float* weight, const float* bias, int64_t channels,
                         float* out) {
    avx512::convolve(taps, conv, weight, bias, channels, out);
}

}  // namespace nibble::cpu

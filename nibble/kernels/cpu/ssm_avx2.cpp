#include "kernels/cpu/ssm_rows.h"
#include "kernels/cpu/vec_avx2.h"

#define NIBBLE_ISA avx2
#include "kernels/cpu/ssm.inc"

namespace nibble::cpu {

void ssm_scan_avx2(const SsmHead& head) { avx2::scan(head); }
void ssm_convolve_avx2(const float* const* taps, int conv, const float* weight, const float* bias, int64_t channels,
                       float* out) {
    avx2::convolve(taps, conv, weight, bias, channels, out);
}

}  // namespace nibble::cpu

#include "kernels/cpu/vec_avx512.h"
#include "kernels/delta_rule_rows.h"

#define NIBBLE_ISA avx512
#include "kernels/cpu/delta_rule.inc"

namespace nibble::cpu {

void delta_rule_avx512(const DeltaHead& head) { avx512::delta_rule(head); }

}  // namespace nibble::cpu

#include "kernels/cpu/vec_avx2.h"
#include "kernels/delta_rule_rows.h"

#define NIBBLE_ISA avx2
#include "kernels/cpu/delta_rule.inc"

namespace nibble::cpu {

void delta_rule_avx2(const DeltaHead& head) { avx2::delta_rule(head); }

}  // namespace nibble::cpu

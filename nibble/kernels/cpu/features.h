// Which instruction-set files may run: what the flags of cmake/folders.cmake let a compiler use there.
#pragma once

namespace nibble::cpu {

bool always();
bool has_avx2();    // with FMA, F16C, BMI
bool has_avx512();  // F, BW, VL, DQ, VBMI, VNNI
bool has_amx();     // AVX-512 with BF16, AMX tiles and BF16; asks the system to let this process use tile registers

}  // namespace nibble::cpu

// Detects the instruction sets that the flags of cmake/folders.cmake allow the compiler to use.
#pragma once

namespace nibble::cpu {

bool always();
bool has_avx2();    // with FMA, F16C, BMI
bool has_avx512();  // F, BW, VL, DQ, VBMI, VNNI
bool has_amx();     // AVX-512 with BF16, AMX tiles and BF16; asks the system for permission to use tile registers

}  // namespace nibble::cpu

// wgmma of E4M3 codes, both operands in shared memory.
#pragma once

#include "kernels/cuda/primitives/ptx.cuh"

namespace nibble::cuda {

// d[64, N] (+)= a[64, 32] b[N, 32]^T of E4M3, with rows of 128 bytes as in swizzled_operand(). Groups of eight rows are
// 1024 bytes apart, except those of a (ApartA) or of b, which are (upper & 0x3FFF) * 16 bytes apart. Lane 4 g + c of
// warp w holds d[4 i + 2 h + e]: row 16 w + g + 8 h, column 8 i + 2 c + e. (A constant upper half is part of the
// instruction: as an operand it changed the code of a quarter of the dense product's kernels.)
template <int N, bool ApartA>
struct WgmmaCodes;
#define NIBBLE_WGMMA_CODES_OF(N, apart, names, a, au, b, bu, add, ...)                                               \
    template <>                                                                                                      \
    struct WgmmaCodes<N, apart> {                                                                                    \
        static __device__ __forceinline__ void run(float (&d)[N / 2], uint32_t left, uint32_t right, uint32_t upper, \
                                                   int more) {                                                       \
            NIBBLE_WGMMA_ASM("{\n\t.reg .pred p;\n\t.reg .b64 left, right;\n\tsetp.ne.b32 p, " add                   \
                             ", 0;\n\tmov.b64 left, {" a ", " au "};\n\tmov.b64 right, {" b ", " bu                  \
                             "};\n\twgmma.mma_async.sync.aligned.m64n" #N "k32.f32.e4m3.e4m3 {" names                \
                             "}, left, right, p, 1, 1;\n\t}"                                                         \
                             : __VA_ARGS__                                                                           \
                             : "r"(left), "r"(right), "r"(upper), "r"(more));                                        \
        }                                                                                                            \
    }
#define NIBBLE_WGMMA_CODES(N, names, a, b, u, add, ...)                                      \
    NIBBLE_WGMMA_CODES_OF(N, true, names, a, u, b, NIBBLE_SWIZZLED_UPPER, add, __VA_ARGS__); \
    NIBBLE_WGMMA_CODES_OF(N, false, names, a, NIBBLE_SWIZZLED_UPPER, b, u, add, __VA_ARGS__)
#define NIBBLE_N4_0 "%0, %1, %2, %3"
#define NIBBLE_N12_0 NIBBLE_N8_0 ", %8, %9, %10, %11"
#define NIBBLE_N24_0 NIBBLE_N16_0 ", %16, %17, %18, %19, %20, %21, %22, %23"
#define NIBBLE_N28_0 NIBBLE_N24_0 ", %24, %25, %26, %27"
#define NIBBLE_N48_0 NIBBLE_N32_0 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define NIBBLE_N56_0 NIBBLE_N48_0 ", %48, %49, %50, %51, %52, %53, %54, %55"
NIBBLE_WGMMA_CODES(8, NIBBLE_N4_0, "%4", "%5", "%6", "%7", NIBBLE_D4(d, 0));
NIBBLE_WGMMA_CODES(16, NIBBLE_N8_0, "%8", "%9", "%10", "%11", NIBBLE_D8(d, 0));
NIBBLE_WGMMA_CODES(24, NIBBLE_N12_0, "%12", "%13", "%14", "%15", NIBBLE_D8(d, 0), NIBBLE_D4(d, 8));
NIBBLE_WGMMA_CODES(32, NIBBLE_N16_0, "%16", "%17", "%18", "%19", NIBBLE_D16(d, 0));
NIBBLE_WGMMA_CODES(48, NIBBLE_N24_0, "%24", "%25", "%26", "%27", NIBBLE_D16(d, 0), NIBBLE_D8(d, 16));
NIBBLE_WGMMA_CODES(56, NIBBLE_N28_0, "%28", "%29", "%30", "%31", NIBBLE_D16(d, 0), NIBBLE_D8(d, 16), NIBBLE_D4(d, 24));
NIBBLE_WGMMA_CODES(64, NIBBLE_N32_0, "%32", "%33", "%34", "%35", NIBBLE_D32(d, 0));
NIBBLE_WGMMA_CODES(96, NIBBLE_N48_0, "%48", "%49", "%50", "%51", NIBBLE_D32(d, 0), NIBBLE_D16(d, 32));
NIBBLE_WGMMA_CODES(112, NIBBLE_N56_0, "%56", "%57", "%58", "%59", NIBBLE_D32(d, 0), NIBBLE_D16(d, 32),
                   NIBBLE_D8(d, 48));
NIBBLE_WGMMA_CODES(128, NIBBLE_N64_0, "%64", "%65", "%66", "%67", NIBBLE_D64(d, 0));
#undef NIBBLE_WGMMA_CODES
#undef NIBBLE_WGMMA_CODES_OF

}  // namespace nibble::cuda

// wgmma with both operands in shared memory.
#pragma once

#include "kernels/cuda/primitives/ptx.cuh"

namespace nibble::cuda {

// d[64, N] (+)= a[64, 16] b[N, 16]^T, both described by swizzled_operand().
template <int N, HalfType Type = HalfType::bf16>
struct WgmmaShared;
#define NIBBLE_WGMMA_SHARED(N, type, names, a, b, add, ...)                                                           \
    template <>                                                                                                       \
    struct WgmmaShared<N, HalfType::type> {                                                                           \
        static __device__ __forceinline__ void run(float (&d)[N / 2], uint32_t rows, uint32_t columns, int more) {    \
            NIBBLE_WGMMA_ASM("{\n\t.reg .pred p;\n\t.reg .b64 left, right;\n\tsetp.ne.b32 p, " add                    \
                             ", 0;\n\tmov.b64 left, {" a ", " NIBBLE_SWIZZLED_UPPER "};\n\tmov.b64 right, {" b        \
                             ", " NIBBLE_SWIZZLED_UPPER "};\n\twgmma.mma_async.sync.aligned.m64n" #N "k16.f32." #type \
                             "." #type " {" names "}, left, right, p, 1, 1, 0, 0;\n\t}"                               \
                             : __VA_ARGS__                                                                            \
                             : "r"(rows), "r"(columns), "r"(more));                                                   \
        }                                                                                                             \
    }
#define NIBBLE_N64_1                                                                                       \
    ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, %82, %83" \
    ", %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, %96, %97, %98, %99, %100, %101, %102"   \
    ", %103, %104, %105, %106, %107, %108, %109, %110, %111, %112, %113, %114, %115, %116, %117, %118"     \
    ", %119, %120, %121, %122, %123, %124, %125, %126, %127"
NIBBLE_WGMMA_SHARED(16, bf16, NIBBLE_N8_0, "%8", "%9", "%10", NIBBLE_D8(d, 0));
NIBBLE_WGMMA_SHARED(32, bf16, NIBBLE_N16_0, "%16", "%17", "%18", NIBBLE_D16(d, 0));
NIBBLE_WGMMA_SHARED(64, bf16, NIBBLE_N32_0, "%32", "%33", "%34", NIBBLE_D32(d, 0));
NIBBLE_WGMMA_SHARED(128, bf16, NIBBLE_N64_0, "%64", "%65", "%66", NIBBLE_D64(d, 0));
NIBBLE_WGMMA_SHARED(128, f16, NIBBLE_N64_0, "%64", "%65", "%66", NIBBLE_D64(d, 0));
NIBBLE_WGMMA_SHARED(256, bf16, NIBBLE_N64_0 NIBBLE_N64_1, "%128", "%129", "%130", NIBBLE_D64(d, 0), NIBBLE_D64(d, 64));
#undef NIBBLE_WGMMA_SHARED

}  // namespace nibble::cuda

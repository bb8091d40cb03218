// Tensor maps of three-dimensional boxes for the copy engine.
#pragma once

#include "kernels/cuda/primitives/ptx.cuh"

#include <cuda.h>

namespace nibble::cuda {

__device__ inline void prefetch_map(const CUtensorMap* map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

__device__ inline void load_3d(uint32_t to, const CUtensorMap* map, int x, int y, int z, uint32_t barrier) {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], [%5];" ::
            "r"(to),
        "l"(map), "r"(x), "r"(y), "r"(z), "r"(barrier)
        : "memory");
}

using EncodeMap = decltype(&cuTensorMapEncodeTiled);

// Returns the driver's function, which needs no library at link time; null if the driver lacks it.
inline EncodeMap map_encoder() {
    static const EncodeMap found = [] {
        void* function = nullptr;
        cudaDriverEntryPointQueryResult result{};
        if (cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &result) !=
                cudaSuccess ||
            result != cudaDriverEntryPointSuccess)
            function = nullptr;
        return reinterpret_cast<EncodeMap>(function);
    }();
    return found;
}

inline bool encode_3d(CUtensorMap& map, CUtensorMapDataType type, const void* from, const cuuint64_t (&sizes)[3],
                      const cuuint64_t (&strides)[2], const cuuint32_t (&box)[3], CUtensorMapSwizzle swizzle) {
    constexpr cuuint32_t steps[3] = {1, 1, 1};
    return map_encoder()(&map, type, 3, const_cast<void*>(from), sizes, strides, box, steps,
                         CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                         CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

}  // namespace nibble::cuda

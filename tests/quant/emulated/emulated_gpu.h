// A GPU made of host memory: implements tensor/device.h and kernels/quantize_cuda.h in place of the absent twins, so
// that everything around the kernels runs where there is no GPU. Device addresses differ from host ones: code that
// mixes them up ends at once.
#pragma once

#include <atomic>
#include <cstdint>

namespace nibble::test {

struct EmulatedGpu {
    std::atomic<int64_t> free_bytes{int64_t{1} << 30};
    std::atomic<int64_t> fails_after{-1};  // waits that succeed before every later one reports a lost device; -1: all
    std::atomic<int64_t> copied_to_device{0}, arena_bytes{0};
};
EmulatedGpu& emulated_gpu();

}  // namespace nibble::test

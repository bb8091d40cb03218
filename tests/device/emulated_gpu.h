// A GPU emulated in host memory. It implements tensor/device.h, tensor/device_group.h and the headers kernels/*_cuda.h
// in place of nibble/tensor/cuda/ and nibble/kernels/cuda/. GPU code that runs on the host (model/device/,
// train/device/, quant/device/, gpu_bench/) can thus be tested without a GPU: test_device links it with this emulation.
// Device addresses differ from host addresses, so code that confuses them aborts at once.
#pragma once

#include <atomic>
#include <cstdint>

namespace nibble::test {

struct EmulatedGpu {
    std::atomic<int64_t> free_bytes{int64_t{1} << 30};
    std::atomic<int64_t> fails_after{-1};  // number of waits that succeed before all later ones report a lost device;
                                           // -1: all succeed
    std::atomic<int64_t> copied_to_device{0}, arena_bytes{0};
};
EmulatedGpu& emulated_gpu();

}  // namespace nibble::test

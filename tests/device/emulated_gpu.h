// A GPU made of host memory. It implements tensor/device.h, tensor/device_group.h and the headers kernels/*_cuda.h in
// place of nibble/tensor/cuda/ and nibble/kernels/cuda/, so that GPU code which runs on the host (model/device/,
// train/device/, quant/device/, bench/) is tested without a GPU: test_device links that code with this one. Addresses
// of device memory differ from those of host memory: code that mixes them up ends at once.
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

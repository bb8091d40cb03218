// Converts results of CUDA runtime calls to Status values.
#pragma once

#include "base/error.h"

#include <cuda_runtime_api.h>

#include <string_view>

namespace nibble {

inline Status cuda_status(cudaError_t code, std::string_view call) {
    if (code == cudaSuccess) return Ok{};
    const ErrorKind kind = code == cudaErrorMemoryAllocation ? ErrorKind::memory : ErrorKind::device;
    return fail(kind, "{}: {} ({})", call, cudaGetErrorString(code), cudaGetErrorName(code));
}

// Returns true if the current device has wgmma (compute capability 9.x).
inline bool on_hopper() {
    int device = 0, major = 0;
    return cudaGetDevice(&device) == cudaSuccess &&
           cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) == cudaSuccess && major == 9;
}

// Makes `device` current for the calling thread; the destructor restores the previous one.
class CurrentDevice {
public:
    explicit CurrentDevice(int device) {
        if (cudaGetDevice(&previous_) != cudaSuccess) previous_ = -1;
        status_ = previous_ == device ? cudaSuccess : cudaSetDevice(device);
        changed_ = previous_ != device;
    }
    ~CurrentDevice() {
        if (changed_ && previous_ >= 0) cudaSetDevice(previous_);
    }
    CurrentDevice(const CurrentDevice&) = delete;
    CurrentDevice& operator=(const CurrentDevice&) = delete;

    Status status() const { return cuda_status(status_, "cudaSetDevice"); }

private:
    int previous_ = -1;
    bool changed_ = false;
    cudaError_t status_ = cudaSuccess;
};

}  // namespace nibble

// NIBBLE_CUDA_CALL(cudaMemcpyAsync, to, from, bytes, kind, stream) returns from the caller with an error that names the
// call if it fails.
#define NIBBLE_CUDA_CALL(function, ...) NIBBLE_CHECK(::nibble::cuda_status(function(__VA_ARGS__), #function))

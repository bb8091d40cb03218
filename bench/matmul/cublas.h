// cuBLAS as it lies on the machine, found at run time: the baseline, not a dependency.
#pragma once

#include "base/error.h"
#include "tensor/device.h"

#include <cstdint>
#include <memory>
#include <string>

namespace nibble::bench {

class Cublas {
public:
    // `path`: of libcublas, or its name for the loader's search path.
    static Result<Cublas> open(const std::string& path, const Stream& stream);
    // y [m, n] FP32 = x [m, k] BF16 times w [n, k] BF16 transposed, FP32 sums.
    Status multiply(int64_t m, int64_t n, int64_t k, const std::byte* x, const std::byte* w, float* y) const;

private:
    struct Library;
    explicit Cublas(std::shared_ptr<Library> library) : library_(std::move(library)) {}
    std::shared_ptr<Library> library_;
};

}  // namespace nibble::bench

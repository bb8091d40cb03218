// Names the kernel of a launch, for tables and logs. cuda::describe() and cuda::describe_*(), next to each operation,
// derive it from the same value as the launch, so it always matches what runs.
#pragma once

#include <string>

namespace nibble::cuda {

struct KernelChoice {
    std::string kernel;  // its file in kernels/cuda/: "matmul_w4a16_m1"
    std::string why;
};

}  // namespace nibble::cuda

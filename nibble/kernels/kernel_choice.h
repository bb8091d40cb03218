// The kernel that a launch takes, in words for people. Made from the same value that the launch switches on
// (cuda::describe() and cuda::describe_*() beside each operation), so that a table of kernels cannot differ from what
// runs.
#pragma once

#include <string>

namespace nibble::cuda {

struct KernelChoice {
    std::string kernel;  // its file in kernels/cuda/: "product_w4a16_m1"
    std::string why;
};

}  // namespace nibble::cuda

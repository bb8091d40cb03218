// The output of `nibble --version`, for bug reports: version and commit of the build, CPU kernels, CUDA.
#pragma once

#include <string>

namespace nibble {

// Returns "nibble 0.2.0 (2af5a7a0c1d2)" and two more lines, without a line end after the last.
std::string version_text();

}  // namespace nibble

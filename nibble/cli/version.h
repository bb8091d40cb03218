// What `nibble --version` says: version and commit of the build, CPU kernels, CUDA. The lines are for bug reports.
#pragma once

#include <string>

namespace nibble {

// "nibble 0.1.0 (2af5a7a0c1d2)" and two lines more, without a line end behind the last.
std::string version_text();

}  // namespace nibble

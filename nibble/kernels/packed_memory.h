// prepack_stacked() of kernels/matmul.h into memory shared by the weights of a model.
#pragma once

#include "base/large_pages.h"
#include "kernels/matmul.h"

namespace nibble {

Result<PackedMatrix> prepack_stacked(std::span<const QuantView> weights, ThreadPool& pool, SharedPages& memory);
Result<PackedMatrix> prepack_stacked(std::span<const MatrixView> weights, ThreadPool& pool, SharedPages& memory);

}  // namespace nibble

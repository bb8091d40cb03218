// The definition in kernels/attention.h as plain loops.
#pragma once

#include "kernels/attention.h"

namespace nibble::ref {

void attend(const AttentionShape& shape, std::span<const AttentionJob> jobs, ThreadPool& pool);

}  // namespace nibble::ref

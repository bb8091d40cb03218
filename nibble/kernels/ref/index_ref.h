// The definition in kernels/indexer.h as plain loops.
#pragma once

#include "kernels/indexer.h"

namespace nibble::ref {

void choose(const IndexShape& shape, std::span<const IndexJob> jobs, ThreadPool& pool);

}  // namespace nibble::ref

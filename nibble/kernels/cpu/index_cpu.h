// The algorithm of kernels/indexer.h over the tile operations of an instruction set.
#pragma once

#include "kernels/cpu/attention_tiles.h"
#include "kernels/indexer.h"

namespace nibble::cpu {

void choose(const AttentionTiles& tiles, const IndexShape& shape, std::span<const IndexJob> jobs, ThreadPool& pool);

}  // namespace nibble::cpu

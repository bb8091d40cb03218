// The algorithm of kernels/attention.h over the tile operations of an instruction set.
#pragma once

#include "kernels/attention.h"
#include "kernels/cpu/attention_tiles.h"

namespace nibble::cpu {

void attend(const AttentionTiles& tiles, const AttentionShape& shape, std::span<const AttentionJob> jobs,
            ThreadPool& pool);

}  // namespace nibble::cpu

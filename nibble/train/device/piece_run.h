// Which micro-batches of any number a rank has: runs of a power of two each, of which the last ranks may have fewer or
// none. So the sum of a run is a node of the tree over all (accumulation.h), as if what is missing had been left out.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

namespace nibble {

struct PieceRun {
    int64_t begin = 0, end = 0;
    int present = 1;  // ranks that have some: the first ones

    static PieceRun of(int64_t pieces, int rank, int size) {
        const auto each = static_cast<int64_t>(
            std::bit_ceil(static_cast<uint64_t>(std::max<int64_t>(1, (pieces + size - 1) / size))));
        return {.begin = std::min(pieces, each * rank),
                .end = std::min(pieces, each * (rank + 1)),
                .present = static_cast<int>(std::max<int64_t>(1, (pieces + each - 1) / each))};
    }
};

}  // namespace nibble

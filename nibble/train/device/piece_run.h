// The micro-batches of a rank: a contiguous run whose length is a power of two. The last ranks may have fewer or none.
// So the sum of a run is a node of the tree over all micro-batches (accumulation.h).
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

namespace nibble {

struct PieceRun {
    int64_t begin = 0, end = 0;
    int present = 1;  // number of ranks with micro-batches: the first ones

    static PieceRun of(int64_t pieces, int rank, int size) {
        const auto each = static_cast<int64_t>(
            std::bit_ceil(static_cast<uint64_t>(std::max<int64_t>(1, (pieces + size - 1) / size))));
        return {.begin = std::min(pieces, each * rank),
                .end = std::min(pieces, each * (rank + 1)),
                .present = static_cast<int>(std::max<int64_t>(1, (pieces + each - 1) / each))};
    }
};

}  // namespace nibble

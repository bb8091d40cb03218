// The positions of a unit's adapters (FlatUnit) in the flat arrays of a GPU trainer.
#pragma once

#include "kernels/lora_cuda.h"
#include "train/device/flat_layout.h"

namespace nibble {

struct AdapterUnit {
    cuda::AdapterBlocks blocks;  // no parts: no linear of the unit has adapters
    int64_t a = 0;               // [experts * blocks.width(), cols]
    int64_t b = 0;               // packed as `blocks` describes

    bool none() const { return blocks.parts == 0; }
    // Error: more parts than the kernels support.
    static Result<AdapterUnit> of(const FlatUnit& unit, int64_t rank, const Parameters& adapters,
                                  const FlatLayout& flat);
};

// Device constants that all units share.
struct AdapterConstants {
    const float* ends = nullptr;   // {0, 1}
    const float* scale = nullptr;  // alpha / rank
    float host_scale = 1;
};

}  // namespace nibble

// Random bits of an optimizer's states and their rounding, equal to train/optimizer.cpp.
#pragma once

#include "base/philox.h"
#include "kernels/cuda/primitives/elementwise.cuh"
#include "kernels/optimizer_args.h"

namespace nibble::cuda {

// Returns 32 random bits for every element of a parameter; four elements share a block.
class ElementBits {
public:
    __device__ explicit ElementBits(const StateDraws& draws) : draws_(draws) {}
    __device__ uint32_t operator()(uint32_t id, int64_t element) {
        const uint64_t group = static_cast<uint64_t>(element) / 4;
        if (!known_ || group != group_ || id != id_) {
            known_ = true, group_ = group, id_ = id;
            block_ = philox4x32({{static_cast<uint32_t>(group), static_cast<uint32_t>(draws_.seed >> 32), id, 1}},
                                static_cast<uint32_t>(draws_.seed), draws_.step);
        }
        const auto which = static_cast<uint32_t>(element % 4);
        return which == 0 ? block_.word[0] : which == 1 ? block_.word[1] : which == 2 ? block_.word[2] : block_.word[3];
    }

private:
    StateDraws draws_;
    bool known_ = false;
    uint64_t group_ = 0;
    uint32_t id_ = 0;
    PhiloxBlock block_{};
};

// Rounds to BF16 stochastically; the low 16 bits decide.
__device__ inline uint16_t rounded_by_chance(float x, uint32_t bits) {
    return static_cast<uint16_t>((__float_as_uint(x) + (bits & 0xFFFFu)) >> 16);
}

}  // namespace nibble::cuda

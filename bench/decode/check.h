// The kernels between the products, bit for bit against kernels/elementwise.h's `ref`.
#pragma once

#include "base/error.h"
#include "tensor/device.h"

#include <string>
#include <vector>

namespace nibble::bench {

struct ElementwiseCheck {
    std::string name;
    int64_t compared = 0, wrong = 0;
    std::string first;
};

Result<std::vector<ElementwiseCheck>> check_elementwise(const Stream& stream, DeviceArena& arena, uint64_t seed);

}  // namespace nibble::bench

// The table of `nibble inspect MODEL --device cuda --kernels`: which kernel runs every product, and why.
#pragma once

#include "base/json.h"
#include "model/device/kernel_use.h"

#include <string>

namespace nibble {

// Layers whose rows are all equal are one section: "layers 0-31  model.layers.*.self_attn".
std::string kernels_text(const KernelTable& table);
// Every layer by itself.
Json kernels_json(const KernelTable& table);

}  // namespace nibble

// Returns the weights of every unit of a block in the order of Mixer::units(). Weights of an expert are a part of the
// stacked matrices of all experts.
#pragma once

#include "train/device/flat_layout.h"

namespace nibble {

// units: FlatLayout::units of the block.
std::vector<FlatMatrix> unit_matrices(const Block& block, std::span<const FlatMatrix> units);

}  // namespace nibble

// The training version of an MLP as a part of another mixer (a shared expert).
#pragma once

#include "model/device/mlp.h"
#include "train/device/train_mixer.h"

namespace nibble {

// units: of its first and of its second product.
Result<std::unique_ptr<TrainMixer>> make_train_mlp(DeviceMlp& mlp, std::span<const FlatMatrix> units,
                                                   const TrainVectors& vectors);

}  // namespace nibble

// One linear layer: a packed weight, how its inputs are quantized, a bias. The unit that calibration observes.
#pragma once

#include "checkpoint/checkpoint.h"
#include "kernels/matmul.h"

#include <span>
#include <string>
#include <vector>

namespace nibble {

class WeightSource;

struct Linear {
    std::string name;  // of its weight without ".weight": "model.layers.3.self_attn.q_proj"
    PackedMatrix weight;
    std::vector<float> bias;  // empty or [N]
    ActivationFormat activation = ActivationFormat::none;
    float input_scale = 1.0f;
};

}  // namespace nibble

// Reads the rotary embedding of a canonical configuration: rope_parameters.
#pragma once

#include "architecture/config_fields.h"
#include "architecture/model_config.h"

#include <optional>

namespace nibble {

struct RopeReading {
    // Multiplied by yarn's mscale_all_dim factor (deepseek_v3): the scale of q . k. nullptr: the field is not
    // supported.
    float* scale = nullptr;
    // Default of partial_rotary_factor, the rotated share of a head. nullopt: whole heads are rotated, and the field
    // must be 1.
    std::optional<double> partial = std::nullopt;
    // Receive llama_4_scaling_beta and the length in which it counts (original_max_position_embeddings). nullptr: the
    // field is not supported.
    float* query_beta = nullptr;
    int64_t* query_period = nullptr;
};

// Reads the rope_parameters of heads with `dims` dimensions. Errors: an unsupported type or key, a value out of range.
Result<Rope> read_rope(ConfigFields& fields, int64_t dims, int64_t context, const RopeReading& reading = {});

// For models with one rope_parameters object per kind of attention.
struct LayerRopes {
    Rope full, sliding;
};
Result<LayerRopes> read_layer_ropes(ConfigFields& fields, int64_t dims, int64_t context);

}  // namespace nibble

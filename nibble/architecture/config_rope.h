// The rotary embedding of a canonical configuration: rope_parameters.
#pragma once

#include "architecture/config_fields.h"
#include "architecture/model_config.h"

#include <optional>

namespace nibble {

struct RopeReading {
    // Multiplied by what yarn's mscale_all_dim says (deepseek_v3): the scale of q . k.
    float* scale = nullptr;
    // The default of partial_rotary_factor, the rotated share of a head; nullopt: whole heads are rotated, and the
    // field must be 1.
    std::optional<double> partial = std::nullopt;
    // Where llama_4_scaling_beta goes, and the length it counts in (original_max_position_embeddings); nullptr: the
    // field is not known.
    float* query_beta = nullptr;
    int64_t* query_period = nullptr;
};

// rope_parameters of heads with `dims` dimensions.
Result<Rope> read_rope(ConfigFields& fields, int64_t dims, int64_t context, const RopeReading& reading = {});

// Models with one object of rope_parameters for each kind of attention.
struct LayerRopes {
    Rope full, sliding;
};
Result<LayerRopes> read_layer_ropes(ConfigFields& fields, int64_t dims, int64_t context);

}  // namespace nibble

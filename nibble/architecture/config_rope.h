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
    // longrope: the length of the first training where rope_parameters does not say it; 0: the context.
    int64_t original_context = 0;
    // "su" and "yarn" are older names of longrope (phi3).
    bool longrope_names = false;
    // longrope as in transformers' phimoe: the short factors at any length, and only the attention factor,
    // short_mscale or long_mscale, depends on it.
    bool only_short_factors = false;
};

// Reads the rope_parameters of heads with `dims` dimensions. Errors: an unsupported type or key, a value out of range.
Result<Rope> read_rope(ConfigFields& fields, int64_t dims, int64_t context, const RopeReading& reading = {});

// For models with one rope_parameters object per kind of attention.
struct LayerRopes {
    Rope full, sliding;
};
// `sliding_dims`: of a head of sliding layers; 0: `dims`.
Result<LayerRopes> read_layer_ropes(ConfigFields& fields, int64_t dims, int64_t context,
                                    const RopeReading& reading = {}, int64_t sliding_dims = 0);

}  // namespace nibble

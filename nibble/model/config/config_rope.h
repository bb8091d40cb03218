// The rotary embedding of a config.json, in its old spelling (rope_theta beside rope_scaling) and its new one
// (rope_parameters).
#pragma once

#include "model/config/config.h"
#include "model/config/config_fields.h"

namespace nibble {

// rope_theta, rope_scaling / rope_parameters of a head with `dims` rotated dimensions. `scale` (of q . k), where given,
// is multiplied by what yarn's mscale_all_dim says (deepseek_v3).
Result<Rope> read_rope(ConfigFields& fields, int64_t dims, int64_t context, double default_theta = 10000.0,
                       float* scale = nullptr);
// One object of rope_parameters or rope_scaling over a default theta.
Result<Rope> read_rope_object(const Json& object, const std::string& what, int64_t dims, int64_t context,
                              double default_theta, float* scale = nullptr);

}  // namespace nibble

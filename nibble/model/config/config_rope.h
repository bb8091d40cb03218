// The rotary embedding of a canonical configuration: rope_parameters.
#pragma once

#include "model/config/config.h"
#include "model/config/config_fields.h"

namespace nibble {

// rope_parameters of a head with `dims` rotated dimensions. `scale` (of q . k), where given, is multiplied by what
// yarn's mscale_all_dim says (deepseek_v3).
Result<Rope> read_rope(ConfigFields& fields, int64_t dims, int64_t context, float* scale = nullptr);
// One object of rope_parameters, named `what` in messages.
Result<Rope> read_rope_object(const Json& object, const std::string& what, int64_t dims, int64_t context,
                              float* scale = nullptr);

}  // namespace nibble

// Keys of quantization configurations that change the meaning of the stored numbers. Readers ignore other unknown keys
// (versions, observers, kernels, statistics).
#pragma once

#include "base/error.h"
#include "base/json.h"

#include <string_view>

namespace nibble {

// Error: `object` is not an object, or has such a key with a value that is not neutral (null, false, 0, empty,
// "dense"). The message starts with `where`, unless it is empty, and names the key.
Status refuse_changing_keys(const Json& object, std::string_view where);

}  // namespace nibble

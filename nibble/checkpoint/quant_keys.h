// Keys of quantization configurations that change what the stored numbers mean. Other keys that nibble does not know
// (versions, observers, kernels, statistics) do not stop a reader.
#pragma once

#include "base/error.h"
#include "base/json.h"

#include <string_view>

namespace nibble {

// Error: `object` is no object, or holds such a key with a value that is not neutral (null, false, 0, empty, "dense").
// The message names the key; `where` is put in front unless it is empty.
Status refuse_changing_keys(const Json& object, std::string_view where);

}  // namespace nibble

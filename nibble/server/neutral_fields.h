// Fields of other servers' APIs that this server does not have: vLLM's, SGLang's, llama.cpp's and NIM's. At the value
// that changes nothing there they are accepted, as clients write all fields that they know. Any other value is an
// error.
#pragma once

#include "server/body_fields.h"

namespace nibble {

// Reads them. Error: the first field with a value that is not neutral, by its name.
Status read_neutral_fields(BodyFields& fields);

// Moves the fields of NIM's "nvext" to where this server reads them ("guided_json", "top_k" ...). Error: a
// field of "nvext" that is not known, or one that the body has with another value.
Status unfold_nvext(BodyFields& fields, Json& body);

}  // namespace nibble

// Fields of other servers' APIs (vLLM, SGLang, llama.cpp, NIM) without a counterpart here. Clients often send all
// fields that they know, so the value that has no effect is accepted. Any other value is an error.
#pragma once

#include "server/body_fields.h"

namespace nibble {

// Reads these fields. Error: names the first field whose value is not neutral.
Status read_neutral_fields(BodyFields& fields);

// Moves the fields of NIM's "nvext" to the names that this server reads ("guided_json", "top_k" ...). Errors: an
// unknown field of "nvext"; a field that the body contains with another value.
Status unfold_nvext(BodyFields& fields, Json& body);

}  // namespace nibble

// The language model's configuration in one spelling. Releases of transformers (and single publishers) write the same
// field under different names, in different places and as different values:
//
//   torch_dtype | dtype             num_experts | num_local_experts         hybrid_override_pattern | layers_block_type
//   rope_theta and rope_scaling | rope_parameters         Infinity | {"__float__": "Infinity"}         a field left out
//
// Every reader of a field reads it here, so that all of them see one value. The file that nibble writes keeps the
// spelling of the file it read.
#pragma once

#include "base/error.h"
#include "base/json.h"

#include <string_view>
#include <vector>

namespace nibble {

// The fields of the language model under the names of transformers 5:
//   * of a multimodal model its text part, with the end tokens and the tied head that only the root names
//   * rope_parameters holds all that is said about rotary embeddings
//   * layer kinds under their present names, num_hidden_layers also where only their list is given
//   * for a family that the engine runs, a field left out has the default of transformers' configuration class.
//     Ids of tokens are facts of a tokenizer and have no default.
// Errors: two spellings of one field with different values, both named; a spelling that cannot be read.
Result<Json> canonical_config(const Json& config);

// The names under which a field may stand, `name` first, whatever the family.
std::vector<const char*> spellings_of(const char* name);

// The defaults of a family's configuration class; null for a family that the engine does not run. rope_theta and
// rope_local_base_freq stand for the defaults inside rope_parameters.
Json config_defaults(std::string_view model_type);

}  // namespace nibble

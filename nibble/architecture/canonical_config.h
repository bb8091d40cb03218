// Converts the language model's configuration to one spelling. Releases of transformers (and some publishers) write the
// same field under different names, in different places and as different values:
//
//   torch_dtype | dtype             num_experts | num_local_experts         hybrid_override_pattern | layers_block_type
//   rope_theta and rope_scaling | rope_parameters         Infinity | {"__float__": "Infinity"}         a field left out
//
// All readers use the result, so that they agree on every value. Files that nibble writes keep the spelling of the file
// that it read.
#pragma once

#include "base/error.h"
#include "base/json.h"

#include <string_view>
#include <vector>

namespace nibble {

// Returns the fields of the language model under the names of transformers 5:
//   * for a multimodal model, those of its text part, with end tokens if only the root has them, and with the
//     root's tie_word_embeddings if it has one
//   * rope_parameters contains all fields about rotary embeddings
//   * layer kinds have their current names; num_hidden_layers is set even if only the list of kinds is given
//   * in families that the engine supports, absent fields have the defaults of transformers' configuration class.
//     Ids of tokens are properties of a tokenizer and have no default.
// Errors: two spellings of one field with different values, both named; a spelling that cannot be read.
Result<Json> canonical_config(const Json& config);

// Returns the names under which a field may be stored, `name` first, in all families.
std::vector<const char*> spellings_of(const char* name);

// Returns the defaults of a family's configuration class; null: the engine does not support the family. rope_theta and
// rope_local_base_freq stand for the defaults inside rope_parameters.
Json config_defaults(std::string_view model_type);

}  // namespace nibble

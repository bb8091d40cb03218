// Mistral's own layout of a model: params.json and consolidated*.safetensors. It is read as a Hugging Face folder: with
// the keys of config.json, the names of tensors that transformers uses, and rows of queries and keys in the order of
// half-split rotation. Source: transformers' convert_mistral_weights_to_hf.py (5.23) and mistral-inference's args.py.
#pragma once

#include "base/error.h"
#include "base/json.h"

#include <string>

namespace nibble {

// Returns config.json for params.json, with a quantization_config if the weights are FP8. Error: a key or value that is
// not known, as those of images and of latent attention.
Result<Json> mistral_config(const Json& params);

// Returns the Hugging Face name of a tensor; unknown names are returned unchanged.
std::string mistral_name(const std::string& name);

// Returns the size of the heads whose rows must be put in another order: row 2i + p of a head becomes row p * size / 2
// + i. 0: the rows of the tensor (its Hugging Face name) stay.
int64_t rotated_head(const std::string& name, const Json& config);

}  // namespace nibble

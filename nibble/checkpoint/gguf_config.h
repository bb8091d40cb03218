// config.json and generation_config.json of a GGUF model, in the spelling of transformers 4 (which 5 reads too).
#pragma once

#include "base/json.h"
#include "io/gguf.h"

namespace nibble {

// Everything transformers and the serving engines need to build the model; values that follow from tensors (vocabulary,
// tied embeddings, biases, layer kinds) are read from them. Errors: a missing key, a value that the Hugging Face model
// cannot express (named), rope_freqs.weight that is no Llama-3 scaling.
Result<Json> gguf_model_config(const GgufFile& file);

// Whether the file has a matrix for the output head that is not a copy of the embedding, byte for byte. Some converters
// write the copy for tied models.
bool has_own_head(const GgufFile& file);

// Token ids for generation: every token at which llama.cpp would stop (end of text, of turn, of message).
Result<Json> gguf_generation_config(const GgufFile& file);

// What one attention head spans: key_length, or embedding_length / head_count.
Result<int64_t> gguf_head_dim(const GgufMetadata& metadata, std::string_view architecture);

// The Llama-3 frequency scaling that produced these divisors (rope_freqs.weight) for this base, as a rope_scaling
// object:
//   w = 2 pi base^(2i/d);  w < L/4: 1;  w > L: f;  else 1 / ((1-s)/f + s), s = (L/w - 1) / 3
// f is the largest divisor; L is found among powers of two, 8192 first. Error when none gives the table within 1e-4.
Result<Json> llama3_rope_scaling(std::span<const float> divisors, double base);

// The other direction, for any low and high factor (1 and 4 above).
struct Llama3Rope {
    double factor = 1, low_freq_factor = 1, high_freq_factor = 4, original_length = 8192;
};
std::vector<float> llama3_rope_divisors(const Llama3Rope& scaling, double base, int64_t head_dim);

}  // namespace nibble

// Makes config.json and generation_config.json for a GGUF model, with the keys of transformers 4 (which version 5 reads
// too).
#pragma once

#include "base/json.h"
#include "io/gguf.h"

namespace nibble {

// Returns a config.json with everything that transformers and serving engines need. Facts that tensors show
// (vocabulary, tied embeddings, biases, layer kinds) are taken from the tensors. Errors: a missing key; a value that
// the Hugging Face model cannot express (with its key); a rope_freqs.weight that is not a Llama 3 scaling.
Result<Json> gguf_model_config(const GgufFile& file);

// Returns true if the file has a matrix for the output head that differs from the embedding. Some converters write a
// byte-for-byte copy for tied models.
bool has_own_head(const GgufFile& file);

// Returns generation_config.json with every token at which llama.cpp stops (end of text, turn or message).
Result<Json> gguf_generation_config(const GgufFile& file);

// Returns the size of an attention head: key_length, or embedding_length / head_count.
Result<int64_t> gguf_head_dim(const GgufMetadata& metadata, std::string_view architecture);

// Finds the Llama 3 frequency scaling that produced these divisors (rope_freqs.weight) for this base, and returns it as
// a rope_scaling object. With w = 2 pi base^(2i/d), the divisor is 1 for w < L/4, f for w > L, else 1 / ((1-s)/f + s),
// s = (L/w - 1) / 3. f is the largest divisor; L is searched among powers of two, 8192 first. Error: no L reproduces
// the table within 1e-4.
Result<Json> llama3_rope_scaling(std::span<const float> divisors, double base);

// The inverse: returns the divisors, for any low and high factor (1 and 4 above).
struct Llama3Rope {
    double factor = 1, low_freq_factor = 1, high_freq_factor = 4, original_length = 8192;
};
std::vector<float> llama3_rope_divisors(const Llama3Rope& scaling, double base, int64_t head_dim);

}  // namespace nibble

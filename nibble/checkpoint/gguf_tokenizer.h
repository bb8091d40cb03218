// Makes tokenizer.json and tokenizer_config.json of a GGUF model from its tokenizer.ggml.* metadata, in the format of
// Hugging Face's tokenizers library. Supports byte-level BPE ("gpt2") and SentencePiece BPE ("llama"), whose merges are
// reconstructed from scores.
#pragma once

#include "io/gguf_value.h"

#include <optional>

namespace nibble {

struct GgufTokenizer {
    std::string tokenizer_json;
    std::string tokenizer_config_json;  // includes the chat template
};

// Returns the files; no value: the GGUF file has no tokenizer. `pre`, if not empty, replaces tokenizer.ggml.pre.
// Errors: an unknown tokenizer model or pre-tokenizer, duplicate tokens, tokens that are not UTF-8, a merge that does
// not name two tokens, an id out of range.
Result<std::optional<GgufTokenizer>> gguf_tokenizer(const GgufMetadata& metadata, std::string_view pre = {});

}  // namespace nibble

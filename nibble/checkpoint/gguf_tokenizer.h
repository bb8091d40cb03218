// tokenizer.json and tokenizer_config.json of a GGUF model, from its tokenizer.ggml.* metadata, in the format of
// Hugging Face's tokenizers library. Byte-level BPE ("gpt2") and SentencePiece BPE ("llama"), whose merges are rebuilt
// from scores.
#pragma once

#include "io/gguf_value.h"

#include <optional>

namespace nibble {

struct GgufTokenizer {
    std::string tokenizer_json;
    std::string tokenizer_config_json;  // holds the chat template too
};

// Nothing when the file has no tokenizer. `pre`, when not empty, replaces tokenizer.ggml.pre. Errors: a tokenizer model
// or pre-tokenizer that is not known, tokens twice or not UTF-8, a merge that does not name two tokens, an id out of
// range.
Result<std::optional<GgufTokenizer>> gguf_tokenizer(const GgufMetadata& metadata, std::string_view pre = {});

}  // namespace nibble

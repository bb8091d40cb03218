// How text is cut before byte-level BPE, by the id that GGUF files carry in tokenizer.ggml.pre. Source of ids, flags
// and patterns: llama.cpp src/llama-vocab.cpp (its notes of the original tokenizer.json patterns).
#pragma once

#include "base/error.h"
#include "base/json.h"

namespace nibble {

struct GgufPreTokenizer {
    Json normalizer;             // of tokenizer.json; null for none
    Json pre_tokenizer;          // ends in ByteLevel
    bool ignore_merges = false;  // a piece that is a token as a whole is not built by merges
    bool add_bos = false;        // when the file does not say
};

// Error: an id that is not known, with the list of those that are. (Guessing would change how text is cut, silently.)
Result<GgufPreTokenizer> gguf_pre_tokenizer(std::string_view id);

// The id of the first row that cuts text as this tokenizer.json does: the same pre-tokenizer and ignore_merges. Error
// when there is none. Normalizers other than NFC are refused; NFC itself is not compared, llama.cpp normalizes nothing.
Result<std::string> gguf_pre_tokenizer_id(const Json& normalizer, const Json& pre_tokenizer, bool ignore_merges);

}  // namespace nibble

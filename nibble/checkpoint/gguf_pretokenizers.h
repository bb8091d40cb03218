// Pre-tokenizers (how text is split before byte-level BPE) by the id in tokenizer.ggml.pre. Source of ids, flags and
// patterns: llama.cpp src/llama-vocab.cpp, which quotes the patterns of the original tokenizer.json files.
#pragma once

#include "base/error.h"
#include "base/json.h"

namespace nibble {

struct GgufPreTokenizer {
    Json normalizer;             // as in tokenizer.json; null: none
    Json pre_tokenizer;          // ends in ByteLevel
    bool ignore_merges = false;  // a piece that is itself a token is not built by merges
    bool add_bos = false;        // value if the file has no such key
};

// Returns the pre-tokenizer of an id. Error: an unknown id, with the list of known ones. (A default would silently
// split text differently.)
Result<GgufPreTokenizer> gguf_pre_tokenizer(std::string_view id);

// Returns the id of the first row that splits text as this tokenizer.json does: same pre-tokenizer and ignore_merges.
// Errors: there is none; a normalizer other than NFC. NFC is not compared, because llama.cpp normalizes nothing.
Result<std::string> gguf_pre_tokenizer_id(const Json& normalizer, const Json& pre_tokenizer, bool ignore_merges);

}  // namespace nibble

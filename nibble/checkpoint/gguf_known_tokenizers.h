// Recognizes published tokenizers and returns the names that llama.cpp's converter writes as tokenizer.ggml.pre. A
// tokenizer is identified by the SHA-256 of the token list (as Python prints it) of a fixed text. Source:
// get_vocab_base_pre() and convert_hf_to_gguf_update.py of ggml-org/llama.cpp, read in 2026; tokenizers without
// byte-level BPE are left out.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace nibble {

// Returns the name for the text of a tokenizer.json; no value: the table does not have this tokenizer.
std::optional<std::string> known_gguf_tokenizer(std::string_view tokenizer_json);

}  // namespace nibble

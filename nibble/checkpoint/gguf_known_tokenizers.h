// Published tokenizers under the names that llama.cpp's converter writes as tokenizer.ggml.pre. It knows a tokenizer by
// the SHA-256 of the list of tokens that a fixed text gives, written as Python prints it. Source: get_vocab_base_pre()
// and convert_hf_to_gguf_update.py of ggml-org/llama.cpp, read in 2026; hashes of tokenizers without byte-level BPE are
// left out.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace nibble {

// `tokenizer_json`: the text of the file. Empty: the table does not have this tokenizer.
std::optional<std::string> known_gguf_tokenizer(std::string_view tokenizer_json);

}  // namespace nibble

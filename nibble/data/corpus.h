// Calibration text as token sequences: a plain text cut into windows, or rows with one text or conversation each.
#pragma once

#include "base/json.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

#include <atomic>
#include <filesystem>

namespace nibble {

struct CorpusOptions {
    int64_t tokens = 32768;   // taken from the front of the file
    int64_t sequence = 2048;  // maximum tokens per sequence; the rest of a row is dropped, plain text continues in the
                              // next window
    Json template_variables = Json::object();  // bos_token, eos_token, ... for the chat template
    const std::atomic<bool>* stop = nullptr;   // once true, the work ends with an error of kind cancelled
};

struct Corpus {
    std::string origin;  // the path, for messages
    std::vector<std::vector<TokenId>> sequences;
    int64_t tokens = 0;  // tokens of all sequences; fewer than requested if the text ends early
    bool cut = false;    // only the beginning of a compressed text was read
};

// Reads a corpus. Rows of texts or conversations in any form that training reads (data/source.h: JSON lines, a JSON
// list, CSV, Parquet; data/rows.h: OpenAI, ShareGPT, Alpaca), with the special tokens of the tokenizer or template; a
// row with a 'text' is that text. Any other file: plain text; every window starts with the tokens that the tokenizer
// puts before a text (BOS). Either kind may be compressed by gzip; of a plain text only as much is decompressed as the
// requested tokens can need (64 bytes per token, at least 64 MiB).
//
// Errors: empty or not UTF-8 (with the position), a row of another form, messages without a template, a binary file, no
// tokens.
Result<Corpus> read_corpus(const std::filesystem::path& path, const Tokenizer& tokenizer, const ChatTemplate* chat,
                           const CorpusOptions& options = {});

}  // namespace nibble

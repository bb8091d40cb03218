// The jobs of `nibble data`: convert texts and chats to folders of token shards for training.
#pragma once

#include "nibble/error.h"
#include "nibble/hooks.h"
#include "nibble/report.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace nibble {

// `files`, `tokenizer` and `out` are required.
struct TokenDataOptions {
    std::vector<std::string> files;  // *.txt, *.md, *.jsonl with {"text"} or {"messages"}, also compressed as *.gz; or
                                     // folders of such files
    std::string tokenizer;           // a model's folder, or a tokenizer.json, .model or .gguf file
    std::string out;                 // folder to write; must not exist
    std::string separator;  // text between the documents of a plain text file, with \n, \t, \r, \\; empty: a file is
                            // one document
    std::string end_token;  // appended to every text, or "none"; empty: eos_token of tokenizer_config.json
    std::string loss = "assistant";           // tokens of chats that become labels: assistant, last, all
    double validation = 0;                    // fraction of validation data, below 1
    std::string validation_by = "documents";  // documents: whole documents, drawn with the seed; tails: the end of
                                              // every document
    uint64_t seed = 0;
    std::optional<int64_t> time;        // time in seconds since 1970 (UTC) for chat templates that write the date
    std::string shard_tokens = "100M";  // approximate number of tokens per shard: 500000, 500k, 100M
    int threads = 0;                    // 0: one per core; the output does not depend on it
};

// Numbers of tokens and documents in the two parts of the data.
struct TokenDataReport : JobReport {
    int64_t train_tokens = 0, validation_tokens = 0;
    int64_t train_documents = 0, validation_documents = 0;
};

// Check options that are parsed from text. Errors of kind usage: an unknown escape, not a number of tokens.
Status check_separator(std::string_view word);
Status check_token_count(std::string_view word);

// Writes the token shards. A stop leaves no output. Errors by kind: usage; file; checkpoint (the tokenizer); shape (the
// content of a file); cancelled.
Result<TokenDataReport> build_token_data(const TokenDataOptions& options, const JobHooks& hooks);

// Only `folder` is required.
struct ShowTokenDataOptions {
    std::string folder;       // a folder made by build_token_data()
    std::string tokenizer;    // tokenizer for showing text instead of ids; must be the one that made the folder
    int64_t documents = 3;    // number of documents whose beginning is shown
    int64_t tokens = 48;      // tokens per document
    bool validation = false;  // show validation documents
    bool check = false;       // read and check all tokens: ids in the vocabulary, hashes
};

// Describes a folder of token shards, and checks it with options.check. Errors by kind: usage (another
// tokenizer than the folder's); checkpoint (a folder that cannot be read, or is damaged).
Result<JobReport> show_token_data(const ShowTokenDataOptions& options);

}  // namespace nibble

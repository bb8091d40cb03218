// The jobs of `nibble data`: texts and chats as folders of token shards, for training.
#pragma once

#include "nibble/error.h"
#include "nibble/hooks.h"
#include "nibble/report.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace nibble {

struct TokenDataOptions {
    std::vector<std::string> files;           // *.txt, *.md, *.jsonl of {"text"} or {"messages"}, each also as *.gz;
                                              // folders of them
    std::string tokenizer;                    // a model's folder, or a tokenizer.json, .model or .gguf file
    std::string out;                          // folder to write; must not exist
    std::string separator;                    // between the documents of plain texts, with \n, \t, \r, \\;
                                              // empty: a file is one document
    std::string end_token;                    // after every text, or "none"; empty: eos_token of tokenizer_config.json
    std::string loss = "assistant";           // tokens of chats that are learned: assistant, last, all
    double validation = 0;                    // fraction for validation, below 1
    std::string validation_by = "documents";  // whole ones, drawn by the seed; tails: the end of every document
    uint64_t seed = 0;
    std::optional<int64_t> time;        // seconds since 1970 (UTC), for chat templates that write the date
    std::string shard_tokens = "100M";  // tokens of a shard, about: 500000, 500k, 100M
    int threads = 0;                    // 0: one per core; the bytes do not depend on it
};

struct TokenDataReport : JobReport {
    int64_t train_tokens = 0, validation_tokens = 0;
    int64_t train_documents = 0, validation_documents = 0;
};

// The options that are texts of their own, checked. Errors of kind usage.
Status check_separator(std::string_view word);
Status check_token_count(std::string_view word);

// A stop leaves no output. Errors by kind: usage; file; checkpoint (the tokenizer), shape (a file's content);
// cancelled.
Result<TokenDataReport> build_token_data(const TokenDataOptions& options, const JobHooks& hooks);

struct ShowTokenDataOptions {
    std::string folder;       // made by build_token_data()
    std::string tokenizer;    // to show text, not ids; must be the one that made the folder
    int64_t documents = 3;    // whose beginning is shown
    int64_t tokens = 48;      // of each
    bool validation = false;  // documents of validation
    bool check = false;       // read every token: ids in the vocabulary, hashes as written
};
Result<JobReport> show_token_data(const ShowTokenDataOptions& options);

}  // namespace nibble

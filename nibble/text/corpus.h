// Text for calibration as token sequences: a plain text cut into windows, or JSONL with one text or conversation a
// line.
#pragma once

#include "base/json.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

#include <filesystem>

namespace nibble {

struct CorpusOptions {
    int64_t tokens = 32768;   // taken from the front of the file
    int64_t sequence = 2048;  // most tokens of one sequence; the rest of a line is dropped, a plain text goes on
    Json template_variables = Json::object();  // bos_token, eos_token, ... for the chat template
};

struct Corpus {
    std::string origin;  // the path, for messages
    std::vector<std::vector<TokenId>> sequences;
    int64_t tokens = 0;  // of all sequences; fewer than asked for where the text ends before
    bool cut = false;    // of a packed text only the beginning was read
};

// Whether `messages` is what chat templates are written for: a list, not empty, of objects with a 'role'.
Status check_messages(const Json& messages);

// {"text": "..."} or {"messages": [...]} per line, special tokens as the tokenizer or the template adds them: where the
// first line is such an object, and in *.jsonl. Anything else: plain text, each window after the tokens the tokenizer
// puts in front of a text (BOS). Either may be packed by gzip; of a long one only as much is unpacked as holds the
// tokens that were asked for (64 bytes a token, 64 MiB at least). Errors: empty or not UTF-8 (says where), a line that
// is neither, messages without a template, other JSON in *.json, a table, a Parquet file and other kinds of files, no
// tokens.
Result<Corpus> read_corpus(const std::filesystem::path& path, const Tokenizer& tokenizer, const ChatTemplate* chat,
                           const CorpusOptions& options = {});

}  // namespace nibble

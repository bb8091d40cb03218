// Tokenizers: text to token ids and back. Results equal Hugging Face's tokenizers library for tokenizer.json
// (byte-level and SentencePiece-style BPE, Unigram) and sentencepiece for tokenizer.model.
//
//   NIBBLE_TRY(const auto tokenizer, Tokenizer::from_folder("Qwen3-8B"));
//   NIBBLE_TRY(const auto ids, tokenizer.encode("Hello", {.add_special = true}));
//   std::string text = tokenizer.decode(ids);
//
// A Tokenizer is immutable and cheap to copy; copies share their tables. All functions are thread-safe.
#pragma once

#include "base/error.h"
#include "text/meter.h"
#include "text/text_range.h"

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace nibble {

using TokenId = uint32_t;

struct EncodeOptions {
    bool add_special = false;   // adds the post-processor's tokens (BOS, EOS); chat templates print them themselves
    bool parse_special = true;  // text such as "<|im_end|>" becomes the control token; use false for text of users
    // Data bytes of a text rendered by a chat template. A control token that contains any of them stays text; text
    // without control tokens gets the same tokens as without this option.
    const TextRanges* data = nullptr;
    // Control tokens for `data`, in addition to all special tokens: these added tokens, sorted.
    std::span<const TokenId> control = {};
    // The work ends as soon as the text is known to have more tokens. The result then has most_tokens + 1 ids, which
    // are not those of the text.
    int64_t most_tokens = MeterLimits::unlimited;
};

struct TokenizerData;

class Tokenizer {
public:
    // Parses the text of a tokenizer.json. Errors: not JSON, an unsupported type or option of a component (named),
    // repeated ids or ids beyond 2^22, merges of unknown tokens.
    static Result<Tokenizer> from_json(std::string_view text);
    // Parses a tokenizer.model (sentencepiece, types BPE and Unigram). `add_bos` and `add_eos` set what add_special
    // adds.
    static Result<Tokenizer> from_sentencepiece(std::string_view bytes, bool add_bos = true, bool add_eos = false);
    // Opens a folder with tokenizer.json or tokenizer.model, or one of these files. For tokenizer.model,
    // tokenizer_config.json may set add_bos_token and add_eos_token. Errors name the file.
    static Result<Tokenizer> from_folder(const std::filesystem::path& path);

    // Encodes text. Bytes that are not UTF-8 count as U+FFFD. Errors: the tokenizer needs more work or memory than
    // MeterLimits::for_text allows; with `data`: text that is not UTF-8, or a model that encodes plain text as a
    // control token.
    Result<std::vector<TokenId>> encode(std::string_view text, const EncodeOptions& options = {}) const;
    // As above with the caller's limits, deadline and cancel flag. The error names the limit reached.
    Result<std::vector<TokenId>> encode(std::string_view text, const EncodeOptions& options, Meter& meter) const;

    // Decodes to valid UTF-8 with U+FFFD for invalid bytes. Skips ids beyond the vocabulary.
    std::string decode(std::span<const TokenId> ids, bool skip_special = false) const;

    size_t vocab_size() const;  // largest id + 1, including added tokens
    std::optional<TokenId> id_of(
        std::string_view token) const;  // `token` as written in the file ("Ġthe", "▁the", "<0x0A>")
    std::optional<std::string_view> token(TokenId id) const;  // empty for an id without a token
    std::string token_bytes(
        TokenId id) const;  // its decoded bytes in the middle of a text; possibly part of a character
    bool is_special(TokenId id) const;
    // Ids of all added tokens, special or not, in order.
    std::vector<TokenId> added_tokens() const;

private:
    friend class StreamDecoder;
    explicit Tokenizer(std::shared_ptr<const TokenizerData> data) : data_(std::move(data)) {}
    std::shared_ptr<const TokenizerData> data_;
};

// Decodes token by token and never returns part of a character. The concatenation equals decode() of all ids, except
// for runs of byte tokens ("<0xC3>") that are not UTF-8: decode() replaces every byte of such a run, but a stream has
// already returned the valid beginning.
class StreamDecoder {
public:
    explicit StreamDecoder(Tokenizer tokenizer, bool skip_special = false);

    // Returns the text that `id` completes; empty in the middle of a character.
    std::string push(TokenId id);
    // Returns the rest, with U+FFFD for an incomplete character, and resets the decoder.
    std::string finish();

private:
    Tokenizer tokenizer_;
    bool skip_special_;
    std::string pending_;    // at most three bytes
    bool started_ = false;   // a token has been seen
    size_t strip_left_ = 0;  // characters at the start of the text that may still be removed
};

}  // namespace nibble

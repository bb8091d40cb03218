// Tokenizers: text to token ids and back, as Hugging Face's tokenizers library computes them from tokenizer.json
// (byte-level and SentencePiece-style BPE, Unigram) and sentencepiece from tokenizer.model.
//
//   NIBBLE_TRY(const auto tokenizer, Tokenizer::from_folder("Qwen3-8B"));
//   NIBBLE_TRY(const auto ids, tokenizer.encode("Hello", {.add_special = true}));
//   std::string text = tokenizer.decode(ids);
//
// A Tokenizer is immutable and cheap to copy; copies share their tables. All functions may be called from several
// threads.
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
    bool add_special = false;   // the post-processor's tokens (BOS, EOS); a chat template prints them itself
    bool parse_special = true;  // text such as "<|im_end|>" becomes the control token; false for text of users
    // Bytes of a text whose other bytes a chat template wrote: a control token that takes any of them stays text. The
    // rest of the text is encoded as ever, so that text without control tokens gives the same tokens.
    const TextRanges* data = nullptr;
    // What counts as a control token then: all special tokens and these added tokens. Sorted.
    std::span<const TokenId> control = {};
};

struct TokenizerData;

class Tokenizer {
public:
    // Text of a tokenizer.json. Errors: not JSON, a component of a type or with an option that is not supported
    // (named), ids that come twice or are beyond 2^22, merges of unknown tokens.
    static Result<Tokenizer> from_json(std::string_view text);
    // Bytes of a tokenizer.model (sentencepiece, types BPE and Unigram). add_special adds BOS as `add_bos` says.
    static Result<Tokenizer> from_sentencepiece(std::string_view bytes, bool add_bos = true, bool add_eos = false);
    // A folder with tokenizer.json, or with tokenizer.model (whose add_bos_token and add_eos_token
    // tokenizer_config.json may set), or either file. Errors name the file.
    static Result<Tokenizer> from_folder(const std::filesystem::path& path);

    // Bytes that are not UTF-8 count as U+FFFD. Errors: the file makes more work or more text of it than
    // MeterLimits::for_text allows; with `data`: text that is not UTF-8, a model that makes a control token of plain
    // text.
    Result<std::vector<TokenId>> encode(std::string_view text, const EncodeOptions& options = {}) const;
    // With the caller's limits, deadline and stop flag; the error says which was reached.
    Result<std::vector<TokenId>> encode(std::string_view text, const EncodeOptions& options, Meter& meter) const;

    // Valid UTF-8, U+FFFD for bytes that are not. Ids beyond the vocabulary are left out.
    std::string decode(std::span<const TokenId> ids, bool skip_special = false) const;

    size_t vocab_size() const;                                   // largest id + 1, added tokens included
    std::optional<TokenId> id_of(std::string_view token) const;  // as spelled in the file ("Ġthe", "▁the", "<0x0A>")
    std::optional<std::string_view> token(TokenId id) const;     // empty for an id without a token
    std::string token_bytes(TokenId id) const;  // what it decodes to inside a text; may be part of a character
    bool is_special(TokenId id) const;
    // Ids of the tokens that are found in a text before all others, special ones and others, in order.
    std::vector<TokenId> added_tokens() const;

private:
    friend class StreamDecoder;
    explicit Tokenizer(std::shared_ptr<const TokenizerData> data) : data_(std::move(data)) {}
    std::shared_ptr<const TokenizerData> data_;
};

// Decodes token by token and never returns part of a character. The concatenation equals decode() of all ids, but for
// runs of byte tokens ("<0xC3>") that are not UTF-8: decode() replaces every byte of such a run, a stream has already
// given away its good beginning.
class StreamDecoder {
public:
    explicit StreamDecoder(Tokenizer tokenizer, bool skip_special = false);

    // The text that `id` completes; often empty in the middle of a character.
    std::string push(TokenId id);
    // The rest: U+FFFD for a character that was never completed. The decoder is then as new.
    std::string finish();

private:
    Tokenizer tokenizer_;
    bool skip_special_;
    std::string pending_;    // at most three bytes
    bool started_ = false;   // a token has been seen
    size_t strip_left_ = 0;  // characters at the start of the text that still may be removed
};

}  // namespace nibble

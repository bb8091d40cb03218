#include "data/corpus.h"

#include "base/mapped_file.h"
#include "base/utf8.h"
#include "data/document_pieces.h"
#include "data/rows.h"
#include "data/source.h"
#include "text/gzip.h"
#include "text/stoppable.h"

#include <algorithm>

namespace nibble {
namespace {

// Returns the longest prefix of at most `limit` bytes that does not end inside a character.
std::string_view beginning(std::string_view text, size_t limit) {
    if (text.size() <= limit) return text;
    while (limit > 0 && (static_cast<unsigned char>(text[limit]) & 0xC0) == 0x80) --limit;
    return text.substr(0, limit);
}

// Returns the tokens that the tokenizer puts before every text.
Result<std::vector<TokenId>> prefix(const Tokenizer& tokenizer) {
    NIBBLE_TRY(auto empty, tokenizer.encode("", {.add_special = true}));
    NIBBLE_TRY(const auto text, tokenizer.encode("a", {.add_special = true}));
    const auto same = std::ranges::mismatch(empty, text).in1 - empty.begin();
    empty.resize(static_cast<size_t>(same));
    return empty;
}

class Collector {
public:
    Collector(Corpus& corpus, const CorpusOptions& options) : corpus_(corpus), options_(options) {}

    bool full() const { return corpus_.tokens >= options_.tokens; }

    // Cuts `ids` to the length of a sequence and to the tokens still wanted, and adds it.
    void add(std::vector<TokenId> ids) {
        const int64_t wanted = std::min(options_.sequence, options_.tokens - corpus_.tokens);
        if (static_cast<int64_t>(ids.size()) > wanted) ids.resize(static_cast<size_t>(wanted));
        if (ids.empty()) return;
        corpus_.tokens += static_cast<int64_t>(ids.size());
        corpus_.sequences.push_back(std::move(ids));
    }

private:
    Corpus& corpus_;
    const CorpusOptions& options_;
};

Status add_plain(std::string_view text, const Tokenizer& tokenizer, const CorpusOptions& options, Collector& out) {
    NIBBLE_TRY(const auto front, prefix(tokenizer));
    // Reads a large file only as far as needed: tokenizers rarely produce fewer than one token per 16 bytes. If 16
    // bytes per token are not enough, more is read.
    size_t bytes = static_cast<size_t>(options.tokens) * 16;
    NIBBLE_TRY(auto ids, encode_stoppable(tokenizer, beginning(text, bytes), {.parse_special = false}, options.stop));
    while (static_cast<int64_t>(ids.size()) < options.tokens && bytes < text.size()) {
        bytes *= 4;
        NIBBLE_TRY(ids, encode_stoppable(tokenizer, beginning(text, bytes), {.parse_special = false}, options.stop));
    }
    if (static_cast<int64_t>(front.size()) >= options.sequence)
        return fail("sequences of {} tokens leave no room after the {} the tokenizer begins with", options.sequence,
                    front.size());
    const size_t window = static_cast<size_t>(options.sequence) - front.size();
    for (size_t at = 0; at < ids.size() && !out.full(); at += window) {
        std::vector<TokenId> sequence = front;
        sequence.insert(sequence.end(), ids.begin() + static_cast<std::ptrdiff_t>(at),
                        ids.begin() + static_cast<std::ptrdiff_t>(std::min(at + window, ids.size())));
        out.add(std::move(sequence));
    }
    return Ok{};
}

Result<std::vector<TokenId>> row_ids(const Json& json, const Tokenizer& tokenizer, const ChatTemplate* chat,
                                     const CorpusOptions& options) {
    const EncodeOptions plain{.add_special = true, .parse_special = false};
    if (json.is_object())
        if (const auto text = json.find("text"); text != json.end() && text->is_string())
            return encode_stoppable(tokenizer, text->get_ref<const std::string&>(), plain, options.stop);
    NIBBLE_TRY(const DataRow row, data_row(json));
    if (!row.is_chat()) return encode_stoppable(tokenizer, row.prompt + row.text, plain, options.stop);
    if (!chat) return fail("'messages' need a chat template, and the model has none");
    NIBBLE_CHECK(check_messages(row.messages));
    Json variables = options.template_variables;
    variables["messages"] = row.messages;
    if (!row.tools.is_null()) variables["tools"] = row.tools;
    NIBBLE_TRY(const auto text, chat->render(variables));
    return encode_stoppable(tokenizer, text, {}, options.stop);
}

Status add_rows(const std::filesystem::path& path, const Tokenizer& tokenizer, const ChatTemplate* chat,
                const CorpusOptions& options, Collector& out) {
    DocumentReader reader({path}, "");
    while (!out.full()) {
        NIBBLE_TRY(const auto row, reader.next());
        if (!row) break;
        const std::string where = fmt::format("{}: {} {}", path.string(), row->unit, row->number);
        NIBBLE_CHECK(check_utf8(row->text()).within(where));
        NIBBLE_TRY(const Json json, parse_json(row->text()).within(where));
        NIBBLE_TRY(auto ids, row_ids(json, tokenizer, chat, options).within(where));
        out.add(std::move(ids));
    }
    return Ok{};
}

size_t most_unpacked_bytes(const CorpusOptions& options) {
    constexpr int64_t least = int64_t{64} << 20, most = int64_t{4} << 30, bytes_per_token = 64;
    return static_cast<size_t>(std::clamp(std::min(options.tokens, most) * bytes_per_token, least, most));
}

Result<bool> holds_rows(const std::filesystem::path& path, std::string_view bytes) {
    if (bytes.starts_with("PAR1")) return true;  // without starting its reader
    NIBBLE_TRY(const OpenedPieces opened, open_pieces(path, bytes, ""));
    return opened.kind.rows();
}

// Adds a text that is not a file of rows.
Status add_text(std::string_view bytes, const Tokenizer& tokenizer, const CorpusOptions& options, Corpus& corpus,
                Collector& out) {
    Unpacked unpacked;
    std::string_view text = bytes;
    if (bytes.starts_with("\x1f\x8b")) {
        NIBBLE_TRY(unpacked, gunzip(bytes, most_unpacked_bytes(options)));
        corpus.cut = unpacked.cut;
        text = unpacked.text;
        if (corpus.cut) text = beginning(text, text.size() - std::min<size_t>(text.size(), 4));  // whole characters
    }
    text = without_byte_order_mark(text);
    if (text.empty()) return fail("is empty");
    NIBBLE_CHECK(check_utf8(text));
    return add_plain(text, tokenizer, options, out);
}

Status fill(Corpus& corpus, const std::filesystem::path& path, const Tokenizer& tokenizer, const ChatTemplate* chat,
            const CorpusOptions& options) {
    NIBBLE_TRY(const MappedFile file, MappedFile::open(path));
    const std::string_view bytes(reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size());
    if (bytes.empty()) return fail("{}: is empty", corpus.origin);
    NIBBLE_TRY(const bool rows, holds_rows(path, bytes).within(corpus.origin));
    Collector out(corpus, options);
    if (rows)
        NIBBLE_CHECK(add_rows(path, tokenizer, chat, options, out));
    else
        NIBBLE_CHECK(add_text(bytes, tokenizer, options, corpus, out).within(corpus.origin));
    if (corpus.tokens == 0) return fail("{}: has no tokens", corpus.origin);
    return Ok{};
}

}  // namespace

Result<Corpus> read_corpus(const std::filesystem::path& path, const Tokenizer& tokenizer, const ChatTemplate* chat,
                           const CorpusOptions& options) {
    if (options.tokens < 1 || options.sequence < 2)
        return fail("{} tokens in sequences of {}: at least 1 and 2", options.tokens, options.sequence);
    Corpus corpus{.origin = path.string()};
    NIBBLE_CHECK(fill(corpus, path, tokenizer, chat, options));
    return corpus;
}

}  // namespace nibble

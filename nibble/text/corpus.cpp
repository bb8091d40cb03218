#include "text/corpus.h"

#include "base/mapped_file.h"
#include "base/utf8.h"
#include "text/gzip.h"

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
    NIBBLE_TRY(auto ids, tokenizer.encode(beginning(text, bytes), {.parse_special = false}));
    while (static_cast<int64_t>(ids.size()) < options.tokens && bytes < text.size()) {
        bytes *= 4;
        NIBBLE_TRY(ids, tokenizer.encode(beginning(text, bytes), {.parse_special = false}));
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

Result<std::vector<TokenId>> line_ids(const Json& line, const Tokenizer& tokenizer, const ChatTemplate* chat,
                                      const CorpusOptions& options) {
    if (!line.is_object()) return fail("expected an object with 'text' or 'messages'");
    if (const auto text = line.find("text"); text != line.end()) {
        if (!text->is_string()) return fail("'text' is not a string");
        return tokenizer.encode(text->get_ref<const std::string&>(), {.add_special = true, .parse_special = false});
    }
    const auto messages = line.find("messages");
    if (messages == line.end()) return fail("has neither 'text' nor 'messages'");
    if (!chat) return fail("'messages' need a chat template, and the model has none");
    NIBBLE_CHECK(check_messages(*messages));
    Json variables = options.template_variables;
    variables["messages"] = *messages;
    if (const auto tools = line.find("tools"); tools != line.end()) variables["tools"] = *tools;
    NIBBLE_TRY(const auto text, chat->render(variables));
    return tokenizer.encode(text);
}

Status add_lines(std::string_view text, const Tokenizer& tokenizer, const ChatTemplate* chat,
                 const CorpusOptions& options, Collector& out) {
    for (int number = 1; !text.empty() && !out.full(); ++number) {
        const std::string_view line = text.substr(0, text.find('\n'));
        text.remove_prefix(std::min(text.size(), line.size() + 1));
        if (line.find_first_not_of(" \t\r") == line.npos) continue;
        const std::string where = fmt::format("line {}", number);
        NIBBLE_TRY(const Json value, parse_json(line).within(where));
        NIBBLE_TRY(auto ids, line_ids(value, tokenizer, chat, options).within(where));
        out.add(std::move(ids));
    }
    return Ok{};
}

size_t most_unpacked_bytes(const CorpusOptions& options) {
    constexpr int64_t least = int64_t{64} << 20, most = int64_t{4} << 30, bytes_per_token = 64;
    return static_cast<size_t>(std::clamp(std::min(options.tokens, most) * bytes_per_token, least, most));
}

// Drops an incomplete last line or character of a text that was cut.
std::string_view whole_part(const Unpacked& unpacked, bool lines) {
    const std::string_view text = unpacked.text;
    if (!unpacked.cut) return text;
    if (!lines) return beginning(text, text.size() - std::min<size_t>(text.size(), 4));
    const size_t end = text.rfind('\n');
    return text.substr(0, end == text.npos ? 0 : end);
}

// Returns the kind of a file that is neither a text nor rows of texts; "": unknown.
std::string_view other_kind(std::string_view bytes) {
    using namespace std::string_view_literals;
    static constexpr std::pair<std::string_view, std::string_view> kinds[]{{"PAR1"sv, "a Parquet file"},
                                                                           {"PK\x03\x04"sv, "a zip archive"},
                                                                           {"\x28\xB5\x2F\xFD"sv, "packed by zstd"},
                                                                           {"\xFD\x37zXZ"sv, "packed by xz"},
                                                                           {"BZh"sv, "packed by bzip2"},
                                                                           {"ARROW1"sv, "an Arrow file"},
                                                                           {"\xFF\xFF\xFF\xFF"sv, "an Arrow stream"},
                                                                           {"%PDF-"sv, "a PDF document"}};
    for (const auto& [begin, name] : kinds)
        if (bytes.starts_with(begin)) return name;
    return {};
}

enum class CorpusForm { plain, lines };

// Returns the form of a text by its content. The name decides only if the beginning is not conclusive JSON.
Result<CorpusForm> form_of(const std::filesystem::path& name, std::string_view text) {
    const std::string ending = name.extension();
    if (ending == ".csv" || ending == ".tsv") return fail("is a table, which is not read");
    text.remove_prefix(std::min(text.find_first_not_of(" \t\r\n"), text.size()));
    const auto first = parse_json(text.substr(0, text.find('\n')));
    if (first.ok() && first->is_object() && (first->contains("text") || first->contains("messages")))
        return CorpusForm::lines;
    if (ending == ".jsonl" || ending == ".ndjson") return CorpusForm::lines;
    if (ending == ".json") return fail("is JSON, but not an object with 'text' or 'messages' in every line");
    return CorpusForm::plain;
}

Status fill(Corpus& corpus, const std::filesystem::path& path, const Tokenizer& tokenizer, const ChatTemplate* chat,
            const CorpusOptions& options) {
    NIBBLE_TRY(const MappedFile file, MappedFile::open(path));
    const std::string_view bytes(reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size());
    if (bytes.empty()) return fail("{}: is empty", corpus.origin);
    constexpr std::string_view next_step = "write its text as .jsonl, a line {\"text\": ...} each";
    if (const std::string_view kind = other_kind(bytes); !kind.empty())
        return fail("{}: is {}, which is not read; {}", corpus.origin, kind, next_step);
    const bool named_gz = path.extension() == ".gz", packed = named_gz || bytes.starts_with("\x1f\x8b");
    Unpacked unpacked;
    if (packed) {
        NIBBLE_TRY(unpacked, gunzip(bytes, most_unpacked_bytes(options)).within(corpus.origin));
        corpus.cut = unpacked.cut;
        if (unpacked.text.empty()) return fail("{}: is empty", corpus.origin);
    }
    const std::string_view head = without_byte_order_mark(packed ? std::string_view(unpacked.text) : bytes);
    const auto form = form_of(named_gz ? path.stem() : path.filename(), head);
    if (!form.ok()) return fail("{}: {}; {}", corpus.origin, form.error().message(), next_step);
    const bool lines = *form == CorpusForm::lines;
    const std::string_view text = packed ? without_byte_order_mark(whole_part(unpacked, lines)) : head;
    if (packed && text.empty())
        return fail("{}: its first line has more than the {} bytes that {} tokens may take", corpus.origin,
                    unpacked.text.size(), options.tokens);
    NIBBLE_CHECK(check_utf8(text).within(corpus.origin));
    Collector out(corpus, options);
    const Status added =
        lines ? add_lines(text, tokenizer, chat, options, out) : add_plain(text, tokenizer, options, out);
    NIBBLE_CHECK(Status(added).within(corpus.origin));
    if (corpus.tokens == 0) return fail("{}: has no tokens", corpus.origin);
    return Ok{};
}

}  // namespace

Status check_messages(const Json& messages) {
    if (!messages.is_array() || messages.empty()) return fail("'messages' is not a list of messages");
    for (size_t i = 0; i < messages.size(); ++i) {
        const Json& m = messages[i];
        if (!m.is_object() || !m.contains("role") || !m["role"].is_string())
            return fail("message {} is not an object with a 'role'", i);
    }
    return Ok{};
}

Result<Corpus> read_corpus(const std::filesystem::path& path, const Tokenizer& tokenizer, const ChatTemplate* chat,
                           const CorpusOptions& options) {
    if (options.tokens < 1 || options.sequence < 2)
        return fail("{} tokens in sequences of {}: at least 1 and 2", options.tokens, options.sequence);
    Corpus corpus{.origin = path.string()};
    NIBBLE_CHECK(fill(corpus, path, tokenizer, chat, options));
    return corpus;
}

}  // namespace nibble

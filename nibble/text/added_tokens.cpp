#include "text/added_tokens.h"

#include "text/tokenizer_json.h"
#include "text/unicode.h"

namespace nibble {
namespace {

// Returns the start of the character that ends at `end`. Precondition: valid UTF-8, end > 0.
size_t previous_character(std::string_view text, size_t end) {
    do --end;
    while (end > 0 && (static_cast<uint8_t>(text[end]) & 0xC0) == 0x80);
    return end;
}

bool word_before(std::string_view text, size_t at) {
    return at > 0 && is_word(utf8_step(text, previous_character(text, at)).code);
}

bool word_after(std::string_view text, size_t at) { return at < text.size() && is_word(utf8_step(text, at).code); }

}  // namespace

Result<std::vector<AddedToken>> parse_added_tokens(const Json& list) {
    std::vector<AddedToken> out;
    if (list.is_null()) return out;
    if (!list.is_array()) return fail("added_tokens is not a list");
    for (const Json& entry : list) {
        const std::string where = fmt::format("added_tokens[{}]", out.size());
        if (!entry.is_object()) return fail("{} is not an object", where);
        AddedToken token;
        NIBBLE_TRY(token.content, json_string(entry, "content").within(where));
        const auto id = entry.find("id");
        if (id == entry.end() || !id->is_number_unsigned() || id->get<uint64_t>() > UINT32_MAX)
            return fail("{}: 'id' is not an id", where);
        token.id = id->get<uint32_t>();
        NIBBLE_TRY(token.single_word, json_flag(entry, "single_word", false).within(where));
        NIBBLE_TRY(token.lstrip, json_flag(entry, "lstrip", false).within(where));
        NIBBLE_TRY(token.rstrip, json_flag(entry, "rstrip", false).within(where));
        NIBBLE_TRY(token.special, json_flag(entry, "special", false).within(where));
        NIBBLE_TRY(token.normalized, json_flag(entry, "normalized", !token.special).within(where));
        out.push_back(std::move(token));
    }
    return out;
}

void AddedTokenFinder::add(std::string_view text, AddedToken token) {
    if (text.empty()) return;
    trie_.insert(text, static_cast<uint32_t>(tokens_.size()));
    tokens_.push_back(std::move(token));
}

Result<std::vector<AddedTokenFinder::Part>> AddedTokenFinder::split(std::string_view text, bool parse_special,
                                                                    Meter& meter, const Refused& refused) const {
    if (!meter.pay_look(text.size())) return meter.error();
    std::vector<Part> out;
    size_t done = 0;
    const auto put = [&](size_t begin, size_t end, const AddedToken* token) {
        if (end > begin) out.push_back({begin, end, token});
        done = std::max(done, end);
    };
    for (size_t at = 0; at < text.size();) {
        if (!trie_.starts(text[at])) {
            ++at;
            continue;
        }
        size_t size = 0;
        uint32_t index = 0;
        const size_t looked = trie_.matches(text.substr(at), [&](size_t length, uint32_t value) {
            size = length;
            index = value;
        });
        if (!meter.pay_steps(Trie::steps(looked))) return meter.error();
        if (size == 0) {
            ++at;
            continue;
        }
        const AddedToken& token = tokens_[index];
        size_t begin = at, end = at + size;
        if (refused && refused(begin, end, token)) {
            ++at;
            continue;
        }
        at = end;
        if (token.special && !parse_special) continue;
        if (token.single_word && (word_before(text, begin) || word_after(text, end))) continue;
        while (token.lstrip && begin > done) {
            const size_t p = previous_character(text, begin);
            if (!is_white_space(utf8_step(text, p).code)) break;
            begin = p;
        }
        while (token.rstrip && end < text.size() && is_white_space(utf8_step(text, end).code))
            end += utf8_step(text, end).size;
        if (!meter.pay_steps(static_cast<int64_t>(end - begin)) || !meter.pay_bytes(2 * sizeof(Part)))
            return meter.error();
        begin = std::max(begin, done);
        if (begin > done) put(done, begin, nullptr);
        put(begin, end, &token);
    }
    if (done < text.size()) put(done, text.size(), nullptr);
    return out;
}

}  // namespace nibble

// Input: a JSON schema, a regular expression or a grammar (chosen by the first byte), then, after the first byte 1, a
// text. It must be refused with one line, or give a grammar that reads the text and whose masks allow what it accepts,
// within the limits of time and memory.
#include "grammar/grammar.h"
#include "grammar/matcher.h"
#include "judge.h"

#include <algorithm>
#include <vector>

using namespace nibble;

namespace {

const std::shared_ptr<const GrammarVocabulary>& byte_vocabulary() {
    static const auto vocabulary = [] {
        std::vector<std::string> texts;
        for (int b = 0; b < 256; ++b) texts.emplace_back(1, char(b));
        for (const char* text : {"\": ", "{\"", "\"}", "ab", "12", "é", "日本", ", \"", "]}"}) texts.emplace_back(text);
        return *GrammarVocabulary::of(std::move(texts));
    }();
    return vocabulary;
}

Result<std::shared_ptr<const Grammar>> made(char kind, std::string_view text, const GrammarLimits& limits) {
    if (kind == 'r') return Grammar::from_regex(text, limits);
    if (kind == 'g') return Grammar::from_ebnf(text, limits);
    NIBBLE_TRY(const Json schema, parse_json(text));
    return Grammar::from_json_schema(schema, {}, limits);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    if (size == 0) return 0;
    const auto& vocabulary = byte_vocabulary();
    const Judge judge;
    const std::string_view all(reinterpret_cast<const char*>(data), size);
    const size_t cut = all.find('\1');
    GrammarLimits limits;
    limits.max_work = 500'000;
    limits.max_states = 20'000;
    limits.max_parts = 50'000;
    const auto grammar = made(all[0], all.substr(1, cut == all.npos ? cut : cut - 1), limits);
    if (!grammar.ok()) {
        require_message(grammar.error());
        return 0;
    }
    const std::string_view text = cut == all.npos ? "" : all.substr(cut + 1, 200);
    GrammarMatcher matcher(std::make_shared<const GrammarTokens>(*grammar, vocabulary));
    std::vector<uint32_t> mask(vocabulary->words());
    for (const char c : text) {
        matcher.mask(mask);
        // An accepted text can always be continued or ended.
        require(matcher.may_end() || std::any_of(mask.begin(), mask.end(), [](uint32_t w) { return w != 0; }));
        const auto token = int32_t(uint8_t(c));
        const bool allowed = mask[size_t(token) / 32] >> (token % 32) & 1;
        require(matcher.accept(token) == allowed);
        if (!allowed) break;
    }
    return 0;
}

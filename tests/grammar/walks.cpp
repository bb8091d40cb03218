#include "grammar/walks.h"

namespace nibble::test {

std::shared_ptr<const GrammarVocabulary> small_vocabulary() {
    static const auto vocabulary = [] {
        std::vector<std::string> texts;
        texts.emplace_back();  // a token without text
        for (int b = 0; b < 256; ++b) texts.emplace_back(1, char(b));
        for (const char* text : {"a",
                                 "b",
                                 "ab",
                                 "abc",
                                 "ba",
                                 " a",
                                 " ab",
                                 "  ",
                                 "\n\n",
                                 "\n  ",
                                 "true",
                                 "tr",
                                 "ue",
                                 "false",
                                 "null",
                                 " null",
                                 "12",
                                 "123",
                                 "0.5",
                                 "-1",
                                 "e5",
                                 "{\"",
                                 "\":",
                                 "\": ",
                                 "\": \"",
                                 "\",",
                                 "\", \"",
                                 "\"}",
                                 "}}",
                                 "]}",
                                 "],",
                                 ", ",
                                 "[{",
                                 "[[",
                                 "\\n",
                                 "\\\"",
                                 "\\u00",
                                 "name",
                                 "\"name",
                                 "\"name\"",
                                 "id",
                                 "é",
                                 "日本",
                                 "\xE6\x97",
                                 "\xA5",
                                 "\xF0\x9F",
                                 "\x98\x80",
                                 "😀",
                                 "😀x",
                                 "xyz",
                                 "hello world, how are you today",
                                 " {",
                                 "{ ",
                                 "<tool",
                                 "_call>",
                                 "\">",
                                 "\"\"",
                                 "\"a\"",
                                 "\\",
                                 "u0",
                                 "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"})
            texts.emplace_back(text);
        auto made = GrammarVocabulary::of(std::move(texts));
        EXPECT_TRUE(made.ok());
        return *made;
    }();
    return vocabulary;
}

Walk random_walk(const std::shared_ptr<const GrammarTokens>& tokens, Dice& dice, size_t most, uint32_t shorten,
                 bool check) {
    const GrammarVocabulary& vocabulary = tokens->vocabulary();
    GrammarMatcher matcher(tokens);
    std::vector<uint32_t> mask(vocabulary.words());
    Walk out;
    for (; out.tokens < most; ++out.tokens) {
        matcher.mask(mask);
        if (check && mask != slow_mask(matcher, vocabulary)) {
            for (size_t t = 0; t < vocabulary.size(); ++t)
                if (bit_of(mask, t) != bit_of(slow_mask(matcher, vocabulary), t))
                    ADD_FAILURE() << "behind '" << out.text << "' token '" << vocabulary.text(uint32_t(t)) << "' is "
                                  << (bit_of(mask, t) ? "allowed" : "refused") << " against the slow mask";
            return out;
        }
        std::vector<int32_t> allowed;
        for (size_t t = 0; t < vocabulary.size(); ++t)
            if (bit_of(mask, t)) allowed.push_back(int32_t(t));
        EXPECT_TRUE(!matcher.finished() || allowed.empty()) << out.text;
        if (matcher.may_end() && (allowed.empty() || (shorten > 0 && dice.below(shorten) == 0))) {
            out.complete = true;
            return out;
        }
        if (allowed.empty()) {
            ADD_FAILURE() << "a dead end behind '" << out.text << "'";
            return out;
        }
        const int32_t token = allowed[dice.below(uint32_t(allowed.size()))];
        if (!matcher.accept(token)) {
            ADD_FAILURE() << "behind '" << out.text << "' an allowed token is refused: '"
                          << vocabulary.text(uint32_t(token)) << "'";
            return out;
        }
        out.text += vocabulary.text(uint32_t(token));
    }
    out.complete = matcher.may_end();
    return out;
}

}  // namespace nibble::test

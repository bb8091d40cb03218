// bench_grammar [TOKENIZER]: the time of a mask, of a token accepted and of compiling, along random answers of some
// schemas, over the vocabulary of a tokenizer or 128,000 made-up tokens. First: masks of states are found when they are
// first met; then again with them kept.
#include "grammar/matcher.h"
#include "text/tokenizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <random>
#include <set>

using namespace nibble;

namespace {

using Clock = std::chrono::steady_clock;

double micros(Clock::time_point begin) {
    return std::chrono::duration<double, std::micro>(Clock::now() - begin).count();
}

std::vector<std::string> made_up_tokens() {
    static const char* const syllables[]{"an", "er", "in", "the", "ing", "tion", "con", "st",  "re", "al", "or", "ma",
                                         "ti", "es", "ed", "ly",  "q",   "x",    "z",   "pre", "ou", "e",  "a",  "o"};
    static const char* const marks[]{"\"", "\":", "\": ", "\",", ", \"", "{\"", "}",
                                     "]",  "\n",  "\n  ", "\\n", "();",  "={"};
    std::mt19937_64 random(1);
    const auto below = [&](size_t n) { return size_t(random() % n); };
    std::set<std::string> texts(std::begin(marks), std::end(marks));
    for (int b = 0; b < 256; ++b) texts.insert(std::string(1, char(b)));
    while (texts.size() < 128'000) {
        std::string text = below(2) ? " " : below(40) ? "" : marks[below(std::size(marks))];
        for (size_t n = 1 + below(4); n > 0; --n) text += syllables[below(std::size(syllables))];
        if (below(20) == 0) text = std::to_string(below(1000));
        if (below(60) == 0) text += marks[below(std::size(marks))];
        texts.insert(std::move(text));
    }
    std::vector<std::string> out(texts.begin(), texts.end());
    std::shuffle(out.begin(), out.end(), random);
    return out;
}

Result<std::shared_ptr<const GrammarVocabulary>> vocabulary_of(const char* path) {
    if (!path) return GrammarVocabulary::of(made_up_tokens());
    NIBBLE_TRY(const auto tokenizer, Tokenizer::from_folder(path));
    return GrammarVocabulary::of(tokenizer, {});
}

Status run(const char* path) {
    const auto begin = Clock::now();
    NIBBLE_TRY(const auto vocabulary, vocabulary_of(path));
    fmt::print("{} tokens, vocabulary made in {:.0f} ms\n", vocabulary->size(), micros(begin) / 1e3);
    for (
        const char* text :
        {R"({"type":"object"})",
         R"({"type":"object","properties":{"name":{"type":"string"},"age":{"type":"integer","minimum":0},"tags":{"type":"array","items":{"type":"string","maxLength":40}}},"required":["name","age","tags"],"additionalProperties":false})",
         R"({"type":"string","pattern":"^[a-z ]{3,80}$"})"}) {
        NIBBLE_TRY(const Json schema, parse_json(text));
        const auto start = Clock::now();
        NIBBLE_TRY(const auto grammar, Grammar::from_json_schema(schema));
        fmt::print("\n{:.60}\n  compiled in {:.1f} ms\n", text, micros(start) / 1e3);
        const auto tokens = std::make_shared<const GrammarTokens>(grammar, vocabulary);
        std::mt19937_64 random(2);
        for (const char* pass : {"first", "again"}) {
            std::vector<double> masks, accepts;
            std::vector<uint32_t> mask(vocabulary->words());
            for (int walk = 0; walk < 100; ++walk) {
                GrammarMatcher matcher(tokens);
                for (int n = 0; n < 100 && !matcher.finished(); ++n) {
                    auto at = Clock::now();
                    matcher.mask(mask);
                    masks.push_back(micros(at));
                    std::vector<int32_t> allowed;
                    for (uint32_t t = 0; t < vocabulary->size(); ++t)
                        if (mask[t / 32] >> (t % 32) & 1) allowed.push_back(int32_t(t));
                    if (allowed.empty()) return fail("no token may follow");
                    const int32_t token = allowed[random() % allowed.size()];
                    at = Clock::now();
                    if (!matcher.accept(token)) return fail("an allowed token is refused");
                    accepts.push_back(micros(at));
                }
            }
            std::sort(masks.begin(), masks.end());
            std::sort(accepts.begin(), accepts.end());
            const auto share = [&](size_t percent) { return masks[(masks.size() - 1) * percent / 100]; };
            fmt::print("  {}: {} masks, median {:.1f} us, p90 {:.1f}, p99 {:.1f}, most {:.0f}; accept {:.1f} us\n",
                       pass, masks.size(), share(50), share(90), share(99), masks.back(), accepts[accepts.size() / 2]);
        }
    }
    return Ok{};
}

}  // namespace

int main(int argc, char** argv) {
    const Status done = run(argc > 1 ? argv[1] : nullptr);
    if (!done.ok()) return fmt::print(stderr, "bench_grammar: {}\n", done.error().message()), 1;
}

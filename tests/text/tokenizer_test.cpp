#include "text/tokenizer.h"

#include "base/json.h"

#include "support/files.h"
#include "text/unicode.h"

#include <gtest/gtest.h>

#include <thread>

using namespace nibble;

namespace {

using Ids = std::vector<TokenId>;

Tokenizer load(std::string_view name) {
    auto tokenizer = Tokenizer::from_json(test::read_file(test::test_data("text") / name));
    EXPECT_TRUE(tokenizer.ok()) << tokenizer.error().message();
    return *tokenizer;
}

// Token texts, separated by '|'.
std::string shown(const Tokenizer& t, std::string_view text, EncodeOptions options = {}) {
    const auto ids = t.encode(text, options);
    if (!ids.ok()) return ids.error().message();
    std::string out;
    for (const TokenId id : *ids) out += (out.empty() ? "" : "|") + std::string(*t.token(id));
    return out;
}

std::string with_part(const char* field, const char* json) {
    return fmt::format(R"({{"{}": {}, "model": {{"type": "BPE", "vocab": {{"a": 0}}, "merges": []}}}})", field, json);
}

std::string cuts(const char* pre_tokenizer, std::string_view text) {
    const auto t = Tokenizer::from_json(fmt::format(
        R"({{"pre_tokenizer": {}, "model": {{"type": "BPE", "unk_token": "?", "fuse_unk": true, "ignore_merges": true, "vocab": {{"?": 0,
        "a": 1, "-": 2, "a-": 3, "-a": 4, "--": 5, "b": 6, "-b": 7, "7": 8, "77": 9}}, "merges": []}}}})",
        pre_tokenizer));
    return t.ok() ? shown(*t, text) : t.error().message();
}

int64_t steps_of(const Tokenizer& t, const std::string& text) {
    Meter meter({});
    EXPECT_TRUE(t.encode(text, {}, meter).ok());
    return meter.steps_used();
}

TEST(ByteLevelBpe, MergesLowestRankFirstInsidePieces) {
    const Tokenizer t = load("byte_level.json");
    EXPECT_EQ(shown(t, "hello world"), "hello|Ġworld");
    EXPECT_EQ(shown(t, "aaaaa"), "aaaa|a");
    EXPECT_EQ(shown(t, "12123"), "12|1|2|3") << "cut after three digits";
}

TEST(ByteLevelBpe, NormalizesBeforeItCuts) {
    const Tokenizer t = load("byte_level.json");
    EXPECT_EQ(shown(t, "e\u0301"), "Ã©");
    EXPECT_EQ(t.decode(*t.encode("e\u0301")), "\u00e9");
}

TEST(ByteLevelBpe, EveryByteSequenceDecodesToItsLossyText) {
    const Tokenizer t = load("byte_level.json");
    for (int a = 0; a < 256; ++a)
        for (const std::string tail : {"", "a", "\x80", "\xBF\xBF", "\xFF"}) {
            const std::string text = std::string(1, static_cast<char>(a)) + tail;
            const auto ids = t.encode(text);
            ASSERT_TRUE(ids.ok());
            EXPECT_EQ(t.decode(*ids), normal_form(utf8_lossy(text), NormalForm::nfc)) << a;
        }
    EXPECT_EQ(utf8_lossy("\xF0\x9F\x92x\xE0\x80\xED\xA0\x80"), "\uFFFDx\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD")
        << "as Python decodes it";
}

TEST(AddedTokens, AreFoundUnlessTextIsPlain) {
    const Tokenizer t = load("byte_level.json");
    EXPECT_EQ(shown(t, "a<s>a"), "a|<s>|a");
    EXPECT_EQ(shown(t, "<s>", {.parse_special = false}), "<|s|>");
    EXPECT_EQ(shown(t, "<tool>", {.parse_special = false}), "<tool>") << "is no control token";
    EXPECT_EQ(shown(t, "<tool> \n a"), "<tool>|a") << "rstrip";
    EXPECT_EQ(shown(t, "a \n <mask>"), "a|<mask>") << "lstrip";
}

TEST(AddedTokens, SpecialOnesCanBeLeftOutOfTheText) {
    const Tokenizer t = load("byte_level.json");
    const auto ids = *t.encode("a<s>a", {.add_special = true});
    EXPECT_EQ(t.token(ids[0]), "<s>");
    EXPECT_TRUE(t.is_special(ids[0]));
    EXPECT_EQ(t.decode(ids), "<s>a<s>a");
    EXPECT_EQ(t.decode(ids, true), "aa");
    EXPECT_EQ(t.decode(Ids{1u << 30}), "") << "ids beyond the vocabulary have no text";
}

TEST(SentencePieceBpe, PrependsABlankAndFallsBackToBytes) {
    const Tokenizer t = load("byte_fallback.json");
    EXPECT_EQ(shown(t, "hello hello"), "▁hello|▁hello");
    EXPECT_EQ(shown(t, "h  é"), "▁|h|▁▁|<0xC3>|<0xA9>");
    EXPECT_EQ(t.decode(*t.encode("h  é")), "h  é");
    EXPECT_EQ(t.decode(Ids{*t.id_of("<0xC3>"), *t.id_of("<0xFF>"), *t.id_of("h")}), "\uFFFD\uFFFDh");
}

TEST(UnigramModel, TakesTheBestSumAndFusesUnknowns) {
    const Tokenizer t = load("unigram.json");
    EXPECT_EQ(shown(t, "ab"), "▁ab") << "-4.5 against -6.5, -7 and -7.5";
    EXPECT_EQ(shown(t, "aba"), "▁ab|a") << "-6.5 against -8, ▁|aba";
    EXPECT_EQ(shown(t, "axyb"), "▁a|<unk>|b");
    EXPECT_EQ(shown(t, "\uFF41"), "▁a") << "NFKC";
    EXPECT_EQ(t.decode(*t.encode("ab ab")), "ab ab");
}

TEST(SplitBehaviors, KeepDropOrJoinMatches) {
    const auto split = [](const char* behavior, const char* more = "") {
        return fmt::format(R"({{"type": "Split", "pattern": {{"String": "-"}}, "behavior": "{}"{}}})", behavior, more);
    };
    EXPECT_EQ(cuts(split("Isolated").c_str(), "a--b"), "a|-|-|b");
    EXPECT_EQ(cuts(split("Removed").c_str(), "a--b"), "a|b");
    EXPECT_EQ(cuts(split("MergedWithPrevious").c_str(), "a--b"), "a-|-|b");
    EXPECT_EQ(cuts(split("MergedWithNext").c_str(), "a--b"), "a|-|-b");
    EXPECT_EQ(cuts(split("Contiguous").c_str(), "a--b"), "a|--|b");
    EXPECT_EQ(cuts(split("Removed", R"(, "invert": true)").c_str(), "a--b"), "-|-");
    EXPECT_EQ(cuts(R"({"type": "Digits", "individual_digits": true})", "a77"), "a|7|7");
    EXPECT_EQ(cuts(R"({"type": "Digits", "individual_digits": false})", "a77"), "a|77");
}

TEST(UnsupportedParts, AreErrorsThatNameThem) {
    const auto message = [](const std::string& json) {
        const auto t = Tokenizer::from_json(json);
        return t.ok() ? "loads" : t.error().message();
    };
    const auto names = [&](const std::string& json, const char* what) {
        EXPECT_NE(message(json).find(what), std::string::npos) << message(json);
    };
    EXPECT_EQ(message(with_part("normalizer", "null")), "loads");
    names(with_part("normalizer", R"({"type": "BertNormalizer"})"), "BertNormalizer");
    names(with_part("pre_tokenizer", R"({"type": "UnicodeScripts"})"), "UnicodeScripts");
    names(with_part("pre_tokenizer", R"({"type": "Split", "pattern": {"Regex": "\\w+"}, "behavior": "Isolated"})"),
          "\\w");
    names(with_part("pre_tokenizer", R"({"type": "Split", "pattern": {"Regex": "(a"}, "behavior": "Isolated"})"), "(a");
    names(with_part("decoder", R"({"type": "WordPiece"})"), "WordPiece");
    names(with_part("post_processor", R"({"type": "BertProcessing"})"), "BertProcessing");
    names(R"({"model": {"type": "WordLevel", "vocab": {}}})", "WordLevel");
    names(R"({"model": {"type": "BPE", "dropout": 0.1, "vocab": {}, "merges": []}})", "dropout");
    names(R"({"model": {"type": "BPE", "vocab": {"a": 0, "b": 0}, "merges": []}})", "token id 0 comes twice");
    names(R"({"model": {"type": "BPE", "vocab": {"a": 99999999999}, "merges": []}})", "beyond");
    names(R"({"model": {"type": "BPE", "vocab": {"a": 0}, "merges": ["a a"]}})", "entry 0");
    names("[", "not JSON");
    EXPECT_FALSE(Tokenizer::from_sentencepiece("\x0A\xFF").ok());
    EXPECT_FALSE(Tokenizer::from_sentencepiece("").ok());
}

TEST(HostileText, CostsStepsInProportionToItsLength) {
    std::string marks, letters(1 << 20, 'a'), blanks(1 << 20, ' ');
    while (marks.size() < 1 << 20) marks += "\u0301\u0323";  // in the wrong order: a bubble sort would take hours
    for (const char* name : {"byte_level.json", "byte_fallback.json", "unigram.json"}) {
        const Tokenizer t = load(name);
        for (const std::string& text : {letters, blanks, blanks + "x", marks}) {
            const int64_t quarter = steps_of(t, text.substr(0, text.size() / 4)), whole = steps_of(t, text);
            EXPECT_LT(whole, 5 * quarter) << name << ": four times the length";
        }
    }
}

// A limit of tokens is exact: a text that keeps it has its own tokens, and the work on another text is bounded.
TEST(TokenLimit, IsExactAndEndsTheWork) {
    std::string mixed = "hello world 12123 ";
    for (int i = 0; i < 40; ++i) mixed += fmt::format("Line {}, e\u0301 \u00e9 \U0001F600 \n\n  x{} ", i, i * i);
    const std::string texts[]{
        "", "a", "hello world", mixed, std::string(300, 'a'), std::string(300, ' '), "\xff\xfe" + mixed.substr(0, 100)};
    for (const char* name : {"byte_level.json", "byte_fallback.json", "unigram.json"}) {
        const Tokenizer t = load(name);
        for (const std::string& text : texts)
            for (const bool special : {false, true}) {
                const Ids whole = *t.encode(text, {.add_special = special});
                const auto n = std::ssize(whole);
                for (const int64_t most : {int64_t{0}, int64_t{1}, n / 2, n - 1, n, n + 1, 2 * n + 7}) {
                    if (most < 0) continue;
                    const auto limited = t.encode(text, {.add_special = special, .most_tokens = most});
                    ASSERT_TRUE(limited.ok()) << limited.error().message();
                    if (n <= most)
                        EXPECT_EQ(*limited, whole) << name << " " << most;
                    else
                        EXPECT_EQ(std::ssize(*limited), most + 1) << name << " " << n;
                }
            }
        // One long word, and many words, whose work ends early (normalizers still read the whole text).
        std::string words;
        while (words.size() < 1 << 18) words += "hello world ";
        for (const std::string& text : {std::string(1 << 18, 'a'), words}) {
            const bool pieces = text == words && name != std::string_view("byte_fallback.json");
            const int64_t steps = pieces ? steps_of(t, text) * 8 / 10 : MeterLimits::unlimited;
            Meter meter({.steps = steps, .tokens = 2048});
            const auto ids = t.encode(text, {}, meter);
            ASSERT_TRUE(ids.ok()) << name << ": " << ids.error().message();
            EXPECT_EQ(ids->size(), 2049u) << name;
        }
    }
}

// A text that has too many tokens by its length alone is refused without being read, where no part of the tokenizer may
// remove or join text.
TEST(TokenLimit, RefusesByLengthAlone) {
    const auto parse = [](const Json& file) {
        auto tokenizer = Tokenizer::from_json(file.dump());
        EXPECT_TRUE(tokenizer.ok()) << tokenizer.error().message();
        return *tokenizer;
    };
    const Json stripping = Json::parse(test::read_file(test::test_data("text") / "byte_level.json"));
    Json plain = stripping;
    for (Json& token : plain["added_tokens"]) token["lstrip"] = token["rstrip"] = false;
    const std::string text(8 << 20, 'x');
    for (const Tokenizer& t : {parse(plain), load("byte_fallback.json")}) {
        Meter meter({.steps = (8 << 20) / 64 + 1000, .tokens = 1024});
        const auto ids = t.encode(text, {}, meter);
        ASSERT_TRUE(ids.ok()) << ids.error().message();
        EXPECT_EQ(ids->size(), 1025u);
    }
    // Steps that may remove text, or join it in one token, leave no bound.
    const std::string blanks(1 << 16, ' ');
    Json removes = plain, erases = plain;
    removes["pre_tokenizer"] = {{"type", "Sequence"},
                                {"pretokenizers",
                                 {{{"type", "Split"}, {"pattern", {{"String", " "}}}, {"behavior", "Removed"}},
                                  {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}}}}};
    erases["normalizer"] = {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", ""}};
    EXPECT_EQ(parse(removes).encode(blanks, {.most_tokens = 4})->size(), 0u);
    EXPECT_EQ(parse(erases).encode(blanks, {.most_tokens = 4})->size(), 0u);
    EXPECT_EQ(parse(stripping).encode(blanks + "<mask>", {.most_tokens = 4})->size(), 1u);
}

TEST(Streaming, NeverGivesPartOfACharacter) {
    for (const char* name : {"byte_level.json", "byte_fallback.json"}) {
        const Tokenizer t = load(name);
        const std::string text = "h\u00e9\u6f22\U0001F44B hello";
        const auto ids = *t.encode(text);
        ASSERT_GT(ids.size(), 9u) << "characters of several tokens";
        StreamDecoder stream(t);
        std::string streamed;
        for (const TokenId id : ids) {
            const std::string part = stream.push(id);
            EXPECT_TRUE(utf8_valid(part));
            EXPECT_EQ(part.find("\uFFFD"), part.npos);
            streamed += part;
        }
        EXPECT_EQ(streamed, text);
        EXPECT_EQ(stream.finish(), "");
        stream.push(*t.encode("\U0001F44B").operator*().begin());  // byte_level.json: the first byte of four
        EXPECT_TRUE(utf8_valid(stream.finish()));
    }
}

TEST(Streaming, ACharacterThatIsNeverCompletedIsReplacedAtTheEnd) {
    const Tokenizer t = load("byte_level.json");
    StreamDecoder stream(t);
    EXPECT_EQ(stream.push(0xF0), "");
    EXPECT_EQ(stream.push(0x9F), "");
    EXPECT_EQ(stream.finish(), "\uFFFD");
    EXPECT_EQ(stream.push('a'), "a");
}

TEST(Tokenizers, MayBeUsedFromSeveralThreads) {
    const Tokenizer t = load("byte_level.json");
    std::string text;
    for (int i = 0; i < 20000; ++i) text += fmt::format(" hello{}world", i);  // more pieces than the cache holds
    const auto wanted = *t.encode(text);
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; ++i) threads.emplace_back([&] { EXPECT_EQ(*t.encode(text), wanted); });
    for (auto& thread : threads) thread.join();
}

}  // namespace

#include "text/corpus.h"

#include "support/files.h"

#include <gtest/gtest.h>

#include <fstream>

using namespace nibble;

namespace {

class CorpusTest : public testing::Test {
protected:
    void SetUp() override {
        auto loaded = Tokenizer::from_json(test::read_file(test::test_data("text") / "byte_level.json"));
        ASSERT_TRUE(loaded.ok()) << loaded.error().message();
        tokenizer.emplace(*std::move(loaded));
    }

    std::filesystem::path write(const char* name, std::string_view text) {
        const auto path = folder / name;
        std::ofstream(path, std::ios::binary) << text;
        return path;
    }

    // "3 2 1" tokens per sequence, or the error's last words.
    std::string lengths(const std::filesystem::path& path, CorpusOptions options, const ChatTemplate* chat = nullptr) {
        const auto corpus = read_corpus(path, *tokenizer, chat, options);
        if (!corpus.ok()) return corpus.error().message().substr(path.string().size());
        std::string out;
        int64_t sum = 0;
        for (const auto& sequence : corpus->sequences) {
            out += fmt::format("{}{}", out.empty() ? "" : " ", sequence.size());
            sum += static_cast<int64_t>(sequence.size());
        }
        EXPECT_EQ(corpus->tokens, sum);
        return out;
    }

    test::TempDir folder;
    std::optional<Tokenizer> tokenizer;
};

TEST_F(CorpusTest, PlainTextIsCutIntoWindowsWithoutGaps) {
    const std::string text = "the cat sat on the mat; the dog did not. Und dann? Nichts.";
    const auto path = write("a.txt", text);
    const auto ids = *tokenizer->encode(text, {.parse_special = false});
    const TokenId bos = tokenizer->encode("", {.add_special = true})->at(0);  // in front of every window
    const auto n = static_cast<int64_t>(ids.size()), windows = (n + 3) / 4;
    ASSERT_GT(n, 12);
    const auto corpus = read_corpus(path, *tokenizer, nullptr, {.tokens = n + windows, .sequence = 5});
    ASSERT_TRUE(corpus.ok()) << corpus.error().message();
    std::vector<TokenId> joined;
    for (const auto& sequence : corpus->sequences) {
        EXPECT_EQ(sequence.at(0), bos);
        joined.insert(joined.end(), sequence.begin() + 1, sequence.end());
    }
    EXPECT_EQ(joined, ids);
    EXPECT_EQ(lengths(path, {.tokens = 12, .sequence = 5}), "5 5 2");
    EXPECT_EQ(lengths(path, {.tokens = 1000, .sequence = 5}),
              fmt::format(": has {} tokens, 1000 were asked for; give more text or ask for fewer", n + windows));
}

TEST_F(CorpusTest, LinesAreSequences) {
    const std::string first = "the cat sat on the mat";
    const auto n = tokenizer->encode(first, {.add_special = true, .parse_special = false})->size();
    const auto path = write("a.jsonl", R"({"text": "the cat sat on the mat"})"
                                       "\n\n"
                                       R"({"text": "the cat sat on the mat"})");
    EXPECT_EQ(lengths(path, {.tokens = static_cast<int64_t>(n) + 2, .sequence = 100}), fmt::format("{} 2", n));
    EXPECT_EQ(lengths(path, {.tokens = 6, .sequence = 3}), "3 3");
}

TEST_F(CorpusTest, ConversationsGoThroughTheTemplate) {
    const auto chat = ChatTemplate::parse("{% for m in messages %}[{{ m.role }}]{{ m.content }}{{ eos }}{% endfor %}");
    ASSERT_TRUE(chat.ok());
    const auto path = write("a.jsonl", R"({"messages": [{"role": "user", "content": "the cat"}]})");
    const auto expected = *tokenizer->encode("[user]the cat!");
    const auto corpus =
        read_corpus(path, *tokenizer, &*chat,
                    {.tokens = static_cast<int64_t>(expected.size()), .template_variables = {{"eos", "!"}}});
    ASSERT_TRUE(corpus.ok()) << corpus.error().message();
    EXPECT_EQ(corpus->sequences.at(0), expected);
    EXPECT_EQ(lengths(path, {.tokens = 1}), ": line 1: 'messages' need a chat template, and the model has none");
}

TEST_F(CorpusTest, BadInputIsNamed) {
    EXPECT_EQ(lengths(write("empty.txt", ""), {}), ": is empty");
    EXPECT_EQ(lengths(write("latin.txt", "caf\xE9 au lait"), {}), ": byte 3 is not UTF-8");
    EXPECT_EQ(lengths(write("a.jsonl", "{\"text\": \"a\"}\n{\"txt\": 1}"), {.tokens = 100}),
              ": line 2: has neither 'text' nor 'messages'");
    EXPECT_EQ(lengths(write("b.jsonl", "[]"), {}), ": line 1: expected an object with 'text' or 'messages'");
    EXPECT_EQ(lengths(write("c.jsonl", "{\"text\": 3}"), {}), ": line 1: 'text' is not a string");
}

}  // namespace

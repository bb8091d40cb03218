#include "data/corpus.h"
#include "data/rows.h"

#include "support/files.h"
#include "support/gzip.h"

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

    // Returns "3 2 1", the tokens per sequence, or the error's last words.
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
    const TokenId bos = tokenizer->encode("", {.add_special = true})->at(0);  // starts every window
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
    const auto all = read_corpus(path, *tokenizer, nullptr, {.tokens = 1000, .sequence = 5});
    ASSERT_TRUE(all.ok()) << "a text that is shorter is used: " << all.error().message();
    EXPECT_EQ(all->tokens, n + windows);
    EXPECT_FALSE(all->cut);
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

// Wraps bytes as gzip: one stored block with a valid checksum.
std::string stored_gzip(std::string_view text) {
    std::string out("\x1f\x8b\x08\0\0\0\0\0\0\xff\x01", 11);
    const auto number = [&](uint32_t value, int bytes) {
        for (int i = 0; i < bytes; ++i) out += static_cast<char>(value >> (8 * i));
    };
    number(static_cast<uint32_t>(text.size()), 2);
    number(~static_cast<uint32_t>(text.size()), 2);
    out += text;
    uint32_t crc = ~0u;
    for (const char c : text) {
        crc ^= static_cast<unsigned char>(c);
        for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ (crc & 1 ? 0xEDB88320u : 0);
    }
    number(~crc, 4);
    number(static_cast<uint32_t>(text.size()), 4);
    return out;
}

TEST_F(CorpusTest, PackedTextIsReadLikeTheTextItself) {
    const std::string lines = "{\"text\": \"the cat sat on the mat\"}\n{\"text\": \"the dog\"}\n",
                      plain = "the cat sat";
    EXPECT_EQ(lengths(write("a.jsonl.gz", stored_gzip(lines)), {.tokens = 100}),
              lengths(write("a.jsonl", lines), {.tokens = 100}));
    EXPECT_EQ(lengths(write("a.txt.gz", stored_gzip(plain)), {.tokens = 100}),
              lengths(write("a.txt", plain), {.tokens = 100}));
    EXPECT_EQ(lengths(write("b.jsonl.gz", lines), {.tokens = 100}),
              ": is not a gzip file, or is damaged: incorrect header check");
    EXPECT_EQ(lengths(write("c.txt.gz", stored_gzip("")), {.tokens = 100}), ": is empty");
}

TEST_F(CorpusTest, TheContentAndNotTheNameDecidesTheFormat) {
    const std::string lines = "{\"text\": \"the cat sat on the mat\"}\n{\"text\": \"the dog\"}\n",
                      chats = "\n {\"messages\": [{\"role\": \"user\", \"content\": \"the cat\"}]}\n",
                      plain = "the cat {sat}";
    const auto chat = ChatTemplate::parse("{% for m in messages %}{{ m.content }}{% endfor %}");
    ASSERT_TRUE(chat.ok());
    const CorpusOptions options{.tokens = 100};
    const std::string as_lines = lengths(write("a.jsonl", lines), options),
                      as_text = lengths(write("a.txt", plain), options);
    EXPECT_NE(as_lines.find(' '), as_lines.npos);
    for (const char* name : {"calib", "calib.txt", "calib.json", "calib.ndjson", "calib.data.01"}) {
        EXPECT_EQ(lengths(write(name, lines), options), as_lines) << name;
        EXPECT_EQ(lengths(write(name, test::gzipped(lines)), options), as_lines) << name;
        EXPECT_EQ(lengths(write(name, chats), options, &*chat), lengths(write("b.jsonl", chats), options, &*chat))
            << name;
    }
    for (const char* name : {"calib", "calib.md", "calib.text"}) {
        EXPECT_EQ(lengths(write(name, plain), options), as_text) << name;
        EXPECT_EQ(lengths(write(name, test::gzipped(plain)), options), as_text) << name;
    }
    // JSON is never text.
    EXPECT_NE(lengths(write("c.txt", "{\"a\": 1}"), options).find(": line 1: "), std::string::npos);
    EXPECT_EQ(lengths(write("x.txt", "PK\x03\x04"), options), ": is a zip archive, which is not supported; unpack it");
}

// The rows that training reads: each of these files holds the same conversation, or the same text.
TEST_F(CorpusTest, RowsAreThoseOfTraining) {
    const auto chat = ChatTemplate::parse("{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}");
    ASSERT_TRUE(chat.ok());
    const std::string talk =
        R"({"messages": [{"role": "user", "content": "the cat"}, {"role": "assistant", "content": "sat"}]})";
    const std::pair<const char*, std::string> talks[]{
        {"openai.jsonl", talk},
        {"list.json", "[" + talk + "]"},
        {"sharegpt.json",
         R"([{"conversations": [{"from": "human", "value": "the cat"}, {"from": "gpt", "value": "sat"}]}])"},
        {"alpaca.jsonl", R"({"instruction": "the cat", "input": "", "output": "sat"})"},
        {"question.jsonl", R"({"question": "the cat", "answer": "sat"})"},
        {"table.csv", "instruction,output\nthe cat,sat\n"}};
    const auto expected = *tokenizer->encode("[user]the cat[assistant]sat");
    for (const auto& [name, text] : talks)
        for (const std::string& bytes : {text, test::gzipped(text)}) {
            const auto corpus = read_corpus(write(name, bytes), *tokenizer, &*chat, {.tokens = 100});
            ASSERT_TRUE(corpus.ok()) << corpus.error().message();
            ASSERT_EQ(corpus->sequences.size(), 1u) << name;
            EXPECT_EQ(corpus->sequences[0], expected) << name;
        }
    const auto words = *tokenizer->encode("the cat", {.add_special = true, .parse_special = false});
    for (const auto& [name, text] : {std::pair<const char*, std::string>{"text.jsonl", R"({"text": "the cat"})"},
                                     {"content.jsonl", R"({"content": "the cat"})"},
                                     {"list.json", R"([{"text": "the cat"}])"},
                                     {"text.csv", "text\nthe cat\n"}}) {
        const auto corpus = read_corpus(write(name, text), *tokenizer, nullptr, {.tokens = 100});
        ASSERT_TRUE(corpus.ok()) << corpus.error().message();
        ASSERT_EQ(corpus->sequences.size(), 1u) << name;
        EXPECT_EQ(corpus->sequences[0], words) << name;
    }
}

TEST_F(CorpusTest, AByteOrderMarkIsNoText) {
    const auto plain = read_corpus(write("a.txt", "the cat"), *tokenizer, nullptr, {});
    const auto marked = read_corpus(write("b.txt", "\xEF\xBB\xBFthe cat"), *tokenizer, nullptr, {});
    ASSERT_TRUE(plain.ok() && marked.ok());
    EXPECT_EQ(marked->sequences, plain->sequences);
    EXPECT_EQ(lengths(write("c.jsonl", "\xEF\xBB\xBF{\"text\": \"the cat\"}\n"), {}),
              lengths(write("d.jsonl", "{\"text\": \"the cat\"}\n"), {}));
}

TEST_F(CorpusTest, BadInputIsNamed) {
    for (const char* name : {"rows.parquet", "rows.txt", "rows"})
        EXPECT_NE(lengths(write(name, "PAR1 and so on"), {}).find(": "), std::string::npos);
    EXPECT_EQ(lengths(write("empty.txt", ""), {}), ": is empty");
    EXPECT_EQ(lengths(write("latin.txt", "caf\xE9 au lait"), {}), ": byte 3 is not UTF-8");
    EXPECT_EQ(lengths(write("a.jsonl", "{\"text\": \"a\"}\n{\"txt\": 1}"), {.tokens = 100}),
              ": line 2: " + data_row({{"txt", 1}}).error().message());
    EXPECT_EQ(lengths(write("b.jsonl", "[]"), {}), ": line 1: " + data_row(Json::array()).error().message());
    EXPECT_EQ(lengths(write("c.jsonl", "{\"text\": 3}"), {}), ": line 1: 'text' is not a string");
}

}  // namespace

#include "data/build.h"
#include "data/token_set.h"
#include "support/files.h"
#include "support/gzip.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdlib>
#include <cstring>
#include <map>

namespace nibble {
namespace {

namespace fs = std::filesystem;

std::map<std::string, std::string> files_of(const fs::path& folder) {
    std::map<std::string, std::string> files;
    for (const auto& entry : fs::directory_iterator(folder))
        files[entry.path().filename().string()] = test::read_file(entry.path());
    return files;
}

class DataBuildTest : public testing::Test {
protected:
    void SetUp() override {
        auto loaded = Tokenizer::from_folder(test::test_data("chat"));
        ASSERT_TRUE(loaded.ok()) << loaded.error().message();
        tokenizer.emplace(*std::move(loaded));
        auto parsed = ChatTemplate::open(test::test_data("chat"));
        ASSERT_TRUE(parsed.ok()) << parsed.error().message();
        chat.emplace(*std::move(parsed));
        how = {.tokenizer = &*tokenizer, .chat = &*chat, .end_token = end_token};
    }

    fs::path write(const std::string& name, std::string_view text) {
        test::write_file(dir / name, text);
        return dir / name;
    }

    Result<DataManifest> build(DataBuildOptions options, int threads = 2) {
        ThreadPool pool(threads);
        return build_data(how, options, pool);
    }

    // Returns all tokens of a split.
    TokenSet::Slice all_of(const fs::path& folder, bool validation = false) {
        TokenSet::Slice slice;
        const auto manifest = read_data_manifest(folder);
        EXPECT_TRUE(manifest.ok()) << manifest.error().message();
        const auto set = TokenSet::open(folder, *manifest, validation);
        EXPECT_TRUE(set.ok()) << set.error().message();
        const Status read = set->read(0, set->tokens(), slice);
        EXPECT_TRUE(read.ok()) << read.error().message();
        return slice;
    }

    std::vector<TokenId> encoded(std::string_view text) {
        auto ids = *tokenizer->encode(text, {.add_special = true, .parse_special = false});
        ids.push_back(end_token);
        return ids;
    }

    static constexpr TokenId end_token = 271;
    test::TempDir dir;
    std::optional<Tokenizer> tokenizer;
    std::optional<ChatTemplate> chat;
    DocumentText how;
};

TEST_F(DataBuildTest, DocumentsLieOneAfterTheOtherWithTheirBoundaries) {
    const auto lines = write("a.jsonl", "{\"text\": \"one two\"}\n\n{\"text\": \"three\"}\n");
    const auto made = build({.inputs = {lines, write("b.txt", "four <mask> five")}, .out = dir / "out"});
    ASSERT_TRUE(made.ok()) << made.error().message();
    std::vector<TokenId> expected;
    std::vector<int64_t> starts;
    for (const char* text : {"one two", "three", "four <mask> five"}) {
        starts.push_back(static_cast<int64_t>(expected.size()));
        for (const TokenId id : encoded(text)) expected.push_back(id);
    }
    const auto slice = all_of(dir / "out");
    EXPECT_EQ(slice.ids, expected);
    EXPECT_EQ(slice.starts, starts);
    EXPECT_EQ(std::ranges::count(slice.learned, false), 0);
    EXPECT_FALSE(fs::exists(dir / "out" / "train_000000.mask"));
    EXPECT_EQ(std::ranges::count(slice.ids, end_token), 3) << "a control token in a text stays text";
    // The header of llm.c, byte for byte.
    const std::string file = test::read_file(dir / "out" / "train_000000.bin");
    std::array<int32_t, 4> words;
    std::memcpy(words.data(), file.data(), sizeof(words));
    EXPECT_EQ(words, (std::array<int32_t, 4>{20240520, 1, int32_t(expected.size()), 0}));
    EXPECT_EQ(file.size(), 1024 + 2 * expected.size());
}

// Few documents: each side gets at least one, by the seed alone.
TEST_F(DataBuildTest, SmallFilesCanBeSplit) {
    int index = 0;
    for (const int documents : {2, 3, 5, 21})
        for (const double fraction : {0.000001, 0.1, 0.5, 0.99})
            for (const uint64_t seed : {0u, 1u, 2u, 3u}) {
                std::string lines;
                for (int i = 0; i < documents; ++i) lines += fmt::format("{{\"text\": \"document {}\"}}\n", i);
                DataBuildOptions options{.inputs = {write("few.jsonl", lines)}, .validation = fraction, .seed = seed};
                options.out = dir / fmt::format("few{}", index++);
                ASSERT_TRUE(build(options).ok());
                const auto made = read_data_manifest(options.out);
                EXPECT_GE(made->train.documents(), 1);
                EXPECT_GE(made->validation.documents(), 1);
                EXPECT_EQ(made->train.documents() + made->validation.documents(), documents);
                EXPECT_EQ(made->train.tokens(), std::ssize(all_of(options.out).ids));
                options.out = dir / fmt::format("few{}", index++);
                ASSERT_TRUE(build(options, 3).ok());
                EXPECT_EQ(files_of(options.out), files_of(dir / fmt::format("few{}", index - 2)));
            }
}

TEST_F(DataBuildTest, TheBytesDoNotDependOnThreadsOrPacking) {
    std::string lines;
    for (int i = 0; i < 9000; ++i) lines += fmt::format("{{\"text\": \"line {} of many, {}\"}}\n", i, i * i);
    const auto plain = write("a.jsonl", lines), packed = write("b.jsonl.gz", test::gzipped(lines));
    DataBuildOptions options{.validation = 0.1, .shard_tokens = 40'000};
    std::optional<std::map<std::string, std::string>> first;
    for (const int threads : {1, 2, 5}) {
        options.inputs = {plain};
        options.out = dir / fmt::format("out{}", threads);
        ASSERT_TRUE(build(options, threads).ok());
        const auto files = files_of(options.out);
        if (!first) first = files;
        EXPECT_TRUE(files == *first) << threads;
    }
    EXPECT_GT(first->size(), 9u) << "several shards";
    options.inputs = {packed};
    options.out = dir / "packed";
    ASSERT_TRUE(build(options).ok());
    auto files = files_of(options.out);
    EXPECT_EQ(files.erase("data.json"), 1u);  // contains the path of the source
    first->erase("data.json");
    EXPECT_TRUE(files == *first);
    const auto validation = read_data_manifest(options.out)->validation;
    EXPECT_GT(validation.documents(), 700);
    EXPECT_LT(validation.documents(), 1100);
}

TEST_F(DataBuildTest, TheLossCoversTheTextOfTheAssistant) {
    const auto path = write("a.jsonl", R"({"messages": [{"role": "user", "content": "hi <mask>"},
        {"role": "assistant", "content": "hello, you  "}, {"role": "user", "content": "bye"},
        {"role": "assistant", "content": "see you"}]})"
                                       "\n");
    std::string text = test::read_file(path);
    std::erase(text, '\n');
    test::write_file(path, text + "\n");
    const auto learned_text = [&](LossOn loss, const std::string& out) {
        how.loss = loss;
        const auto made = build({.inputs = {path}, .out = dir / out});
        EXPECT_TRUE(made.ok()) << made.error().message();
        const auto slice = all_of(dir / out);
        std::vector<TokenId> learned;
        for (size_t i = 0; i < slice.ids.size(); ++i)
            if (slice.learned[i]) learned.push_back(slice.ids[i]);
        EXPECT_EQ(made->train.learned(), static_cast<int64_t>(learned.size()));
        EXPECT_EQ(std::ranges::count(slice.ids, end_token), 4)
            << "one a message, which takes white space off; the user's stays text";
        return tokenizer->decode(learned);
    };
    EXPECT_EQ(learned_text(LossOn::assistant, "a"), "hello, you<mask>see you<mask>");
    EXPECT_EQ(learned_text(LossOn::last, "b"), "see you<mask>");
    EXPECT_EQ(learned_text(LossOn::all, "c"),
              "<s>user\nhi <mask><mask><s>assistant\nhello, you<mask><s>user\nbye<mask><s>assistant\nsee you<mask>");
}

// Like Phi-3's <|assistant|>, which absorbs the line end that follows it.
TEST_F(DataBuildTest, TheFirstTokenAfterAControlTokenThatStripsWhiteSpaceIsLearned) {
    const auto path = write("a.jsonl", R"({"messages": [{"role": "user", "content": "a"}, )"
                                       R"({"role": "assistant", "content": "hello"}, )"
                                       R"({"role": "user", "content": "b"}, {"role": "assistant", "content": ""}]})");
    auto headed = ChatTemplate::parse(
        "{% for m in messages %}{{ m.role }}<tool>\n{{ m.content }}<mask>{% endfor %}"
        "{% if add_generation_prompt %}assistant<tool>\n{% endif %}");
    ASSERT_TRUE(headed.ok());
    how.chat = &*headed;
    const auto made = build({.inputs = {path}, .out = dir / "out"});
    ASSERT_TRUE(made.ok()) << made.error().message();
    const auto slice = all_of(dir / "out");
    std::vector<TokenId> learned;
    for (size_t i = 0; i < slice.ids.size(); ++i)
        if (slice.learned[i]) learned.push_back(slice.ids[i]);
    EXPECT_EQ(tokenizer->decode(learned), "hello<mask><mask>");
}

TEST_F(DataBuildTest, ATemplateThatRewritesThePastIsRefusedUnlessOnlyTheEndIsLearned) {
    const auto path = write("a.jsonl",
                            R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"},
 {"role": "user", "content": "c"}, {"role": "assistant", "content": "d"}]})");
    std::string text = test::read_file(path);
    std::erase(text, '\n');
    test::write_file(path, text);
    auto rewriting = ChatTemplate::parse(
        "{% for m in messages %}<s>{{ m.role }}:{% if m.role == 'assistant' and loop.last %}(thought){% endif %}"
        "{{ m.content }}{% endfor %}{% if add_generation_prompt %}<s>assistant:{% endif %}");
    ASSERT_TRUE(rewriting.ok());
    how.chat = &*rewriting;
    const auto refused = build({.inputs = {path}, .out = dir / "out"});
    ASSERT_FALSE(refused.ok());
    EXPECT_NE(refused.error().message().find("a.jsonl: line 1: the chat template renders"), std::string::npos)
        << refused.error().message();
    how.loss = LossOn::last;
    ASSERT_TRUE(build({.inputs = {path}, .out = dir / "out"}).ok());
    const auto slice = all_of(dir / "out");
    EXPECT_EQ(std::ranges::count(slice.learned, true), std::ssize(*tokenizer->encode("(thought)d")));
}

TEST_F(DataBuildTest, SeparatorsCutPlainTextsAndTailsAreForValidation) {
    const std::string text = "first part of it|second part|  |last", long_piece(3'000'000, 'x');
    const auto made = build({.inputs = {write("a.txt", text)}, .out = dir / "a", .separator = "|"});
    ASSERT_TRUE(made.ok());
    EXPECT_EQ(made->train.documents(), 3) << "a blank one is left out";
    // Pieces that span several reads of the compressed text.
    const auto packed = write("b.txt.gz", test::gzipped(long_piece + "||" + long_piece + "||y"));
    const auto split = build({.inputs = {packed}, .out = dir / "b", .separator = "||"});
    ASSERT_TRUE(split.ok()) << split.error().message();
    EXPECT_EQ(split->train.documents(), 3);
    const auto tails = build(
        {.inputs = {write("c.txt", text)}, .out = dir / "c", .validation = 0.25, .validation_by = ValidationBy::tails});
    ASSERT_TRUE(tails.ok());
    auto both = all_of(dir / "c").ids;
    const auto validation = all_of(dir / "c", true).ids;
    EXPECT_NEAR(double(validation.size()), 0.25 * double(both.size() + validation.size()), 1);
    both.insert(both.end(), validation.begin(), validation.end());
    EXPECT_EQ(both, encoded(text));
}

TEST_F(DataBuildTest, AByteOrderMarkIsSkipped) {
    const std::string mark = "\xEF\xBB\xBF", text = "first|second", line = "{\"text\": \"first\"}\n";
    const std::vector<std::pair<std::string, std::string>> plain{{"a.txt", text}, {"b.jsonl", line}};
    for (const auto& [name, content] : plain) {
        ASSERT_TRUE(build({.inputs = {write(name, content)}, .out = dir / (name + "-plain"), .separator = "|"}).ok());
        const auto wanted = all_of(dir / (name + "-plain")).ids;
        const std::vector<std::pair<std::string, std::string>> marked{
            {"m" + name, mark + content}, {"m" + name + ".gz", test::gzipped(mark + content)}};
        for (const auto& [other, bytes] : marked) {
            const auto made =
                build({.inputs = {write(other, bytes)}, .out = dir / (other + "-made"), .separator = "|"});
            ASSERT_TRUE(made.ok()) << made.error().message();
            EXPECT_EQ(all_of(dir / (other + "-made")).ids, wanted) << other;
        }
    }
    // A mark is removed only at the beginning of a file; elsewhere it is a character.
    ASSERT_TRUE(build({.inputs = {write("c.txt", text + mark)}, .out = dir / "c", .separator = "|"}).ok());
    EXPECT_GT(all_of(dir / "c").ids.size(), all_of(dir / "a.txt-plain").ids.size());
    const auto nothing = build({.inputs = {write("d.txt", mark)}, .out = dir / "d"});
    ASSERT_FALSE(nothing.ok());
    EXPECT_EQ(nothing.error().message().substr(0, 19), "no tokens to train ");
}

// The end of a conversation is the part that is learned.
TEST_F(DataBuildTest, TailsOfChatsAreRefusedForValidation) {
    const auto path = write("chat.jsonl", R"({"messages": [{"role": "user", "content": "a b"},)"
                                          R"( {"role": "assistant", "content": "c d"}]})"
                                          "\n");
    DataBuildOptions options{
        .inputs = {path}, .out = dir / "out", .validation = 0.25, .validation_by = ValidationBy::tails};
    const auto refused = build(options);
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.error().message(), path.string() +
                                             ": line 1: --val-by tails would move the answers of chats to validation; "
                                             "use whole chats (--val-by documents), or learn all tokens (--loss all)");
    EXPECT_FALSE(fs::exists(dir / "out"));
    how.loss = LossOn::all;
    const auto all = build(options);
    ASSERT_TRUE(all.ok()) << all.error().message();
    EXPECT_GT(all->validation.tokens(), 0);
}

TEST_F(DataBuildTest, LongDocumentsAreCutAtShards) {
    const std::string text(1000, 'q');
    const auto made = build({.inputs = {write("a.txt", text)}, .out = dir / "a", .shard_tokens = 300});
    ASSERT_TRUE(made.ok());
    ASSERT_EQ(made->train.shards.size(), (encoded(text).size() + 299) / 300);
    EXPECT_EQ(made->train.shards[0].tokens, 300);
    EXPECT_EQ(all_of(dir / "a").ids, encoded(text));
}

TEST_F(DataBuildTest, AFailureLeavesNothingAndNamesThePlace) {
    const auto fails = [&](const fs::path& input, DataBuildOptions options = {}) {
        options.inputs = {input};
        options.out = dir / "out";
        const auto made = build(options);
        EXPECT_FALSE(made.ok());
        EXPECT_FALSE(fs::exists(dir / "out") || fs::exists(dir / "out.partial")) << input;
        return made.ok() ? std::string() : made.error().message();
    };
    const auto ends = [&](const fs::path& input, std::string_view end) {
        const std::string message = fails(input);
        EXPECT_TRUE(message.starts_with(input.string()) && message.ends_with(end)) << message;
    };
    ends(write("a.jsonl", "{\"text\": \"x\"}\n{\"txt\": \"y\"}\n"),
         ": line 2: has the keys txt; a row has 'text', 'messages', 'conversations', 'prompt' and 'completion', "
         "'instruction' and 'output', or 'question' and 'answer'");
    ends(write("a.jsonl", "{\"text\": \"x\", \"messages\": []}\n"), ": line 1: has both 'text' and 'messages'");
    ends(write("b.jsonl", "{\"text\": \"x\"}\n{\"text\": \"y\""), "");
    ends(write("c.txt", "abc\xff"), ": byte 3 is not UTF-8");
    ends(write("d.txt", ""), ": is empty");
    ends(write("e.jsonl.gz", test::gzipped("{\"text\": \"x\"}\n").substr(0, 20)), "");
    ends(dir / "none", ": no such file or folder");
    ends(write("f.parquet", "PAR1abc"), "");
    ends(write("g.txt.gz", "no gzip"), ": is not a gzip file, or is damaged: incorrect header check");
    how.chat = nullptr;
    ends(write("g.jsonl", R"({"messages": [{"role": "user", "content": "a"}]})"),
         ": line 1: 'messages' need a chat template, and the tokenizer's folder has none");
    EXPECT_NE(fails(write("h.txt", "one document"), {.validation = 0.000001}).find("--val-by tails"),
              std::string::npos);
    EXPECT_NE(fails(write("h.txt", "one document"), {.validation = 0.99}).find("needs two documents"),
              std::string::npos);
    EXPECT_NE(fails(write("h.txt", "one document"), {.validation = 0.000001, .validation_by = ValidationBy::tails})
                  .find("too short for --val 1e-06; give a larger fraction"),
              std::string::npos);
    const auto good = write("i.txt", "text");
    ASSERT_TRUE(build({.inputs = {good}, .out = dir / "there"}).ok());
    const auto again = build({.inputs = {good}, .out = dir / "there"});
    ASSERT_FALSE(again.ok());
    EXPECT_NE(again.error().message().find("exists already"), std::string::npos);
}

TEST_F(DataBuildTest, FilesThatDifferFromTheListAreNamed) {
    ASSERT_TRUE(build({.inputs = {write("a.txt", "some text to be cut")}, .out = dir / "a"}).ok());
    const auto manifest = read_data_manifest(dir / "a");
    ASSERT_TRUE(manifest.ok());
    const fs::path shard = dir / "a" / "train_000000.bin", docs = dir / "a" / "train_000000.docs";
    const std::string whole = test::read_file(shard);
    const auto message = [&]() -> std::string {
        const auto set = TokenSet::open(dir / "a", *manifest, false);
        if (!set.ok()) return set.error().message();
        const Status checked = set->check_contents();
        return checked.ok() ? "" : checked.error().message();
    };
    EXPECT_EQ(message(), "");
    for (const size_t size : {size_t(0), size_t(100), size_t(1024), whole.size() - 1, whole.size() - 2}) {
        test::write_file(shard, std::string_view(whole).substr(0, size));
        EXPECT_TRUE(message().starts_with(shard.string())) << size << " " << message();
    }
    EXPECT_NE(message().find("truncated"), std::string::npos);
    test::write_file(shard, whole + "xx");
    EXPECT_NE(message().find("longer"), std::string::npos) << message();
    std::string damaged = whole;
    damaged[1024 + 7] = '\x7f';  // token 3 becomes 0x7f.., beyond the vocabulary
    test::write_file(shard, damaged);
    EXPECT_NE(message().find("token 3 is 32"), std::string::npos) << message();
    EXPECT_NE(message().find("beyond the vocabulary of 272"), std::string::npos) << message();
    damaged = whole;
    damaged[1024 + 6] ^= 1;
    test::write_file(shard, damaged);
    EXPECT_NE(message().find("its tokens have changed"), std::string::npos) << message();
    test::write_file(shard, whole);
    test::write_file(docs, std::string("\1\0\0\0\0\0\0\0", 8));
    EXPECT_NE(message().find("out of order"), std::string::npos) << message();
}

TEST(TokenShardFile, WideVocabulariesHaveTheirOwnVersion) {
    test::TempDir dir;
    const std::vector<TokenId> ids{0, 65535, 65536, 151'935};
    auto writer = TokenShardWriter::create(dir / "a.bin", token_width(151'936));
    ASSERT_TRUE(writer.ok());
    ASSERT_TRUE(writer->add(ids).ok());
    const auto hash = writer->finish();
    ASSERT_TRUE(hash.ok());
    const auto shard = TokenShard::open(dir / "a.bin");
    ASSERT_TRUE(shard.ok()) << shard.error().message();
    std::vector<TokenId> back(4);
    ASSERT_TRUE(shard->read(0, back, 151'936).ok());
    EXPECT_EQ(back, ids);
    EXPECT_EQ(shard->hash(), *hash);
    EXPECT_FALSE(shard->read(0, back, 151'935).ok());
    auto narrow = TokenShardWriter::create(dir / "b.bin", token_width(65536));
    ASSERT_TRUE(narrow.ok());
    EXPECT_FALSE(narrow->add(ids).ok());
    // Version 1 cannot store a count of 2^31. An older reader refuses version 2 by its number.
    std::string file = test::read_file(dir / "a.bin");
    EXPECT_EQ(file[4], 2);
    file[4] = 3;
    test::write_file(dir / "a.bin", file);
    EXPECT_FALSE(TokenShard::open(dir / "a.bin").ok());
}

TEST(DataManifestFile, NamesOfShardsStayInTheFolder) {
    DataManifest manifest{.vocab = 10, .validation_by = "none"};
    manifest.train.shards.push_back({.name = "train_000000", .tokens = 4, .documents = 1, .learned = 4});
    Json json = to_json(manifest);
    ASSERT_TRUE(data_manifest_from_json(json).ok());
    json["train"][0]["name"] = "../secret";
    const auto read = data_manifest_from_json(json);
    ASSERT_FALSE(read.ok());
    EXPECT_NE(read.error().message().find("not a valid name of a shard"), std::string::npos);
}

// numpy reads the shards, and tokenizers encodes the text to the same ids.
TEST(DataOracle, PythonReadsTheShardsAndEncodesTheSame) {
    const auto* set = std::getenv("NIBBLE_PYTHON");
    const fs::path local = fs::path(NIBBLE_SOURCE_DIR) / ".venv/bin/python";
    const std::string python = set ? set : fs::exists(local) ? local.string() : "";
    if (python.empty() || std::system(fmt::format("'{}' -c 'import numpy, tokenizers' 2>/dev/null", python).c_str()))
        GTEST_SKIP() << "no Python with numpy and tokenizers (set NIBBLE_PYTHON, or make .venv)";
    test::TempDir dir;
    EXPECT_EQ(std::system(fmt::format("'{}' '{}/tests/oracles/data_shards.py' '{}' '{}'", python, NIBBLE_SOURCE_DIR,
                                      NIBBLE_PROGRAM, dir.path().string())
                              .c_str()),
              0);
}

}  // namespace
}  // namespace nibble

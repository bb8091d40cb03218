#include "checkpoint/gguf_tokenizer.h"

#include "base/json.h"
#include "checkpoint/gguf_pretokenizers.h"
#include "io/gguf.h"
#include "support/files.h"

#include <gtest/gtest.h>

#include <cstdlib>

namespace nibble {
namespace {

namespace fs = std::filesystem;

struct Vocabulary {
    std::vector<std::string_view> tokens, merges;
    std::vector<int32_t> types;
    std::vector<float> scores;

    // Returns a view, so the vocabulary must outlive the result.
    GgufMetadata metadata(std::string_view model, std::string_view pre) && = delete;
    GgufMetadata metadata(std::string_view model, std::string_view pre) const& {
        GgufMetadata m;
        m.add("tokenizer.ggml.model", std::string(model));
        if (!pre.empty()) m.add("tokenizer.ggml.pre", std::string(pre));
        m.add("tokenizer.ggml.tokens", GgufArray::of(tokens));
        if (!types.empty()) m.add("tokenizer.ggml.token_type", GgufArray::of(std::span<const int32_t>(types)));
        if (!scores.empty()) m.add("tokenizer.ggml.scores", GgufArray::of(std::span<const float>(scores)));
        if (model == "gpt2") m.add("tokenizer.ggml.merges", GgufArray::of(merges));
        return m;
    }
};

// "<s>" is a control token, "<think>" user-defined, the last one padding.
const Vocabulary& bpe() {
    static const Vocabulary vocabulary = {.tokens = {"a", "b", "ab", "\xC4\xA0",
                                                     "\xC4\xA0"
                                                     "ab",
                                                     "<s>", "</s>", "<think>", "[PAD8]"},
                                          .merges = {"a b", "\xC4\xA0 ab"},
                                          .types = {1, 1, 1, 1, 1, 3, 3, 4, 5}};
    return vocabulary;
}

Json tokenizer_json(const GgufMetadata& metadata) {
    const auto made = gguf_tokenizer(metadata);
    EXPECT_TRUE(made.ok()) << made.error().message();
    if (!made.ok() || !*made) return {};
    const auto json = parse_json((*made)->tokenizer_json);
    EXPECT_TRUE(json.ok()) << json.error().message();
    return json.ok() ? *json : Json();
}

std::string error_of(const GgufMetadata& metadata) {
    const auto made = gguf_tokenizer(metadata);
    return made.ok() ? "" : made.error().message();
}
#define EXPECT_METADATA_REFUSED(metadata, part) \
    EXPECT_NE(error_of(metadata).find(part), std::string::npos) << error_of(metadata)

TEST(GgufTokenizer, ByteLevelVocabularyMergesAndAddedTokensAreCopiedWithoutPadding) {
    const Json json = tokenizer_json(bpe().metadata("gpt2", "gpt-2"));
    EXPECT_EQ(json["model"]["vocab"].size(), 8u);
    EXPECT_EQ(json["model"]["vocab"]["\xC4\xA0"
                                     "ab"],
              4);
    EXPECT_EQ(json["model"]["merges"], Json::parse("[[\"a\",\"b\"],[\"\xC4\xA0\",\"ab\"]]"));
    ASSERT_EQ(json["added_tokens"].size(), 3u);
    EXPECT_EQ(json["added_tokens"][0]["content"], "<s>");
    EXPECT_EQ(json["added_tokens"][0]["special"], true);
    EXPECT_EQ(json["added_tokens"][2]["id"], 7);
    EXPECT_EQ(json["added_tokens"][2]["special"], false);
    EXPECT_EQ(json["pre_tokenizer"]["type"], "ByteLevel");
    EXPECT_EQ(json["model"]["ignore_merges"], false);
    EXPECT_TRUE(json["normalizer"].is_null());
}

TEST(GgufTokenizer, BosIsAddedIfTheFileOrThePreTokenizerRequiresIt) {
    GgufMetadata m = bpe().metadata("gpt2", "llama-bpe");  // BOS is added by default
    EXPECT_METADATA_REFUSED(m, "adds a bos token, but names none");
    m.add("tokenizer.ggml.bos_token_id", uint32_t{5});
    m.add("tokenizer.ggml.eos_token_id", uint32_t{6});
    const Json json = tokenizer_json(m);
    EXPECT_EQ(json["model"]["ignore_merges"], true);
    EXPECT_EQ(json["post_processor"]["processors"][1]["single"],
              Json::parse(R"([{"SpecialToken":{"id":"<s>","type_id":0}},{"Sequence":{"id":"A","type_id":0}}])"));
    EXPECT_EQ(json["post_processor"]["processors"][1]["special_tokens"]["<s>"]["ids"], Json::parse("[5]"));
    m.add("tokenizer.ggml.add_bos_token", false);
    EXPECT_EQ(tokenizer_json(m)["post_processor"]["type"], "ByteLevel");
}

TEST(GgufTokenizer, AnUnknownPreTokenizerIsNamedAndCanBeReplaced) {
    const GgufMetadata m = bpe().metadata("gpt2", "martian");
    EXPECT_METADATA_REFUSED(m, "'martian'");
    EXPECT_TRUE(gguf_tokenizer(m, "qwen2").ok());
    EXPECT_METADATA_REFUSED(bpe().metadata("gpt2", ""), "'tokenizer.ggml.pre'");
    EXPECT_FALSE(gguf_pre_tokenizer("").ok());
    EXPECT_FALSE(gguf_pre_tokenizer("llama-bpe llama3").ok());
    for (const char* id :
         {"gpt-2", "default", "smollm", "llama-bpe", "qwen2", "tekken", "gpt-4o", "deepseek-coder", "deepseek-v3"})
        EXPECT_TRUE(gguf_pre_tokenizer(id).ok()) << id;
}

TEST(GgufTokenizer, BrokenVocabulariesAreRefused) {
    Vocabulary v = bpe();
    v.tokens[1] = "a";
    EXPECT_METADATA_REFUSED(v.metadata("gpt2", "gpt-2"), "tokens 0 and 1 are the same: 'a'");
    for (const char* bad : {"\xFF", "\xC0\x80", "\xED\xA0\x80", "\xF4\x90\x80\x80", "\xE2\x82", "a\x80"}) {
        v = bpe();
        v.tokens[0] = bad;
        EXPECT_METADATA_REFUSED(v.metadata("gpt2", "gpt-2"), "token 0 is not UTF-8");
    }
    for (const char* merge : {"a", "a c", "b a", " a", "a "}) {
        v = bpe();
        v.merges[1] = merge;
        EXPECT_METADATA_REFUSED(v.metadata("gpt2", "gpt-2"), "merges[1]");
    }
    v = bpe();
    v.types.pop_back();
    EXPECT_METADATA_REFUSED(v.metadata("gpt2", "gpt-2"), "8 entries for 9 tokens");
    GgufMetadata m = bpe().metadata("gpt2", "gpt-2");
    m.add("tokenizer.ggml.bos_token_id", uint32_t{9});
    EXPECT_METADATA_REFUSED(m, "'tokenizer.ggml.bos_token_id' is 9");
    EXPECT_METADATA_REFUSED(bpe().metadata("wordpiece", "x"), "'wordpiece' is not supported");
}

TEST(GgufTokenizer, AFileWithoutATokenizerHasNone) {
    const auto made = gguf_tokenizer(GgufMetadata());
    ASSERT_TRUE(made.ok());
    EXPECT_FALSE(made->has_value());
}

// "abc" can be "ab"+"c" or "a"+"bc": the longer left part comes first. "bc" and "ab" have equal scores, so the order of
// the file decides.
TEST(GgufTokenizer, SentencePieceMergesFollowScoresThenLengthsThenIds) {
    const Vocabulary v{.tokens = {"<unk>", "a", "b", "c", "bc", "ab", "abc", "\xC3\xA9",
                                  "\xC3\xA9"
                                  "a"},
                       .types = {2, 1, 1, 1, 1, 1, 1, 1, 1},
                       .scores = {0, -10, -11, -12, -2, -2, -3, -13, -1}};
    const Json json = tokenizer_json([&] {
        GgufMetadata m = v.metadata("llama", "");
        m.add("tokenizer.ggml.add_bos_token", false);
        m.add("tokenizer.ggml.unknown_token_id", uint32_t{0});
        return m;
    }());
    EXPECT_EQ(json["model"]["merges"],
              Json::parse("[[\"\xC3\xA9\",\"a\"],[\"b\",\"c\"],[\"a\",\"b\"],[\"ab\",\"c\"],[\"a\",\"bc\"]]"));
    EXPECT_EQ(json["model"]["unk_token"], "<unk>");
    EXPECT_EQ(json["model"]["byte_fallback"], false) << "no byte tokens";
    EXPECT_EQ(json["normalizer"]["normalizers"][0]["prepend"], "\xE2\x96\x81");
}

TEST(GgufTokenizer, ChatTemplatesAreCopiedToTheTokenizerConfig) {
    GgufMetadata m = bpe().metadata("gpt2", "gpt-2");
    m.add("tokenizer.chat_template", std::string("{{ messages }}"));
    EXPECT_EQ(Json::parse((*gguf_tokenizer(m))->tokenizer_config_json)["chat_template"], "{{ messages }}");
    const std::vector<std::string_view> names{"tool_use"};
    m.add("tokenizer.chat_templates", GgufArray::of(names));
    EXPECT_METADATA_REFUSED(m, "tokenizer.chat_template.tool_use");
    m.add("tokenizer.chat_template.tool_use", std::string("{{ tools }}"));
    EXPECT_EQ(Json::parse((*gguf_tokenizer(m))->tokenizer_config_json)["chat_template"],
              Json::parse(
                  R"([{"name":"default","template":"{{ messages }}"},{"name":"tool_use","template":"{{ tools }}"}])"));
}

// ---- Compared with Hugging Face's tokenizers library ---------------------------------------------------------------

std::string python() {
    if (const char* set = std::getenv("NIBBLE_PYTHON")) return set;
    const fs::path local = fs::path(NIBBLE_SOURCE_DIR) / ".venv/bin/python";
    return fs::exists(local) ? local.string() : "";
}

// The oracle writes GGUF files with the golden vocabularies (gguf-py), nibble converts them, and the oracle encodes and
// decodes every golden text with the result.
TEST(GgufTokenizerOracle, ConvertedTokenizersEncodeEveryGoldenTextEqually) {
    const std::filesystem::path root = test::test_data("golden/tokenizers");
    const std::string interpreter = python();
    if (interpreter.empty()) GTEST_SKIP() << "no Python (set NIBBLE_PYTHON, or make .venv with gguf, tokenizers)";
    if (std::system(fmt::format("'{}' -c 'import gguf, tokenizers' 2>/dev/null", interpreter).c_str()) != 0)
        GTEST_SKIP() << interpreter << " lacks gguf or tokenizers";
    test::TempDir dir;
    const std::string oracle =
        fmt::format("'{}' '{}/tests/oracles/gguf_tokenizer_oracle.py'", interpreter, NIBBLE_SOURCE_DIR);
    const auto run = [&](const char* step) {
        return std::system(fmt::format("{} {} '{}' '{}'", oracle, step, dir.path().string(), root.string()).c_str());
    };
    ASSERT_EQ(run("make"), 0);
    int converted = 0;
    for (const auto& entry : fs::directory_iterator(dir.path())) {
        if (entry.path().extension() != ".gguf") continue;
        const auto file = GgufFile::open(entry.path());
        ASSERT_TRUE(file.ok()) << file.error().message();
        const auto made = gguf_tokenizer(file->metadata());
        ASSERT_TRUE(made.ok() && *made) << made.error().message();
        fs::path json = entry.path();
        test::write_file(json.replace_extension(".json"), (*made)->tokenizer_json);
        ++converted;
    }
    EXPECT_GE(converted, 2);
    EXPECT_EQ(run("check"), 0);
}

}  // namespace
}  // namespace nibble

// Writes tokenizers to GGUF; the importer's tokenizer.json must equal the original.
#include "checkpoint/gguf_header.h"
#include "checkpoint/gguf_known_tokenizers.h"
#include "checkpoint/gguf_pretokenizers.h"
#include "checkpoint/gguf_tokenizer.h"
#include "checkpoint/tokenizer_file.h"
#include "folders.h"
#include "text/gzip.h"

#include <cstring>

namespace nibble::test {
namespace {

struct Vocabulary {
    std::vector<std::string_view> tokens, merges;
    std::vector<int32_t> types;
    std::vector<float> scores;
};

GgufMetadata metadata_of(const Vocabulary& v, std::string_view pre) {
    GgufMetadata m;
    m.add("tokenizer.ggml.model", std::string(v.scores.empty() ? "gpt2" : "llama"));
    m.add("tokenizer.ggml.pre", std::string(pre));
    m.add("tokenizer.ggml.tokens", GgufArray::of(v.tokens));
    m.add("tokenizer.ggml.token_type", GgufArray::of(std::span<const int32_t>(v.types)));
    if (v.scores.empty())
        m.add("tokenizer.ggml.merges", GgufArray::of(v.merges));
    else
        m.add("tokenizer.ggml.scores", GgufArray::of(std::span<const float>(v.scores)));
    return m;
}

ExportSpec spec_with(std::string tokenizer, std::string config = "{}") {
    ExportSpec spec;
    spec.config = Json::object();
    spec.side_files = {{"tokenizer.json", {}, std::move(tokenizer)}, {"tokenizer_config.json", {}, std::move(config)}};
    return spec;
}

GgufHeader written(const ExportSpec& spec, int64_t vocabulary) {
    GgufHeader header;
    check(add_gguf_tokenizer(spec, vocabulary, header));
    return header;
}

std::vector<std::string_view> strings(const GgufMetadata& m, std::string_view key) { return *value_of(m.strings(key)); }

TEST(GgufWriteTokenizer, ByteLevelVocabulariesAreRestoredUnchanged) {
    const Vocabulary v{.tokens = {"a", "b", "ab", "\u0120", "\u0120ab", "<s>", "</s>", "<think>", "[PAD8]"},
                       .merges = {"a b", "\u0120 ab"},
                       .types = {1, 1, 1, 1, 1, 3, 3, 4, 5},
                       .scores = {}};
    GgufMetadata before = metadata_of(v, "smollm");
    before.add("tokenizer.ggml.bos_token_id", uint32_t{5});
    before.add("tokenizer.ggml.eos_token_id", uint32_t{6});
    before.add("tokenizer.ggml.add_bos_token", true);
    before.add("tokenizer.ggml.add_eos_token", true);
    before.add("tokenizer.chat_template", std::string("{{ messages }}"));
    const auto made = value_of(gguf_tokenizer(before));
    const GgufHeader after = written(spec_with(made->tokenizer_json, made->tokenizer_config_json), 9);
    const GgufMetadata& m = after.metadata;
    EXPECT_EQ(value_of(m.string("tokenizer.ggml.model")), "gpt2");
    EXPECT_EQ(value_of(m.string("tokenizer.ggml.pre")), "smollm");
    EXPECT_EQ(strings(m, "tokenizer.ggml.tokens"), v.tokens);
    EXPECT_EQ(strings(m, "tokenizer.ggml.merges"), v.merges);
    EXPECT_EQ(value_of(m.integers("tokenizer.ggml.token_type")), (std::vector<int64_t>{1, 1, 1, 1, 1, 3, 3, 4, 5}));
    EXPECT_EQ(value_of(m.integer("tokenizer.ggml.bos_token_id")), 5);
    EXPECT_EQ(value_of(m.integer("tokenizer.ggml.eos_token_id")), 6);
    EXPECT_TRUE(value_of(m.boolean("tokenizer.ggml.add_bos_token")));
    EXPECT_TRUE(value_of(m.boolean("tokenizer.ggml.add_eos_token")));
    EXPECT_EQ(value_of(m.string("tokenizer.chat_template")), "{{ messages }}");
}

TEST(GgufWriteTokenizer, EveryKnownPreTokenizerIsRecognized) {
    for (const char* id : {"gpt-2", "smollm", "command-r", "llama-bpe", "dbrx", "qwen2", "tekken", "gpt-4o",
                           "deepseek-coder", "deepseek-v3"}) {
        const auto p = value_of(gguf_pre_tokenizer(id));
        const std::string found = value_of(gguf_pre_tokenizer_id(p.normalizer, p.pre_tokenizer, p.ignore_merges));
        // command-r splits text as smollm does, and llama.cpp uses the same expressions for both
        EXPECT_EQ(found, std::string_view(id) == "command-r" ? "smollm" : id);
    }
}

TEST(GgufWriteTokenizer, AnUnknownPreTokenizerIsAnError) {
    const Json bytes = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", true}};
    EXPECT_EQ(value_of(gguf_pre_tokenizer_id(Json(), bytes, false)), "gpt-2");
    Json prefix = bytes;
    prefix["add_prefix_space"] = true;
    const Json split = {{"type", "Split"}, {"pattern", {{"Regex", "x+"}}}, {"behavior", "Isolated"}, {"invert", false}};
    const Json sequence = {{"type", "Sequence"}, {"pretokenizers", {split, bytes}}};
    for (const Json& bad : {prefix, sequence, Json(), Json{{"type", "Whitespace"}}, Json("ByteLevel")})
        EXPECT_NE(message_of(gguf_pre_tokenizer_id(Json(), bad, false)).find("pre-tokenizer"), std::string::npos);
    EXPECT_FALSE(gguf_pre_tokenizer_id(Json(), bytes, true).ok()) << "ignore_merges changes the tokens";
    EXPECT_NE(message_of(gguf_pre_tokenizer_id(Json{{"type", "Lowercase"}}, bytes, false)).find("normalizer"),
              std::string::npos);
}

TEST(GgufWriteTokenizer, ScoresOfSentencePieceLeadToTheSameMerges) {
    std::vector<std::string> bytes;
    for (int b = 0; b < 256; ++b) bytes.push_back(fmt::format("<0x{:02X}>", b));
    Vocabulary v{.tokens = {"<unk>", "<s>", "</s>"}, .merges = {}, .types = {2, 3, 3}, .scores = {0, 0, 0}};
    for (const std::string& b : bytes) {
        v.tokens.push_back(b);
        v.types.push_back(6);
        v.scores.push_back(0);
    }
    float score = 0;
    for (const char* piece : {"\u2581", "a", "b", "c", "ab", "bc", "abc", "\u2581ab", "\u2581abc", "ca", "cab"}) {
        v.tokens.push_back(piece);
        v.types.push_back(1);
        v.scores.push_back(score--);
    }
    GgufMetadata before = metadata_of(v, "default");
    before.add("tokenizer.ggml.unknown_token_id", uint32_t{0});
    before.add("tokenizer.ggml.bos_token_id", uint32_t{1});
    const auto made = value_of(gguf_tokenizer(before));
    const int64_t size = static_cast<int64_t>(v.tokens.size());
    const GgufHeader after = written(spec_with(made->tokenizer_json, made->tokenizer_config_json), size);
    EXPECT_EQ(value_of(after.metadata.string("tokenizer.ggml.model")), "llama");
    EXPECT_EQ(strings(after.metadata, "tokenizer.ggml.tokens"), v.tokens);
    EXPECT_EQ(value_of(after.metadata.integers("tokenizer.ggml.token_type")),
              std::vector<int64_t>(v.types.begin(), v.types.end()));
    EXPECT_TRUE(value_of(after.metadata.boolean("tokenizer.ggml.add_space_prefix")));
    EXPECT_EQ(value_of(gguf_tokenizer(after.metadata))->tokenizer_json, made->tokenizer_json);
}

// Returns the bytes of a sentencepiece ModelProto: pieces (text, score, type), model type, byte fallback.
std::string sentencepiece_model(const Vocabulary& v, int algorithm, bool byte_fallback) {
    const auto field = [](int number, const std::string& body) {
        return std::string{static_cast<char>(number << 3 | 2), static_cast<char>(body.size())} + body;
    };
    std::string model;
    for (size_t id = 0; id < v.tokens.size(); ++id) {
        std::string score(4, '\0');
        std::memcpy(score.data(), &v.scores[id], 4);
        model +=
            field(1, field(1, std::string(v.tokens[id])) + "\x15" + score + "\x18" + static_cast<char>(v.types[id]));
    }
    std::string trainer = "\x18" + std::string(1, static_cast<char>(algorithm));
    if (byte_fallback) trainer += "\x98\x02\x01";  // field 35
    return model + field(2, trainer);
}

TEST(GgufWriteTokenizer, ASentencepieceModelIsCopiedUnchanged) {
    const Vocabulary v{.tokens = {"<unk>", "<s>", "</s>", "<0x41>", "\u2581", "a", "\u2581a", "<x>"},
                       .merges = {},
                       .types = {2, 3, 3, 6, 1, 1, 1, 4},
                       .scores = {0, 0, 0, 0, -1, -2, -0.5f, 0}};
    ExportSpec spec;
    spec.config = Json::object({{"eos_token_id", 7}});
    spec.side_files = {{"tokenizer.model", {}, sentencepiece_model(v, 2, true)}};
    const GgufHeader out = written(spec, 10);
    const GgufMetadata& m = out.metadata;
    EXPECT_EQ(value_of(m.string("tokenizer.ggml.model")), "llama");
    std::vector<std::string_view> tokens = v.tokens;
    tokens.insert(tokens.end(), {"[PAD8]", "[PAD9]"});
    EXPECT_EQ(strings(m, "tokenizer.ggml.tokens"), tokens);
    EXPECT_EQ(value_of(m.integers("tokenizer.ggml.token_type")), (std::vector<int64_t>{2, 3, 3, 6, 1, 1, 1, 4, 5, 5}));
    EXPECT_EQ(value_of(m.integer("tokenizer.ggml.bos_token_id")), 1);
    EXPECT_EQ(value_of(m.integer("tokenizer.ggml.eos_token_id")), 2);  // the model's, not config.json's
    EXPECT_TRUE(value_of(m.boolean("tokenizer.ggml.add_bos_token")));
    EXPECT_TRUE(value_of(m.boolean("tokenizer.ggml.add_space_prefix")));

    const auto message = [&](const std::string& model) {
        ExportSpec other;
        other.config = Json::object();
        other.side_files = {{"tokenizer.model", {}, model}};
        GgufHeader header;
        return message_of(add_gguf_tokenizer(other, 8, header));
    };
    EXPECT_NE(message(sentencepiece_model(v, 1, true)).find("model type 1 has no GGUF writer"), std::string::npos);
    EXPECT_NE(message(sentencepiece_model(v, 2, false)).find("byte fallback"), std::string::npos);
    EXPECT_NE(message("\x0A\xFF").find("tokenizer.model"), std::string::npos);
    Vocabulary nine = v;
    nine.tokens.push_back("b"), nine.types.push_back(1), nine.scores.push_back(-3);
    EXPECT_NE(message(sentencepiece_model(nine, 2, true)).find("the embedding has 8 rows"), std::string::npos);
}

std::string refused(const std::string& tokenizer) {
    GgufHeader header;
    return message_of(add_gguf_tokenizer(spec_with(tokenizer), 4, header));
}

TEST(GgufWriteTokenizer, OtherAndBrokenTokenizersAreRefused) {
    const std::string head =
        R"({"pre_tokenizer":{"type":"ByteLevel","add_prefix_space":false,"use_regex":true},"model":{"type":"BPE",)";
    EXPECT_NE(refused(R"({"model":{"type":"Unigram","vocab":[["a",0.5],["b",[1]]]}})").find("Unigram"),
              std::string::npos);
    EXPECT_NE(refused(R"({"model":{"type":"WordPiece","vocab":{"a":0}}})").find("WordPiece"), std::string::npos);
    EXPECT_NE(refused(head + R"("vocab":{"a":4}}})").find("has id 4, but the embedding has 4 rows"), std::string::npos);
    EXPECT_NE(refused(head + R"("vocab":{"a":1,"b":1}}})").find("both have id 1"), std::string::npos);
    EXPECT_NE(refused(head + R"("vocab":{"a":-1}}})").find("negative"), std::string::npos);
    EXPECT_NE(refused(head + R"("vocab":{"a":{}}}})").find("object"), std::string::npos);
    EXPECT_NE(refused(head + R"("vocab":{},"merges":["a"]}})").find("merge 0 is not two parts"), std::string::npos);
    EXPECT_NE(refused(head + R"("vocab":{},"merges":[["a","b","c"]]}})").find("merge 0 is not two parts"),
              std::string::npos);
    EXPECT_NE(refused(head + R"("vocab":{},"merges":[[["a"]]]}})").find("array"), std::string::npos);
    EXPECT_NE(refused(head + R"("vocab":{},"vocab":{}}})").find("duplicate"), std::string::npos);
    EXPECT_NE(refused(R"({"a":1,"a":2})").find("duplicate"), std::string::npos);
    EXPECT_NE(refused("[]").find("not a JSON object"), std::string::npos);
    EXPECT_NE(refused("{").find("tokenizer.json"), std::string::npos);
    EXPECT_NE(refused(std::string(100, '[')).find("deeper"), std::string::npos);
    std::string wide = "{";
    for (int i = 0; i < 5000; ++i) wide += fmt::format("\"{}\":0,", i);
    EXPECT_NE(refused(wide + "\"x\":0}").find("over 4096 keys"), std::string::npos);
    EXPECT_NE(refused(R"({"added_tokens":[{"id":0}],"model":{}})").find("lacks 'content'"), std::string::npos);
    // "bc" before "ab" before "bc" again: no scores produce this order
    EXPECT_NE(
        refused(
            R"({"normalizer":{"type":"Replace","pattern":{"String":" "},"content":"▁"},"model":{"type":"BPE","byte_fallback":true,)"
            R"("vocab":{"a":0,"aa":1,"aaa":2},"merges":["a aa","a a","aa a"]}})")
            .find("merge 2: its order cannot be expressed"),
        std::string::npos);
}

TEST(GgufWriteTokenizer, AChatTemplateMayHaveItsOwnFileOrSeveralNames) {
    const std::string tokenizer =
        R"({"pre_tokenizer":{"type":"ByteLevel","add_prefix_space":false},"model":{"type":"BPE","vocab":{"a":0}}})";
    ExportSpec spec = spec_with(tokenizer);
    spec.side_files.push_back({"chat_template.jinja", {}, "x"});
    EXPECT_EQ(value_of(written(spec, 1).metadata.string("tokenizer.chat_template")), "x");
    const GgufHeader named = written(
        spec_with(tokenizer, R"({"chat_template":[{"name":"default","template":"d"},{"name":"rag","template":"r"}]})"),
        1);
    EXPECT_EQ(value_of(named.metadata.string("tokenizer.chat_template")), "d");
    EXPECT_EQ(value_of(named.metadata.string("tokenizer.chat_template.rag")), "r");
    EXPECT_EQ(strings(named.metadata, "tokenizer.chat_templates"), std::vector<std::string_view>{"rag"});
}

// llama.cpp's converter writes "smollm" for SmolLM2's tokenizer, which has GPT-2's pre-tokenizer, and "qwen2" for
// Qwen3's.
TEST(GgufWriteTokenizer, PublishedTokenizersGetTheNamesOfLlamaCpp) {
    for (const auto& [folder, name] : {std::pair{"smollm2", "smollm"}, {"qwen3", "qwen2"}}) {
        const std::string packed = read_file(test_data(fmt::format("golden/tokenizers/{}/tokenizer.json.gz", folder)));
        const std::string text = value_of(gunzip(packed, 64 << 20)).text;
        EXPECT_EQ(known_gguf_tokenizer(text), name);
        const TokenizerFile file = value_of(parse_tokenizer_file(text));
        const auto size = static_cast<int64_t>(file.vocabulary.size() + file.document["added_tokens"].size());
        EXPECT_EQ(value_of(written(spec_with(text), size).metadata.string("tokenizer.ggml.pre")), name);
    }
    EXPECT_FALSE(known_gguf_tokenizer("{}"));
    EXPECT_FALSE(known_gguf_tokenizer(R"({"model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}})"));
}

}  // namespace
}  // namespace nibble::test

// Compares ids and decoded texts with those of Hugging Face's tokenizers and sentencepiece (golden/tokenizers).
#include "base/json.h"
#include "support/files.h"
#include "text/tokenizer.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <sstream>

using namespace nibble;

namespace {

std::string unpacked(const std::filesystem::path& path) {
    std::string out;
    FILE* pipe = popen(fmt::format("gzip -dc '{}'", path.string()).c_str(), "r");
    char buffer[65536];
    for (size_t n; (n = fread(buffer, 1, sizeof buffer, pipe)) > 0;) out.append(buffer, n);
    pclose(pipe);
    return out;
}

void expect_cases(const Tokenizer& tokenizer, const std::filesystem::path& cases, bool parse_special) {
    std::istringstream lines(test::read_file(cases));
    int count = 0;
    for (std::string line; std::getline(lines, line); ++count) {
        const auto one = parse_json(line);
        ASSERT_TRUE(one.ok());
        const std::string text = (*one)["text"];
        const std::vector<TokenId> wanted = (*one)["ids"];
        const auto ids = tokenizer.encode(text, {.parse_special = parse_special});
        ASSERT_TRUE(ids.ok()) << ids.error().message();
        EXPECT_EQ(*ids, wanted) << "line " << count + 1 << ": " << text.substr(0, 200);
        EXPECT_EQ(tokenizer.decode(wanted), (*one)["decoded"].get<std::string>()) << "line " << count + 1;
        StreamDecoder stream(tokenizer);
        std::string streamed;
        for (const TokenId id : wanted) streamed += stream.push(id);
        EXPECT_EQ(streamed + stream.finish(), (*one)["decoded"].get<std::string>()) << "line " << count + 1;
        if (!one->contains("ids_with_special")) continue;
        const auto special = tokenizer.encode(text, {.add_special = true, .parse_special = parse_special});
        ASSERT_TRUE(special.ok());
        EXPECT_EQ(*special, (*one)["ids_with_special"].get<std::vector<TokenId>>()) << "line " << count + 1;
    }
    EXPECT_GT(count, 100);
}

TEST(GoldenTokenizer, Smollm2EqualsHuggingFace) {
    const std::filesystem::path root = test::test_data("golden/tokenizers");
    const auto tokenizer = Tokenizer::from_json(unpacked(root / "smollm2/tokenizer.json.gz"));
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.error().message();
    expect_cases(*tokenizer, root / "smollm2/cases.jsonl", true);
}

TEST(GoldenTokenizer, Qwen3EqualsHuggingFace) {
    const std::filesystem::path root = test::test_data("golden/tokenizers");
    const auto tokenizer = Tokenizer::from_json(unpacked(root / "qwen3/tokenizer.json.gz"));
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.error().message();
    expect_cases(*tokenizer, root / "qwen3/cases.jsonl", true);
}

TEST(GoldenTokenizer, MistralEqualsSentencepiece) {
    const std::filesystem::path root = test::test_data("golden/tokenizers");
    const auto tokenizer = Tokenizer::from_folder(root / "mistral-v1");
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.error().message();
    expect_cases(*tokenizer, root / "mistral-v1/cases.jsonl", false);
}

}  // namespace

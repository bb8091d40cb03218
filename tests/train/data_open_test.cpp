#include "train/data_open.h"
#include "data/build.h"
#include "support/files.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

namespace nibble {
namespace {

class DataFolderTest : public testing::Test {
protected:
    std::filesystem::path build(const std::string& name, const std::string& text, double validation,
                                const std::filesystem::path& tokenizer_path = test::test_data("chat")) {
        const auto tokenizer = Tokenizer::from_folder(tokenizer_path);
        EXPECT_TRUE(tokenizer.ok()) << tokenizer.error().message();
        test::write_file(dir / (name + ".txt"), text);
        const auto made = build_data({.tokenizer = &*tokenizer},
                                     {.inputs = {dir / (name + ".txt")},
                                      .out = dir / name,
                                      .validation = validation,
                                      .validation_by = ValidationBy::tails},
                                     pool);
        EXPECT_TRUE(made.ok()) << made.error().message();
        return dir / name;
    }

    ThreadPool pool{2};
    test::TempDir dir;
    const std::string text = "What is said once is said for all: a row is a window of the text, and nothing else. ";
};

TEST_F(DataFolderTest, GivesRowsOfBothSplits) {
    TrainConfig config{.sequence = 16, .data = {.folder = build("a", text + text, 0.25)}};
    auto opened = open_data_folder(config, 272);
    ASSERT_TRUE(opened.ok()) << opened.error().message();
    ASSERT_TRUE(opened->validation);
    for (auto* source : {opened->train.get(), opened->validation.get()}) {
        const auto batch = source->next(3);
        ASSERT_TRUE(batch.ok()) << batch.error().message();
        EXPECT_TRUE(check(*batch, 272).ok());
    }
    // Equal content gives an equal hash, whatever its source; other content gives another hash.
    TrainConfig other = config;
    other.data.folder = build("b", text + text, 0.25);
    EXPECT_EQ(open_data_folder(other, 272)->hash, opened->hash);
    other.data.folder = build("c", text + text + "!", 0.25);
    EXPECT_NE(open_data_folder(other, 272)->hash, opened->hash);
    other.data.folder = build("d", text + text, 0);
    EXPECT_FALSE(open_data_folder(other, 272)->validation);
    other.data.validation = config.data.folder;
    const auto both = open_data_folder(other, 272);
    ASSERT_TRUE(both.ok() && both->validation);
    EXPECT_NE(both->hash, opened->hash);
}

// Folders of earlier versions may contain conversations without an answer.
TEST_F(DataFolderTest, RefusesASplitInWhichNothingIsLearned) {
    const auto folder = build("a", text, 0.25);
    const auto manifest = read_json_file(folder / "data.json");
    ASSERT_TRUE(manifest.ok());
    for (const char* split : {"train", "validation"}) {
        Json none = *manifest;
        for (Json& shard : none[split]) shard["learned"] = 0;
        test::write_file(folder / "data.json", none.dump());
        const auto opened = open_data_folder({.sequence = 16, .data = {.folder = folder}}, 272);
        ASSERT_FALSE(opened.ok()) << split;
        EXPECT_EQ(opened.error().message(),
                  fmt::format("{}: {}: no token is a label of the loss; see --loss of 'nibble data build'",
                              folder.string(), split));
    }
}

TEST_F(DataFolderTest, RefusesWhatDoesNotFit) {
    TrainConfig config{.sequence = 16, .data = {.folder = build("a", text, 0.25)}};
    const auto message = [&](int64_t vocab = 272) {
        const auto opened = open_data_folder(config, vocab);
        EXPECT_FALSE(opened.ok());
        return opened.ok() ? std::string() : opened.error().message();
    };
    EXPECT_NE(message(271).find("vocabulary of 272, but the model has 271"), std::string::npos);
    config.sequence = 40;
    EXPECT_NE(message().find("validation: the data has"), std::string::npos) << message();
    config.sequence = 16;
    config.data.validation = build("b", text, 0, test::test_data("text") / "byte_fallback.json");
    EXPECT_NE(message(5000).find("another tokenizer"), std::string::npos) << message(5000);
    config.data = {.folder = dir / "none"};
    EXPECT_NE(message().find("nibble data build"), std::string::npos);
}

}  // namespace
}  // namespace nibble

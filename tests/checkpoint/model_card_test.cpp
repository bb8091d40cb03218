#include "checkpoint/model_card.h"

#include "support/files.h"

#include <gtest/gtest.h>

namespace nibble::test {
namespace {

ModelCard small_card() {
    return {.title = "Qwen3-8B-NVFP4",
            .base_model = "Qwen/Qwen3-8B",
            .relation = "quantized",
            .library = "Model Optimizer",
            .tags = {"nibble", "nvfp4"},
            .facts = {{"recipe", "nvfp4: weights | inputs"}},
            .command = "nibble quantize Qwen3-8B -o out"};
}

TEST(ModelCard, AFolderWithoutACardGetsMetadataFactsAndCommand) {
    EXPECT_EQ(model_card_text(small_card(), ""),
              "---\nbase_model: Qwen/Qwen3-8B\nbase_model_relation: quantized\nlibrary_name: Model Optimizer\n"
              "tags:\n- nibble\n- nvfp4\n---\n\n# Qwen3-8B-NVFP4\n\n| | |\n|---|---|\n| recipe | nvfp4: weights \\| "
              "inputs |\n"
              "\nCommand:\n\n```\nnibble quantize Qwen3-8B -o out\n```\n");
}

struct SourceCase {
    const char* name;
    const char* source;
    std::vector<const char*> kept, gone;
};

class SourceCards : public ::testing::TestWithParam<SourceCase> {};

TEST_P(SourceCards, KeepLicenseAndTextAndLoseOutdatedFacts) {
    const std::string card = model_card_text(small_card(), GetParam().source);
    const std::string head = card.substr(0, card.find("\n---\n", 4));
    EXPECT_TRUE(card.starts_with("---\nbase_model: Qwen/Qwen3-8B\n")) << card;
    for (const char* text : GetParam().kept) EXPECT_NE(card.find(text), card.npos) << text << "\n" << card;
    for (const char* text : GetParam().gone) EXPECT_EQ(head.find(text), head.npos) << text << "\n" << card;
    EXPECT_EQ(model_card_text(small_card(), GetParam().source), card);
}

INSTANTIATE_TEST_SUITE_P(
    Spellings, SourceCards,
    ::testing::Values(
        SourceCase{"license",
                   "---\nlicense: apache-2.0\nlanguage:\n- en\n- de\n---\n# Title\ntext\n",
                   {"license: apache-2.0\n", "language:\n- en\n- de\n", "# Title\ntext\n"},
                   {}},
        SourceCase{"other_license",
                   "---\nlicense: other\nlicense_name: llama3\nlicense_link: LICENSE\nextra_gated_fields:\n  Name: "
                   "text\n---\nbody",
                   {"license: other\nlicense_name: llama3\nlicense_link: LICENSE\nextra_gated_fields:\n  Name: text\n",
                    "body\n"},
                   {}},
        SourceCase{"other_base",
                   "---\nbase_model:\n- other/base\nlibrary_name: peft\nmodel-index:\n- name: x\n  results: 1\n---\n",
                   {},
                   {"other/base", "peft", "results"}},
        SourceCase{"tag_list", "---\ntags:\n- chat\n- nvfp4\n---\n", {"tags:\n- chat\n- nvfp4\n- nibble\n---"}, {}},
        SourceCase{"inline_tags",
                   "---\ntags: [chat, \"a: b\"]\n---\n",
                   {"tags:\n- chat\n- \"a: b\"\n- nibble\n- nvfp4\n"},
                   {}},
        SourceCase{"no_head", "# Only text\n", {"The model card of the source:\n\n# Only text\n"}, {"Only text"}},
        SourceCase{"open_head", "---\nlicense: mit\nno end", {"---\nlicense: mit\nno end\n"}, {"license"}},
        SourceCase{"windows", "\xEF\xBB\xBF---\r\nlicense: mit\r\n---\r\ntext\r\n", {"license: mit\n", "text\n"}, {}},
        SourceCase{"comment", "---\n# a comment\nlicense: mit\n---\n", {"license: mit\n"}, {}}),
    [](const auto& info) { return std::string(info.param.name); });

TEST(ModelCard, AQuantizedSourceKeepsItsBaseModel) {
    ModelCard card = small_card();
    card.keeps_base = true;
    EXPECT_TRUE(model_card_text(card, "---\nbase_model: deep/base\nlicense: mit\n---\n")
                    .starts_with("---\nbase_model: deep/base\n"));
    EXPECT_TRUE(model_card_text(card, "---\nlicense: mit\n---\n").starts_with("---\nbase_model: Qwen/Qwen3-8B\n"));
}

TEST(ModelCard, TextCannotBreakTheTableCodeBlockOrMetadata) {
    ModelCard card = small_card();
    card.title = "a\n---\nb<script>";
    card.base_model = "x\ny: \"z\"";
    card.command = "nibble ```\n# no title";
    const std::string text = model_card_text(card, "");
    EXPECT_EQ(text.find("\n---\nb"), text.npos) << text;
    EXPECT_EQ(text.find("\ny:"), text.npos) << text;
    EXPECT_EQ(text.find("\n# no title"), text.npos) << text;
    EXPECT_NE(text.find("````\n"), text.npos) << text;
}

TEST(ModelCard, HubNamesComeFromTheCacheOrTheFolder) {
    EXPECT_EQ(hub_name("/root/.cache/huggingface/hub/models--Qwen--Qwen3-8B/snapshots/abc"), "Qwen/Qwen3-8B");
    EXPECT_EQ(hub_name("/c/models--gpt2/snapshots/abc/"), "gpt2");
    EXPECT_EQ(hub_name("models/Qwen3-8B/"), "Qwen3-8B");
    EXPECT_EQ(hub_name("Qwen3-8B.gguf"), "Qwen3-8B.gguf");
}

TEST(ModelCard, IsRemovedFromTheCopiedFiles) {
    TempDir dir;
    write_file(dir / "README.md", "text");
    std::vector<Checkpoint::SideFile> files{{"LICENSE", {}, "x"}, {"README.md", dir / "README.md", {}}};
    const auto text = take_model_card(files);
    ASSERT_TRUE(text.ok()) << text.error().message();
    EXPECT_EQ(*text, "text");
    ASSERT_EQ(files.size(), 1u);
    EXPECT_EQ(*take_model_card(files), "");
    write_file(dir / "README.md", std::string((1 << 20) + 1, 'x'));
    files.push_back({"README.md", dir / "README.md", {}});
    EXPECT_EQ(*take_model_card(files), "");
    ASSERT_EQ(files.size(), 2u);
    EXPECT_EQ(files[1].name, "README.source.md");
}

}  // namespace
}  // namespace nibble::test

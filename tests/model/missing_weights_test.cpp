// Weights that a checkpoint lacks: all models of golden/models, and models that the engine does not describe.
#include "model/missing_weights.h"

#include "model/fewer_tensors.h"
#include "model/memory_checkpoint.h"
#include "support/files.h"

namespace nibble::test {
namespace {

TEST(FindMissingWeights, WeightsMissingFromAGoldenModelAreFound) {
    int models = 0;
    for (const auto& folder : std::filesystem::directory_iterator(test_data("golden/models"))) {
        expect_weights_are_missed(folder.path());
        ++models;
    }
    EXPECT_GE(models, 8);
}

TEST(FindMissingWeights, NamesTheFirstAndCounts) {
    auto checkpoint = small_checkpoint();
    for (const char* name : {"model.layers.1.mlp.up_proj.weight", "model.norm.weight", "lm_head.weight"})
        checkpoint->remove(name);
    EXPECT_EQ(find_missing_weights(*checkpoint).text(),
              "3 of 30 weights that config.json requires are missing: 'model.layers.1.mlp.up_proj.weight', "
              "'model.norm.weight', 'lm_head.weight'");
    checkpoint->json()["tie_word_embeddings"] = true;  // a tied head needs no tensor
    checkpoint->remove("model.embed_tokens.weight");
    EXPECT_EQ(find_missing_weights(*checkpoint).text(),
              "3 of 29 weights that config.json requires are missing: 'model.embed_tokens.weight', "
              "'model.layers.1.mlp.up_proj.weight', 'model.norm.weight'");
    checkpoint->remove("model.layers.2.input_layernorm.weight");
    EXPECT_NE(find_missing_weights(*checkpoint).text().find(" and 1 more"), std::string::npos);
}

TEST(FindMissingWeights, NothingIsKnownOfOtherModels) {
    auto checkpoint = small_checkpoint();
    checkpoint->remove("lm_head.weight");
    for (const char* type : {"mamba9", "no_such_family", ""}) {
        checkpoint->json()["model_type"] = type;
        EXPECT_EQ(find_missing_weights(*checkpoint).required, 0) << type;
        EXPECT_EQ(find_missing_weights(*checkpoint).text(), "");
    }
}

}  // namespace
}  // namespace nibble::test

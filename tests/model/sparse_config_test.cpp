// Configurations of sparse and compressed attention: published spellings describe the same model as those that
// transformers writes; contradictions and unsupported values are errors that name the key.
#include "architecture/config_json.h"
#include "architecture/model_config.h"
#include "model/family_folders.h"

namespace nibble::test {
namespace {

Json golden_config(const std::string& family) {
    const auto text = read_json_file(family_root() / family / "config.json");
    EXPECT_TRUE(text.ok());
    return *text;
}

// Everything that a list of kinds and rates decides, as text.
std::string sketch(const ModelConfig& model) {
    std::string out;
    for (const BlockConfig& block : model.blocks) {
        if (const auto* a = std::get_if<LatentAttentionConfig>(&block.mixer))
            out += fmt::format("latent owner {} shared {} top {} pairs {}; ", a->indexer->owner, a->indexer->shared,
                               a->indexer->top, a->indexer->rope.interleaved);
        if (const auto* a = std::get_if<AttentionConfig>(&block.mixer)) {
            out += fmt::format("attention rope {} ", a->rope.dims);
            if (a->indexer)
                out += fmt::format("heads {} dim {} block {} top {} local {}", a->indexer->heads, a->indexer->dim,
                                   a->indexer->block, a->indexer->top, a->indexer->local);
            out += "; ";
        }
        if (const auto* a = std::get_if<CompressedAttentionConfig>(&block.mixer))
            out += fmt::format("rate {} overlaps {} index {} theta {} factor {} attention {} dims {}; ", a->rate,
                               a->overlaps, a->indexer.has_value(), a->rope.theta, a->rope.factor,
                               a->rope.attention_factor, a->rope.dims);
        if (const auto* m = std::get_if<MoeConfig>(&block.mixer))
            out += fmt::format("experts {} hash {}; ", m->experts, m->hash_table);
        if (const auto* m = std::get_if<MlpConfig>(&block.mixer)) out += fmt::format("mlp {}; ", m->intermediate);
    }
    return out;
}

std::string sketch(const Json& config) {
    const auto model = model_config(config);
    EXPECT_TRUE(model.ok()) << (model.ok() ? "" : model.error().message());
    return model.ok() ? sketch(*model) : "";
}

void erase(Json& config, std::initializer_list<const char*> keys) {
    for (const char* key : keys) config.erase(key);
}

TEST(SparseConfig, ThePatternsOfGlmEqualItsList) {
    const Json list = golden_config("glm_moe_dsa");
    const std::string want = sketch(list);
    EXPECT_NE(want.find("owner 0 shared false"), std::string::npos) << want;
    EXPECT_NE(want.find("owner -1 shared true"), std::string::npos) << want;
    Json pattern = list;
    pattern.erase("indexer_types");
    pattern["index_topk_pattern"] = "FSF";
    EXPECT_EQ(sketch(pattern), want);
    // Layer i chooses if max(i - 1, 0) mod 2 is 0 for an offset of 2.
    Json every = list;
    erase(every, {"indexer_types", "mlp_layer_types"});
    every["index_topk_freq"] = 2;
    every["index_skip_topk_offset"] = 2;
    const std::string got = sketch(every);
    EXPECT_NE(got.find("owner 2 shared false"), std::string::npos) << got;
    every["index_topk_freq"] = 1;
    EXPECT_EQ(sketch(every).find("shared true"), std::string::npos);
}

TEST(SparseConfig, TheLayerForPredictionChoosesItself) {
    Json config = golden_config("glm_moe_dsa");
    config["num_nextn_predict_layers"] = 1;
    config["indexer_types"] = {"full", "shared", "shared", "full"};
    const auto model = model_config(config);
    ASSERT_TRUE(model.ok()) << model.error().message();
    ASSERT_TRUE(model->prediction);
    EXPECT_EQ(std::get<LatentAttentionConfig>(model->prediction->blocks[0].mixer).indexer->owner, -1);
    EXPECT_EQ(std::get<LatentAttentionConfig>(model->blocks[4].mixer).indexer->owner, 0);
}

TEST(SparseConfig, ThePublishedSpellingOfMiniMaxEqualsTheNewOne) {
    const Json config = golden_config("minimax_m3");
    Json published = config;
    Json& text = published["text_config"];
    erase(text, {"layer_types", "mlp_layer_types", "index_n_heads", "index_head_dim", "index_block_size",
                 "index_topk_blocks", "index_local_blocks", "rope_parameters"});
    text["hidden_act"] = "swigluoai";
    text["rope_theta"] = 10000.0;
    text["moe_layer_freq"] = {0, 1, 0};
    text["sparse_attention_config"] = {{"sparse_num_index_heads", 2}, {"sparse_index_dim", 16},
                                       {"sparse_block_size", 4},      {"sparse_topk_blocks", 3},
                                       {"sparse_local_block", 1},     {"sparse_attention_freq", {0, 1, 1}}};
    EXPECT_EQ(sketch(published), sketch(config));
    EXPECT_NE(sketch(config).find("heads 2 dim 16 block 4 top 3 local 1"), std::string::npos);
}

TEST(SparseConfig, ThePublishedSpellingOfDeepSeekV4EqualsTheNewOne) {
    const Json config = golden_config("deepseek_v4");
    Json published = config;
    erase(published, {"layer_types", "mlp_layer_types", "compress_rates", "partial_rotary_factor", "rope_parameters"});
    published["compress_ratios"] = {0, 4, 128};
    published["compress_rate_hca"] = 8;
    published["num_hash_layers"] = 1;
    EXPECT_EQ(sketch(published), sketch(config));
    // One object outside of the kinds is for pooled layers; yarn does not scale cos and sin.
    published["rope_scaling"] = {{"type", "yarn"}, {"factor", 16}, {"original_max_position_embeddings", 64}};
    const std::string scaled = sketch(published);
    EXPECT_NE(scaled.find("theta 10000 factor 1 attention 1"), std::string::npos) << scaled;
    EXPECT_NE(scaled.find("theta 160000 factor 16 attention 1"), std::string::npos) << scaled;
}

TEST(SparseConfig, UnsupportedValuesNameTheKey) {
    struct Case {
        const char *family, *key;
        Json value;
    };
    const Case cases[] = {{"deepseek_v32", "q_lora_rank", nullptr},
                          {"deepseek_v32", "layer_types", {"indexed_attention", "full_attention"}},
                          {"deepseek_v32", "index_topk", 0},
                          {"glm_moe_dsa", "indexer_types", {"shared", "full", "full"}},
                          {"glm_moe_dsa", "indexer_types", {"full", "half", "full"}},
                          {"glm_moe_dsa", "indexer_types", {"full"}},
                          {"deepseek_v4", "layer_types", {"full_attention", "full_attention", "full_attention"}},
                          {"deepseek_v4", "compress_rates", 4},
                          {"deepseek_v4", "scoring_func", "sigmoid"},
                          {"deepseek_v4", "num_key_value_heads", 2},
                          {"deepseek_v4", "o_groups", 3},
                          {"deepseek_v4", "hc_mult", 0},
                          {"deepseek_v4", "hc_mult", 65},
                          {"deepseek_v4", "index_head_dim", 4},
                          {"deepseek_v4", "qk_rope_head_dim", 32},
                          {"deepseek_v32", "index_head_dim", 4}};
    for (const Case& c : cases) {
        Json config = golden_config(c.family);
        config[c.key] = c.value;
        const auto model = model_config(config);
        ASSERT_FALSE(model.ok()) << c.family << " " << c.key;
        EXPECT_NE(model.error().message().find(c.key), std::string::npos) << model.error().message();
    }
    Json text = golden_config("minimax_m3");
    text["text_config"]["index_n_heads"] = 3;
    const auto model = model_config(text);
    ASSERT_FALSE(model.ok());
    EXPECT_NE(model.error().message().find("index_n_heads"), std::string::npos) << model.error().message();
}

ModelConfig config_of(const Json& config) {
    auto model = model_config(config);
    EXPECT_TRUE(model.ok()) << (model.ok() ? "" : model.error().message());
    return model.ok() ? *std::move(model) : ModelConfig();
}

// Options that transformers reads otherwise than their names suggest (tests/peers/test_family_options.py compares
// logits).
TEST(FamilyOptions, DeepseekV4NormalizesItsWeightsAndHasOneSharedWidth) {
    Json config = golden_config("deepseek_v4");
    config["norm_topk_prob"] = false;
    config["n_shared_experts"] = 2;
    config["tie_word_embeddings"] = true;
    const ModelConfig model = config_of(config);
    EXPECT_EQ(model.head, model.embedding);
    int seen = 0;
    for (const BlockConfig& block : model.blocks)
        if (const auto* moe = std::get_if<MoeConfig>(&block.mixer)) {
            ++seen;
            EXPECT_TRUE(moe->normalize);
            EXPECT_EQ(moe->shared.intermediate, moe->expert.intermediate);
        }
    EXPECT_EQ(seen, 3);
}

TEST(FamilyOptions, ErnieHasBiasesEverywhereButInRoutedExperts) {
    Json config = golden_config("ernie4_5_moe");
    config["use_bias"] = true;
    const ModelConfig model = config_of(config);
    EXPECT_TRUE(model.head_bias);
    for (const BlockConfig& block : model.blocks) {
        if (const auto* a = std::get_if<AttentionConfig>(&block.mixer)) EXPECT_TRUE(a->qkv_bias && a->out_bias);
        if (const auto* mlp = std::get_if<MlpConfig>(&block.mixer)) EXPECT_TRUE(mlp->bias);
        if (const auto* moe = std::get_if<MoeConfig>(&block.mixer)) {
            EXPECT_TRUE(moe->shared.bias);
            EXPECT_FALSE(moe->expert.bias);
        }
    }
}

TEST(FamilyOptions, Cohere2TakesItsHeadDimension) {
    Json config = golden_config("cohere2");
    config["head_dim"] = 24;
    const ModelConfig model = config_of(config);
    const auto* both = std::get_if<ParallelConfig>(&model.blocks[0].mixer);
    ASSERT_TRUE(both);
    const auto* a = std::get_if<AttentionConfig>(&both->branches[0].mixer);
    ASSERT_TRUE(a);
    EXPECT_EQ(a->head_dim, 24);
    EXPECT_EQ(a->rope.dims, 24);
}

}  // namespace
}  // namespace nibble::test

// config.json: the sample of every architecture, in both spellings; no field that may matter is ignored.
#include "architecture/model_config.h"
#include "model/cpu/rope.h"

#include "architecture/config_json.h"
#include "model/memory_checkpoint.h"
#include "support/files.h"

#include <gtest/gtest.h>

namespace nibble::test {
namespace {

std::string error_of(const Json& config) {
    const auto model = model_config(config);
    EXPECT_FALSE(model.ok()) << config.dump();
    return model.ok() ? "" : model.error().message();
}

const AttentionConfig& attention(const ModelConfig& model, size_t layer) {
    return std::get<AttentionConfig>(model.blocks[2 * layer].mixer);
}

TEST(ModelConfig, LlamaIsAListOfBlocks) {
    const auto model = model_config(small_llama());
    ASSERT_TRUE(model.ok()) << model.error().message();
    ASSERT_EQ(model->blocks.size(), 6u);
    EXPECT_EQ(model->blocks[3].prefix, "model.layers.1.mlp");
    EXPECT_EQ(model->blocks[3].index, 3);
    EXPECT_EQ(model->blocks[3].norm, "model.layers.1.post_attention_layernorm.weight");
    EXPECT_EQ(model->head, "lm_head.weight");
    EXPECT_EQ(attention(*model, 0).scale, 0.25f);
    EXPECT_EQ(attention(*model, 0).rope.theta, 10000.0);
}

TEST(ModelConfig, AnUnknownFieldIsAnErrorThatNamesIt) {
    Json config = small_llama();
    config["attn_temperature_tuning"] = true;
    EXPECT_NE(error_of(config).find("'attn_temperature_tuning' is true"), std::string::npos);
    config["attn_temperature_tuning"] = nullptr;  // counts as absent
    EXPECT_TRUE(model_config(config).ok());
    for (const char* harmless : {"torch_dtype", "dtype", "use_cache", "initializer_range", "pretraining_tp"}) {
        config[harmless] = "x";
        EXPECT_TRUE(model_config(config).ok()) << harmless;
    }
    EXPECT_NE(error_of({{"model_type", "mamba9"}}).find("'mamba9' is not supported"), std::string::npos);
    EXPECT_NE(error_of(Json::array()).find("not an object"), std::string::npos);
}

TEST(ModelConfig, ValuesOfTheWrongKindAreErrors) {
    for (const auto& [key, value] : std::vector<std::pair<std::string, Json>>{{"hidden_size", "32"},
                                                                              {"hidden_size", -1},
                                                                              {"hidden_size", 1e30},
                                                                              {"hidden_size", nullptr},
                                                                              {"num_key_value_heads", 3},
                                                                              {"num_attention_heads", 0},
                                                                              {"rms_norm_eps", "small"},
                                                                              {"hidden_act", "gelu"},
                                                                              {"attention_bias", 1},
                                                                              {"rope_theta", 0},
                                                                              {"num_hidden_layers", 2147483647},
                                                                              {"rope_scaling", 3},
                                                                              {"eos_token_id", "two"}}) {
        Json config = small_llama();
        config[key] = value;
        EXPECT_NE(error_of(config).find(key), std::string::npos) << key;
    }
}

// Lists of tensor names grow with this number, which comes from a file.
TEST(ModelConfig, TheNumberOfExpertsIsBounded) {
    int tried = 0;
    for (const auto& folder : std::filesystem::directory_iterator(test_data("golden/models"))) {
        auto config = read_config(folder.path() / "config.json");
        ASSERT_TRUE(config.ok());
        for (const char* key : {"num_experts", "num_local_experts", "n_routed_experts"}) {
            if (!config->contains(key) || (*config)[key].is_null() || (*config)[key] == 0) continue;
            Json changed = *config;
            changed[key] = 1 << 22;
            EXPECT_NE(error_of(changed).find("experts in all layers"), std::string::npos) << folder.path() << key;
            ++tried;
        }
    }
    EXPECT_GE(tried, 3);
}

// Numbers that FP32 cannot work with, or that no model has.
TEST(ModelConfig, ImplausibleNumbersAreErrorsThatNameTheField) {
    Json llama = small_llama(), linear = llama, llama3 = llama, yarn = llama;
    linear["rope_scaling"] = {{"rope_type", "linear"}, {"factor", 2.0}};
    llama3["rope_scaling"] = {{"rope_type", "llama3"},
                              {"factor", 8.0},
                              {"low_freq_factor", 1.0},
                              {"high_freq_factor", 4.0},
                              {"original_max_position_embeddings", 32}};
    yarn["rope_scaling"] = {{"rope_type", "yarn"}, {"factor", 4.0},           {"beta_fast", 32},
                            {"beta_slow", 1},      {"attention_factor", 1.1}, {"original_max_position_embeddings", 32}};
    const auto golden = [](const char* name) {
        const auto config = read_config(test_data("golden/models") / name / "config.json");
        EXPECT_TRUE(config.ok()) << name;
        return config.ok() ? *config : Json::object();
    };
    const std::vector<Json> signed_ones{1e308, -1e308, 1e39, -1e-6, "x"};
    struct Case {
        Json config;
        std::string place;  // JSON pointer
        std::vector<Json> more = {};
    };
    const std::vector<Case> cases{
        {llama, "/rms_norm_eps", {2}},
        {llama, "/rope_theta", {1e300, 0, 1, -10000}},
        {linear, "/rope_scaling/factor", {0, 1e300, 1e-300}},
        {llama3, "/rope_scaling/factor", {0}},
        {llama3, "/rope_scaling/low_freq_factor", {0}},
        {llama3, "/rope_scaling/high_freq_factor", {0}},
        {yarn, "/rope_scaling/factor", {0}},
        {yarn, "/rope_scaling/beta_fast", {0}},
        {yarn, "/rope_scaling/beta_slow", {0}},
        {yarn, "/rope_scaling/attention_factor", {0}},
        {golden("nemotron_h"), "/layer_norm_epsilon", {2}},
        {golden("nemotron_h"), "/routed_scaling_factor", {0}},
        {{{"model_type", "gemma3_text"}, {"query_pre_attn_scalar", 256}}, "/query_pre_attn_scalar", {0}},
        {{{"model_type", "granite"}, {"logits_scaling", 8}}, "/logits_scaling", {0}},
        {{{"model_type", "granite"}, {"residual_multiplier", 0.2}}, "/residual_multiplier"},
        {{{"model_type", "granite"}, {"attention_multiplier", 1}}, "/attention_multiplier"},
        {{{"model_type", "granite"}, {"embedding_multiplier", 9}}, "/embedding_multiplier"},
        {golden("deepseek_v3"), "/routed_scaling_factor", {0}}};
    for (const Case& c : cases) {
        const Json::json_pointer place(c.place);
        ASSERT_TRUE(model_config(c.config).ok()) << c.place;
        std::vector<Json> values = signed_ones;
        values.insert(values.end(), c.more.begin(), c.more.end());
        for (const Json& value : values) {
            Json changed = c.config;
            changed[place] = value;
            EXPECT_NE(error_of(changed).find("'" + place.back() + "'"), std::string::npos) << c.place << " " << value;
        }
    }
    Json narrow = llama;
    narrow["num_attention_heads"] = narrow["num_key_value_heads"] = 64;
    narrow.erase("head_dim");
    EXPECT_NE(error_of(narrow).find("num_attention_heads"), std::string::npos);
    Json wide = golden("deepseek_v3");
    wide["n_shared_experts"] = 2147483647;
    EXPECT_NE(error_of(wide).find("n_shared_experts"), std::string::npos);
}

TEST(ModelConfig, RopeIsReadInBothSpellings) {
    const Json llama3{{"rope_type", "llama3"},
                      {"factor", 8.0},
                      {"low_freq_factor", 1.0},
                      {"high_freq_factor", 4.0},
                      {"original_max_position_embeddings", 64}};
    Json old_one = small_llama(), new_one = small_llama();
    old_one["rope_theta"] = 500000.0, old_one["rope_scaling"] = llama3;
    new_one["rope_parameters"] = llama3, new_one["rope_parameters"]["rope_theta"] = 500000.0;
    const auto a = model_config(old_one), b = model_config(new_one);
    ASSERT_TRUE(a.ok() && b.ok());
    EXPECT_EQ(attention(*a, 0).rope, attention(*b, 0).rope);
    EXPECT_EQ(attention(*a, 0).rope.scaling, Rope::Scaling::llama3);

    Json bad = small_llama();
    bad["rope_scaling"] = {{"rope_type", "dynamic"}, {"factor", 2.0}};
    EXPECT_NE(error_of(bad).find("'dynamic' is not supported"), std::string::npos);
    bad["rope_scaling"] = {{"type", "linear"}, {"factor", 2.0}, {"twist", 1}};
    EXPECT_NE(error_of(bad).find("'twist'"), std::string::npos);
    bad["rope_scaling"] = {{"type", "linear"}, {"factor", 2.0}};
    EXPECT_TRUE(model_config(bad).ok());
}

// Made by tests/oracles/rope_frequencies.py with transformers 5.23: rope_parameters {yarn, theta 1e6, factor 4,
// original 32768}, head_dim 128.
TEST(ModelConfig, YarnFrequenciesEqualTransformers) {
    Json config = small_llama();
    config["head_dim"] = 128;
    config["rope_parameters"] = {
        {"rope_type", "yarn"}, {"rope_theta", 1e6}, {"factor", 4.0}, {"original_max_position_embeddings", 32768}};
    const auto model = model_config(config);
    ASSERT_TRUE(model.ok()) << model.error().message();
    const Rope& rope = attention(*model, 0).rope;
    EXPECT_NEAR(rope.attention_factor, 1.1386294361119891, 1e-12);
    const auto f = rope_frequencies(rope);
    ASSERT_EQ(f.size(), 64u);
    EXPECT_EQ(f[0], 1.0f);
    // Pairs below the ramp are unchanged, those above it are divided by the factor.
    for (int i = 0; i < 64; ++i) {
        const double plain = std::pow(1e6, -i / 64.0);
        if (i <= 23) {
            EXPECT_FLOAT_EQ(f[size_t(i)], static_cast<float>(plain)) << i;
        } else if (i >= 40) {
            EXPECT_FLOAT_EQ(f[size_t(i)], static_cast<float>(plain / 4)) << i;
        } else {
            const double ramp = (i - 23) / 17.0;
            EXPECT_FLOAT_EQ(f[size_t(i)], static_cast<float>(plain * (1 - ramp) + plain / 4 * ramp)) << i;
        }
    }
}

TEST(ModelConfig, SlidingWindowsFollowTheLayerTypes) {
    Json mistral = small_llama();
    mistral["model_type"] = "mistral";
    mistral["sliding_window"] = 128;
    auto model = model_config(mistral);
    ASSERT_TRUE(model.ok());
    EXPECT_EQ(attention(*model, 2).window, 128);
    mistral["model_type"] = "llama";
    EXPECT_NE(error_of(mistral).find("'sliding_window'"), std::string::npos);

    Json qwen = small_llama();
    qwen["model_type"] = "qwen2";
    qwen["sliding_window"] = 64, qwen["max_window_layers"] = 1, qwen["use_sliding_window"] = false;
    model = model_config(qwen);
    ASSERT_TRUE(model.ok()) << model.error().message();
    EXPECT_EQ(attention(*model, 2).window, 0);
    EXPECT_TRUE(attention(*model, 0).qkv_bias);
    EXPECT_FALSE(attention(*model, 0).out_bias);
    qwen["use_sliding_window"] = true;
    model = model_config(qwen);
    ASSERT_TRUE(model.ok());
    EXPECT_EQ(attention(*model, 0).window, 0);
    EXPECT_EQ(attention(*model, 1).window, 64);
}

TEST(ModelConfig, Gemma3IsReadAloneAndInsideAMultimodalModel) {
    Json text{{"model_type", "gemma3_text"},
              {"hidden_size", 2560},
              {"intermediate_size", 10240},
              {"num_hidden_layers", 34},
              {"rope_scaling", {{"factor", 8.0}, {"rope_type", "linear"}}},
              {"sliding_window", 1024}};
    const auto alone = model_config(text);
    ASSERT_TRUE(alone.ok()) << alone.error().message();
    EXPECT_TRUE(alone->norm_plus_one);
    EXPECT_EQ(alone->embedding_scale, 50.5f);  // sqrt(2560) = 50.596 in BF16
    EXPECT_EQ(alone->head, "model.embed_tokens.weight");
    EXPECT_EQ(alone->blocks[0].post_norm, "model.layers.0.post_attention_layernorm.weight");
    EXPECT_EQ(alone->blocks[1].norm, "model.layers.0.pre_feedforward_layernorm.weight");
    EXPECT_EQ(attention(*alone, 0).window, 1024);
    EXPECT_EQ(attention(*alone, 0).rope.theta, 1e4);
    EXPECT_EQ(attention(*alone, 0).rope.scaling, Rope::Scaling::none);
    EXPECT_EQ(attention(*alone, 5).window, 0);
    EXPECT_EQ(attention(*alone, 5).rope.theta, 1e6);
    EXPECT_EQ(attention(*alone, 5).rope.factor, 8.0);
    const Json outer{
        {"model_type", "gemma3"}, {"text_config", text}, {"vision_config", Json::object()}, {"eos_token_id", {1, 106}}};
    const auto inside = model_config(outer);
    ASSERT_TRUE(inside.ok()) << inside.error().message();
    EXPECT_EQ(inside->embedding, "language_model.model.embed_tokens.weight");
    EXPECT_EQ(inside->eos, (std::vector<int32_t>{1, 106}));
    text["final_logit_softcapping"] = 30.0;
    const auto capped = model_config(text);
    ASSERT_TRUE(capped.ok()) << capped.error().message();
    EXPECT_EQ(capped->logit_cap, 30.0f);
    text["final_logit_softcapping"] = -1;
    EXPECT_NE(error_of(text).find("final_logit_softcapping"), std::string::npos);
}

// The factors of longrope follow from the length that an engine is made for.
TEST(ModelConfig, LongropeFactorsAreChosenOnce) {
    Json config{{"model_type", "phi3"},
                {"hidden_size", 64},
                {"num_attention_heads", 4},
                {"num_hidden_layers", 1},
                {"max_position_embeddings", 512},
                {"original_max_position_embeddings", 32},
                {"partial_rotary_factor", 0.25},
                {"rope_scaling", {{"type", "su"}, {"short_factor", {1.0, 1.5}}, {"long_factor", {2.0, 4.0}}}}};
    auto model = model_config(config);
    ASSERT_TRUE(model.ok()) << model.error().message();
    const Rope& rope = attention(*model, 0).rope;
    EXPECT_EQ(rope.dims, 4);
    EXPECT_EQ(rope.factors, (std::vector<double>{2.0, 4.0}));  // 512 tokens
    EXPECT_NEAR(rope.attention_factor, std::sqrt(1 + std::log(16.0) / std::log(32.0)), 1e-12);
    choose_rope_factors(*model, 32);
    EXPECT_EQ(rope.factors, (std::vector<double>{1.0, 1.5}));
    choose_rope_factors(*model, 33);
    EXPECT_EQ(rope.factors, (std::vector<double>{2.0, 4.0}));
    config["rope_scaling"]["long_factor"] = {2.0};
    EXPECT_NE(error_of(config).find("long_factor"), std::string::npos);
    config["rope_scaling"]["long_factor"] = {2.0, 0.0};
    EXPECT_NE(error_of(config).find("long_factor"), std::string::npos);
}

// Published spellings of families whose tables read more than transformers' own.
TEST(ModelConfig, PublishedSpellings) {
    const Json mimo{
        {"model_type", "mimo_v2_flash"}, {"num_hidden_layers", 3},       {"hybrid_layer_pattern", {0, 1, 1}},
        {"moe_layer_freq", {0, 1, 1}},   {"layernorm_epsilon", 1e-5},    {"partial_rotary_factor", 0.334},
        {"rope_theta", 5000000},         {"swa_rope_theta", 10000},      {"sliding_window", 128},
        {"sliding_window_size", 128},    {"swa_num_key_value_heads", 8}, {"n_shared_experts", nullptr}};
    const auto model = model_config(mimo);
    ASSERT_TRUE(model.ok()) << model.error().message();
    EXPECT_EQ(attention(*model, 0).kv_heads, 4);
    EXPECT_EQ(attention(*model, 1).kv_heads, 8);
    EXPECT_EQ(attention(*model, 1).window, 129);
    EXPECT_EQ(attention(*model, 1).rope.dims, 64);
    EXPECT_EQ(attention(*model, 1).rope.theta, 1e4);
    EXPECT_EQ(attention(*model, 0).sinks, "");
    EXPECT_EQ(attention(*model, 1).sinks, "attention_sink_bias");

    const Json gpt_oss{{"model_type", "gpt_oss"},
                       {"num_hidden_layers", 2},
                       {"experts_per_token", 4},
                       {"initial_context_length", 4096},
                       {"rope_theta", 150000},
                       {"rope_scaling",
                        {{"rope_type", "yarn"},
                         {"factor", 32.0},
                         {"beta_fast", 32.0},
                         {"beta_slow", 1.0},
                         {"truncate", false},
                         {"original_max_position_embeddings", 4096}}}};
    const auto oss = model_config(gpt_oss);
    ASSERT_TRUE(oss.ok()) << oss.error().message();
    EXPECT_EQ(attention(*oss, 0).window, 128);
    EXPECT_EQ(attention(*oss, 1).window, 0);
    EXPECT_FALSE(attention(*oss, 0).rope.truncate);

    const Json gemma4{
        {"model_type", "gemma4"},
        {"text_config",
         {{"model_type", "gemma4_text"},
          {"num_hidden_layers", 12},
          {"hidden_size_per_layer_input", 0},
          {"attention_k_eq_v", true},
          {"global_head_dim", 512},
          {"num_global_key_value_heads", 1},
          {"rope_parameters",
           {{"full_attention", {{"rope_type", "proportional"}, {"partial_rotary_factor", 0.25}, {"rope_theta", 1e6}}},
            {"sliding_attention", {{"rope_type", "default"}, {"rope_theta", 1e4}}}}}}}};
    const auto four = model_config(gemma4);
    ASSERT_TRUE(four.ok()) << four.error().message();
    EXPECT_EQ(attention(*four, 5).head_dim, 512);
    EXPECT_EQ(attention(*four, 5).kv_heads, 1);
    EXPECT_EQ(attention(*four, 5).v_proj, "");
    EXPECT_EQ(attention(*four, 5).rope.pairs, 64);
    EXPECT_EQ(attention(*four, 4).head_dim, 256);
    EXPECT_EQ(attention(*four, 4).v_proj, "v_proj");
    EXPECT_EQ(four->blocks[0].prefix, "model.language_model.layers.0.self_attn");
}

// The configurations that transformers 5.23 writes for a class of each family without arguments, if a reader needs more
// than one value.
TEST(ModelConfig, DefaultsOfRotaryEmbeddings) {
    // Numbers of layers have one width.
    Json padded{
        {"model_type", "gemma4_text"},
        {"num_hidden_layers", 12},
        {"hidden_size_per_layer_input", 0},
        {"per_layer_config", {{"05", {{"head_dim", 512}, {"num_key_value_heads", 2}}}, {"11", {{"head_dim", 128}}}}}};
    const auto gemma4 = model_config(padded);
    ASSERT_TRUE(gemma4.ok()) << gemma4.error().message();
    EXPECT_EQ(attention(*gemma4, 5).head_dim, 512);
    EXPECT_EQ(attention(*gemma4, 5).kv_heads, 2);
    EXPECT_EQ(attention(*gemma4, 11).head_dim, 128);
    EXPECT_EQ(attention(*gemma4, 11).kv_heads, 4);
    EXPECT_EQ(attention(*gemma4, 4).head_dim, 256);
    EXPECT_EQ(attention(*gemma4, 5).rope.scaling, Rope::Scaling::proportional);
    EXPECT_EQ(attention(*gemma4, 5).rope.pairs, 64);
    EXPECT_EQ(attention(*gemma4, 4).rope.theta, 1e4);

    const auto oss = model_config(Json{{"model_type", "gpt_oss"}, {"num_hidden_layers", 1}});
    ASSERT_TRUE(oss.ok()) << oss.error().message();
    EXPECT_EQ(attention(*oss, 0).rope.scaling, Rope::Scaling::yarn);
    EXPECT_EQ(attention(*oss, 0).rope.factor, 32.0);
    EXPECT_EQ(attention(*oss, 0).rope.theta, 150000.0);

    const auto mistral = model_config(Json{{"model_type", "mistral4"}, {"num_hidden_layers", 1}});
    ASSERT_TRUE(mistral.ok()) << mistral.error().message();
    const auto& latent = std::get<LatentAttentionConfig>(mistral->blocks[0].mixer);
    EXPECT_EQ(latent.rope.factor, 128.0);
    EXPECT_EQ(latent.rope.dims, 64);
    EXPECT_EQ(latent.query_period, 8192);

    const auto stable = model_config(Json{{"model_type", "stablelm"}, {"num_hidden_layers", 1}});
    ASSERT_TRUE(stable.ok()) << stable.error().message();
    EXPECT_EQ(attention(*stable, 0).rope.dims, 20);
}

TEST(ModelConfig, EveryGoldenConfigIsKnown) {
    const std::filesystem::path root = test_data("golden/models");
    for (const auto& folder : std::filesystem::directory_iterator(root)) {
        const auto config = read_config(folder.path() / "config.json");
        ASSERT_TRUE(config.ok());
        const auto model = model_config(*config);
        EXPECT_TRUE(model.ok()) << folder.path() << ": " << model.error().message();
    }
}

// Any value of any field gives a model or a one-line error; no field can cause an endless loop or a division by zero.
TEST(ModelConfig, AnyValueOfAnyFieldIsAModelOrAnError) {
    const std::filesystem::path root = test_data("golden/models");
    const std::vector<Json> values{nullptr,
                                   true,
                                   -1,
                                   0,
                                   1,
                                   3,
                                   2147483647,
                                   9223372036854775807,
                                   1e308,
                                   -0.5,
                                   "x",
                                   "",
                                   Json::array(),
                                   {1, 2},
                                   {"a"},
                                   Json::object(),
                                   {{"rope_type", "yarn"}}};
    int models = 0, errors = 0;
    for (const auto& folder : std::filesystem::directory_iterator(root)) {
        const auto config = read_config(folder.path() / "config.json");
        ASSERT_TRUE(config.ok());
        for (const auto& [key, old] : config->items())
            for (const Json& value : values) {
                Json changed = *config;
                changed[key] = value;
                const auto model = model_config(changed);
                ++(model.ok() ? models : errors);
                if (!model.ok()) {
                    EXPECT_LT(model.error().message().size(), 300u);
                    EXPECT_EQ(model.error().message().find('\n'), std::string::npos);
                }
            }
    }
    EXPECT_GT(models, 1000);
    EXPECT_GT(errors, 1000);
}

TEST(ModelConfig, NemotronLayersAreReadInBothSpellings) {
    const std::filesystem::path root = test_data("golden/models/nemotron_h");
    auto config = read_config(root / "config.json");
    ASSERT_TRUE(config.ok());
    const auto letters = model_config(*config);
    ASSERT_TRUE(letters.ok());
    EXPECT_EQ(letters->blocks[2].prefix, "backbone.layers.2.mixer");
    EXPECT_EQ(std::get<AttentionConfig>(letters->blocks[2].mixer).rope.dims, 0);
    config->erase("hybrid_override_pattern");
    (*config)["layers_block_type"] = {"mamba", "moe", "attention", "mlp", "mamba", "moe"};
    const auto names = model_config(*config);
    ASSERT_TRUE(names.ok()) << names.error().message();
    for (size_t i = 0; i < 6; ++i) EXPECT_EQ(letters->blocks[i].mixer.index(), names->blocks[i].mixer.index());
    (*config)["time_step_limit"] = {0.0, 0.1};
    EXPECT_NE(error_of(*config).find("time_step_limit"), std::string::npos);
}

}  // namespace
}  // namespace nibble::test

// config.json as transformers 4 and 5 write it (tests/data/configs, made by tests/peers/make_config_samples.py): every
// reader of a field gets the same value, whatever the spelling.
#include "architecture/canonical_config.h"
#include "architecture/config_json.h"
#include "architecture/model_config.h"
#include "checkpoint/export.h"
#include "checkpoint/random_checkpoint.h"
#include "checkpoint/text_config.h"
#include "model/models.h"

#include <map>

namespace nibble::test {
namespace {

Json sample(const std::string& family, int version) {
    const auto config = read_config(test_data(fmt::format("configs/{}.v{}.json", family, version)));
    EXPECT_TRUE(config.ok()) << config.error().message();
    return config.ok() ? *config : Json();
}

// Returns "v4", "v5", and "mixed" with all keys of both.
std::map<std::string, Json> spellings_of_family(const std::string& family) {
    const Json v4 = sample(family, 4), v5 = sample(family, 5);
    Json mixed = v5;
    for (const auto& [key, value] : v4.items())
        if (!mixed.contains(key)) mixed[key] = value;
    return {{"v4", v4}, {"v5", v5}, {"mixed", mixed}};
}

// Returns the fields that the forward pass reads.
Json fields_that_matter(const Json& config) {
    const auto canonical = canonical_config(config);
    EXPECT_TRUE(canonical.ok()) << canonical.error().message();
    Json fields;
    if (!canonical.ok()) return fields;
    const Json defaults = config_defaults(config["model_type"].get<std::string>());
    for (const auto& [key, value] : defaults.items())
        if (canonical->contains(key)) fields[key] = (*canonical)[key];
    for (const char* key : {"rope_parameters", "dtype", "layer_types", "head_dim", "num_key_value_heads"})
        fields[key] = canonical->value(key, Json());
    return fields;
}

// Returns the JSON text with sorted keys, because files order the members of rope_parameters differently.
std::string sorted_text(const Json& json) { return nlohmann::json::parse(json.dump()).dump(); }

std::vector<float> logits_of(const Json& config) {
    auto checkpoint = random_checkpoint(config);
    EXPECT_TRUE(checkpoint.ok()) << checkpoint.error().message();
    if (!checkpoint.ok()) return {};
    ThreadPool pool(2);
    const auto model = Model::load(std::shared_ptr<const Checkpoint>(*std::move(checkpoint)), {}, pool);
    EXPECT_TRUE(model.ok()) << model.error().message();
    std::vector<int32_t> text;
    for (int i = 0; i < 40; ++i) text.push_back(i * 37 % 256);
    return model.ok() ? all_logits(*model, {text}) : std::vector<float>();
}

// Returns the header of the GGUF file, or the error.
std::string gguf_of(const Json& config) {
    const auto checkpoint = random_checkpoint(config);
    EXPECT_TRUE(checkpoint.ok()) << checkpoint.error().message();
    if (!checkpoint.ok()) return {};
    TempDir dir;
    ExportSpec spec{.dialect = Dialect::gguf, .out = dir / "model.gguf", .config = config};
    for (const CheckpointTensor& t : (*checkpoint)->tensors())
        spec.tensors.push_back({.name = t.name, .shape = t.shape, .dtype = t.dtype});
    auto out = open_export(spec, ExportMode::create);
    return out.ok() ? sha256(read_file((*out)->checkpoint_path())) : out.error().message();
}

class ConfigSpellings : public testing::TestWithParam<const char*> {};

TEST_P(ConfigSpellings, BothSpellingsGiveOneValueInEveryReader) {
    const auto spellings = spellings_of_family(GetParam());
    const Json& v5 = spellings.at("v5");
    const Json fields = fields_that_matter(v5);
    const std::vector<float> logits = logits_of(v5);
    const std::string gguf = gguf_of(v5);
    for (const auto& [name, config] : spellings) {
        SCOPED_TRACE(name);
        EXPECT_EQ(sorted_text(fields_that_matter(config)), sorted_text(fields));
        EXPECT_EQ(logits_of(config), logits);
        EXPECT_EQ(gguf_of(config), gguf);
        EXPECT_EQ(text_layers(config), 4);
        EXPECT_EQ(declared_dtype(config), DType::bf16);
    }
}

// nibble writes files in the spelling of the file that it read.
TEST_P(ConfigSpellings, TheWrittenConfigIsTheOneThatWasRead) {
    for (const int version : {4, 5}) {
        const std::string text = read_file(test_data(fmt::format("configs/{}.v{}.json", GetParam(), version)));
        const auto written = config_text(sample(GetParam(), version), 2);
        ASSERT_TRUE(written.ok());
        EXPECT_EQ(*written, text);
    }
}

// An absent field has the default of transformers' class, so an empty configuration equals the class's own.
TEST_P(ConfigSpellings, AMissingFieldHasTheDefaultOfTheClass) {
    const Json defaults = config_defaults(GetParam());
    ASSERT_TRUE(defaults.is_object());
    const auto canonical = canonical_config({{"model_type", GetParam()}});
    ASSERT_TRUE(canonical.ok()) << canonical.error().message();
    for (const auto& [key, value] : defaults.items()) {
        if (key.starts_with("rope_theta") || key.starts_with("rope_local")) continue;
        EXPECT_EQ((*canonical)[key], value) << key;
    }
    EXPECT_TRUE(model_config({{"model_type", GetParam()}}).ok());
}

INSTANTIATE_TEST_SUITE_P(Families, ConfigSpellings,
                         testing::Values("llama", "mistral", "mixtral", "qwen2", "qwen3", "qwen3_moe", "gemma3_text",
                                         "deepseek_v3", "nemotron_h"),
                         [](const auto& info) { return std::string(info.param); });

struct Contradiction {
    const char* family;
    const char* added;     // merged into the family's sample of version 5
    const char* names[2];  // both must be in the message
};

class Contradictions : public testing::TestWithParam<Contradiction> {};

TEST_P(Contradictions, AreErrorsThatNameBothKeys) {
    const Contradiction& c = GetParam();
    Json config = sample(c.family, 5);
    const auto added = parse_config(c.added);
    ASSERT_TRUE(added.ok());
    config.update(*added);
    const auto model = model_config(config);
    ASSERT_FALSE(model.ok()) << c.added;
    for (const char* name : c.names)
        EXPECT_NE(model.error().message().find(fmt::format("'{}'", name)), std::string::npos)
            << model.error().message();
}

INSTANTIATE_TEST_SUITE_P(
    Keys, Contradictions,
    testing::Values(
        Contradiction{"llama", R"({"torch_dtype": "float16"})", {"dtype", "torch_dtype"}},
        Contradiction{"llama",
                      R"({"rope_scaling": {"type": "linear", "factor": 8.0}})",
                      {"rope_parameters.rope_type", "rope_scaling.type"}},
        Contradiction{"qwen3",
                      R"({"rope_scaling": {"rope_type": "yarn", "factor": 2.0}})",
                      {"rope_parameters.factor", "rope_scaling.factor"}},
        Contradiction{
            "gemma3_text", R"({"sliding_window_pattern": 4})", {"sliding_window_pattern", "_sliding_window_pattern"}},
        Contradiction{"qwen3_moe", R"({"num_experts": 4})", {"num_local_experts", "num_experts"}},
        Contradiction{"mixtral", R"({"num_experts": 8})", {"num_local_experts", "num_experts"}},
        Contradiction{"deepseek_v3", R"({"num_local_experts": 4})", {"n_routed_experts", "num_local_experts"}},
        Contradiction{"deepseek_v3", R"({"num_mtp_layers": 0})", {"num_nextn_predict_layers", "num_mtp_layers"}},
        Contradiction{
            "nemotron_h", R"({"hybrid_override_pattern": "M-*E"})", {"layers_block_type", "hybrid_override_pattern"}},
        Contradiction{"nemotron_h", R"({"layer_types": ["moe"]})", {"layers_block_type", "layer_types"}},
        Contradiction{"nemotron_h", R"({"num_hidden_layers": 5})", {"num_hidden_layers", "layers_block_type"}},
        Contradiction{"nemotron_h", R"({"norm_eps": 1e-6})", {"layer_norm_epsilon", "norm_eps"}},
        Contradiction{"nemotron_h", R"({"mamba_n_groups": 4})", {"n_groups", "mamba_n_groups"}},
        Contradiction{"nemotron_h", R"({"mamba_d_conv": 3})", {"conv_kernel", "mamba_d_conv"}},
        Contradiction{"nemotron_h", R"({"mamba_conv_bias": false})", {"use_conv_bias", "mamba_conv_bias"}},
        Contradiction{"nemotron_h", R"({"mamba_dt_limit": [0.1, Infinity]})", {"time_step_limit", "mamba_dt_limit"}}),
    [](const auto& info) {
        std::string name = fmt::format("{}_{}_{}", info.param.family, info.param.names[0], info.param.names[1]);
        for (char& c : name)
            if (c == '.') c = '_';
        return name;
    });

// transformers 5 writes kinds of layers under new names and infinity as an object.
TEST(ConfigSpelling, OlderLayerKindsAndTaggedNumbersEqualTheNewOnes) {
    Json config = sample("nemotron_h", 5);
    config["layers_block_type"] = {"mamba", "moe", "attention", "mlp"};
    const auto canonical = canonical_config(config);
    ASSERT_TRUE(canonical.ok());
    EXPECT_EQ((*canonical)["layers_block_type"], Json({"linear_attention", "moe", "full_attention", "mlp"}));
    EXPECT_EQ((*canonical)["time_step_limit"][1], std::numeric_limits<double>::infinity());
    EXPECT_EQ((*canonical)["num_hidden_layers"], 4);
    config["hybrid_override_pattern"] = "MXE";
    EXPECT_FALSE(canonical_config(config).ok());
}

TEST(ConfigSpelling, RopeParametersOverrideStaleTopLevelNumbers) {
    for (const char* family : {"llama", "gemma3_text"}) {
        Json config = sample(family, 5);
        const auto before = canonical_config(config);
        config["rope_theta"] = 77.0;
        config["rope_local_base_freq"] = 78.0;
        const auto after = canonical_config(config);
        ASSERT_TRUE(before.ok() && after.ok());
        EXPECT_EQ((*after)["rope_parameters"], (*before)["rope_parameters"]) << family;
    }
}

TEST(ConfigSpelling, AnUnsupportedFamilyNamesWorkingCommandsAndMissingParts) {
    const auto model = model_config({{"model_type", "glm4"}});
    ASSERT_FALSE(model.ok());
    for (const char* part : {"'glm4' is not supported", "partial rotation", "quantize with --weights-only", "verify",
                             "convert", "families"})
        EXPECT_NE(model.error().message().find(part), std::string::npos) << model.error().message();
}

}  // namespace
}  // namespace nibble::test

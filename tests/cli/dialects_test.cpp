// Every family of recipes in every dialect, directly and through `nibble convert`: equal weights, no findings of
// `verify`, and text from `generate`. The model's tensor scales have no exact reciprocal, although compressed-tensors
// stores reciprocals.
#include "checkpoint/checkpoint.h"
#include "checkpoint/reciprocal.h"
#include "cli/cli.h"
#include "io/gguf.h"
#include "io/safetensors_writer.h"
#include "kernels/quantize.h"
#include "support/files.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <random>

namespace nibble::test {
namespace {

namespace fs = std::filesystem;

struct Said {
    int status = 0;
    std::string errors;
};

Said nibble(std::vector<std::string> arguments) {
    std::vector<char*> argv;
    arguments.insert(arguments.begin(), "nibble");
    for (std::string& a : arguments) argv.push_back(a.data());
    argv.push_back(nullptr);
    ::testing::internal::CaptureStdout();
    ::testing::internal::CaptureStderr();
    const int status = cli_main(static_cast<int>(arguments.size()), argv.data());
    (void)::testing::internal::GetCapturedStdout();
    return {status, ::testing::internal::GetCapturedStderr()};
}

// Columns are multiples of 64, which NVFP4 in GGUF requires.
constexpr int hidden = 192, inner = 256, vocab = 272, heads = 6, dim = 32;

std::vector<TensorSpec> model_tensors(DType dtype) {
    const auto matrix = [&](const char* name, int64_t rows, int64_t cols) {
        return TensorSpec{name, dtype, {rows, cols}};
    };
    const auto norm = [&](const char* name) { return TensorSpec{name, dtype, {hidden}}; };
    return {matrix("model.embed_tokens.weight", vocab, hidden),
            matrix("model.layers.0.self_attn.q_proj.weight", heads * dim, hidden),
            matrix("model.layers.0.self_attn.k_proj.weight", dim, hidden),
            matrix("model.layers.0.self_attn.v_proj.weight", dim, hidden),
            matrix("model.layers.0.self_attn.o_proj.weight", hidden, heads * dim),
            matrix("model.layers.0.mlp.gate_proj.weight", inner, hidden),
            matrix("model.layers.0.mlp.up_proj.weight", inner, hidden),
            matrix("model.layers.0.mlp.down_proj.weight", hidden, inner),
            norm("model.layers.0.input_layernorm.weight"),
            norm("model.layers.0.post_attention_layernorm.weight"),
            norm("model.norm.weight")};
}

// Returns a maximum whose tensor scale loses its last bit as a reciprocal, with normalization 448 and 256.
float awkward_maximum() {
    for (uint32_t bits = float_bits(0.40625f);; bits += 0x10000) {
        const float x = float_from_bits(bits);
        bool awkward = true;
        for (const float normalization : {448.0f, 256.0f}) {
            WeightSpec spec{Format::nvfp4, normalization == 256.0f, normalization};
            awkward &= !divisor_of(tensor_scale(spec, {x, x})).exact;
        }
        if (awkward) return x;
    }
}

// Writes a model in BF16; in other dtypes, numbers use all bits.
void write_awkward_model(const fs::path& folder, DType dtype = DType::bf16) {
    fs::create_directories(folder);
    fs::copy_file(test_data("chat") / "tokenizer_config.json", folder / "tokenizer_config.json");
    auto tokenizer = parse_json(read_file(test_data("chat") / "tokenizer.json"));
    ASSERT_TRUE(tokenizer.ok());
    // GPT-2's pre-tokenizer, for which llama.cpp has a name.
    (*tokenizer)["pre_tokenizer"] = {
        {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", true}};
    write_file(folder / "tokenizer.json", tokenizer->dump());
    const std::string_view declared = dtype == DType::bf16 ? "bfloat16" : dtype == DType::f16 ? "float16" : "float32";
    write_file(folder / "config.json",
               fmt::format(R"({{"torch_dtype": "{}", )", declared) +
                   R"("architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 192,
 "intermediate_size": 256, "num_hidden_layers": 1, "num_attention_heads": 6, "num_key_value_heads": 1, "head_dim": 32,
 "vocab_size": 272, "rms_norm_eps": 1e-05, "hidden_act": "silu", "max_position_embeddings": 1024, "rope_theta": 10000.0,
 "tie_word_embeddings": true, "bos_token_id": 269, "eos_token_id": 271}
)");
    const auto tensors = model_tensors(dtype);
    auto layout = SafetensorsLayout::make(tensors);
    ASSERT_TRUE(layout.ok());
    auto writer = SafetensorsFileWriter::create(folder / "model.safetensors", *std::move(layout));
    ASSERT_TRUE(writer.ok());
    const float largest = awkward_maximum();
    std::mt19937 random(7);
    for (size_t i = 0; i < tensors.size(); ++i) {
        const bool norm = tensors[i].shape.size() == 1;
        int64_t n = 1;
        for (const int64_t d : tensors[i].shape) n *= d;
        std::vector<float> values;
        for (int64_t k = 0; k < n; ++k) {
            float sum = 0;  // sum of four uniform numbers: nearly Gaussian
            for (int u = 0; u < 4; ++u) sum += static_cast<float>(random() >> 8) * 0x1p-24f - 0.5f;
            values.push_back(norm ? 1.0f + sum / 16 : sum / 8);
        }
        if (!norm) values[static_cast<size_t>(n / 2)] = -largest;
        std::vector<uint16_t> halves;
        for (const float x : values) halves.push_back(dtype == DType::f16 ? fp16_from_float(x) : bf16_from_float(x));
        const auto bytes = dtype == DType::f32 ? std::as_bytes(std::span(values)) : std::as_bytes(std::span(halves));
        ASSERT_TRUE(writer->write(i, 0, bytes).ok());
    }
    ASSERT_TRUE(writer->finish().ok());
}

// Values of every tensor in FP32.
using Weights = std::map<std::string, std::vector<float>>;

Weights decoded(const fs::path& path) {
    Weights all;
    const auto opened = Checkpoint::open(path);
    if (!opened.ok()) {
        ADD_FAILURE() << opened.error().message();
        return all;
    }
    const QuantizeKernels& ref = quantize_kernels().back();
    for (size_t i = 0; i < (*opened)->tensors().size(); ++i) {
        const CheckpointTensor& t = (*opened)->tensors()[i];
        std::vector<float>& values = all[t.name];
        values.resize(static_cast<size_t>(t.rows() * t.cols()));
        if (t.quantized()) {
            QuantMatrix scratch;
            const auto view = (*opened)->read_quant(i, 0, t.rows(), scratch);
            EXPECT_TRUE(view.ok());
            ref.decode(*view, values.data());
            continue;
        }
        Matrix scratch;
        const auto view = (*opened)->read_plain(i, 0, t.rows(), scratch);
        EXPECT_TRUE(view.ok());
        for (size_t k = 0; k < values.size(); ++k) {
            if (t.dtype == DType::f32) {
                std::memcpy(&values[k], view->data + 4 * k, 4);
                continue;
            }
            EXPECT_EQ(t.dtype, DType::bf16) << t.name;
            uint16_t code;
            std::memcpy(&code, view->data + 2 * k, 2);
            values[k] = bf16_to_float(code);
        }
    }
    return all;
}

class Dialects : public ::testing::TestWithParam<const char*> {
protected:
    void SetUp() override {
        write_awkward_model(dir_ / "source");
        std::string text;
        for (int i = 0; i < 200; ++i) text += "four bits are enough for a weight, and eight are plenty. ";
        write_file(dir_ / "text.txt", text);
    }

    Said quantize(const std::string& out, const std::string& dialect) {
        std::vector<std::string> a{"quantize", dir_ / "source", "-o",      dir_ / out,  "--recipe", GetParam(),
                                   "--format", dialect,         "--quiet", "--threads", "2"};
        // Text if the recipe requires it; GGUF cannot store the input format of MX recipes.
        const std::vector<std::pair<std::string, std::vector<std::string>>> answers{
            {"--calib", {"--calib", dir_ / "text.txt", "--calib-tokens", "96", "--calib-seq", "48"}},
            {"--weights-only", {"--weights-only"}}};
        Said run = nibble(a);
        for (const auto& [asked, more] : answers) {
            if (run.status == 0 || run.errors.find(asked) == std::string::npos) continue;
            a.insert(a.end(), more.begin(), more.end());
            run = nibble(a);
        }
        return run;
    }
    Said convert(const std::string& from, const std::string& out, const std::string& dialect) {
        std::vector<std::string> a{"convert", dir_ / from, "-o",        dir_ / out, "--format",
                                   dialect,   "--quiet",   "--threads", "2"};
        if (dialect == "gguf") a.insert(a.end(), {"--drop", "activation"});
        return nibble(a);
    }
    // Checks that the output has no findings, alone and with the source, and that the model runs.
    void expect_sound(const std::string& name) {
        std::vector<std::string> verify{"verify", dir_ / name, "--quiet", "--threads", "2"};
        // awq_lite folds its scales into weights and norms, so they differ from the source's.
        if (!std::string_view(GetParam()).ends_with("awq_lite"))
            verify.insert(verify.end(), {"--against", dir_ / "source"});
        const Said checked = nibble(verify);
        EXPECT_EQ(checked.status, 0) << name << ": " << checked.errors;
        const Said text = nibble({"generate", dir_ / name, "four bits", "--max-tokens", "3", "--threads", "2"});
        EXPECT_EQ(text.status, 0) << name << ": " << text.errors;
    }
    void expect_same(const Weights& want, const std::string& name) {
        const Weights have = decoded(dir_ / name);
        ASSERT_EQ(have.size(), want.size()) << name;
        for (const auto& [tensor, values] : want)
            EXPECT_EQ(std::memcmp(have.at(tensor).data(), values.data(), values.size() * 4), 0)
                << name << " " << tensor;
    }

    TempDir dir_;
};

TEST_P(Dialects, HoldTheSameWeights) {
    const Said first = quantize("modelopt", "modelopt");
    ASSERT_EQ(first.status, 0) << first.errors;
    expect_sound("modelopt");
    const Weights want = decoded(dir_ / "modelopt");
    ASSERT_EQ(want.size(), 11u);

    for (const auto& [dialect, out] : {std::pair{"compressed-tensors", "ct"}, {"gguf", "x.gguf"}}) {
        SCOPED_TRACE(dialect);
        const std::string by_convert = std::string("converted-") + out;
        const Said straight = quantize(out, dialect), converted = convert("modelopt", by_convert, dialect);
        // llama.cpp has none of nibble's 8-bit formats; neither dialect has NVFP4 with blocks of 32.
        const std::string recipe = GetParam();
        const bool gguf = dialect == std::string("gguf");
        const bool has = recipe != "nvfp4_mlp_weight_only" && (!gguf || recipe.find("fp4") != std::string::npos);
        EXPECT_EQ(straight.status == 0, has) << straight.errors;
        EXPECT_EQ(converted.status == 0, has || gguf) << converted.errors;
        if (straight.status != 0) {  // the dialect does not support the format, and the error states this
            EXPECT_FALSE(straight.errors.empty());
            EXPECT_EQ(straight.errors.find("verification"), std::string::npos) << straight.errors;
            EXPECT_FALSE(fs::exists(dir_ / out));
            if (!gguf) {
                EXPECT_FALSE(converted.errors.empty());
                continue;
            }
            // Converting such matrices to GGUF decodes them to BF16.
            Weights rounded = want;
            for (auto& [tensor, values] : rounded)
                for (float& x : values) x = round_to_bf16(x);
            expect_same(rounded, by_convert);
            continue;
        }
        for (const std::string& name : {std::string(out), by_convert}) {
            expect_sound(name);
            expect_same(want, name);
        }
    }
}

// Unquantized tensors are stored in a GGUF file in the source's dtype, and read from it in BF16.
TEST(DialectsOfEveryDtype, BecomeGguf) {
    for (const auto& [dtype, stored] :
         {std::pair{DType::bf16, GgmlType::bf16}, {DType::f16, GgmlType::f16}, {DType::f32, GgmlType::f32}}) {
        SCOPED_TRACE(dtype_name(dtype));
        TempDir dir;
        write_awkward_model(dir / "source", dtype);
        const Said made[]{nibble({"convert", dir / "source", "-o", dir / "plain.gguf", "--quiet", "--threads", "2"}),
                          nibble({"quantize", dir / "source", "-o", dir / "mx.gguf", "--recipe", "mxfp4",
                                  "--weights-only", "--quiet", "--threads", "2"})};
        for (const Said& said : made) EXPECT_EQ(said.status, 0) << said.errors;
        for (const char* name : {"plain.gguf", "mx.gguf"}) {
            const auto file = GgufFile::open(dir / name);
            ASSERT_TRUE(file.ok()) << file.error().message();
            EXPECT_EQ(file->find_tensor("token_embd.weight")->type, stored) << name;
            const Said checked =
                nibble({"verify", dir / name, "--against", dir / "source", "--quiet", "--threads", "2"});
            EXPECT_EQ(checked.status, 0) << name << ": " << checked.errors;
        }
        // A file with other values is detected: the source with a norm that differs from the file's.
        fs::copy(dir / "source", dir / "other");
        std::string weights = read_file(dir / "other/model.safetensors");
        weights[weights.size() - 1] ^= 1;  // changes sign and exponent of the last value
        write_file(dir / "other/model.safetensors", weights);
        EXPECT_EQ(
            nibble({"verify", dir / "plain.gguf", "--against", dir / "other", "--quiet", "--threads", "2"}).status, 1);
    }
}

INSTANTIATE_TEST_SUITE_P(EveryFamily, Dialects,
                         ::testing::Values("nvfp4", "w4a16_nvfp4", "nvfp4_four_over_six",
                                           "nvfp4_w4a4_weight_mse_fp8_sweep", "nvfp4_mlp_only", "w4a16_nvfp4_gptq",
                                           "w4a16_nvfp4_local_hessian", "nvfp4_awq_lite", "nvfp4_nibble_best",
                                           "nvfp4_mlp_weight_only", "fp8", "fp8_per_channel_per_token",
                                           "fp8_2d_blockwise_weight_only", "mxfp4", "mxfp4_mlp_weight_only", "mxfp8"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace nibble::test

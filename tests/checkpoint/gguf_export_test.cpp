// Writing GGUF: compared with a second converter, read back, and the states of the output.
#include "checkpoint/gguf_config.h"
#include "checkpoint/gguf_from_hf.h"
#include "checkpoint/gguf_names.h"
#include "folders.h"
#include "formats/ggml_dequantize.h"
#include "formats/minifloat.h"
#include "io/gguf.h"

#include <algorithm>
#include <cmath>
#include <set>

namespace nibble::test {
namespace {

namespace fs = std::filesystem;

uint32_t next_random(uint32_t& state) { return (state = state * 1664525u + 1013904223u) >> 8; }

Json llama_config() {
    return {{"model_type", "llama"},
            {"hidden_size", 64},
            {"intermediate_size", 128},
            {"num_hidden_layers", 2},
            {"num_attention_heads", 4},
            {"num_key_value_heads", 2},
            {"head_dim", 16},
            {"vocab_size", 48},
            {"rms_norm_eps", 1e-5},
            {"max_position_embeddings", 512},
            {"rope_theta", 10000.0},
            {"attention_bias", true},
            {"tie_word_embeddings", false}};
}

// Published models store some vectors in FP32.
bool needs_f32(const HfTensor& t) {
    return std::ranges::any_of(t.values, [](float x) { return round_to_bf16(x) != x; });
}

// Returns the declaration of a modelopt or GGUF export of the model; `format` applies to every linear except lm_head.
ExportSpec spec_for(const HfModel& model, Format format, bool input_scales, const fs::path& out, Dialect dialect) {
    ExportSpec spec{.dialect = dialect, .out = out, .config = model.config};
    for (const HfTensor& t : model.tensors) {
        ExportTensor e{.name = t.name, .shape = t.shape, .dtype = needs_f32(t) ? DType::f32 : DType::bf16};
        if (t.name.find("_proj.weight") != t.name.npos && t.name.find("latent") == t.name.npos) {
            e.format = format;
            e.input_scale = input_scales;
            if (input_scales) e.activation = ActivationFormat::nvfp4;
        }
        spec.tensors.push_back(std::move(e));
    }
    return spec;
}

QuantMatrix random_quant(const ExportTensor& t, uint32_t& state) {
    QuantMatrix m(t.format, t.shape[0], t.shape[1]);
    for (uint8_t& code : m.codes) code = static_cast<uint8_t>(next_random(state));
    for (uint8_t& s : m.block_scales)
        s = static_cast<uint8_t>(next_random(state) % (t.format == Format::nvfp4 ? 0x7F : 0xFF));
    m.tensor_scale = t.format == Format::nvfp4 ? static_cast<float>(1 + next_random(state) % 1000) * 0x1p-20f : 1.0f;
    return m;
}

Matrix plain_of(const HfTensor& t) {
    Matrix m(needs_f32(t) ? DType::f32 : DType::bf16, t.shape[0], static_cast<int64_t>(t.values.size()) / t.shape[0]);
    if (m.dtype == DType::f32)
        std::memcpy(m.data.data(), t.values.data(), m.data.size());
    else
        std::ranges::transform(t.values, reinterpret_cast<uint16_t*>(m.data.data()), bf16_from_float);
    return m;
}

// Writes all tensors in panels of `step` rows, last rows and last tensors first.
void fill(Export& out, const ExportSpec& spec, const HfModel& model, int64_t step, uint32_t seed) {
    std::vector<QuantMatrix> quant;
    for (const ExportTensor& t : spec.tensors)
        quant.push_back(t.format == Format::none ? QuantMatrix() : random_quant(t, seed));
    for (size_t i = spec.tensors.size(); i-- > 0;) {
        const ExportTensor& t = spec.tensors[i];
        const Matrix plain = plain_of(model.tensors[i]);
        for (int64_t row = (t.shape[0] - 1) / step * step; row >= 0; row -= step) {
            const int64_t n = std::min(step, t.shape[0] - row);
            check(t.format == Format::none ? out.write_plain(i, row, plain.view().panel(row, n))
                                           : out.write_quant(i, row, quant[i].view().panel(row, n)));
        }
        const auto input = t.input_scale ? std::optional(quant[i].tensor_scale * 3) : std::nullopt;
        if (t.format != Format::none) check(out.write_scalars(i, quant[i].tensor_scale, input));
    }
}

HfModel as_hf(const Json& config, const std::vector<std::pair<std::string, std::vector<int64_t>>>& tensors,
              uint32_t seed) {
    HfModel model{config, {}};
    for (const auto& [name, shape] : tensors) {
        HfTensor t{name, shape, {}};
        int64_t n = 1;
        for (const int64_t d : shape) n *= d;
        for (int64_t i = 0; i < n; ++i)
            t.values.push_back(round_to_bf16(static_cast<float>(next_random(seed)) * 0x1p-24f));
        model.tensors.push_back(std::move(t));
    }
    return model;
}

HfModel mixture() {
    const Json config = {{"model_type", "qwen3_moe"},
                         {"hidden_size", 64},
                         {"intermediate_size", 64},
                         {"num_hidden_layers", 1},
                         {"num_attention_heads", 2},
                         {"num_key_value_heads", 1},
                         {"head_dim", 32},
                         {"vocab_size", 8},
                         {"rms_norm_eps", 1e-6},
                         {"max_position_embeddings", 512},
                         {"num_experts", 3},
                         {"num_experts_per_tok", 2},
                         {"moe_intermediate_size", 128},
                         {"norm_topk_prob", true},
                         {"tie_word_embeddings", true}};
    std::vector<std::pair<std::string, std::vector<int64_t>>> t{{"model.embed_tokens.weight", {8, 64}},
                                                                {"model.norm.weight", {64}}};
    const std::string p = "model.layers.0.";
    for (const char* norm : {"input_layernorm", "post_attention_layernorm"}) t.push_back({p + norm + ".weight", {64}});
    for (const char* norm : {"q_norm", "k_norm"}) t.push_back({p + "self_attn." + norm + ".weight", {32}});
    t.push_back({p + "self_attn.q_proj.weight", {64, 64}});
    t.push_back({p + "self_attn.k_proj.weight", {32, 64}});
    t.push_back({p + "self_attn.v_proj.weight", {32, 64}});
    t.push_back({p + "self_attn.o_proj.weight", {64, 64}});
    t.push_back({p + "mlp.gate.weight", {3, 64}});
    for (const int e : {2, 0, 1}) {  // any order
        const std::string x = fmt::format("{}mlp.experts.{}.", p, e);
        t.push_back({x + "gate_proj.weight", {128, 64}});
        t.push_back({x + "up_proj.weight", {128, 64}});
        t.push_back({x + "down_proj.weight", {64, 128}});
    }
    return as_hf(config, t, 5);
}

void expect_same_quantized(const Checkpoint& a, const Checkpoint& b) {
    ASSERT_EQ(a.tensors().size(), b.tensors().size());
    for (size_t i = 0; i < a.tensors().size(); ++i) {
        const CheckpointTensor& t = a.tensors()[i];
        SCOPED_TRACE(t.name);
        const size_t j = index_of(b, t.name);
        ASSERT_EQ(b.tensors()[j].format, t.format);
        EXPECT_EQ(b.tensors()[j].input_scale, t.input_scale);
        ASSERT_EQ(b.tensors()[j].shape, t.shape);
        if (!t.quantized()) {
            Matrix x, y;
            const MatrixView v = value_of(a.read_plain(i, 0, t.rows(), x)),
                             w = value_of(b.read_plain(j, 0, t.rows(), y));
            ASSERT_EQ(v.dtype, w.dtype);
            EXPECT_EQ(std::memcmp(v.data, w.data, static_cast<size_t>(v.bytes())), 0);
            continue;
        }
        QuantMatrix x, y;
        const QuantView v = value_of(a.read_quant(i, 0, t.rows(), x)), w = value_of(b.read_quant(j, 0, t.rows(), y));
        EXPECT_EQ(v.tensor_scale, w.tensor_scale);
        EXPECT_TRUE(std::equal(v.codes, v.codes + code_bytes(t.format, v.rows, v.cols), w.codes));
        EXPECT_TRUE(
            std::equal(v.block_scales, v.block_scales + block_scale_bytes(t.format, v.rows, v.cols), w.block_scales));
    }
}

void write_model(const HfModel& model, const ExportSpec& spec, int64_t step = 16) {
    auto out = value_of(open_export(spec, ExportMode::create));
    fill(*out, spec, model, step, 99);
    check(out->finish());
}

// ---- Compared with the converter of the tests ----------------------------------------------------------------------

void expect_same_metadata(const GgufMetadata& want, const GgufMetadata& have) {
    for (const GgufKv& kv : want.entries()) {
        SCOPED_TRACE(kv.key);
        const GgufValue* value = have.find(kv.key);
        ASSERT_NE(value, nullptr);
        if (std::holds_alternative<GgufArray>(kv.value)) {
            EXPECT_EQ(value_of(have.integers(kv.key)), value_of(want.integers(kv.key)));
            continue;
        }
        ASSERT_EQ(gguf_type(*value), gguf_type(kv.value));
        std::visit(
            [&](const auto& x) {
                using T = std::decay_t<decltype(x)>;
                if constexpr (!std::is_same_v<T, GgufArray>) {
                    EXPECT_EQ(std::get<T>(*value), x);
                }
            },
            kv.value);
    }
}

void expect_as_the_other_converter(const HfModel& model) {
    TempDir dir;
    const GgufFromHf want = convert_to_gguf(model);
    write_model(model, spec_for(model, Format::none, false, dir / "x.gguf", Dialect::gguf), 5);
    const auto file = value_of(GgufFile::open(dir / "x.gguf"));
    expect_same_metadata(want.metadata, file.metadata());
    EXPECT_EQ(file.tensors().size(), want.specs.size());
    for (size_t i = 0; i < want.specs.size(); ++i) {
        SCOPED_TRACE(want.specs[i].name);
        const GgufTensor* have = file.find_tensor(want.specs[i].name);
        ASSERT_NE(have, nullptr);
        std::vector<int64_t> shape = want.specs[i].shape;
        ASSERT_EQ(have->shape, shape);
        int64_t n = 1;
        for (const int64_t d : shape) n *= d;
        std::vector<float> a(static_cast<size_t>(n)), b(static_cast<size_t>(n));
        check(ggml_dequantize(want.specs[i].type, want.data[i], a.data(), n));
        check(ggml_dequantize(have->type, have->data, b.data(), n));
        // the other converter computes exp and pow in FP32, this one in FP64
        const bool computed = have->name.ends_with("ssm_a") || have->name == "rope_freqs.weight";
        for (int64_t k = 0; k < n; ++k) ASSERT_NEAR(a[k], b[k], computed ? 1e-6 * std::abs(a[k]) : 0) << k;
    }
}

TEST(GgufExport, PlainModelsHaveTheTensorsAndMetadataOfAnotherConverter) {
    const std::filesystem::path root = test_data("golden/models");
    for (const char* name : {"llama", "llama-rope3", "mixtral", "qwen2", "qwen3", "qwen3_moe", "nemotron_h"}) {
        SCOPED_TRACE(name);
        expect_as_the_other_converter(read_hf_model(root / name));
    }
}

TEST(GgufExport, GemmaNormsAreShiftedAndRowsOfGemmaAndQwenKeepTheirOrder) {
    Json config = llama_config();
    config["model_type"] = "gemma3_text";
    config.erase("attention_bias");
    config["sliding_window"] = 32;
    config["query_pre_attn_scalar"] = config["head_dim"];
    expect_as_the_other_converter(random_model(config, 3));
}

TEST(GgufExport, LlamaRowsAndBiasesArePermutedForAnyPanelSize) {
    expect_as_the_other_converter(random_model(llama_config(), 4));
    Json config = llama_config();
    config["model_type"] = "mistral";
    config["attention_bias"] = false;
    config["sliding_window"] = 128;
    expect_as_the_other_converter(random_model(config, 6));
}

TEST(GgufExport, SeedOssHasTheNamesOfLlamaCpp) {
    Json config = llama_config();
    config["model_type"] = "seed_oss";
    config["attention_out_bias"] = true;
    const HfModel model = random_model(config, 7);
    expect_as_the_other_converter(model);
    const auto parts = gguf_parts(value_of(model_config(config)), value_of(find_gguf_architecture("seed_oss")));
    const auto gguf_of = [&](std::string_view hf) {
        const auto part = std::ranges::find(parts, hf, &GgufPart::hf);
        return part == parts.end() ? "" : part->gguf;
    };
    EXPECT_EQ(gguf_of("model.layers.1.post_attention_layernorm.weight"), "blk.1.post_attention_norm.weight");
    EXPECT_EQ(gguf_of("model.layers.1.self_attn.o_proj.bias"), "blk.1.attn_output.bias");
    TempDir dir;
    const std::string refused = message_of(
        open_export(spec_for(model, Format::nvfp4, true, dir / "x.gguf", Dialect::gguf), ExportMode::create));
    EXPECT_NE(refused.find("reads no tensor scale for ffn_"), std::string::npos) << refused;
    EXPECT_TRUE(
        open_export(spec_for(model, Format::mxfp4, false, dir / "x.gguf", Dialect::gguf), ExportMode::create).ok());
}

TEST(GgufExport, RopeDivisorsAreReadableByTheImporter) {
    for (const double factor : {2.0, 8.0, 32.0})
        for (const double length : {64.0, 8192.0}) {
            const auto divisors = llama3_rope_divisors({.factor = factor, .original_length = length}, 500000, 64);
            const Json scaling = value_of(llama3_rope_scaling(divisors, 500000));
            EXPECT_EQ(scaling["factor"], factor);
            EXPECT_EQ(scaling["original_max_position_embeddings"], length);
        }
}

// ---- Written and read back -----------------------------------------------------------------------------------------

TEST(GgufExport, QuantizedMatricesComeBackBitForBitAndSoDoesTheModelOptimizerFolder) {
    TempDir dir;
    int n = 0;
    for (const HfModel& model : {random_model(llama_config(), 1), mixture()})
        for (const auto& [format, input] :
             {std::pair{Format::nvfp4, false}, std::pair{Format::nvfp4, true}, std::pair{Format::mxfp4, false}})
            for (const int64_t step : {5, 16, 128}) {
                SCOPED_TRACE(
                    fmt::format("{} {} {}", std::string(model.config["model_type"]), format_name(format), step));
                const auto at = [&](const char* name) { return dir / fmt::format("{}-{}", n, name); };
                write_model(model, spec_for(model, format, input, at("in"), Dialect::modelopt));
                write_model(model, spec_for(model, format, input, at("direct.gguf"), Dialect::gguf), step);
                const auto in = value_of(Checkpoint::open(at("in")));
                const auto direct = value_of(Checkpoint::open(at("direct.gguf")));
                expect_same_quantized(*in, *direct);
                write_all(*in, *value_of(open_export(spec_of(*in, Dialect::gguf, at("out.gguf")), ExportMode::create)));
                const auto made = value_of(Checkpoint::open(at("out.gguf")));
                write_all(*made,
                          *value_of(open_export(spec_of(*made, Dialect::modelopt, at("back")), ExportMode::create)));
                const auto before = read_folder(at("in")), after = read_folder(at("back"));
                ASSERT_EQ(before.size(), after.size());
                for (const auto& [name, tensor] : before) EXPECT_EQ(after.at(name).bytes, tensor.bytes) << name;
                ++n;
            }
}

TEST(GgufExport, EveryGoldenArchitectureComesBackInNvfp4) {
    const std::filesystem::path root = test_data("golden/models");
    TempDir dir;
    for (const char* name : {"llama", "llama-rope3", "qwen3", "qwen3_moe", "nemotron_h"}) {
        SCOPED_TRACE(name);
        const HfModel model = read_hf_model(root / name);
        const fs::path in_path = dir / name, out_path = dir / fmt::format("{}.gguf", name);
        write_model(model, spec_for(model, Format::nvfp4, true, in_path, Dialect::modelopt));
        write_model(model, spec_for(model, Format::nvfp4, true, out_path, Dialect::gguf), 7);
        expect_same_quantized(*value_of(Checkpoint::open(in_path)), *value_of(Checkpoint::open(out_path)));
    }
}

TEST(GgufExport, Nvfp4WhereLlamaCppIgnoresTheScaleIsRefused) {
    const std::filesystem::path root = test_data("golden/models");
    TempDir dir;
    const HfModel model = read_hf_model(root / "qwen2");
    const std::string message = message_of(
        open_export(spec_for(model, Format::nvfp4, true, dir / "x.gguf", Dialect::gguf), ExportMode::create));
    EXPECT_NE(message.find("reads no tensor scale for ffn_"), std::string::npos) << message;
    EXPECT_NE(message.find("of qwen2"), std::string::npos) << message;
    // The message names all affected matrices and the rules that leave them out.
    for (const char* part : {"ffn_gate of", "ffn_up of", "ffn_down of", "'*gate_proj*', enable: false}, ",
                             "'*up_proj*', enable: false}", "'*down_proj*', enable: false}", " more ("})
        EXPECT_NE(message.find(part), std::string::npos) << part << ": " << message;
    EXPECT_TRUE(
        open_export(spec_for(model, Format::mxfp4, false, dir / "x.gguf", Dialect::gguf), ExportMode::create).ok());
}

TEST(GgufExport, Nvfp4FilesDeclareTheirTypeAndStoreScalesAsLlamaCppExpects) {
    TempDir dir;
    const HfModel model = mixture();
    write_model(model, spec_for(model, Format::nvfp4, true, dir / "x.gguf", Dialect::gguf));
    const auto file = value_of(GgufFile::open(dir / "x.gguf"));
    EXPECT_EQ(value_of(file.metadata().integer("general.file_type")), 39);
    EXPECT_EQ(value_of(file.metadata().integer("general.quantization_version")), 2);
    EXPECT_EQ(value_of(file.metadata().string("tokenizer.ggml.model")), "no_vocab");
    EXPECT_EQ(file.find_tensor("blk.0.attn_q.weight")->type, GgmlType::nvfp4);
    EXPECT_EQ(file.find_tensor("blk.0.ffn_up_exps.weight")->shape, (std::vector<int64_t>{3, 128, 64}));
    for (const char* suffix : {".scale", ".input_scale"}) {
        EXPECT_EQ(file.find_tensor(std::string("blk.0.attn_q") + suffix)->shape, std::vector<int64_t>{1});
        EXPECT_EQ(file.find_tensor(std::string("blk.0.ffn_up_exps") + suffix)->shape, std::vector<int64_t>{3});
    }
    EXPECT_EQ(file.find_tensor("blk.0.ffn_gate_inp.weight")->type, GgmlType::f32);
    EXPECT_EQ(file.find_tensor("token_embd.weight")->type, GgmlType::bf16);
    EXPECT_EQ(file.find_tensor("output.weight"), nullptr);
}

// ---- States of the output ------------------------------------------------------------------------------------------

TEST(GgufExport, AnInterruptedExportContinuesAndReportsAreNextToTheFile) {
    TempDir dir;
    const HfModel model = random_model(llama_config(), 1);
    ExportSpec spec = spec_for(model, Format::nvfp4, false, dir / "x.gguf", Dialect::gguf);
    spec.manifest = "{}\n";
    const size_t q = 2;
    uint64_t sum = 0;
    {
        auto out = value_of(open_export(spec, ExportMode::create));
        EXPECT_NE(message_of(out->finish()).find("rows were written"), std::string::npos);
    }
    fs::remove_all(dir / "x.gguf.partial");
    {
        auto out = value_of(open_export(spec, ExportMode::create));
        EXPECT_EQ(out->work_dir(), dir / "x.gguf.partial");
        EXPECT_NE(message_of(open_export(spec, ExportMode::resume)).find("another process"), std::string::npos);
        fill(*out, spec, model, 16, 99);
        sum = value_of(out->checksum(q, 0));
        EXPECT_NE(sum, value_of(out->checksum(q + 1, 0)));
        for (size_t i = 0; i < spec.tensors.size(); ++i)
            EXPECT_EQ(out->written_checksum(i, 0), value_of(out->checksum(i, 0))) << spec.tensors[i].name;
    }
    EXPECT_FALSE(fs::exists(dir / "x.gguf"));
    write_file(dir / "x.gguf.partial/.nibble-journal.jsonl", "job\nunit\n");
    ExportSpec other = spec;
    other.config["rope_theta"] = 5.0;
    EXPECT_NE(message_of(open_export(other, ExportMode::resume)).find("header"), std::string::npos);
    auto out = value_of(open_export(spec, ExportMode::resume));
    EXPECT_EQ(value_of(out->checksum(q, 0)), sum);
    const float scale = 0.25f;
    check(out->write_scalars(q, scale, std::nullopt));
    EXPECT_NE(value_of(out->checksum(q, 0)), sum) << "the tensor scale belongs to the checksum";
    write_file(out->work_dir() / ".nibble-journal.jsonl", "notes");
    write_file(out->work_dir() / "nibble-report.json", "report");
    check(out->finish());
    std::set<std::string> files;
    for (const auto& entry : fs::directory_iterator(dir / ".")) files.insert(entry.path().filename().string());
    EXPECT_EQ(files, (std::set<std::string>{"x.gguf", "x.gguf.nibble-report.json", "x.gguf.nibble.json"}));
    EXPECT_NE(message_of(open_export(spec, ExportMode::create)).find("exists already"), std::string::npos);
}

// ---- Errors --------------------------------------------------------------------------------------------------------

struct Refusal {
    const char* what;
    void (*change)(ExportSpec&);
    const char* message;
};

ExportTensor& named(ExportSpec& spec, std::string_view suffix) {
    for (ExportTensor& t : spec.tensors)
        if (t.name.ends_with(suffix)) return t;
    throw std::runtime_error("no tensor " + std::string(suffix));
}

const Refusal refusals[] = {
    {"fp8", [](ExportSpec& s) { named(s, "q_proj.weight").format = Format::fp8; },
     "q_proj.weight': fp8 has no type in GGUF"},
    {"mxfp8", [](ExportSpec& s) { named(s, "q_proj.weight").format = Format::mxfp8; }, "mxfp8 has no type"},
    {"blocks of 32", [](ExportSpec& s) { named(s, "q_proj.weight").format = Format::nvfp4_bs32; },
     "nvfp4_bs32 has no type"},
    {"half a block",
     [](ExportSpec& s) {
         named(s, "down_proj.weight").shape = {64, 96};
     },
     "down_proj.weight': rows of 96 are not whole blocks of 64"},
    {"embedding", [](ExportSpec& s) { named(s, "embed_tokens.weight").format = Format::nvfp4; },
     "embed_tokens.weight': llama.cpp reads no tensor scale"},
    {"norm", [](ExportSpec& s) { named(s, "model.norm.weight").format = Format::nvfp4; }, "must stay unquantized"},
    {"dynamic inputs", [](ExportSpec& s) { named(s, "q_proj.weight").activation = ActivationFormat::mxfp4; },
     "--weights-only"},
    {"kv", [](ExportSpec& s) { s.kv = KvFormat::fp8_cast; }, "KV cache format"},
    {"kv scale",
     [](ExportSpec& s) { s.tensors.push_back({.name = "model.layers.0.self_attn.k_proj.k_scale", .shape = {1}}); },
     "k_scale': has no name"},
    {"name", [](ExportSpec& s) { named(s, "model.norm.weight").name = "model.other.weight"; },
     "'model.other.weight': has no name"},
    {"tower", [](ExportSpec& s) { named(s, "model.norm.weight").name = "visual.norm.weight"; },
     "'visual.norm.weight': a GGUF file holds the text model alone; `nibble convert --drop vision`"},
    {"integers", [](ExportSpec& s) { named(s, "model.norm.weight").dtype = DType::i64; }, "this one is I64"},
    {"extension", [](ExportSpec& s) { s.out = s.out.parent_path() / "folder"; }, "ends in .gguf"},
    {"model", [](ExportSpec& s) { s.config["model_type"] = "gpt_neox"; }, "model_type 'gpt_neox' has no GGUF writer"},
    {"no model", [](ExportSpec& s) { s.config.erase("model_type"); }, "'model_type' must be a string"},
    {"activation", [](ExportSpec& s) { s.config["hidden_act"] = "gelu"; }, "'hidden_act' is \"gelu\""},
    {"size", [](ExportSpec& s) { s.config["hidden_size"] = -1; }, "'hidden_size' is -1"},
    {"size type", [](ExportSpec& s) { s.config["num_hidden_layers"] = "two"; }, "'num_hidden_layers' is \"two\""},
    {"rope",
     [](ExportSpec& s) {
         s.config["rope_scaling"] = {{"rope_type", "dynamic"}, {"factor", 2.0}};
     },
     "'dynamic' is not supported"},
    {"rope factors",
     [](ExportSpec& s) {
         s.config["rope_scaling"] = {{"rope_type", "llama3"},
                                     {"factor", 8.0},
                                     {"low_freq_factor", 4.0},
                                     {"high_freq_factor", 1.0},
                                     {"original_max_position_embeddings", 64}};
     },
     "'high_freq_factor' is 1.0"},
    {"partial", [](ExportSpec& s) { s.config["partial_rotary_factor"] = 0.5; }, "partial_rotary_factor"},
    {"heads", [](ExportSpec& s) { s.config["num_attention_heads"] = 3; }, "does not divide num_attention_heads, 3"},
    {"no heads", [](ExportSpec& s) { s.config["num_attention_heads"] = 0; }, "'num_attention_heads' is 0"},
    {"tokenizer",
     [](ExportSpec& s) {
         s.side_files = {{"tekken.json", {}, "x"}};
     },
     "needs tokenizer.json"},
};

TEST(GgufExport, ModelsThatGgufCannotExpressAreRefusedBeforeAnythingIsWritten) {
    TempDir dir;
    const HfModel model = random_model(llama_config(), 1);
    for (const Refusal& r : refusals) {
        SCOPED_TRACE(r.what);
        ExportSpec spec = spec_for(model, Format::nvfp4, false, dir / "x.gguf", Dialect::gguf);
        r.change(spec);
        const std::string message = message_of(open_export(spec, ExportMode::create));
        EXPECT_NE(message.find(r.message), std::string::npos) << message;
        EXPECT_TRUE(fs::is_empty(dir / "."));
    }
}

TEST(GgufExport, StackedExpertsMustBeCompleteAndEqualInFormat) {
    TempDir dir;
    const HfModel model = mixture();
    const auto refused = [&](void (*change)(ExportSpec&)) {
        ExportSpec spec = spec_for(model, Format::nvfp4, false, dir / "x.gguf", Dialect::gguf);
        change(spec);
        return message_of(open_export(spec, ExportMode::create));
    };
    EXPECT_NE(refused([](ExportSpec& s) { s.tensors.pop_back(); }).find("2 of 3 experts"), std::string::npos);
    EXPECT_NE(refused([](ExportSpec& s) { s.tensors.back().format = Format::none; }).find("differs in shape or format"),
              std::string::npos);
    EXPECT_NE(refused([](ExportSpec& s) { s.tensors.push_back(s.tensors.back()); }).find("appears twice"),
              std::string::npos);
    EXPECT_NE(refused([](ExportSpec& s) { s.config["num_experts"] = 2; }).find("has no name"), std::string::npos);
    EXPECT_NE(refused([](ExportSpec& s) { s.config["norm_topk_prob"] = false; }).find("always normalizes"),
              std::string::npos);
}

TEST(GgufExport, ScalesThatGgmlReadsOtherwiseAndRowsThatDoNotFitAreRefused) {
    TempDir dir;
    const HfModel model = random_model(llama_config(), 1);
    const ExportSpec spec = spec_for(model, Format::nvfp4, false, dir / "x.gguf", Dialect::gguf);
    auto out = value_of(open_export(spec, ExportMode::create));
    QuantMatrix m(Format::nvfp4, 64, 64);
    m.block_scales[5 * 4] = 0x7F;
    const size_t q = 2;  // model.layers.0.self_attn.q_proj.weight
    EXPECT_NE(message_of(out->write_quant(q, 0, m.view())).find("row 5: block scale 0x7f"), std::string::npos);
    m.block_scales[5 * 4] = 0x81;
    EXPECT_NE(message_of(out->write_quant(q, 0, m.view())).find("row 5: block scale 0x81"), std::string::npos);
    m.block_scales[5 * 4] = 0x7E;
    check(out->write_quant(q, 0, m.view()));
    EXPECT_FALSE(out->write_quant(q, 1, m.view()).ok());
    EXPECT_FALSE(out->write_quant(q, -1, m.view().panel(0, 1)).ok());
    for (const float bad : {0.0f, -1.0f, INFINITY, NAN}) EXPECT_FALSE(out->write_scalars(q, bad, std::nullopt).ok());
    EXPECT_FALSE(out->write_scalars(q, 1, 1.0f).ok());
    EXPECT_FALSE(out->write_plain(q, 0, Matrix(DType::bf16, 64, 64).view()).ok());
    EXPECT_FALSE(out->checksum(spec.tensors.size(), 0).ok());
}

}  // namespace
}  // namespace nibble::test

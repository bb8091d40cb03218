// Quantized checkpoints as other programs write them: methods, granularities, dtypes and names of scales, inputs. The
// checkpoint of each table row is created, opened, and decoded to code times scale.
#include "checkpoint/convert.h"
#include "checkpoint/decode.h"
#include "checkpoint/folders.h"
#include "formats/minifloat.h"

#include <cstring>

namespace nibble::test {
namespace {

namespace fs = std::filesystem;
using A = ActivationFormat;
using F = Format;

constexpr int64_t rows = 160, cols = 192;  // not multiples of 128
const std::string module = "model.layers.0.mlp.up_proj", weight = module + ".weight";

// ---- FP8 ----------------------------------------------------------------------------------------------------------

struct Granularity {
    const char* name;
    std::vector<int64_t> shape;  // shape of the scales
    Format format;
    Json block_size;  // weight_block_size of quant_method fp8
    ActivationFormat dynamic_inputs;
};
const std::vector<Granularity> granularities{
    {"tensor", {}, F::fp8, nullptr, A::fp8_token},
    {"tensor1", {1}, F::fp8, nullptr, A::fp8_token},
    {"channel", {rows, 1}, F::fp8_row, nullptr, A::fp8_token},
    {"row", {rows}, F::fp8_row, nullptr, A::fp8_token},
    {"tile", {2, 2}, F::fp8_block128, Json{128, 128}, A::fp8_group128},
    {"mx", {rows, cols / 32}, F::mxfp8, Json{1, 32}, A::mxfp8},
};

struct Fp8Case {
    Granularity granularity;
    DType scale_dtype;
    std::string scale_name, input_name;  // empty input_name: dynamic
};

std::vector<Fp8Case> fp8_cases() {
    std::vector<Fp8Case> cases;
    for (const Granularity& g : granularities)
        for (DType dtype : {DType::f32, DType::bf16, DType::f16, DType::f8_e8m0, DType::u8})
            for (const char* scale : {"weight_scale", "weight_scale_inv", "scale", "qscale_weight"})
                for (const char* input : {"", "input_scale", "activation_scale", "qscale_act"}) {
                    const bool exponents = dtype == DType::f8_e8m0 || dtype == DType::u8;
                    if (g.format == F::mxfp8 && (!exponents || *input)) continue;
                    if (dtype == DType::u8 && g.format != F::mxfp8) continue;
                    cases.push_back({g, dtype, scale, input});
                }
    return cases;
}

std::vector<std::byte> fp8_codes(int64_t n) {
    std::vector<std::byte> codes(static_cast<size_t>(n));
    for (size_t i = 0; i < codes.size(); ++i) {
        const auto code = static_cast<uint8_t>(i * 37 + 11);
        codes[i] = static_cast<std::byte>((code & 0x7F) == 0x7F ? 0x55 : code);  // no NaN
    }
    return codes;
}

// Returns scales of the dtype, and their values.
RawTensor scales_of(std::string name, DType dtype, const std::vector<int64_t>& shape, std::vector<float>& values) {
    int64_t n = 1;
    for (int64_t d : shape) n *= d;
    std::vector<uint16_t> halves;
    std::vector<uint8_t> exponents;
    values.clear();
    for (int64_t i = 0; i < n; ++i) {
        const float x = 0.001f * static_cast<float>(i % 97 + 1);
        halves.push_back(dtype == DType::bf16 ? bf16_from_float(x) : fp16_from_float(x));
        exponents.push_back(static_cast<uint8_t>(112 + i % 9));
        values.push_back(dtype == DType::f32    ? x
                         : dtype == DType::bf16 ? bf16_to_float(halves.back())
                         : dtype == DType::f16  ? fp16_to_float(halves.back())
                                                : e8m0_to_float(exponents.back()));
    }
    if (dtype == DType::f32) return raw<float>(std::move(name), dtype, shape, values);
    if (dtype == DType::bf16 || dtype == DType::f16) return raw<uint16_t>(std::move(name), dtype, shape, halves);
    return raw<uint8_t>(std::move(name), dtype, shape, exponents);
}

void write_folder(const fs::path& folder, const Json& section, std::vector<RawTensor> tensors) {
    fs::create_directory(folder);
    Json config{{"model_type", "llama"}, {"tie_word_embeddings", false}};
    config["quantization_config"] = section;
    write_file(folder / "config.json", config.dump());
    tensors.push_back(filled("lm_head.weight", DType::bf16, {4, 4}));
    write_safetensors(folder / "model.safetensors", tensors);
}

// Returns the BF16 bits of one tensor.
std::vector<uint16_t> bf16_bits(const Checkpoint& in, std::string_view name) {
    const size_t i = index_of(in, name);
    Matrix scratch;
    const MatrixView view = value_of(in.read_plain(i, 0, in.tensors()[i].rows(), scratch));
    EXPECT_EQ(view.dtype, DType::bf16);
    std::vector<uint16_t> bits(static_cast<size_t>(view.rows * view.cols));
    std::memcpy(bits.data(), view.data, bits.size() * 2);
    return bits;
}

// Returns the same bits from a folder that was converted to BF16.
std::vector<uint16_t> as_plain(const fs::path& folder, const fs::path& out, const std::string& name) {
    ThreadPool pool(2);
    value_of(convert(*value_of(Checkpoint::open(folder)), {.to = Dialect::plain, .out = out}, pool, {}));
    const RawTensor tensor = read_folder(out).at(name);
    EXPECT_EQ(tensor.dtype, DType::bf16);
    std::vector<uint16_t> bits(tensor.bytes.size() / 2);
    std::memcpy(bits.data(), tensor.bytes.data(), tensor.bytes.size());
    return bits;
}

TEST(SourceSpellings, EveryFp8SourceDecodesToCodeTimesScale) {
    TempDir dir;
    int number = 0;
    for (const Fp8Case& c : fp8_cases()) {
        SCOPED_TRACE(
            fmt::format("{} {} {} {}", c.granularity.name, dtype_name(c.scale_dtype), c.scale_name, c.input_name));
        const fs::path folder = dir / fmt::format("in{}", ++number);
        std::vector<float> scales;
        std::vector<RawTensor> tensors{
            {weight, DType::f8_e4m3, {rows, cols}, fp8_codes(rows * cols)},
            scales_of(fmt::format("{}.{}", module, c.scale_name), c.scale_dtype, c.granularity.shape, scales)};
        if (!c.input_name.empty())
            tensors.push_back(raw<float>(fmt::format("{}.{}", module, c.input_name), DType::f32, {}, {0.25f}));
        const Json section{{"quant_method", "fp8"},
                           {"activation_scheme", c.input_name.empty() ? "dynamic" : "static"},
                           {"weight_block_size", c.granularity.block_size}};
        write_folder(folder, section, tensors);
        const auto in = value_of(Checkpoint::open(folder));
        const CheckpointTensor& t = in->tensors()[index_of(*in, weight)];
        EXPECT_EQ(in->dialect(), Dialect::fp8);
        EXPECT_EQ(t.format, c.granularity.format);
        EXPECT_EQ(t.activation, c.input_name.empty() ? c.granularity.dynamic_inputs : A::fp8);
        EXPECT_EQ(t.input_scale, c.input_name.empty() ? std::nullopt : std::optional(0.25f));
        EXPECT_TRUE(in->notes().empty());
        const auto values = decode(*in, index_of(*in, weight));
        const auto codes = fp8_codes(rows * cols);
        const auto& shape = c.granularity.shape;
        const int64_t wide = shape.size() > 1 ? shape[1] : 1;
        const int64_t tall = shape.empty() ? 1 : shape[0];
        for (int64_t r = 0; r < rows; ++r)
            for (int64_t k = 0; k < cols; ++k) {
                const int64_t sr = tall == 1 ? 0 : tall == rows ? r : r / 128;
                const int64_t sc = wide == 1 ? 0 : wide == cols / 32 ? k / 32 : k / 128;
                const float want = e4m3_to_float(static_cast<uint8_t>(codes[size_t(r * cols + k)])) *
                                   scales[static_cast<size_t>(sr * wide + sc)];
                ASSERT_EQ(values[size_t(r * cols + k)], want) << r << ' ' << k;
            }
        fs::remove_all(folder);
    }
    EXPECT_EQ(number, 5 * 4 * 4 * 4 + 2 * 4);
}

struct Keys {
    const char* what;
    Json section;
    std::vector<int64_t> scale_shape;
    Format format;
};

TEST(SourceSpellings, KeysOfEveryProgramAreRead) {
    const Json tiles{128, 128};
    const Json args{{"num_bits", 8}, {"strategy", "tensor"}, {"type", "float"}};
    const auto ct = [&](const char* status, const Json& format) {
        Json section{{"quant_method", "compressed-tensors"},
                     {"quantization_status", status},
                     {"ignore", {"lm_head"}},
                     {"version", "0.20.1"},
                     {"global_compression_ratio", nullptr},
                     {"an_unknown_key", 7}};
        section["config_groups"]["group_0"] = Json{{"targets", {"Linear"}}, {"weights", args}, {"an_unknown_key", 7}};
        if (!format.is_null()) section["format"] = format;
        return section;
    };
    std::vector<Keys> cases{
        {"transformers",
         {{"quant_method", "fp8"},
          {"modules_to_not_convert", {"lm_head"}},
          {"modules_to_convert", nullptr},
          {"activation_scheme", "dynamic"},
          {"weight_block_size", tiles},
          {"dequantize", false},
          {"scale_fmt", "float"},
          {"expert_dtype", "fp8"}},
         {2, 2},
         F::fp8_block128},
        {"DeepSeek",
         {{"quant_method", "fp8"},
          {"fmt", "e4m3"},
          {"activation_scheme", "dynamic"},
          {"scale_fmt", "ue8m0"},
          {"weight_block_size", tiles}},
         {2, 2},
         F::fp8_block128},
        {"Ministral 3",
         {{"quant_method", "fp8"},
          {"activation_scheme", "static"},
          {"dequantize", false},
          {"weight_block_size", nullptr}},
         {},
         F::fp8},
        {"vLLM",
         {{"quant_method", "fp8"}, {"activation_scheme", "dynamic"}, {"ignored_layers", {"lm_head"}}, {"kernel", "x"}},
         {1},
         F::fp8},
        {"FBGEMM", {{"quant_method", "fbgemm_fp8"}, {"activation_scale_ub", 1200.0}}, {rows, 1}, F::fp8_row},
        {"Model Optimizer", {{"quant_method", "modelopt"}, {"quant_algo", "FP8"}}, {}, F::fp8},
        {"Model Optimizer, first exports",
         {{"quant_method", "modelopt"}, {"quantization", {{"quant_algo", "FP8"}, {"exclude_modules", {"lm_head"}}}}},
         {},
         F::fp8},
        {"Model Optimizer, by channel",
         {{"quant_method", "modelopt"}, {"quant_algo", "FP8_PER_CHANNEL_PER_TOKEN"}},
         {rows},
         F::fp8_row},
    };
    for (const char* status : {"initialized", "calibration", "frozen", "compressed"})
        for (const Json& format : {Json("naive-quantized"), Json("float-quantized"), Json()})
            cases.push_back({status, ct(status, format), {1}, F::fp8});
    for (const Keys& c : cases) {
        SCOPED_TRACE(c.what);
        TempDir dir;
        std::vector<float> scales;
        write_folder(dir / "in", c.section,
                     {{weight, DType::f8_e4m3, {rows, cols}, fp8_codes(rows * cols)},
                      scales_of(module + ".weight_scale", DType::f32, c.scale_shape, scales)});
        const auto opened = Checkpoint::open(dir / "in");
        ASSERT_TRUE(opened.ok()) << opened.error().message();
        EXPECT_EQ((*opened)->tensors()[index_of(**opened, weight)].format, c.format);
        EXPECT_EQ(as_plain(dir / "in", dir / "out", weight)[0], bf16_from_float(e4m3_to_float(11) * scales[0]));
    }
}

TEST(SourceSpellings, ValuesThatNibbleDoesNotKnowAreRefusedByKey) {
    const std::vector<std::pair<const char*, Json>> cases{
        {"weight_block_size", Json{64, 64}},
        {"activation_scheme", "mixed"},
        {"fmt", "e5m2"},
        {"scale_fmt", "int8"},
        {"expert_dtype", "int4"},
        {"pre_quant_scale", true},
        {"sparsity_config", Json{{"a", "b"}}},
        {"transform_config", Json{{"R", 1}}},
        {"has_zero_point", true},
    };
    for (const auto& [key, value] : cases) {
        TempDir dir;
        Json section{{"quant_method", "fp8"}};
        section[key] = value;
        write_folder(dir / "in", section, {});
        EXPECT_NE(message_of(Checkpoint::open(dir / "in")).find(key), std::string::npos) << key;
    }
}

// The section may be inside the part of the language model.
TEST(SourceSpellings, ANestedSectionIsRead) {
    TempDir dir;
    std::vector<float> scales;
    write_folder(dir / "in", nullptr,
                 {{weight, DType::f8_e4m3, {rows, cols}, fp8_codes(rows * cols)},
                  scales_of(module + ".weight_scale", DType::f32, {}, scales)});
    Json config = value_of(read_json_file(dir / "in/config.json"));
    config.erase("quantization_config");
    config["text_config"]["quantization_config"] = Json{{"quant_method", "fp8"}};
    write_file(dir / "in/config.json", config.dump());
    const auto in = value_of(Checkpoint::open(dir / "in"));
    EXPECT_EQ(in->tensors()[index_of(*in, weight)].format, F::fp8);
    EXPECT_FALSE(in->config()["text_config"].contains("quantization_config"));
}

TEST(SourceSpellings, ScalesOfTheKvCacheHaveManyNames) {
    const std::string attention = "model.layers.0.self_attn";
    const std::vector<std::vector<std::string>> spellings{
        {attention + ".k_scale", attention + ".v_scale"},
        {attention + ".k_proj.k_scale", attention + ".v_proj.v_scale"},
        {attention + ".k_proj.output_scale", attention + ".v_proj.output_scale"},
        {attention + ".kv_scale"},
    };
    for (const auto& names : spellings) {
        SCOPED_TRACE(names[0]);
        TempDir dir;
        std::vector<float> scales;
        std::vector<RawTensor> tensors;
        for (const char* projection : {".k_proj", ".v_proj"}) {
            tensors.push_back(
                {attention + projection + ".weight", DType::f8_e4m3, {rows, cols}, fp8_codes(rows * cols)});
            tensors.push_back(scales_of(attention + projection + ".weight_scale", DType::f32, {}, scales));
        }
        for (const std::string& name : names) tensors.push_back(raw<float>(name, DType::f32, {1}, {0.5f}));
        write_folder(dir / "in", Json{{"quant_method", "fp8"}, {"activation_scheme", "dynamic"}}, tensors);
        const auto in = value_of(Checkpoint::open(dir / "in"));
        EXPECT_EQ(in->kv(), KvFormat::fp8);
        Matrix scratch;
        for (const char* name : {".k_proj.k_scale", ".v_proj.v_scale"}) {
            float x = 0;
            std::memcpy(&x, value_of(in->read_plain(index_of(*in, attention + name), 0, 1, scratch)).data, 4);
            EXPECT_EQ(x, 0.5f);
        }
    }
}

// ---- Inputs of NVFP4 ----------------------------------------------------------------------------------------------

std::vector<RawTensor> nvfp4_linear(const std::string& name, bool input_scale) {
    std::vector<RawTensor> tensors{
        {name + ".weight", DType::u8, {4, 16}, std::vector<std::byte>(64, std::byte{0x21})},
        {name + ".weight_scale", DType::f8_e4m3, {4, 2}, std::vector<std::byte>(8, std::byte{0x38})},
        raw<float>(name + ".weight_scale_2", DType::f32, {}, {0.5f})};
    if (input_scale) tensors.push_back(raw<float>(name + ".input_scale", DType::f32, {}, {0.25f}));
    return tensors;
}

struct InputCase {
    const char* what;
    Json more;  // keys of the section
    bool stored;
    ActivationFormat activation;
    size_t notes;
};

TEST(SourceSpellings, TensorsAndConfigurationDetermineTheInputsOfNvfp4) {
    const auto groups = [](const Json& inputs) {
        Json section;
        section["config_groups"]["group_0"] =
            Json{{"weights", {{"num_bits", 4}, {"group_size", 16}}}, {"input_activations", inputs}};
        return section;
    };
    const std::vector<InputCase> cases{
        {"stored and used", Json::object(), true, A::nvfp4, 0},
        {"merely missing", Json::object(), false, A::none, 1},
        {"input_activations null", groups(nullptr), false, A::none, 0},
        {"input_activations null, but stored", groups(nullptr), true, A::none, 1},
        {"with_input_scale false", Json{{"with_input_scale", false}}, false, A::none, 0},
        {"dynamic", groups(Json{{"dynamic", true}, {"num_bits", 4}, {"type", "float"}, {"group_size", 16}}), false,
         A::none, 1},
    };
    for (const char* method : {"modelopt", "modelopt_fp4"})
        for (const InputCase& c : cases) {
            SCOPED_TRACE(c.what);
            TempDir dir;
            Json section{{"quant_method", method}, {"quant_algo", "NVFP4"}, {"ignore", {"lm_head"}}};
            section.update(c.more);
            write_folder(dir / "in", section, nvfp4_linear(module, c.stored));
            const auto in = value_of(Checkpoint::open(dir / "in"));
            const CheckpointTensor& t = in->tensors()[index_of(*in, weight)];
            EXPECT_EQ(t.format, F::nvfp4);
            EXPECT_EQ(t.activation, c.activation);
            EXPECT_EQ(t.input_scale.has_value(), c.activation != A::none);
            EXPECT_EQ(in->notes().size(), c.notes);
        }
}

TEST(SourceSpellings, InputScalesForSomeMatricesOnlyAreRefused) {
    TempDir dir;
    auto tensors = nvfp4_linear(module, true);
    for (RawTensor& t : nvfp4_linear("model.layers.1.mlp.up_proj", false)) tensors.push_back(std::move(t));
    write_folder(dir / "in", Json{{"quant_method", "modelopt"}, {"quant_algo", "NVFP4"}, {"ignore", {"lm_head"}}},
                 tensors);
    const std::string message = message_of(Checkpoint::open(dir / "in"));
    EXPECT_NE(message.find("model.layers.1.mlp.up_proj.input_scale"), std::string::npos) << message;
}

TEST(SourceSpellings, AQuantizedModuleThatIsListedAsExcludedIsReportedAndRead) {
    TempDir dir;
    write_folder(
        dir / "in",
        Json{{"quant_method", "modelopt"}, {"quant_algo", "NVFP4"}, {"ignore", {"lm_head", "model.layers.0*"}}},
        nvfp4_linear(module, true));
    const auto in = value_of(Checkpoint::open(dir / "in"));
    EXPECT_EQ(in->tensors()[index_of(*in, weight)].format, F::nvfp4);
    ASSERT_EQ(in->notes().size(), 1u);
    EXPECT_NE(in->notes()[0].find(module), std::string::npos);
}

// ---- Formats that are decoded when they are read -------------------------------------------------------------------

TEST(SourceSpellings, PackedIntegersDecodeToCodeTimesScale) {
    struct Case {
        int bits;
        bool packed;
        const char* strategy;
        int64_t group, width;
    };
    for (const Case& c :
         {Case{4, true, "group", 32, 96}, Case{4, true, "channel", 0, 90}, Case{8, true, "group", 32, 64},
          Case{8, false, "channel", 0, 90}, Case{8, false, "tensor", 0, 90}}) {
        SCOPED_TRACE(fmt::format("{} bits, {}, {}", c.bits, c.packed ? "packed" : "bytes", c.strategy));
        TempDir dir;
        constexpr int64_t n = 8;
        const auto code = [&](int64_t r, int64_t k) {
            return static_cast<int>((r * 7 + k * 5) % (c.bits == 4 ? 16 : 256));
        };
        const int64_t per_word = 32 / c.bits, words = ceil_div(c.width, per_word);
        std::vector<uint32_t> packed(static_cast<size_t>(n * words));
        std::vector<int8_t> bytes(static_cast<size_t>(n * c.width));
        for (int64_t r = 0; r < n; ++r)
            for (int64_t k = 0; k < c.width; ++k) {
                packed[size_t(r * words + k / per_word)] |= uint32_t(code(r, k)) << (k % per_word * c.bits);
                bytes[size_t(r * c.width + k)] = static_cast<int8_t>(code(r, k) - 128);
            }
        const int64_t groups = c.group ? c.width / c.group : 1;
        const bool one = std::string_view(c.strategy) == "tensor";
        std::vector<float> scales;
        std::vector<RawTensor> tensors{scales_of(module + ".weight_scale", DType::bf16,
                                                 one ? std::vector<int64_t>{1} : std::vector{n, groups}, scales)};
        if (c.packed) {
            tensors.push_back(raw<uint32_t>(module + ".weight_packed", DType::i32, {n, words}, packed));
            tensors.push_back(raw<int64_t>(module + ".weight_shape", DType::i64, {2}, {n, c.width}));
        } else {
            tensors.push_back(raw<int8_t>(weight, DType::i8, {n, c.width}, bytes));
        }
        Json args{{"num_bits", c.bits}, {"type", "int"}, {"symmetric", true}, {"strategy", c.strategy}};
        if (c.group) args["group_size"] = c.group;
        Json section{{"quant_method", "compressed-tensors"},
                     {"format", c.packed ? "pack-quantized" : "int-quantized"},
                     {"ignore", {"lm_head"}}};
        section["config_groups"]["group_0"] = Json{{"targets", {"Linear"}}, {"weights", args}};
        write_folder(dir / "in", section, tensors);
        const auto in = value_of(Checkpoint::open(dir / "in"));
        EXPECT_EQ(in->tensors()[index_of(*in, weight)].stored_type, c.bits == 4 ? "INT4" : "INT8");
        const auto bits = as_plain(dir / "in", dir / "out", weight);
        ASSERT_EQ(bits.size(), size_t(n * c.width));
        for (int64_t r = 0; r < n; ++r)
            for (int64_t k = 0; k < c.width; ++k) {
                const auto value = static_cast<float>(code(r, k) - (c.bits == 4 ? 8 : 128));
                const float scale = scales[one ? 0 : size_t(r * groups + (c.group ? k / c.group : 0))];
                ASSERT_EQ(bits[size_t(r * c.width + k)], bf16_from_float(value * scale)) << r << ' ' << k;
            }
    }
}

TEST(SourceSpellings, GptOssExpertsBecomeTransformersStacks) {
    TempDir dir;
    constexpr int64_t experts = 2, out = 6, in_width = 64;
    const std::string stack = "model.layers.0.mlp.experts.gate_up_proj";
    std::vector<uint8_t> blocks, scales;
    for (int64_t i = 0; i < experts * out * in_width / 2; ++i) blocks.push_back(static_cast<uint8_t>(i * 37 + 5));
    for (int64_t i = 0; i < experts * out * in_width / 32; ++i) scales.push_back(static_cast<uint8_t>(118 + i % 7));
    write_folder(dir / "in", Json{{"quant_method", "mxfp4"}, {"modules_to_not_convert", {"lm_head"}}},
                 {raw(stack + "_blocks", DType::u8, {experts, out, in_width / 32, 16}, blocks),
                  raw(stack + "_scales", DType::u8, {experts, out, in_width / 32}, scales),
                  filled(stack + "_bias", DType::bf16, {experts, out})});
    const auto in = value_of(Checkpoint::open(dir / "in"));
    const CheckpointTensor& t = in->tensors()[index_of(*in, stack)];
    EXPECT_EQ(t.shape, (std::vector<int64_t>{experts, in_width, out}));
    EXPECT_EQ(t.stored_type, "MXFP4");
    EXPECT_EQ(t.stored_bytes, std::ssize(blocks) + std::ssize(scales));
    const auto bits = as_plain(dir / "in", dir / "out", stack);
    for (int64_t e = 0; e < experts; ++e)
        for (int64_t i = 0; i < in_width; ++i)
            for (int64_t o = 0; o < out; ++o) {
                const int64_t stored = (e * out + o) * in_width + i;
                const uint8_t pair = blocks[size_t(stored / 2)];
                const float want =
                    e2m1_to_float(i % 2 ? pair >> 4 : pair & 15) * e8m0_to_float(scales[size_t(stored / 32)]);
                ASSERT_EQ(bits[size_t((e * in_width + i) * out + o)], bf16_from_float(want))
                    << e << ' ' << i << ' ' << o;
            }
}

// Model Optimizer's stacks of Llama 4: code pairs and scale blocks are along the inputs, the first dimension.
TEST(SourceSpellings, StackedNvfp4IsOneMatrixAndKeepsTheOrientationOfTransformers) {
    TempDir dir;
    constexpr int64_t experts = 2, inner = 16, hidden = 32;
    const std::string mlp = "model.layers.0.feed_forward.experts.";
    std::vector<RawTensor> tensors;
    const auto add = [&](const std::string& name, int64_t inputs, int64_t outputs) {
        std::vector<uint8_t> codes, scales;
        for (int64_t i = 0; i < experts * inputs / 2 * outputs; ++i) codes.push_back(static_cast<uint8_t>(i * 11 + 3));
        for (int64_t i = 0; i < experts * inputs / 16 * outputs; ++i)
            scales.push_back(static_cast<uint8_t>(0x30 + i % 16));
        tensors.push_back(raw(mlp + name, DType::u8, {experts, inputs / 2, outputs}, codes));
        tensors.push_back(raw(mlp + name + "_weight_scale", DType::f8_e4m3, {experts, inputs / 16, outputs}, scales));
        tensors.push_back(raw<float>(mlp + name + "_weight_scale_2", DType::f32, {}, {0.3f}));
        tensors.push_back(raw<float>(mlp + name + "_input_scale", DType::f32, {}, {0.5f}));
    };
    add("gate_up_proj", hidden, 2 * inner);
    add("down_proj", inner, hidden);
    write_folder(dir / "in", Json{{"quant_method", "modelopt"}, {"quant_algo", "NVFP4"}, {"ignore", {"lm_head"}}},
                 tensors);
    const auto in = value_of(Checkpoint::open(dir / "in"));
    const CheckpointTensor& t = in->tensors()[index_of(*in, mlp + "gate_up_proj")];
    EXPECT_EQ(t.shape, (std::vector<int64_t>{experts * 2 * inner, hidden}));
    EXPECT_EQ(t.format, Format::nvfp4);
    EXPECT_EQ(t.activation, ActivationFormat::nvfp4);
    EXPECT_EQ(t.input_scale, 0.5f);
    const auto bits = as_plain(dir / "in", dir / "out", mlp + "gate_up_proj");
    for (int64_t e = 0; e < experts; ++e)
        for (int64_t i = 0; i < hidden; ++i)
            for (int64_t o = 0; o < 2 * inner; ++o) {
                const auto pair =
                    static_cast<uint8_t>(tensors[0].bytes[size_t(((e * hidden + i) / 2) * 2 * inner + o)]);
                const auto scale =
                    static_cast<uint8_t>(tensors[1].bytes[size_t((e * (hidden / 16) + i / 16) * 2 * inner + o)]);
                const float want = e2m1_to_float(i % 2 ? pair >> 4 : pair & 15) * (e4m3_to_float(scale) * 0.3f);
                ASSERT_EQ(bits[size_t((e * hidden + i) * 2 * inner + o)], bf16_from_float(want)) << e << ' ' << i;
            }
}

// Stacks of [out, in] are split into one matrix per expert and projection, as plain ones are.
TEST(SourceSpellings, StackedFp8IsSplitIntoTheMatricesOfItsExperts) {
    TempDir dir;
    constexpr int64_t experts = 2, inner = 128, hidden = 256;
    const std::string mlp = "model.layers.0.mlp.experts.";
    std::vector<float> up_scales, down_scales;
    const auto codes = fp8_codes(experts * 2 * inner * hidden);
    write_folder(dir / "in", Json{{"quant_method", "fp8"}, {"weight_block_size", {128, 128}}},
                 {{mlp + "gate_up_proj", DType::f8_e4m3, {experts, 2 * inner, hidden}, codes},
                  scales_of(mlp + "gate_up_proj_scale_inv", DType::f32, {experts, 2, 2}, up_scales),
                  {mlp + "down_proj", DType::f8_e4m3, {experts, hidden, inner}, fp8_codes(experts * hidden * inner)},
                  scales_of(mlp + "down_proj_scale_inv", DType::f32, {experts, 2, 1}, down_scales)});
    const auto in = value_of(Checkpoint::open(dir / "in"));
    const auto up = bf16_bits(*in, mlp + "1.up_proj.weight");
    ASSERT_EQ(up.size(), size_t(inner * hidden));
    for (int64_t i = 0; i < inner * hidden; ++i) {
        const float scale = up_scales[size_t(4 + 2 + i % hidden / 128)];
        const auto code = static_cast<uint8_t>(codes[size_t((2 + 1) * inner * hidden + i)]);
        ASSERT_EQ(up[size_t(i)], bf16_from_float(e4m3_to_float(code) * scale)) << i;
    }
    // Reading some of the rows gives the same values as reading all.
    Matrix scratch;
    const MatrixView part = value_of(in->read_plain(index_of(*in, mlp + "1.up_proj.weight"), 5, 3, scratch));
    EXPECT_EQ(std::memcmp(part.data, up.data() + 5 * hidden, size_t(part.bytes())), 0);
}

TEST(SourceSpellings, StackedFp8WithTilesRowsOrOneScaleIsDecoded) {
    struct Case {
        const char* ending;
        std::vector<int64_t> shape;
    };
    constexpr int64_t experts = 2, out = 160, width = 192;
    const std::string stack = "model.layers.0.mlp.experts.down_proj";
    for (const Case& c :
         {Case{"_scale_inv", {experts, 2, 2}}, Case{"_weight_scale", {experts, out, 1}}, Case{"_weight_scale", {}},
          Case{".weight_scale", {experts}}, Case{"_weight_scale", {experts, 1, 1}}}) {
        SCOPED_TRACE(fmt::format("{} of {} dimensions", c.ending, c.shape.size()));
        TempDir dir;
        std::vector<float> scales;
        const auto codes = fp8_codes(experts * out * width);
        write_folder(dir / "in", Json{{"quant_method", "fp8"}},
                     {{stack, DType::f8_e4m3, {experts, out, width}, codes},
                      scales_of(stack + c.ending, DType::f32, c.shape, scales)});
        const auto bits = as_plain(dir / "in", dir / "out", stack);
        for (int64_t i = 0; i < experts * out * width; ++i) {
            const int64_t e = i / (out * width), r = i / width % out, k = i % width;
            const size_t at = c.shape.empty()       ? 0
                              : c.shape.size() == 1 ? size_t(e)
                              : c.shape[1] == out   ? size_t(e * out + r)
                              : c.shape[1] == 1     ? size_t(e)
                                                    : size_t(e * 4 + r / 128 * 2 + k / 128);
            ASSERT_EQ(bits[size_t(i)],
                      bf16_from_float(e4m3_to_float(static_cast<uint8_t>(codes[size_t(i)])) * scales[at]))
                << i;
        }
    }
}

}  // namespace
}  // namespace nibble::test

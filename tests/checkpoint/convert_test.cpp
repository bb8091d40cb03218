// Converts every scheme through every dialect that supports it: codes and scales stay the same, or an error names what
// would be lost.
#include "checkpoint/convert.h"

#include "checkpoint/decode.h"
#include "checkpoint/reciprocal.h"
#include "checkpoint/stored_parts.h"
#include "folders.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <set>

namespace nibble::test {
namespace {

namespace fs = std::filesystem;
using A = ActivationFormat;
using F = Format;

struct Matrix1 {
    std::string module;
    Scheme scheme;
};

QuantMatrix made_matrix(Format format, int64_t rows, int64_t cols) {
    QuantMatrix m(format, rows, cols);
    const bool packed = format_layout(format).code_bits == 4;
    for (size_t i = 0; i < m.codes.size(); ++i) {
        m.codes[i] = static_cast<uint8_t>(i * 37 + 11);
        if (!packed && (m.codes[i] & 0x7F) == 0x7F) m.codes[i] = 0x55;  // no NaN, because NaNs do not compare equal
    }
    for (size_t i = 0; i < m.block_scales.size(); ++i)
        m.block_scales[i] = format_layout(format).e8m0_scales ? uint8_t(110 + i % 30) : uint8_t(1 + i % 0x7E);
    for (size_t i = 0; i < m.float_scales.size(); ++i)
        m.float_scales[i] =
            format == F::int4 ? 0.0078125f * static_cast<float>(i % 255 + 1) : 0.01f * static_cast<float>(i + 1);
    if (format_layout(format).tensor_scale) m.tensor_scale = 0.0078125f * 1.25f;
    return m;
}

// Writes a checkpoint in `dialect` with these matrices, an unquantized linear, a norm and a router, and optionally KV
// scales.
std::unique_ptr<Checkpoint> make_checkpoint(const fs::path& folder, Dialect dialect,
                                            const std::vector<Matrix1>& matrices, KvFormat kv = KvFormat::none) {
    ExportSpec spec{.dialect = dialect,
                    .out = folder,
                    .kv = kv,
                    .config = Json{{"model_type", "llama"}, {"tie_word_embeddings", false}}};
    constexpr int64_t rows = 160, cols = 256;
    for (const Matrix1& m : matrices)
        spec.tensors.push_back({.name = m.module + ".weight",
                                .shape = {rows, cols},
                                .format = m.scheme.format,
                                .activation = m.scheme.activation,
                                .input_scale = stores_input_scale(m.scheme.activation)});
    spec.tensors.push_back({.name = "model.layers.0.mlp.gate.weight", .shape = {4, 8}, .listed_module = true});
    spec.tensors.push_back({.name = "model.norm.weight", .shape = {8}});
    if (kv == KvFormat::fp8) {
        spec.tensors.push_back({.name = "model.layers.0.self_attn.k_proj.k_scale", .dtype = DType::f32});
        spec.tensors.push_back({.name = "model.layers.0.self_attn.v_proj.v_scale", .dtype = DType::f32});
    }
    spec.side_files = {{"tokenizer.json", {}, "tokens"}};
    auto out = value_of(open_export(spec, ExportMode::create));
    for (size_t i = 0; i < spec.tensors.size(); ++i) {
        const ExportTensor& t = spec.tensors[i];
        if (t.format == Format::none) {
            Matrix m(t.dtype, t.shape.empty() ? 1 : t.shape[0], t.shape.size() > 1 ? t.shape[1] : 1);
            const float one_third = 1.0f / 3;  // not a BF16 number
            if (t.dtype == DType::f32) std::memcpy(m.data.data(), &one_third, 4);
            check(out->write_plain(i, 0, m.view()));
            continue;
        }
        const QuantMatrix m = made_matrix(t.format, rows, cols);
        check(out->write_quant(i, 0, m.view()));
        check(out->write_scalars(i, m.tensor_scale, t.input_scale ? std::optional(0.5f) : std::nullopt));
    }
    check(out->finish());
    return value_of(Checkpoint::open(folder));
}

void expect_same_tensors(const fs::path& a, const fs::path& b) {
    const auto before = read_folder(a), after = read_folder(b);
    ASSERT_EQ(before.size(), after.size());
    for (const auto& [name, t] : before) {
        ASSERT_TRUE(after.contains(name)) << name;
        EXPECT_EQ(t.dtype, after.at(name).dtype) << name;
        EXPECT_EQ(t.shape, after.at(name).shape) << name;
        EXPECT_EQ(t.bytes, after.at(name).bytes) << name;
    }
}

void expect_same_files(const fs::path& a, const fs::path& b) {
    expect_same_tensors(a, b);
    for (const char* file : {"config.json", "tokenizer.json"})
        EXPECT_EQ(read_file(a / file), read_file(b / file)) << file;
}

const std::vector<Scheme> in_both{{F::nvfp4, A::nvfp4},       {F::nvfp4, A::none},        {F::fp8, A::fp8},
                                  {F::fp8_row, A::fp8_token}, {F::fp8_block128, A::none}, {F::mxfp8, A::mxfp8},
                                  {F::mxfp4, A::none}};

TEST(Convert, EachSchemeGoesToTheOtherDialectAndBackByteForByte) {
    ThreadPool pool(2);
    for (const Scheme& scheme : in_both) {
        for (const auto& [from, to] : {std::pair(Dialect::modelopt, Dialect::compressed_tensors),
                                       std::pair(Dialect::compressed_tensors, Dialect::modelopt)}) {
            SCOPED_TRACE(fmt::format("{} {} from {}", format_name(scheme.format), activation_name(scheme.activation),
                                     dialect_name(from)));
            TempDir dir;
            const auto in = make_checkpoint(dir / "a", from, {{"model.layers.0.mlp.up_proj", scheme}});
            EXPECT_EQ(in->dialect(), from);
            EXPECT_EQ(in->tensors()[index_of(*in, "model.layers.0.mlp.up_proj.weight")].activation, scheme.activation);
            const auto report = value_of(convert(*in, {.to = to, .out = dir / "b", .manifest = "{}"}, pool, {}));
            EXPECT_EQ(report.quantized, 1);
            EXPECT_EQ(report.tensors, 3);
            EXPECT_TRUE(report.lines.empty());
            EXPECT_TRUE(fs::exists(dir / "b/nibble.json"));
            const auto middle = value_of(Checkpoint::open(dir / "b"));
            EXPECT_EQ(middle->dialect(), to);
            value_of(convert(*middle, {.to = from, .out = dir / "c"}, pool, {}));
            expect_same_files(dir / "a", dir / "c");
        }
    }
}

TEST(Convert, Int4IsStoredInCompressedTensorsOnly) {
    ThreadPool pool(2);
    TempDir dir;
    const std::string module = "model.layers.0.mlp.up_proj";
    const auto in = make_checkpoint(dir / "a", Dialect::compressed_tensors, {{module, {F::int4, A::none}}});
    const size_t index = index_of(*in, module + ".weight");
    EXPECT_EQ(in->tensors()[index].format, F::int4);
    const QuantMatrix want = made_matrix(F::int4, 160, 256);
    QuantMatrix scratch;
    const QuantView got = value_of(in->read_quant(index, 0, 160, scratch));
    EXPECT_TRUE(std::equal(want.codes.begin(), want.codes.end(), got.codes));
    EXPECT_TRUE(std::equal(want.float_scales.begin(), want.float_scales.end(), got.float_scales));
    const auto files = read_folder(dir / "a");
    EXPECT_EQ(files.at(module + ".weight_packed").dtype, DType::i32);
    EXPECT_EQ(files.at(module + ".weight_packed").shape, (std::vector<int64_t>{160, 32}));
    EXPECT_EQ(files.at(module + ".weight_scale").dtype, DType::bf16);
    EXPECT_EQ(files.at(module + ".weight_scale").shape, (std::vector<int64_t>{160, 2}));
    int64_t shape[2];
    ASSERT_EQ(files.at(module + ".weight_shape").bytes.size(), sizeof shape);
    std::memcpy(shape, files.at(module + ".weight_shape").bytes.data(), sizeof shape);
    EXPECT_EQ(shape[0], 160);
    EXPECT_EQ(shape[1], 256);
    const Json section = value_of(read_json_file(dir / "a/config.json"))["quantization_config"];
    EXPECT_EQ(section["format"], "pack-quantized");
    const Json& weights = section["config_groups"]["group_0"]["weights"];
    EXPECT_EQ(weights["type"], "int");
    EXPECT_EQ(weights["group_size"], 128);
    value_of(convert(*in, {.to = Dialect::compressed_tensors, .out = dir / "b"}, pool, {}));
    expect_same_files(dir / "a", dir / "b");
    const auto refused = convert(*in, {.to = Dialect::modelopt, .out = dir / "c"}, pool, {});
    ASSERT_FALSE(refused.ok());
    EXPECT_NE(refused.error().message().find("int4"), std::string::npos) << refused.error().message();
}

TEST(Convert, MixedPrecisionWithKvScalesGoesThroughBothDialects) {
    ThreadPool pool(2);
    TempDir dir;
    const std::vector<Matrix1> matrices{{"model.layers.0.mlp.experts.0.up_proj", {F::nvfp4, A::nvfp4}},
                                        {"model.layers.0.mlp.experts.1.up_proj", {F::nvfp4, A::nvfp4}},
                                        {"model.layers.0.self_attn.k_proj", {F::fp8, A::fp8}},
                                        {"model.layers.0.self_attn.v_proj", {F::fp8, A::fp8}},
                                        {"model.layers.1.mlp.up_proj", {F::mxfp8, A::mxfp8}}};
    const auto in = make_checkpoint(dir / "a", Dialect::modelopt, matrices, KvFormat::fp8);
    EXPECT_EQ(in->kv(), KvFormat::fp8);
    const Json section = value_of(read_json_file(dir / "a/config.json"))["quantization_config"];
    EXPECT_EQ(section["quantized_layers"].size(), 4u) << "experts stand under their container";
    EXPECT_TRUE(section["quantized_layers"].contains("model.layers.0.mlp.experts"));

    value_of(convert(*in, {.to = Dialect::compressed_tensors, .out = dir / "b"}, pool, {}));
    const auto ct = value_of(Checkpoint::open(dir / "b"));
    EXPECT_EQ(ct->kv(), KvFormat::fp8);
    EXPECT_EQ(value_of(read_json_file(dir / "b/config.json"))["quantization_config"]["format"], "mixed-precision");
    const auto files = read_folder(dir / "b");
    ASSERT_TRUE(files.contains("model.layers.0.self_attn.k_scale"));
    EXPECT_EQ(files.at("model.layers.0.self_attn.k_scale").dtype, DType::f32) << "BF16 would lose bits";
    EXPECT_EQ(files.at("model.layers.0.self_attn.k_scale").shape, std::vector<int64_t>{1});
    value_of(convert(*ct, {.to = Dialect::modelopt, .out = dir / "c"}, pool, {}));
    expect_same_tensors(dir / "a", dir / "c");
    // Files are ordered by dtype, so groups and layers may have another order.
    const auto layers = [&](const char* folder) {
        return nlohmann::json(
            value_of(read_json_file(dir / folder / "config.json"))["quantization_config"]["quantized_layers"]);
    };
    EXPECT_EQ(layers("a"), layers("c"));
}

TEST(Convert, ToPlainDecodesToBf16) {
    ThreadPool pool(2);
    for (Format format : all_formats()) {
        SCOPED_TRACE(format_name(format));
        TempDir dir;
        const A activation = format == F::fp8       ? A::fp8
                             : format == F::fp8_row ? A::fp8_token
                             : format == F::mxfp8   ? A::mxfp8
                                                    : A::none;
        const auto in = make_checkpoint(dir / "a", format == F::int4 ? Dialect::compressed_tensors : Dialect::modelopt,
                                        {{"model.layers.0.mlp.up_proj", {format, activation}}});
        const auto report = value_of(convert(*in, {.to = Dialect::plain, .out = dir / "b"}, pool, {}));
        EXPECT_EQ(report.decoded, 1);
        EXPECT_EQ(report.lines.size(), activation == A::fp8 ? 1u : 0u) << "a stored input scale is reported";
        const auto out = value_of(Checkpoint::open(dir / "b"));
        EXPECT_EQ(out->dialect(), Dialect::plain);
        EXPECT_FALSE(value_of(read_json_file(dir / "b/config.json")).contains("quantization_config"));
        const std::string name = "model.layers.0.mlp.up_proj.weight";
        const auto want = decode(*in, index_of(*in, name));
        Matrix scratch;
        const auto have = value_of(out->read_plain(index_of(*out, name), 0, 160, scratch));
        ASSERT_EQ(have.dtype, DType::bf16);
        ASSERT_EQ(have.bytes(), static_cast<int64_t>(want.size() * 2));
        for (size_t i = 0; i < want.size(); ++i) {
            uint16_t code;
            std::memcpy(&code, have.data + 2 * i, 2);
            ASSERT_EQ(code, bf16_from_float(want[i])) << i;
        }
    }
}

TEST(Convert, LossyPartsAreNamedAndCanBeDropped) {
    ThreadPool pool(2);
    TempDir dir;
    const auto in = make_checkpoint(dir / "a", Dialect::modelopt,
                                    {{"model.layers.0.self_attn.k_proj", {F::nvfp4, A::nvfp4}},
                                     {"model.layers.0.self_attn.v_proj", {F::nvfp4, A::nvfp4}}},
                                    KvFormat::fp8);
    // A BF16 folder cannot store any of them, so no `drop` is necessary.
    const auto report = value_of(convert(*in, {.to = Dialect::plain, .out = dir / "b"}, pool, {}));
    EXPECT_EQ(report.lines.size(), 3u);  // about input scales, KV scales, and the KV format
    EXPECT_EQ(report.tensors, 4);
    // Values of `drop` that are not necessary are accepted.
    const auto same = value_of(
        convert(*in, {.to = Dialect::plain, .out = dir / "b2", .drop = {"input_scale", "kv_scale"}}, pool, {}));
    EXPECT_EQ(same.lines, report.lines);

    // Without input scales NVFP4 becomes W4A16; without KV scales the cache format is not mentioned.
    value_of(convert(*in, {.to = Dialect::modelopt, .out = dir / "c", .drop = {"input_scale", "kv_scale"}}, pool, {}));
    const Json quant = value_of(read_json_file(dir / "c/hf_quant_config.json"))["quantization"];
    EXPECT_EQ(quant["quant_algo"], "W4A16_NVFP4");
    EXPECT_TRUE(quant["kv_cache_quant_algo"].is_null());

    EXPECT_NE(message_of(convert(*in, {.to = Dialect::plain, .out = dir / "d", .drop = {"scales"}}, pool, {}))
                  .find("'scales'"),
              std::string::npos);
    EXPECT_FALSE(fs::exists(dir / "d.partial"));
}

// Model Optimizer writes "mxfp4" for any inputs, so the input format from compressed-tensors would be lost.
TEST(Convert, InputFormatsUnknownToModelOptimizerAreDroppedOnlyOnRequest) {
    ThreadPool pool(2);
    TempDir dir;
    const auto in =
        make_checkpoint(dir / "a", Dialect::compressed_tensors, {{"model.layers.0.mlp.up_proj", {F::mxfp4, A::mxfp4}}});
    ConvertOptions to{.to = Dialect::modelopt, .out = dir / "b"};
    EXPECT_NE(message_of(convert(*in, to, pool, {})).find("drop activation"), std::string::npos);
    EXPECT_FALSE(fs::exists(dir / "b"));
    to.drop = {"activation"};
    EXPECT_EQ(value_of(convert(*in, to, pool, {})).lines.size(), 1u);
}

TEST(Convert, AScaleWithoutADivisorIsRestoredBitForBitFromTheManifest) {
    const std::filesystem::path root = test_data("golden");
    ThreadPool pool(2);
    TempDir dir;
    fs::create_directory(dir / "a");
    const std::string stem = "llama--NVFP4_DEFAULT_CFG";
    const Json golden = value_of(read_json_file(root / "modelopt" / (stem + ".json")));
    write_file(dir / "a/config.json", Json{{"quantization_config", golden["quantization_config"]}}.dump());
    fs::copy(root / "modelopt" / (stem + ".safetensors"), dir / "a/model.safetensors");
    const auto in = value_of(Checkpoint::open(dir / "a"));
    ConvertOptions options{.to = Dialect::compressed_tensors, .out = dir / "b"};
    const auto report = value_of(convert(*in, options, pool, {}));
    ASSERT_EQ(report.lines.size(), 1u);
    EXPECT_NE(report.lines[0].find("one FP32 step"), std::string::npos);
    value_of(convert(*value_of(Checkpoint::open(dir / "b")), {.to = Dialect::modelopt, .out = dir / "c"}, pool, {}));
    value_of(convert(*in, {.to = Dialect::modelopt, .out = dir / "direct"}, pool, {}));
    EXPECT_TRUE(read_file(dir / "c/model.safetensors") == read_file(dir / "direct/model.safetensors"));

    // A manifest of other weights is rejected; without one the reader gets the values that an engine gets.
    Json manifest = value_of(read_json_file(dir / "b/nibble.json"));
    ASSERT_FALSE(manifest["exact_scales"].empty());
    manifest["exact_scales"].begin().value()["tensor_scale"] = "3f800000";
    write_file(dir / "b/nibble.json", manifest.dump());
    EXPECT_NE(message_of(Checkpoint::open(dir / "b")).find("is not the"), std::string::npos);
    fs::remove(dir / "b/nibble.json");

    // Codes and block scales are unchanged, and every scalar with an exact divisor is exact.
    const auto out = value_of(Checkpoint::open(dir / "b"));
    QuantMatrix a, b;
    for (size_t i = 0; i < in->tensors().size(); ++i) {
        const CheckpointTensor& t = in->tensors()[i];
        const QuantView x = value_of(in->read_quant(i, 0, t.rows(), a));
        const QuantView y = value_of(out->read_quant(index_of(*out, t.name), 0, t.rows(), b));
        EXPECT_EQ(std::memcmp(x.codes, y.codes, size_t(code_bytes(t.format, t.rows(), t.cols()))), 0);
        EXPECT_EQ(y.tensor_scale, 1.0f / divisor_of(x.tensor_scale).value);
    }
}

TEST(Convert, ASourceThatChangesDuringTheJobIsNamedAndNothingIsPublished) {
    TempDir dir;
    fs::copy(test_data("chat"), dir / "source", fs::copy_options::recursive);
    const fs::path weights = dir / "source/model.safetensors";
    ThreadPool pool(2);
    const auto in = value_of(Checkpoint::open(dir / "source"));
    const std::string bytes = read_file(weights);
    struct stat info {};
    ASSERT_EQ(::stat(weights.c_str(), &info), 0);
    JobHooks hooks;
    hooks.progress = [&, once = true](const Progress&) mutable {
        if (!std::exchange(once, false)) return;
        // Overwritten in place, with the same size and time.
        const int fd = ::open(weights.c_str(), O_WRONLY | O_CLOEXEC);
        const char changed[]{static_cast<char>(bytes.back() ^ 1)};
        EXPECT_EQ(::pwrite(fd, changed, 1, std::ssize(bytes) - 1), 1);
        const timespec times[]{info.st_atim, info.st_mtim};
        EXPECT_EQ(::futimens(fd, times), 0);
        ::close(fd);
    };
    const std::string message = message_of(convert(*in, {.to = Dialect::plain, .out = dir / "out"}, pool, hooks));
    EXPECT_NE(message.find("source file model.safetensors changed while it was read"), std::string::npos) << message;
    EXPECT_FALSE(fs::exists(dir / "out"));
    EXPECT_FALSE(fs::exists(dir / "out.partial"));
}

TEST(Convert, ASourceThatShrinksDuringTheJobIsAnErrorAndNotACrash) {
    TempDir dir;
    fs::copy(test_data("chat"), dir / "source", fs::copy_options::recursive);
    const fs::path weights = dir / "source/model.safetensors";
    const auto run = [&] {  // in a separate process, because map faults are recorded until the process ends
        ThreadPool pool(2);
        auto in = Checkpoint::open(dir / "source");
        if (!in.ok() || ::truncate(weights.c_str(), 5000) != 0) ::_exit(1);
        const auto report = convert(**in, {.to = Dialect::plain, .out = dir / "out"}, pool, {});
        if (report.ok()) ::_exit(2);
        const std::string& why = report.error().message();
        ::_exit(why.find(weights.string() + ": became shorter while it was read") == why.npos ? 3 : 0);
    };
    EXPECT_EXIT(run(), testing::ExitedWithCode(0), "");
    EXPECT_FALSE(fs::exists(dir / "out"));
}

TEST(Convert, AStoppedConversionRemovesItsFiles) {
    ThreadPool pool(1);
    TempDir dir;
    const auto in = make_checkpoint(dir / "a", Dialect::modelopt, {{"m.up_proj", {F::mxfp4, A::none}}});
    const std::atomic<bool> stop = true;
    JobHooks hooks;
    hooks.stop_requested = &stop;
    EXPECT_NE(message_of(convert(*in, {.to = Dialect::plain, .out = dir / "b"}, pool, hooks)).find("stopped"),
              std::string::npos);
    EXPECT_FALSE(fs::exists(dir / "b"));
    EXPECT_FALSE(fs::exists(dir / "b.partial"));
}

TEST(Convert, DeepseekBlocksBecomeCompressedTensorsBlocks) {
    ThreadPool pool(2);
    TempDir dir;
    fs::create_directory(dir / "a");
    const std::string m = "model.layers.0.mlp.up_proj";
    write_file(dir / "a/config.json", R"({"tie_word_embeddings": false, "quantization_config": {"quant_method": "fp8",
        "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}})");
    write_safetensors(dir / "a/model.safetensors",
                      {{m + ".weight", DType::f8_e4m3, {160, 192}, std::vector<std::byte>(160 * 192, std::byte{0x38})},
                       raw<float>(m + ".weight_scale_inv", DType::f32, {2, 2}, {1, 2, 3, 4}),
                       filled("lm_head.weight", DType::bf16, {4, 4}),
                       filled("model.norm.weight", DType::bf16, {4})});
    const auto in = value_of(Checkpoint::open(dir / "a"));
    EXPECT_EQ(in->dialect(), Dialect::fp8);
    const auto values = decode(*in, index_of(*in, m + ".weight"));
    EXPECT_EQ(values[0], 1.0f);
    EXPECT_EQ(values[191], 2.0f);
    EXPECT_EQ(values[159 * 192], 3.0f);
    EXPECT_EQ(values.back(), 4.0f);
    value_of(convert(*in, {.to = Dialect::compressed_tensors, .out = dir / "b"}, pool, {}));
    const auto out = value_of(Checkpoint::open(dir / "b"));
    EXPECT_EQ(out->tensors()[index_of(*out, m + ".weight")].activation, A::fp8_group128);
    EXPECT_EQ(decode(*out, index_of(*out, m + ".weight")), values);
    const Json section = value_of(read_json_file(dir / "b/config.json"))["quantization_config"];
    EXPECT_EQ(section["ignore"], Json::array({"lm_head"}));
    value_of(convert(*in, {.to = Dialect::modelopt, .out = dir / "c", .drop = {"activation"}}, pool, {}));
    EXPECT_EQ(read_folder(dir / "c").at(m + ".weight_scale").shape, (std::vector<int64_t>{2, 1, 2, 1}));
}

TEST(Convert, PanelsMayBeginAtAnyTileAndScalesMayBeUnaligned) {
    TempDir dir;
    const auto in =
        make_checkpoint(dir / "a", Dialect::compressed_tensors, {{"m.up_proj", {F::fp8_block128, A::fp8_group128}}});
    const size_t i = index_of(*in, "m.up_proj.weight");
    QuantMatrix scratch;
    const QuantMatrix want = made_matrix(F::fp8_block128, 160, 256);
    const QuantView tail = value_of(in->read_quant(i, 128, 32, scratch));
    EXPECT_EQ(tail.float_scales[0], want.float_scales[2]);
    EXPECT_EQ(tail.codes[0], want.codes[128 * 256]);
    EXPECT_FALSE(in->read_quant(i, 64, 32, scratch).ok());

    const auto aligned = decode(*in, i);  // before its file changes
    // A header of odd length shifts all data: the bytes are equal, but must be copied instead of mapped.
    std::string file = read_file(dir / "a/model.safetensors");
    uint64_t length;
    std::memcpy(&length, file.data(), 8);
    ++length;
    std::memcpy(file.data(), &length, 8);
    file.insert(8 + length - 1, " ");
    write_file(dir / "a/model.safetensors", file);
    const auto odd = value_of(Checkpoint::open(dir / "a"));
    EXPECT_EQ(decode(*odd, i), aligned);
    const QuantView view = value_of(odd->read_quant(i, 0, 160, scratch));
    EXPECT_EQ(view.float_scales, scratch.float_scales.data());
    Matrix plain;
    EXPECT_TRUE(odd->read_plain(index_of(*odd, "model.norm.weight"), 0, 8, plain).ok());
    EXPECT_FALSE(plain.data.empty());
}

}  // namespace
}  // namespace nibble::test

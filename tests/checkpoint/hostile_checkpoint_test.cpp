// Checkpoints with one defect each: the error names file, tensor and value.
#include "checkpoint/side_files.h"
#include "folders.h"
#include "text/tokenizer.h"

#include <functional>
#include <limits>

namespace nibble::test {
namespace {

namespace fs = std::filesystem;

constexpr const char* w = "model.layers.0.mlp.up_proj.weight";
constexpr const char* scale = "model.layers.0.mlp.up_proj.weight_scale";
constexpr const char* scale_2 = "model.layers.0.mlp.up_proj.weight_scale_2";
constexpr const char* input = "model.layers.0.mlp.up_proj.input_scale";

// A valid NVFP4 checkpoint with one linear, which tests damage.
struct Folder {
    Json config = Json::object();
    std::optional<Json> hf_quant_config;
    std::map<std::string, RawTensor> tensors;

    void put(RawTensor t) { tensors[t.name] = std::move(t); }
    Json& section() { return config["quantization_config"]; }

    Result<std::unique_ptr<Checkpoint>> open(const TempDir& dir) const {
        write_file(dir / "config.json", config.dump());
        if (hf_quant_config) write_file(dir / "hf_quant_config.json", hf_quant_config->dump());
        std::vector<RawTensor> list;
        for (const auto& [name, t] : tensors) list.push_back(t);
        write_safetensors(dir / "model.safetensors", list);
        return Checkpoint::open(dir.path());
    }
};

Folder modelopt_folder() {
    Folder f;
    f.config["model_type"] = "llama";
    f.section() = Json{{"quant_algo", "NVFP4"}, {"ignore", {"lm_head"}}, {"quant_method", "modelopt"}};
    f.put({w, DType::u8, {4, 16}, std::vector<std::byte>(64, std::byte{0x21})});
    f.put({scale, DType::f8_e4m3, {4, 2}, std::vector<std::byte>(8, std::byte{0x38})});
    f.put(raw<float>(scale_2, DType::f32, {}, {0.5f}));
    f.put(raw<float>(input, DType::f32, {}, {0.25f}));
    f.put(filled("lm_head.weight", DType::bf16, {4, 8}));
    f.put(filled("model.norm.weight", DType::bf16, {8}));
    return f;
}

Folder compressed_folder() {
    Folder f = modelopt_folder();
    const std::string module = "model.layers.0.mlp.up_proj";
    RawTensor codes = f.tensors[w];
    codes.name = module + ".weight_packed";
    f.tensors.erase(w);
    f.tensors.erase(scale_2);
    f.tensors.erase(input);
    f.put(codes);
    f.put(raw<float>(module + ".weight_global_scale", DType::f32, {1}, {2.0f}));
    const Json weights{
        {"num_bits", 4},   {"type", "float"}, {"symmetric", true}, {"group_size", 16}, {"strategy", "tensor_group"},
        {"dynamic", false}};
    f.section() = Json{{"quant_method", "compressed-tensors"},
                       {"format", "nvfp4-pack-quantized"},
                       {"ignore", {"lm_head"}},
                       {"config_groups", {{"group_0", {{"targets", {"Linear"}}, {"weights", weights}}}}}};
    return f;
}

struct Case {
    const char* what;
    std::function<void(Folder&)> spoil;
    std::vector<const char*> named;  // texts that the message must contain
};

void expect_refused(const std::function<Folder()>& sound, const std::vector<Case>& cases) {
    {
        TempDir dir;
        const auto opened = sound().open(dir);
        ASSERT_TRUE(opened.ok()) << opened.error().message();
    }
    for (const Case& c : cases) {
        SCOPED_TRACE(c.what);
        TempDir dir;
        Folder f = sound();
        c.spoil(f);
        const std::string message = message_of(f.open(dir));
        for (const char* part : c.named) EXPECT_NE(message.find(part), std::string::npos) << message;
        EXPECT_EQ(message.find('\n'), std::string::npos) << message;
    }
}

TEST(HostileCheckpoint, InvalidModelOptimizerTensorsAreRefused) {
    const float nan = std::numeric_limits<float>::quiet_NaN(), inf = std::numeric_limits<float>::infinity();
    expect_refused(
        modelopt_folder,
        {
            {"no tensor scale", [](Folder& f) { f.tensors.erase(scale_2); }, {scale_2, "missing", "NVFP4"}},
            {"no block scales", [](Folder& f) { f.tensors.erase(scale); }, {scale, "missing"}},
            {"no codes", [](Folder& f) { f.tensors.erase(w); }, {w, "missing"}},
            {"block scales of another shape",
             [](Folder& f) {
                 f.put({scale, DType::f8_e4m3, {2, 4}, std::vector<std::byte>(8, std::byte{0x38})});
             },
             {scale, "[2, 4]", "[4, 2]"}},
            {"block scales of another dtype",
             [](Folder& f) { f.tensors[scale].dtype = DType::u8; },
             {scale, "U8", "F8_E4M3"}},
            {"codes of another dtype",
             [](Folder& f) {
                 f.put(filled(w, DType::bf16, {4, 16}));
             },
             {w, "BF16", "U8"}},
            {"codes that are not a matrix", [](Folder& f) { f.tensors[w].shape = {64}; }, {w, "[64]", "matrix"}},
            {"a width without whole blocks",
             [](Folder& f) {
                 f.put(filled(w, DType::u8, {4, 9}));
             },
             {w, "[4, 9]", "blocks"}},
            {"NaN", [&](Folder& f) { f.put(raw<float>(scale_2, DType::f32, {}, {nan})); }, {scale_2, "nan"}},
            {"infinity", [&](Folder& f) { f.put(raw<float>(input, DType::f32, {}, {inf})); }, {input, "inf"}},
            {"zero", [](Folder& f) { f.put(raw<float>(scale_2, DType::f32, {}, {0.0f})); }, {scale_2, "value 0"}},
            {"negative", [](Folder& f) { f.put(raw<float>(scale_2, DType::f32, {}, {-1.0f})); }, {scale_2, "-1"}},
            {"two tensor scales",
             [](Folder& f) {
                 f.put(raw<float>(scale_2, DType::f32, {2}, {1.0f, 1.0f}));
             },
             {scale_2, "[2]"}},
            {"a leftover scale",
             [](Folder& f) { f.put(raw<float>("model.other.pre_quant_scale", DType::f32, {1}, {1.0f})); },
             {"model.other.pre_quant_scale", "F32"}},
            {"stacked experts",
             [](Folder& f) { f.put(filled("m.experts.gate_up_proj_weight_scale", DType::f32, {2})); },
             {"gate_up_proj_weight_scale"}},
            {"leftover bytes",
             [](Folder& f) { f.put(filled("model.other.table", DType::u8, {4})); },
             {"model.other.table", "U8"}},
            {"a KV scale without a KV cache format",
             [](Folder& f) { f.put(raw<float>("model.layers.0.self_attn.k_proj.k_scale", DType::f32, {}, {1.0f})); },
             {"k_scale", "KV cache"}},
        });
}

TEST(HostileCheckpoint, InvalidModelOptimizerDocumentsAreRefused) {
    expect_refused(
        modelopt_folder,
        {
            {"an unknown algorithm",
             [](Folder& f) { f.section()["quant_algo"] = "NVFP5"; },
             {"config.json", "'NVFP5'"}},
            {"AWQ", [](Folder& f) { f.section()["quant_algo"] = "NVFP4_AWQ"; }, {"'NVFP4_AWQ'"}},
            {"an algorithm that is a number", [](Folder& f) { f.section()["quant_algo"] = 4; }, {"quant_algo", "4"}},
            {"no algorithm", [](Folder& f) { f.section().erase("quant_algo"); }, {"quant_algo"}},
            {"a key that changes values",
             [](Folder& f) { f.section()["pre_quant_scale"] = true; },
             {"'pre_quant_scale'"}},
            {"a key that changes values in a group",
             [](Folder& f) { f.section()["config_groups"]["group_0"]["rotation"] = true; },
             {"group_0", "'rotation'"}},
            {"an unknown group size",
             [](Folder& f) { f.section()["config_groups"]["g"]["weights"]["group_size"] = 64; },
             {"group_size", "64"}},
            {"an unknown KV format", [](Folder& f) { f.section()["kv_cache_scheme"] = "INT8"; }, {"INT8"}},
            {"an unknown method", [](Folder& f) { f.section()["quant_method"] = "hqq"; }, {"'hqq'"}},
            {"a section that is text", [](Folder& f) { f.section() = "NVFP4"; }, {"quantization_config"}},
            {"no section at all",
             [](Folder& f) { f.config.erase("quantization_config"); },
             {"up_proj", "configuration"}},
            {"another section inside text_config",
             [](Folder& f) {
                 f.config["text_config"]["quantization_config"] = Json{{"quant_method", "fp8"}};
             },
             {"text_config", "top level"}},
            {"documents that contradict each other",
             [](Folder& f) {
                 f.hf_quant_config = Json{{"quantization", {{"quant_algo", "W4A16_NVFP4"}}}};
             },
             {"W4A16_NVFP4", "NVFP4", "hf_quant_config.json"}},
            {"a mixed document without layers",
             [](Folder& f) { f.section()["quant_algo"] = "MIXED_PRECISION"; },
             {"quantized_layers"}},
            {"a mixed document without this layer",
             [](Folder& f) {
                 f.section()["quant_algo"] = "MIXED_PRECISION";
                 f.section()["quantized_layers"] = {{"model.layers.1", {{"quant_algo", "FP8"}}}};
             },
             {"model.layers.0.mlp.up_proj"}},
            {"a mixed document with a layer that is not there",
             [](Folder& f) {
                 f.section()["quant_algo"] = "MIXED_PRECISION";
                 f.section()["quantized_layers"] = {
                     {"model.layers.0.mlp", {{"quant_algo", "NVFP4"}, {"group_size", 16}}},
                     {"model.layers.9", {{"quant_algo", "FP8"}}}};
             },
             {"'model.layers.9'"}},
        });
}

TEST(HostileCheckpoint, InvalidCompressedTensorsAreRefused) {
    const auto weights = [](Folder& f) -> Json& { return f.section()["config_groups"]["group_0"]["weights"]; };
    expect_refused(
        compressed_folder,
        {
            {"no divisor",
             [](Folder& f) { f.tensors.erase("model.layers.0.mlp.up_proj.weight_global_scale"); },
             {"weight_global_scale", "missing"}},
            {"a divisor of zero",
             [](Folder& f) {
                 f.put(raw<float>("model.layers.0.mlp.up_proj.weight_global_scale", DType::f32, {1}, {0.0f}));
             },
             {"weight_global_scale", "value 0"}},
            {"weight together with weight_packed",
             [](Folder& f) {
                 f.put(filled(w, DType::bf16, {4, 32}));
             },
             {w, "twice"}},
            {"a key that changes values in a group",
             [](Folder& f) { f.section()["config_groups"]["group_0"]["rotation"] = 1; },
             {"group_0", "'rotation'"}},
            {"a key that changes values in the arguments",
             [&](Folder& f) { weights(f)["codebook"] = 1; },
             {"weights", "'codebook'"}},
            {"an unknown type", [&](Folder& f) { weights(f)["type"] = "posit"; }, {"type", "posit"}},
            {"three bits", [&](Folder& f) { weights(f)["num_bits"] = 3; }, {"num_bits", "3"}},
            {"blocks of 64", [&](Folder& f) { weights(f)["group_size"] = 64; }, {"group_size 64"}},
            {"asymmetric", [&](Folder& f) { weights(f)["symmetric"] = false; }, {"symmetric"}},
            {"a format that contradicts the scheme",
             [](Folder& f) { f.section()["format"] = "float-quantized"; },
             {"float-quantized", "nvfp4-pack-quantized"}},
            {"an unknown class",
             [](Folder& f) {
                 f.section()["config_groups"]["group_0"]["targets"] = {"Linear", "Embedding"};
             },
             {"'Embedding'"}},
            {"targets that mean nothing",
             [](Folder& f) { f.section()["config_groups"]["group_0"]["targets"] = {"re:.*attn.*"}; },
             {"up_proj", "targets"}},
            {"a pattern that is none",
             [](Folder& f) { f.section()["config_groups"]["group_0"]["targets"] = {"re:(("}; },
             {"'re:(('"}},
            {"a rotation at run time",
             [](Folder& f) { f.section()["transform_config"]["config_groups"]["R3"] = 1; },
             {"transform_config"}},
            {"weights that are not compressed",
             [](Folder& f) {
                 f.section()["quantization_status"] = "frozen";
                 f.tensors.erase("model.layers.0.mlp.up_proj.weight_packed");
                 f.put(filled(w, DType::bf16, {4, 32}));
             },
             {"weight_packed", "missing"}},
            {"no groups", [](Folder& f) { f.section().erase("config_groups"); }, {"config_groups"}},
        });
}

TEST(HostileCheckpoint, NanValuesAreFoundWhenTheyAreRead) {
    TempDir dir;
    Folder f = modelopt_folder();
    f.tensors[scale].bytes[5] = std::byte{0x7F};  // NaN in E4M3
    const auto in = value_of(f.open(dir));
    QuantMatrix scratch;
    EXPECT_TRUE(in->read_quant(index_of(*in, w), 0, 2, scratch).ok());
    const std::string message = message_of(in->read_quant(index_of(*in, w), 2, 2, scratch));
    EXPECT_NE(message.find("0x7f"), std::string::npos) << message;
    EXPECT_NE(message.find("weight_scale"), std::string::npos) << message;
}

TEST(HostileCheckpoint, RowsOutsideATensorAreRefused) {
    TempDir dir;
    const auto in = value_of(modelopt_folder().open(dir));
    Matrix plain;
    QuantMatrix quant;
    const size_t q = index_of(*in, w), p = index_of(*in, "lm_head.weight");
    EXPECT_FALSE(in->read_quant(q, 3, 2, quant).ok());
    EXPECT_FALSE(in->read_quant(q, -1, 1, quant).ok());
    EXPECT_FALSE(in->read_quant(p, 0, 1, quant).ok());
    EXPECT_FALSE(in->read_plain(q, 0, 1, plain).ok());
    EXPECT_FALSE(in->read_plain(p, 0, 5, plain).ok());
    EXPECT_FALSE(in->read_plain(99, 0, 1, plain).ok());
}

TEST(HostileCheckpoint, LinksToFilesAreFollowedToAnyFolder) {
    TempDir dir;
    fs::create_directory(dir / "model");
    write_file(dir / "words", "some");
    write_file(dir / "model/config.json", "{}");
    write_file(dir / "model/tokenizer.json", "yes");
    write_safetensors(dir / "model/model.safetensors", {filled("a", DType::bf16, {2})});
    fs::create_symlink("tokenizer.json", dir / "model/other.json");
    const auto in = value_of(Checkpoint::open(dir / "model"));
    const auto files = value_of(in->side_files());
    ASSERT_EQ(files.size(), 2u);
    EXPECT_EQ(files[0].name, "other.json");
    fs::create_symlink(dir / "words", dir / "model/vocab.txt");
    const auto more = value_of(in->side_files());
    ASSERT_EQ(more.size(), 3u);
    EXPECT_EQ(more[2].name, "vocab.txt");
    EXPECT_EQ(read_file(more[2].copy_from), "some");
    EXPECT_EQ(outside_links_note(in->path(), files), "") << "a link inside of the folder";
    const std::string note = outside_links_note(in->path(), more);
    EXPECT_TRUE(note.starts_with("1 file is a link to files outside of the folder ('vocab.txt' is ")) << note;
    write_file(dir / "more words", "more");
    fs::create_symlink("../more words", dir / "model/added_tokens.json");
    EXPECT_TRUE(outside_links_note(in->path(), value_of(in->side_files())).starts_with("2 files are links")) << note;
    fs::remove(dir / "model/added_tokens.json");
    fs::create_symlink(dir / "missing", dir / "model/merges.txt");
    EXPECT_NE(message_of(in->side_files()).find("merges.txt"), std::string::npos);
}

TEST(HostileCheckpoint, ALoraAdapterIsNoModel) {
    TempDir dir;
    fs::create_directory(dir / "lora");
    write_file(dir / "lora/adapter_config.json", "{}");
    for (const bool weights : {false, true}) {
        if (weights) write_safetensors(dir / "lora/adapter_model.safetensors", {filled("a", DType::bf16, {2})});
        for (const std::string& said :
             {message_of(Checkpoint::open(dir / "lora")), message_of(Tokenizer::from_folder(dir / "lora"))}) {
            EXPECT_NE(said.find("is a LoRA adapter of PEFT, not a model; merge it"), std::string::npos) << said;
            EXPECT_NE(said.find("merge_and_unload"), std::string::npos) << said;
        }
    }
}

TEST(HostileCheckpoint, LinksIntoTheBlobsOfTheHubCacheAreFollowed) {
    TempDir dir;
    const fs::path folder = dir / "models--a--b/snapshots/0123";
    fs::create_directories(folder);
    fs::create_directories(dir / "models--a--b/blobs");
    write_file(dir / "models--a--b/blobs/77", "tokens");
    write_file(folder / "config.json", "{}");
    write_safetensors(folder / "model.safetensors", {filled("a", DType::bf16, {2})});
    fs::create_symlink("../../blobs/77", folder / "tokenizer.json");
    const auto files = value_of(value_of(Checkpoint::open(folder))->side_files());
    ASSERT_EQ(files.size(), 1u);
    EXPECT_EQ(files[0].name, "tokenizer.json");
    EXPECT_EQ(read_file(files[0].copy_from), "tokens");
    EXPECT_EQ(outside_links_note(folder, files), "");
}

}  // namespace
}  // namespace nibble::test

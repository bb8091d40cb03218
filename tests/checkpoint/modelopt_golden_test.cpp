// Exports written by Model Optimizer: read, written again, and their documents made from the list of tensors.
#include "architecture/config_json.h"
#include "base/mapped_file.h"
#include "checkpoint/hf_layout.h"
#include "checkpoint/modelopt_config.h"
#include "folders.h"

#include <set>

namespace nibble::test {
namespace {

namespace fs = std::filesystem;

// ignores the order of keys
nlohmann::json values(const Json& json) { return nlohmann::json::parse(json.dump()); }

// Makes a folder as export_hf_checkpoint does: golden tensors, unchanged tensors of the source model, both documents.
void make_folder(const fs::path& folder, const fs::path& golden, const std::string& model, const std::string& config) {
    const Json document = value_of(read_json_file(golden / "modelopt" / (model + "--" + config + ".json")));
    fs::create_directories(folder);
    Json json = value_of(read_config(golden / "models" / model / "config.json"));
    json["quantization_config"] = document["quantization_config"];
    write_file(folder / "config.json", json.dump(2));
    write_file(folder / "hf_quant_config.json", document["hf_quant_config"].dump(4));
    std::set<std::string> quantized;
    auto tensors = read_safetensors(golden / "modelopt" / (model + "--" + config + ".safetensors"));
    std::erase_if(tensors, [](const RawTensor& t) { return t.name.starts_with("hessian."); });
    for (const RawTensor& t : tensors) quantized.insert(t.name);
    for (RawTensor& t : read_safetensors(golden / "models" / model / "model.safetensors"))
        if (!quantized.contains(t.name)) tensors.push_back(std::move(t));
    write_safetensors(folder / "model.safetensors", tensors);
}

// Returns the tensors of an export as nibble declares them.
std::vector<ExportTensor> declared(const Json& tensors, const Json& quant) {
    std::map<std::string, Json> by_name;
    for (const Json& t : tensors) by_name[t["name"]] = t;
    const auto algo_of = [&](const std::string& module) -> const ModeloptAlgo* {
        const std::string name = quant["quant_algo"];
        const auto group = [](const Json& j) {
            return j.contains("group_size") ? std::optional<int64_t>(j["group_size"]) : std::nullopt;
        };
        if (name != "MIXED_PRECISION") return value_of(modelopt_algo_named(name, group(quant)));
        for (const auto& [key, layer] : quant["quantized_layers"].items())
            if (module == key || module.starts_with(key + "."))
                return value_of(modelopt_algo_named(layer["quant_algo"].get<std::string>(), group(layer)));
        throw std::runtime_error("no algorithm for " + module);
    };
    std::vector<ExportTensor> out;
    for (const Json& t : tensors) {
        const std::string name = t["name"];
        const std::string module(module_of_weight(name));
        if (last_name(name) == "k_scale" || last_name(name) == "v_scale") {
            out.push_back({.name = name, .dtype = DType::f32});
        } else if (!module.empty() && by_name.contains(module + ".weight_scale")) {
            const ModeloptAlgo* algo = algo_of(module);
            const int64_t packed = format_layout(algo->scheme.format).code_bits == 4 ? 2 : 1;
            out.push_back({.name = name,
                           .shape = {t["shape"][0], t["shape"][1].get<int64_t>() * packed},
                           .format = algo->scheme.format,
                           .activation = algo->scheme.activation,
                           .input_scale = by_name.contains(module + ".input_scale")});
        } else if (!looks_quantized(name, *dtype_from_name(t["dtype"].get<std::string>()))) {
            const auto shape = t["shape"].get<std::vector<int64_t>>();
            // Lists what the recipe resolver lists: every unquantized weight with dimensions (linears, embeddings,
            // conv1d, routers).
            out.push_back({.name = name,
                           .shape = shape,
                           .dtype = *dtype_from_name(t["dtype"].get<std::string>()),
                           .listed_module = !module.empty() && shape.size() >= 2});
        }
    }
    return out;
}

void expect_documents(const Json& golden) {
    const Json& quant = golden["hf_quant_config"]["quantization"];
    ExportSpec spec{.tensors = declared(golden["tensors"], quant), .config = Json::object()};
    bool head = false, scales = false;
    for (const ExportTensor& t : spec.tensors) {
        head |= t.name == "lm_head.weight";
        scales |= t.name.ends_with(".k_scale");
    }
    spec.config["tie_word_embeddings"] = !head;
    if (!quant["kv_cache_quant_algo"].is_null()) spec.kv = scales ? KvFormat::fp8 : KvFormat::fp8_cast;

    const auto documents = value_of(modelopt_documents(spec));
    EXPECT_EQ(values(documents.hf_quant_config), values(golden["hf_quant_config"]));
    EXPECT_EQ(values(documents.section), values(golden["quantization_config"]));
    if (quant["quant_algo"] != "MIXED_PRECISION") {  // with keys in the same order
        EXPECT_EQ(documents.hf_quant_config.dump(4), golden["hf_quant_config"].dump(4));
        EXPECT_EQ(documents.section.dump(), golden["quantization_config"].dump());
    }

    const auto layout = value_of(make_hf_layout(spec));
    std::map<std::string, std::pair<std::string, std::vector<int64_t>>> ours, theirs;
    for (const StoredTensor& t : layout.tensors)
        ours[t.spec.name] = {std::string(dtype_name(t.spec.dtype)), t.spec.shape};
    for (const Json& t : golden["tensors"]) theirs[t["name"]] = {t["dtype"], t["shape"].get<std::vector<int64_t>>()};
    EXPECT_EQ(ours, theirs);
}

int check_documents_in(const fs::path& folder) {
    int checked = 0;
    for (const auto& entry : fs::directory_iterator(folder)) {
        if (entry.path().extension() != ".json") continue;
        const Json golden = value_of(parse_json(read_file(entry.path()), {.python_constants = true}));
        if (!golden.contains("hf_quant_config")) continue;
        SCOPED_TRACE(entry.path().filename().string());
        expect_documents(golden);
        ++checked;
    }
    return checked;
}

TEST(ModeloptGolden, DocumentsAndStoredTensorsFollowFromTheListOfTensors) {
    EXPECT_EQ(check_documents_in(test_data("checkpoint")), 2);
}

TEST(ModeloptGolden, DocumentsAndStoredTensorsOfEveryGoldenFollowFromTheListOfTensors) {
    const std::filesystem::path root = test_data("golden/modelopt");
    EXPECT_GT(check_documents_in(root), 40);
}

TEST(ModeloptGolden, AnExportReadAndWrittenAgainIsTheSame) {
    const std::filesystem::path root = test_data("golden");
    for (const char* config : {"NVFP4_WEIGHT_ONLY_LOCAL_HESSIAN", "NVFP4_WEIGHT_ONLY_GPTQ"}) {
        SCOPED_TRACE(config);
        TempDir dir;
        make_folder(dir / "in", root, "llama", config);
        const auto in = value_of(Checkpoint::open(dir / "in"));
        EXPECT_EQ(in->dialect(), Dialect::modelopt);
        auto out = value_of(open_export(spec_of(*in, Dialect::modelopt, dir / "out"), ExportMode::create));
        write_all(*in, *out);
        const auto before = read_folder(dir / "in"), after = read_folder(dir / "out");
        ASSERT_EQ(before.size(), after.size());
        for (const auto& [name, t] : before) {
            ASSERT_TRUE(after.contains(name)) << name;
            EXPECT_EQ(t.dtype, after.at(name).dtype) << name;
            EXPECT_EQ(t.shape, after.at(name).shape) << name;
            EXPECT_EQ(t.bytes, after.at(name).bytes) << name;
        }
        for (const char* file : {"config.json", "hf_quant_config.json"})
            EXPECT_EQ(values(value_of(read_json_file(dir / "in" / file))),
                      values(value_of(read_json_file(dir / "out" / file))));
        EXPECT_EQ(read_file(dir / "in/hf_quant_config.json") + "\n", read_file(dir / "out/hf_quant_config.json"));
    }
}

}  // namespace
}  // namespace nibble::test

// A model with its experts stacked in 3-D tensors gives the same bytes as the model with one matrix per expert.
#include "io/model_files.h"
#include "io/safetensors_writer.h"
#include "quant/job.h"
#include "quant/resolve.h"
#include "support/files.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <map>

namespace nibble::test {
namespace {

namespace fs = std::filesystem;

struct FolderTensor {
    DType dtype = DType::bf16;
    std::vector<int64_t> shape;
    std::vector<std::byte> bytes;
    bool operator==(const FolderTensor&) const = default;
};
using Folder = std::map<std::string, FolderTensor>;

Result<Folder> read_model_folder(const fs::path& path) {
    NIBBLE_TRY(const auto files, ModelFiles::open(path));
    Folder folder;
    for (const ModelTensor& t : files.tensors()) {
        const TensorRecord& r = *t.record;
        folder[r.name] = {r.dtype, r.shape, {r.data.begin(), r.data.end()}};
    }
    return folder;
}

Status write_model_folder(const fs::path& path, const Folder& folder, const fs::path& config) {
    fs::create_directory(path);
    fs::copy_file(config, path / "config.json");
    std::vector<TensorSpec> specs;
    for (const auto& [name, t] : folder) specs.push_back({name, t.dtype, t.shape});
    NIBBLE_TRY(auto layout, SafetensorsLayout::make(specs));
    NIBBLE_TRY(auto writer, SafetensorsFileWriter::create(path / "model.safetensors", std::move(layout)));
    size_t i = 0;
    for (const auto& [name, t] : folder) NIBBLE_CHECK(writer.write(i++, 0, t.bytes));
    return writer.finish();
}

// Transposes [a, b] to [b, a], two bytes per element.
FolderTensor transposed(const FolderTensor& m) {
    FolderTensor out{m.dtype, {m.shape[1], m.shape[0]}, std::vector<std::byte>(m.bytes.size())};
    for (int64_t r = 0; r < m.shape[0]; ++r)
        for (int64_t c = 0; c < m.shape[1]; ++c)
            for (int64_t byte = 0; byte < 2; ++byte)
                out.bytes[size_t((c * m.shape[0] + r) * 2 + byte)] = m.bytes[size_t((r * m.shape[1] + c) * 2 + byte)];
    return out;
}

// Returns the BF16 model of `in` with the experts of each layer stacked as in transformers 5, or as in Llama 4.
Folder stacked(Folder in, bool transpose) {
    for (int layer = 0;; ++layer) {
        const std::string experts = fmt::format("model.layers.{}.mlp.experts", layer);
        if (!in.contains(experts + ".0.gate_proj.weight")) return in;
        for (const bool down : {false, true}) {
            FolderTensor stack;
            int64_t count = 0;
            for (; in.contains(fmt::format("{}.{}.{}.weight", experts, count, down ? "down_proj" : "up_proj"));
                 ++count) {
                const auto take = [&](const char* projection) {
                    return in.extract(fmt::format("{}.{}.{}.weight", experts, count, projection)).mapped();
                };
                FolderTensor m = take(down ? "down_proj" : "gate_proj");
                if (!down) {
                    const FolderTensor up = take("up_proj");
                    m.shape[0] += up.shape[0];
                    m.bytes.insert(m.bytes.end(), up.bytes.begin(), up.bytes.end());
                }
                if (transpose) m = transposed(m);
                stack.shape = {count + 1, m.shape[0], m.shape[1]};
                stack.bytes.insert(stack.bytes.end(), m.bytes.begin(), m.bytes.end());
            }
            in[experts + (down ? ".down_proj" : ".gate_up_proj")] = std::move(stack);
        }
    }
}

struct Case {
    std::string name, recipe;  // name of a preset, or rules
    bool weights_only = false;
};

// Quantizes a folder and returns the written tensors and config.json.
Result<Folder> quantized(const fs::path& model, const Case& c, const fs::path& to) {
    NIBBLE_TRY(const auto source, Checkpoint::open(model));
    NIBBLE_TRY(const Recipe recipe,
               c.recipe.find('\n') == std::string::npos ? load_recipe(c.recipe) : parse_recipe(c.recipe, "r.yaml"));
    ScaleTable table{.origin = "test"};
    for (const CheckpointTensor& t : source->tensors())
        if (t.name.ends_with("_proj.weight"))
            table.values[t.name.substr(0, t.name.size() - 6) + "input_scale"] =
                0.001f * static_cast<float>(1 + std::hash<std::string>()(t.name) % 64);
    const bool calibrated = !c.weights_only;
    NIBBLE_TRY(const Plan plan, resolve(recipe, source->tensors(), source->config(),
                                        {.weights_only = c.weights_only, .scales = &table.values}));
    JobOptions options;
    NIBBLE_TRY(options.scales, resolve_activation_scales(plan, calibrated ? &table : nullptr));
    NIBBLE_TRY(const auto out, open_export({.out = to,
                                            .tensors = export_tensors(*source, plan, options.scales),
                                            .kv = plan.kv,
                                            .config = source->config()},
                                           ExportMode::create));
    ThreadPool pool(2);
    NIBBLE_TRY(const auto report, run_quantize(*source, plan, options, *out, pool, {}));
    static_cast<void>(report);
    NIBBLE_CHECK(out->finish());
    NIBBLE_TRY(Folder folder, read_model_folder(to));
    const std::string config = read_file(to / "config.json");
    const auto bytes = std::as_bytes(std::span(config));
    folder["config.json"] = {DType::u8, {}, {bytes.begin(), bytes.end()}};
    return folder;
}

TEST(StackedExpertsJob, WritesWhatOneMatrixPerExpertBecomes) {
    const std::filesystem::path root = test_data("golden/models/qwen3_moe");
    const auto plain = read_model_folder(root);
    ASSERT_TRUE(plain.ok()) << plain.error().message();
    TempDir dir;
    for (const bool transpose : {false, true}) {
        const Folder model = stacked(*plain, transpose);
        ASSERT_LT(model.size(), plain->size());
        ASSERT_TRUE(write_model_folder(dir / (transpose ? "t" : "s"), model, root / "config.json").ok());
    }
    const std::string mixed =
        "algorithm: max\nquant_cfg:\n"
        "  - {quantizer_name: '*', enable: false}\n"
        "  - {quantizer_name: '*experts*gate_up_proj_weight_quantizers*', cfg: {num_bits: e2m1, block_sizes: {-1: 16, "
        "type: static, scale_bits: e4m3}}}\n"
        "  - {quantizer_name: '*experts*down_proj*weight_quantizer', cfg: {num_bits: e4m3}}\n"
        "  - {quantizer_name: '*experts*down_proj*input_quantizer', cfg: {num_bits: e4m3}}\n"
        "  - {quantizer_name: '*o_proj.input_quantizer', cfg: {num_bits: e4m3}}\n"
        "  - {quantizer_name: '*o_proj.weight_quantizer', cfg: {num_bits: e4m3}}\n";
    for (const Case& c : {Case{"w4a16_nvfp4", "w4a16_nvfp4"}, Case{"experts", "nvfp4_experts_only", true},
                          Case{"fp8", "fp8"}, Case{"nvfp4", "nvfp4"}, Case{"mixed", mixed}}) {
        SCOPED_TRACE(c.name);
        const auto expected = quantized(root, c, dir / (c.name + "-expected"));
        ASSERT_TRUE(expected.ok()) << expected.error().message();
        size_t experts = 0;
        for (const auto& [name, t] : *expected)
            experts += name.find(".experts.") != std::string::npos && t.dtype != DType::bf16;
        EXPECT_GT(experts, 0u);
        for (const char* layout : {"s", "t"}) {
            SCOPED_TRACE(layout);
            const auto found = quantized(dir / layout, c, dir / (c.name + layout));
            ASSERT_TRUE(found.ok()) << found.error().message();
            ASSERT_EQ(found->size(), expected->size());
            for (const auto& [name, t] : *expected) {
                // Mixed precision lists layers in the order of the files, which differs.
                if (name == "config.json" && c.name == "mixed") continue;
                EXPECT_TRUE(found->contains(name) && found->at(name) == t)
                    << name << (name == "config.json" ? read_file(dir / (c.name + layout) / name) : "");
            }
        }
    }
}

}  // namespace
}  // namespace nibble::test

// Quantizes BF16 folders to ModelOpt folders and compares every stored byte with Model Optimizer's output.
#include "io/model_files.h"
#include "quant/golden.h"
#include "quant/job.h"
#include "quant/resolve.h"
#include "support/files.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>

namespace nibble::test {
namespace {

namespace fs = std::filesystem;

// Returns input_scale, k_scale and v_scale of the golden export, in the form of --input-scales.
ScaleTable golden_scales(const Json& golden) {
    ScaleTable table{.origin = "golden"};
    for (const Json& t : golden["tensors"]) {
        const std::string name = t["name"];
        if (name.ends_with(".input_scale") || name.ends_with(".k_scale") || name.ends_with(".v_scale"))
            table.values[name] = std::strtof(t["hex"].get<std::string>().c_str(), nullptr);
    }
    return table;
}

// Returns the tensors that differ from the golden export.
std::vector<std::string> differences(const fs::path& out, const Json& golden) {
    const auto files = ModelFiles::open(out);
    if (!files.ok()) return {files.error().message()};
    std::vector<std::string> differing;
    if (files->tensors().size() != golden["tensors"].size()) differing.push_back("the number of tensors");
    for (const Json& t : golden["tensors"]) {
        const ModelTensor* ours = files->find(t["name"].get<std::string>());
        if (!ours || ours->record->shape != t["shape"].get<std::vector<int64_t>>() ||
            dtype_name(ours->record->dtype) != t["dtype"].get<std::string>() ||
            sha256(ours->record->data) != t["sha256"].get<std::string>())
            differing.push_back(t["name"]);
    }
    return differing;
}

Result<QuantReport> quantize(const fs::path& model, const Json& golden, const GoldenPreset& preset,
                             const fs::path& to) {
    NIBBLE_TRY(const auto source, Checkpoint::open(model));
    NIBBLE_TRY(const Recipe recipe, load_recipe(preset.recipe));
    const ScaleTable scales = golden_scales(golden);
    NIBBLE_TRY(const Plan plan,
               resolve(recipe, source->tensors(), source->config(),
                       {.arithmetic = Arithmetic::true_division, .kv = preset.kv, .scales = &scales.values}));
    JobOptions options;
    NIBBLE_TRY(options.scales, resolve_activation_scales(plan, &scales));
    NIBBLE_TRY(auto side_files, source->side_files());
    NIBBLE_TRY(const auto out, open_export({.out = to,
                                            .tensors = export_tensors(*source, plan, options.scales),
                                            .kv = plan.kv,
                                            .config = source->config(),
                                            .side_files = std::move(side_files)},
                                           ExportMode::create));
    ThreadPool pool(2);
    NIBBLE_TRY(auto report, run_quantize(*source, plan, options, *out, pool, {}));
    NIBBLE_CHECK(out->finish());
    return report;
}

TEST(GoldenJob, EveryExportOfATinyModelIsTheGoldenOneByteForByte) {
    const std::filesystem::path root = test_data("golden");
    int configurations = 0, tensors = 0;
    for (const auto& item : fs::directory_iterator(root / "modelopt")) {
        const std::string stem = item.path().stem().string();
        const size_t dashes = stem.find("--");
        if (item.path().extension() != ".json" || dashes == std::string::npos) continue;
        const fs::path model = root / "models" / stem.substr(0, dashes);
        const auto preset = golden_preset(stem.substr(dashes + 2));
        if (!fs::exists(model) || !preset) continue;
        SCOPED_TRACE(stem);
        const Json golden = *read_json_file(item.path());
        TempDir dir;
        const auto report = quantize(model, golden, *preset, dir / "out");
        ASSERT_TRUE(report.ok()) << report.error().message();
        EXPECT_FALSE(fs::exists(dir / "out" / ".nibble-journal.jsonl"));
        // FP32 rounding may decide blocks whose two best losses are almost equal; each affects a weight and its scale.
        const int near = golden.contains("search") ? golden["search"].value("near_ties", 0) : 0;
        const auto differing = differences(dir / "out", golden);
        EXPECT_LE(differing.size(), 2 * static_cast<size_t>(near)) << fmt::format("{}", fmt::join(differing, "\n"));
        ++configurations;
        tensors += static_cast<int>(golden["tensors"].size());
    }
    EXPECT_GE(configurations, 40);
    EXPECT_GE(tensors, 2000);
}

}  // namespace
}  // namespace nibble::test

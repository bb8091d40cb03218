#include "nibble/recipes.h"

#include "base/json.h"
#include "jobs/job.h"
#include "quant/recipe_guide.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace nibble {
namespace {

std::string needs_of(const RecipeGuide& guide) {
    // Model Optimizer's layout stores FP8 weights only together with input scales.
    if (guide.learns || guide.weights == Format::fp8) return guide.needs_text ? "text" : "nothing";
    return guide.needs_text ? "text or --weights-only" : "nothing";
}

Json guide_json(const RecipeGuide& guide) {
    return {{"name", guide.name},
            {"purpose", guide.purpose},
            {"covers", guide.covers},
            {"weights", format_name(guide.weights)},
            {"inputs", activation_name(guide.inputs)},
            {"bits_per_weight", guide.bits},
            {"needs", needs_of(guide)},
            {"runs_on", guide.runs_on}};
}

std::string guide_text(const std::vector<RecipeGuide>& guides) {
    using Row = std::array<std::string, 6>;
    std::vector<Row> rows = {{"recipe", "weights", "bits", "inputs", "needs", "runs on"}};
    for (const RecipeGuide& g : guides)
        rows.push_back({g.name, std::string(format_name(g.weights)), fmt::format("{:.3g}", g.bits),
                        g.inputs == ActivationFormat::none ? "-" : std::string(activation_name(g.inputs)), needs_of(g),
                        g.runs_on});
    Row::size_type columns = rows[0].size();
    std::vector<size_t> width(columns);
    for (const Row& row : rows)
        for (size_t c = 0; c < columns; ++c) width[c] = std::max(width[c], row[c].size());
    std::string text =
        "Which one?\n"
        "  Blackwell        nvfp4 --calib TEXT; nvfp4_four_over_six loses less; nvfp4_nibble_best least, and takes "
        "longest\n"
        "  Hopper, Ada      fp8 --calib TEXT, or fp8_per_channel_per_token without a text; w4a16_nvfp4 where memory is "
        "short\n"
        "  a CPU            w4a16_nvfp4\n"
        "  llama.cpp        w4a16_nvfp4 -o MODEL.gguf\n"
        "  Nemotron-H       mamba_moe_nvfp4_conservative (Blackwell), mamba_moe_fp8_conservative (Hopper)\n\n";
    for (size_t r = 0; r < rows.size(); ++r) {
        std::string line;
        for (size_t c = 0; c + 1 < columns; ++c) line += fmt::format("{:<{}}  ", rows[r][c], width[c]);
        text += line + rows[r].back() + "\n";
        if (r > 0) text += fmt::format("    {}: {}\n", guides[r - 1].covers, guides[r - 1].purpose);
    }
    text +=
        "\nbits: per quantized weight, scales included. inputs: `-` means unquantized. text: needs --calib FILE, or "
        "--input-scales\nfrom an earlier export, or --weights-only, which keeps inputs unquantized (`fp8`: only with "
        "--format compressed-tensors).\nModel Optimizer's preset names (NVFP4_DEFAULT_CFG) and recipe files work "
        "too.\n";
    return text;
}

std::string guides_json(const std::vector<RecipeGuide>& guides) {
    Json json = Json::array();
    for (const RecipeGuide& guide : guides) json.push_back(guide_json(guide));
    return json.dump(1) + "\n";
}

}  // namespace

std::vector<std::string> recipe_names() { return preset_names(); }

Result<JobReport> describe_recipes() {
    return as_job([]() -> Result<JobReport> {
        NIBBLE_TRY(const auto guides, recipe_guide());
        return JobReport{.text = [guides] { return guide_text(guides); },
                         .json = [guides] { return guides_json(guides); }};
    });
}

}  // namespace nibble

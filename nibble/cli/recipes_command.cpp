// `nibble recipes`: which preset for which purpose and machine.
#include "base/json.h"
#include "cli/command.h"
#include "cli/options.h"
#include "quant/recipe_guide.h"

#include <fmt/format.h>

#include <array>

namespace nibble {
namespace {

struct RecipesConfig {
    bool json = false, names = false;
};

std::string needs_of(const RecipeGuide& guide) {
    if (guide.learns) return "text";
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
        "\nbits: of a weight that is quantized, its scales included; inputs: `-` stay as they are. text: --calib FILE, "
        "or "
        "--input-scales\nfrom an earlier export; --weights-only leaves inputs alone. Model Optimizer's names work too "
        "(NVFP4_DEFAULT_CFG), and so do its files.\n";
    return text;
}

Result<Outcome> run_recipes(const RecipesConfig& config) {
    if (config.names) {
        for (const std::string& name : preset_names()) fmt::print("{}\n", name);
        return Outcome{};
    }
    NIBBLE_TRY(const auto guides, recipe_guide());
    if (!config.json) {
        fmt::print("{}", guide_text(guides));
        return Outcome{};
    }
    Json json = Json::array();
    for (const RecipeGuide& guide : guides) json.push_back(guide_json(guide));
    fmt::print("{}\n", json.dump(1));
    return Outcome{};
}

}  // namespace

void add_recipes(CLI::App& app, RunCommand& run) {
    auto config = std::make_shared<RecipesConfig>();
    CLI::App* command = app.add_subcommand("recipes", "the presets of --recipe: purpose, bits, needs, machines");
    command->add_flag("--names", config->names, "only the names, one a line");
    add_json_flag(*command, config->json);
    command->footer("Example:\n  nibble recipes");
    command->callback([config, &run] { run = [config] { return run_recipes(*config); }; });
}

}  // namespace nibble

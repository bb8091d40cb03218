#include "jobs/quantize_plan.h"

#include "checkpoint/module_pattern.h"
#include "checkpoint/reciprocal.h"
#include "jobs/words.h"
#include "quant/resolve.h"

#include <charconv>
#include <cmath>

namespace nibble {
namespace {

namespace fs = std::filesystem;

Result<Dialect> output_dialect(const QuantizeOptions& options) {
    if (!options.format.empty()) return parse_dialect(options.format);
    return options.out.ends_with(".gguf") ? Dialect::gguf : Dialect::modelopt;
}

Status check_compat(std::string_view word) {
    if (word == "modelopt-0.47" || word == "none") return Ok{};
    return fail(ErrorKind::usage, "--compat {}: choose modelopt-0.47 or none", word);
}

// Returns OUT without a trailing slash.
fs::path out_path(const QuantizeOptions& options) {
    const fs::path out = options.out;
    return out.has_filename() ? out : out.parent_path();
}

}  // namespace

Result<QuantizeSettings> read_settings(const QuantizeOptions& options) {
    QuantizeSettings settings{};
    NIBBLE_TRY(settings.dialect, output_dialect(options));
    NIBBLE_TRY(settings.kernels, select_quantize_kernels(options.kernels).as(ErrorKind::usage));
    NIBBLE_TRY(settings.device, parse_device(options.device));
    NIBBLE_TRY(settings.arithmetic, parse_arithmetic(options.arithmetic));
    NIBBLE_TRY(settings.embeddings, parse_format(options.embeddings));
    NIBBLE_TRY(settings.range, parse_range_rule(options.calib.range));
    NIBBLE_TRY(settings.max_shard_bytes, parse_size(options.max_shard_size));
    NIBBLE_CHECK(check_compat(options.compat));
    NIBBLE_TRY(settings.recipe, load_recipe(options.recipe).as(ErrorKind::recipe));
    for (const std::string& pattern : options.ignore) settings.recipe.rules.push_back(ignore_rule(pattern));
    return settings;
}

std::optional<float> given_scale(const QuantizeOptions& options) {
    const std::string& text = options.input_scales;
    float scale = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), scale);
    const bool number = !text.empty() && error == std::errc() && end == text.data() + text.size();
    return number && scale > 0 && std::isfinite(scale) ? std::optional(scale) : std::nullopt;
}

Result<Plan> make_plan(const QuantizeOptions& options, const QuantizeSettings& settings, const Checkpoint& source,
                       const Known& known) {
    return resolve(settings.recipe, source.tensors(), source.config(),
                   {.weights_only = options.weights_only,
                    .strict = options.strict,
                    .arithmetic = settings.arithmetic,
                    .compat = options.compat != "none",
                    .kv = options.kv,
                    .embeddings = settings.embeddings,
                    .statistics = known.statistics,
                    .folded = known.folded,
                    .linear = options.linear,
                    .input_scale = given_scale(options),
                    .least_scale = settings.dialect == Dialect::compressed_tensors ? least_divided_scale : 0.0f,
                    .scales = known.scales ? &known.scales->values : nullptr})
        .as(ErrorKind::recipe);
}

Json settings_json(const QuantizeOptions& options, const QuantizeSettings& settings) {
    Json json{{"dialect", dialect_name(settings.dialect)},
              {"recipe", options.recipe},
              {"arithmetic", options.arithmetic},
              {"compat", options.compat},
              {"kv", options.kv},
              {"embeddings", options.embeddings},
              {"weights_only", options.weights_only},
              {"max_shard_size", options.max_shard_size},
              {"calibration", options.calib.file}};
    if (!options.ignore.empty()) json["ignore"] = options.ignore;
    if (!options.linear.empty()) json["linear"] = options.linear;
    if (given_scale(options)) json["input_scale"] = *given_scale(options);
    return json;
}

fs::path calibration_folder(const QuantizeOptions& options) { return out_path(options) += ".calibration"; }

fs::path partial_output(const QuantizeOptions& options) { return out_path(options) += ".partial"; }

bool resumes_export(const QuantizeOptions& options) {
    return options.resume && (fs::exists(partial_output(options)) || !fs::exists(calibration_folder(options)));
}

}  // namespace nibble

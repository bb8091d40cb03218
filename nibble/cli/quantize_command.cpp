// `nibble quantize SRC -o OUT --recipe NAME`: the main job. run_quantize_command() below is its whole path: open,
// resolve the recipe into a plan, stream the tensors through the quantizers, verify what was written, report, and only
// then give the folder its name.
#include "checkpoint/reciprocal.h"
#include "checkpoint/work_folder.h"
#include "cli/calibration_folder.h"
#include "cli/calibration_options.h"
#include "cli/command.h"
#include "cli/open_checkpoint.h"
#include "cli/options.h"
#include "cli/terminal.h"
#include "cli/usage.h"
#include "io/atomic_file.h"
#include "quant/awq_search.h"
#include "quant/device_workers.h"
#include "quant/job.h"
#include "quant/kept_scales.h"
#include "quant/plan_json.h"
#include "quant/quantized_card.h"
#include "quant/report_html.h"
#include "quant/report_text.h"
#include "quant/resolve.h"
#include "quant/verify.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>

namespace nibble {
namespace {

namespace fs = std::filesystem;

struct QuantizeConfig {
    std::string source, out, recipe, kv, input_scales, kernels, device = "cpu";
    std::string format, arithmetic = "reciprocal", compat = "modelopt-0.47", embeddings = "none",
                        max_shard_size = "5GB";
    std::vector<std::string> ignore;
    CalibrationFlags calib;
    int threads = 0;
    bool weights_only = false, strict = false, dry_run = false, resume = false, requantize = false, quiet = false,
         json = false;
    std::string command_line;  // as typed, for the manifest and the report
    std::string card_command;  // for the model card
};

// --ignore: the module of this name (or the tensor, "....weight") and all modules below it stay as they are.
Rule ignore_rule(std::string module) {
    constexpr std::string_view tensor = ".weight";
    if (module.ends_with(tensor)) module.resize(module.size() - tensor.size());
    Rule rule;
    rule.pattern = module + ".*";
    rule.enable = false;
    rule.where = "--ignore";
    return rule;
}

Result<Plan> make_plan(const QuantizeConfig& config, const Checkpoint& source, const ScaleTable* scales,
                       bool statistics = false, bool folded = false) {
    NIBBLE_TRY(auto recipe, load_recipe(config.recipe));
    for (const std::string& pattern : config.ignore) recipe.rules.push_back(ignore_rule(pattern));
    NIBBLE_TRY(const auto arithmetic, parse_arithmetic(config.arithmetic));
    NIBBLE_TRY(const auto embeddings, parse_format(config.embeddings));
    NIBBLE_TRY(const auto dialect, parse_dialect(config.format));
    return resolve(recipe, source.tensors(), source.config(),
                   {.weights_only = config.weights_only,
                    .strict = config.strict,
                    .arithmetic = arithmetic,
                    .compat = config.compat != "none",
                    .kv = config.kv,
                    .embeddings = embeddings,
                    .statistics = statistics,
                    .folded = folded,
                    .least_scale = dialect == Dialect::compressed_tensors ? least_divided_scale : 0.0f,
                    .scales = scales ? &scales->values : nullptr});
}

// What calibration found, until the job is done.
fs::path calibration_folder(const QuantizeConfig& config) {
    fs::path out = config.out;
    if (!out.has_filename()) out = out.parent_path();  // "OUT/"
    return out += ".calibration";
}

CalibrationOptions calibration_options(const QuantizeConfig& config, const RangeRule& range,
                                       const DeviceChoice& device = {}) {
    return {.range = range,
            .all_experts = config.calib.all_experts,
            .gradient_tokens = config.calib.gradients,
            .scratch = fs::absolute(config.out).parent_path(),
            .device = device};
}

// What of the passes over text no GPU does.
void say_what_stays(const DeviceChoice& device, const Plan& plan, const JobHooks& hooks) {
    if (!device.cuda) return;
    if (plan.awq) hooks.warn("awq_lite searches its scales on the CPU, whatever --device says");
    if (!calibrates_on_device(plan))
        hooks.warn(
            "nibble_best reads gradients, which only the CPU computes: calibration runs there, whatever --device says");
}

void warn_of_gaps(const std::vector<CalibrationGap>& gaps, const JobHooks& hooks) {
    for (const CalibrationGap& gap : gaps) hooks.warn(gap.text);
}

// What calibration finds joins what --input-scales gave, which wins.
Result<Calibration> run_calibration(const QuantizeConfig& config, const Checkpoint& source, const Plan& plan,
                                    const Json& settings, const DeviceChoice& device, ThreadPool& pool,
                                    const JobHooks& hooks, std::optional<ScaleTable>& table) {
    NIBBLE_TRY(const auto range, parse_range_rule(config.calib.range));
    NIBBLE_TRY(const auto arithmetic, parse_arithmetic(config.arithmetic));
    NIBBLE_TRY(const auto sequences, calibration_sequences(config.calib, source, hooks));
    CalibrationOptions options = calibration_options(config, range, device);
    options.keep = calibration_folder(config);
    NIBBLE_TRY(options.job, source_identity(source));
    options.job.emplace_back("version of nibble", NIBBLE_VERSION);
    for (const auto& [name, value] : settings.items()) options.job.emplace_back("setting " + name, value.dump());
    auto found = calibrate(source, plan, config.calib.file, sequences, options, pool, hooks);
    if (std::error_code none; !found.ok() && fs::file_size(options.keep / "solutions.bin", none) == 0)
        for (const auto& entry : fs::directory_iterator(options.keep, none))  // nothing to go on from
            if (entry.path().filename() != ".nibble-lock") fs::remove(entry.path(), none);
    NIBBLE_TRY(auto seen, std::move(found));
    ScaleTable scales = scale_table(seen, plan, arithmetic);
    if (table) {
        table->values.merge(scales.values);
        table->origin += " and " + scales.origin;
    } else {
        table = std::move(scales);
    }
    for (const std::string& warning : seen.warnings) hooks.warn(warning);
    warn_of_gaps(seen.gaps, hooks);
    return seen;
}

Result<AwqResult> run_awq(const QuantizeConfig& config, const Checkpoint& source, const Plan& plan, ThreadPool& pool,
                          const JobHooks& hooks) {
    NIBBLE_TRY(const auto range, parse_range_rule(config.calib.range));
    NIBBLE_TRY(const auto sequences, calibration_sequences(config.calib, source, hooks));
    NIBBLE_TRY(auto found, awq_search(source, plan, sequences, calibration_options(config, range), pool, hooks));
    for (const std::string& warning : found.warnings) hooks.warn(warning);
    warn_of_gaps(found.gaps, hooks);
    return found;
}

// A recipe that looks at activations cannot be run on weights alone: say which numbers are missing and what to do.
Status refuse_missing_activations(const Plan& plan) {
    if (plan.needs_activations.empty()) return Ok{};
    const size_t others = plan.needs_activations.size() - 1;
    return fail("the recipe needs activations: {}{}", plan.needs_activations.front(),
                others ? fmt::format(" (and {} more)", others) : "");
}

// Presets for other architectures (experts only, say) match nothing in some models.
Status refuse_empty_plan(const QuantizeConfig& config, const Plan& plan) {
    if (std::ranges::any_of(plan.entries, [](const PlanEntry& e) { return e.spec.format != Format::none; }))
        return Ok{};
    return fail("{}: recipe {} quantizes nothing of this model: its rules match none of the linears; choose another",
                config.source, config.recipe);
}

// Two threads a core on a GPU: one reads or writes while the other waits for its panel.
int thread_count(const QuantizeConfig& config, const DeviceChoice& device) {
    return config.threads > 0 || !device.cuda ? config.threads : 2 * usable_cores();
}

// Null on the CPU. Weight solvers are not written for a GPU; their tensors stay on the CPU, and a line says so.
Result<std::unique_ptr<PanelWorkers>> workers_on(const DeviceChoice& device, const Checkpoint& source, const Plan& plan,
                                                 int threads, const JobHooks& hooks) {
    if (!device.cuda) return std::unique_ptr<PanelWorkers>();
    NIBBLE_TRY(auto workers, open_device_workers(device, source, plan, threads));
    const auto solved = std::ranges::count_if(plan.entries, [](const PlanEntry& e) { return bool(e.solver); });
    if (solved) hooks.warn(fmt::format("{} tensors have a weight solver, which runs on the CPU", solved));
    return workers;
}

// A job that was killed in its calibration has not begun to write.
bool resumes_export(const QuantizeConfig& config) {
    const fs::path calibration = calibration_folder(config);
    return config.resume &&
           (fs::exists(fs::path(calibration).replace_extension(".partial")) || !fs::exists(calibration));
}

// Whether the output is there and its manifest has this very command: a scheduler repeated a job that had ended.
bool made_by_this_command(const QuantizeConfig& config) {
    const fs::path manifest = fs::path(config.out) / manifest_name;
    std::error_code ignored;
    if (!config.resume || !fs::is_regular_file(manifest, ignored)) return false;
    const auto json = read_json_file(manifest);
    return json.ok() && json->is_object() && json->value("command", Json()) == Json(config.command_line);
}

// Schedulers repeat the command of a killed job, which may have made nothing yet.
void say_where_it_begins(const QuantizeConfig& config) {
    fs::path partial = config.out;
    if (!partial.has_filename()) partial = partial.parent_path();
    partial += ".partial";
    if (!config.resume || config.quiet || fs::exists(partial) || fs::exists(calibration_folder(config))) return;
    say(fmt::format("nibble: {}: nothing to resume, the job starts from the beginning", config.out));
}

Json settings_of(const QuantizeConfig& config) {
    Json settings{{"dialect", config.format},
                  {"recipe", config.recipe},
                  {"arithmetic", config.arithmetic},
                  {"compat", config.compat},
                  {"kv", config.kv},
                  {"embeddings", config.embeddings},
                  {"weights_only", config.weights_only},
                  {"max_shard_size", config.max_shard_size},
                  {"calibration", config.calib.file}};
    if (!config.ignore.empty()) settings["ignore"] = config.ignore;
    return settings;
}

// What the passes over text leave behind.
struct Calibrated {
    std::unique_ptr<Checkpoint> folded;  // the source with awq_lite's scales; null: the source itself
    std::unique_ptr<StatisticsStore> statistics;
    std::vector<LayerOutputError> output_errors;
    std::vector<CalibrationGap> gaps;
    Json settings;
    CalibrationFolder folder;
};

// The plan and the table become those of the calibrated job.
Result<Calibrated> calibrate(const QuantizeConfig& config, const Checkpoint& source, Plan& plan,
                             std::optional<ScaleTable>& table, const DeviceChoice& device, ThreadPool& pool,
                             const JobHooks& hooks) {
    Calibrated out{.settings = settings_of(config)};
    if (!plan.awq && !needs_calibration(plan))
        return fail("--calib: this recipe stores nothing that depends on activations");
    // What would be found out when all work is done is looked at before it begins.
    const ExportMode mode = resumes_export(config) ? ExportMode::resume : ExportMode::create;
    const Status possible = WorkFolder::check(config.out, mode, planned_bytes(plan));
    if (std::error_code none; !possible.ok() && fs::exists(config.out, none))
        CalibrationFolder::tidy(calibration_folder(config));
    NIBBLE_CHECK(possible);
    NIBBLE_TRY(out.folder, CalibrationFolder::hold(calibration_folder(config), config.resume));
    const auto resolve = [&] {
        return make_plan(config, out.folded ? *out.folded : source, table ? &*table : nullptr,
                         out.statistics != nullptr, out.folded != nullptr);
    };
    if (plan.awq) {
        NIBBLE_TRY(auto scales, run_awq(config, source, plan, pool, hooks));
        out.settings["awq_lite"] = scales.summary();
        NIBBLE_TRY(out.folded, fold_checkpoint(source, std::move(scales.folds)));
        NIBBLE_TRY(plan, resolve());
        std::ranges::move(scales.warnings, std::back_inserter(plan.warnings));
        out.gaps = std::move(scales.gaps);
    }
    if (!needs_calibration(plan)) return out;
    // Its numbers are a GPU's: sums in another order.
    if (device.cuda && calibrates_on_device(plan)) out.settings["calibration_device"] = "cuda";
    std::vector<std::string> warnings = plan.warnings;
    NIBBLE_TRY(auto seen, run_calibration(config, out.folded ? *out.folded : source, plan, out.settings, device, pool,
                                          hooks, table));
    out.statistics = std::move(seen.statistics);
    out.output_errors = std::move(seen.output_errors);
    std::ranges::move(seen.gaps, std::back_inserter(out.gaps));
    NIBBLE_TRY(plan, resolve());
    plan.warnings = std::move(warnings);
    return out;
}

// What is lost by quantizing twice is not in the report, which compares with the source.
Status refuse_quantized_source(const QuantizeConfig& config, const Checkpoint& source) {
    const std::string already = quantized_text(source);
    if (config.requantize || already.empty()) return Ok{};
    return fail(
        "{}: {}: take the checkpoint that it was made from, or decode and round again with --requantize; the report "
        "will not show what the first time lost",
        config.source, already);
}

Result<ExportSpec> export_spec(const QuantizeConfig& config, const Checkpoint& source, const Plan& plan,
                               const ActivationScales& scales) {
    NIBBLE_TRY(const auto dialect, parse_dialect(config.format));
    NIBBLE_TRY(const auto max_shard_bytes, parse_size(config.max_shard_size));
    NIBBLE_TRY(auto side_files, source.side_files());
    return ExportSpec{.dialect = dialect,
                      .out = config.out,
                      .tensors = export_tensors(source, plan, scales),
                      .kv = plan.kv,
                      .config = source.config(),
                      .side_files = std::move(side_files),
                      .max_shard_bytes = max_shard_bytes,
                      .manifest = {}};
}

using QuantizeClock = std::chrono::steady_clock;
double seconds_since(QuantizeClock::time_point begin) {
    return std::chrono::duration<double>(QuantizeClock::now() - begin).count();
}

Result<Outcome> run_quantize_command(const QuantizeConfig& config) {
    const auto begin = QuantizeClock::now();
    if (made_by_this_command(config)) {
        if (!config.quiet) say(fmt::format("nibble: {}: this command has made it already", config.out));
        return Outcome{};
    }
    double calibration_seconds = 0;
    Console console(config.quiet || config.json);
    const JobHooks hooks = console.hooks();
    NIBBLE_TRY(const auto dialect, parse_dialect(config.format));
    NIBBLE_TRY(const auto* const kernels, select_quantize_kernels(config.kernels));
    NIBBLE_TRY(const auto device, parse_device(config.device));
    if (device.cuda && !config.dry_run) NIBBLE_CHECK(open_device(device));

    NIBBLE_TRY(std::unique_ptr<Checkpoint> opened, open_checkpoint(config.source, config.quiet));
    NIBBLE_CHECK(refuse_output_in_source(config.out, config.source));
    NIBBLE_CHECK(refuse_quantized_source(config, *opened));
    const Checkpoint* source = opened.get();
    std::optional<ScaleTable> table;
    if (!config.input_scales.empty()) {
        NIBBLE_TRY(table, read_scale_table(config.input_scales));
    }
    NIBBLE_TRY(auto plan, make_plan(config, *source, table ? &*table : nullptr));
    if (dialect != Dialect::gguf) NIBBLE_CHECK(refuse_empty_plan(config, plan));
    // Everything that follows from names, shapes and formats is checked before the first tensor is read.
    NIBBLE_TRY(const ExportSpec planned, export_spec(config, *source, plan, placeholder_scales(plan)));
    NIBBLE_CHECK(check_export(planned));
    if (!config.calib.file.empty()) say_what_stays(device, plan, hooks);
    if (config.dry_run) {
        fmt::print("{}", config.json ? json_line(to_json(plan)) : to_text(plan));
        return Outcome{};
    }
    say_where_it_begins(config);
    for (const std::string& warning : plan.warnings) hooks.warn(warning);
    Calibrated calibrated{.settings = settings_of(config)};
    if (!config.calib.file.empty()) {
        ThreadPool pool(config.threads);
        const auto calibration_begin = QuantizeClock::now();
        NIBBLE_TRY(calibrated, calibrate(config, *opened, plan, table, device, pool, hooks));
        calibration_seconds = seconds_since(calibration_begin);
        if (calibrated.folded) source = calibrated.folded.get();
    }
    NIBBLE_CHECK(refuse_missing_activations(plan));
    NIBBLE_TRY(const auto scales, resolve_activation_scales(plan, table ? &*table : nullptr));
    for (const std::string& warning : scales.warnings) hooks.warn(warning);

    ThreadPool pool(thread_count(config, device));
    NIBBLE_TRY(const auto workers, workers_on(device, *source, plan, pool.threads(), hooks));

    const JobOptions job{.kernels = kernels,
                         .workers = workers.get(),
                         .scales = scales,
                         .statistics = calibrated.statistics.get(),
                         .settings = std::move(calibrated.settings),
                         .versions = {{"nibble", NIBBLE_VERSION}}};
    const Manifest manifest{.command_line = config.command_line,
                            .settings = job.settings,
                            .recipe = plan.recipe,
                            .tensors = to_json(expected_formats(plan))};
    NIBBLE_TRY(ExportSpec spec, export_spec(config, *source, plan, scales));
    spec.manifest = to_text(manifest);
    std::string source_card;
    if (dialect != Dialect::gguf) {
        NIBBLE_TRY(source_card, take_model_card(spec.side_files));
    }
    if (const std::string note = export_note(spec); !note.empty()) {
        hooks.warn(note);
        plan.warnings.push_back(note);
    }
    NIBBLE_TRY(auto out,
               open_export(std::move(spec), resumes_export(config) ? ExportMode::resume : ExportMode::create));
    NIBBLE_TRY(auto report, run_quantize(*source, plan, job, *out, pool, hooks));
    report.timing.command = config.command_line;
    report.timing.output = config.out;
    report.output_errors = std::move(calibrated.output_errors);
    warn_of_gaps(report.gaps, hooks);  // gaps seen in the tensors; calibration has reported its own
    report.gaps.insert(report.gaps.begin(), std::make_move_iterator(calibrated.gaps.begin()),
                       std::make_move_iterator(calibrated.gaps.end()));
    report.timing.calibration_seconds = calibration_seconds;
    NIBBLE_CHECK(keep_exact_scales(dialect, to_text(manifest), *out, report));

    // Verified in the work folder: a checkpoint that fails never gets its final name.
    NIBBLE_TRY(const auto written, Checkpoint::open(out->checkpoint_path()));
    const ExpectedFormats expected = expected_formats(plan);
    NIBBLE_TRY(
        const auto checked,
        verify(*written, {.kernels = kernels, .source = source, .expected = &expected, .computed = &report.tensors},
               pool, hooks));
    if (!checked.passed())
        return fail("{}: verification found {} problems, the first: {}: {}; the unfinished checkpoint stays in {}",
                    config.out, checked.findings.size(), checked.findings.front().tensor, checked.findings.front().text,
                    out->work_dir().string());
    report.timing.whole_seconds = seconds_since(begin);
    report.timing.verified = fmt::format(
        "{} tensors read back: codes and scales are those computed, the rest is the source's", checked.tensors.size());

    NIBBLE_CHECK(write_file_atomically(out->work_dir() / "nibble-report.json", to_json_text(report)));
    NIBBLE_CHECK(write_file_atomically(out->work_dir() / "nibble-report.html", render_html(report)));
    if (dialect != Dialect::gguf) {
        const ModelCard card =
            quantized_card(report, dialect, hub_name(config.out), hub_name(config.source), config.card_command);
        NIBBLE_CHECK(write_file_atomically(out->work_dir() / model_card_name, model_card_text(card, source_card)));
    }
    NIBBLE_CHECK(calibrated.folder.mark_done());
    NIBBLE_CHECK(out->finish());
    calibrated.folder.remove();
    console.end_line();
    if (config.json)
        fmt::print("{}", to_json_text(report));
    else if (!config.quiet)
        fmt::print("{}", report_text(report));
    return Outcome{};
}

}  // namespace

void add_quantize(CLI::App& app, RunCommand& run) {
    auto config = std::make_shared<QuantizeConfig>();
    CLI::App* command =
        app.add_subcommand("quantize", "the main job: a BF16 checkpoint in, a verified FP4/FP8 checkpoint out");
    command->add_option("source", config->source, "Hugging Face folder or .gguf file")->required();
    command->add_option("-o,--output", config->out, "folder (or .gguf file) to write; must not exist")->required();
    command->add_option("-r,--recipe", config->recipe, "preset (`nibble recipes` lists them) or recipe file")
        ->required()
        ->check(read_by(check_recipe_name));
    std::vector<std::string> kv = kv_preset_names();
    kv.emplace_back("none");
    command->add_option("--kv", config->kv, "KV cache preset added after the recipe")->check(one_of(std::move(kv)));
    command->add_option("--format", config->format, "default: gguf for an output named so, else modelopt")
        ->check(one_of({"modelopt", "compressed-tensors", "gguf"}));
    command
        ->add_option(
            "--ignore", config->ignore,
            "a module that stays as it is, with all below it (fnmatch: '*.down_proj', 'model.layers.0'); may be "
            "given several times")
        ->allow_extra_args(false);
    command->add_flag("--weights-only", config->weights_only, "drop the recipe's activation quantizers on purpose");
    command->add_option("--input-scales", config->input_scales,
                        "input_scale, k_scale, v_scale from a JSON file or another export");
    add_calibration_flags(*command, config->calib);
    command
        ->add_option("--calib-gradients", config->calib.gradients,
                     "of the tokens, those that also go back through the model (nibble_best)")
        ->capture_default_str();
    command
        ->add_option("--embeddings", config->embeddings,
                     "format of the input embeddings, for machines with little memory")
        ->check(read_by(parse_format))
        ->capture_default_str();
    command
        ->add_option("--arithmetic", config->arithmetic, "reciprocal: as Model Optimizer on a GPU; true: as on a CPU")
        ->check(one_of({"reciprocal", "true"}))
        ->capture_default_str();
    command->add_option("--compat", config->compat, "share scales as Model Optimizer 0.47's bytes do (docs/recipes.md)")
        ->check(one_of({"modelopt-0.47", "none"}))
        ->capture_default_str();
    add_shard_size_flag(*command, config->max_shard_size);
    add_threads_flag(*command, config->threads, "0: all cores; two a core with --device cuda");
    add_kernels_flag(*command, config->kernels, "force one (same bytes)");
    add_device_flag(*command, config->device,
                    "cpu, cuda or cuda:N; the same bytes but for --calib, whose sums have another order");
    command->add_flag("--requantize", config->requantize, "take a source that is quantized already");
    command->add_flag("--dry-run", config->dry_run, "print the plan and stop");
    command->add_flag("--strict", config->strict, "warnings of the plan are errors");
    command->add_flag("--resume", config->resume, "continue an interrupted run to the same bytes");
    add_json_flag(*command, config->json);
    add_quiet_flag(*command, config->quiet, "no progress, no summary");
    command->footer(
        "Examples:\n"
        "  nibble quantize Qwen3-8B -o Qwen3-8B-NVFP4 --recipe w4a16_nvfp4\n"
        "  nibble quantize Qwen3-8B -o out --recipe nvfp4 --kv fp8 --calib chats.jsonl\n"
        "  nibble quantize Qwen3-8B -o out --recipe nvfp4 --input-scales calibrated-export --kv fp8_cast\n"
        "  nibble quantize model.gguf -o out.gguf --recipe nvfp4_four_over_six --weights-only --requantize");
    command->callback([config, command, &run] {
        config->format = output_format(config->out, config->format);
        check_calibration_flags(*command, config->calib);
        config->command_line = command_line_of(*command);
        config->card_command = command_for_card(*command);
        run = [config] { return run_quantize_command(*config); };
    });
}

}  // namespace nibble

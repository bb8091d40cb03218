// The jobs: functions from a dictionary of options to a dictionary of results.
#include "core/fields.h"
#include "core/module.h"
#include "core/wait.h"
#include "nibble/calibrate.h"
#include "nibble/convert.h"
#include "nibble/data.h"
#include "nibble/evaluate.h"
#include "nibble/inspect.h"
#include "nibble/logits.h"
#include "nibble/quantize.h"
#include "nibble/recipes.h"
#include "nibble/reinforce.h"
#include "nibble/search.h"
#include "nibble/train.h"
#include "nibble/verify.h"

#include <nanobind/stl/map.h>

namespace nibble::python {
namespace {

std::vector<Field<CalibrationText>> calibration_fields() {
    using O = CalibrationText;
    return {field("file", &O::file),         field("range", &O::range),         field("tokens", &O::tokens),
            field("sequence", &O::sequence), field("gradients", &O::gradients), field("all_experts", &O::all_experts)};
}

std::vector<Field<ModelSettings>> model_fields() {
    using O = ModelSettings;
    return {field("compute", &O::compute),     field("kv", &O::kv),
            field("ssm_state", &O::ssm_state), field("kernels", &O::kernels),
            field("sums", &O::sums),           field("device", &O::device),
            field("threads", &O::threads),     field("weights_only", &O::weights_only)};
}

std::vector<Field<QuantizeOptions>> quantize_fields() {
    using O = QuantizeOptions;
    std::vector<Field<O>> out{field("source", &O::source),
                              field("out", &O::out),
                              field("recipe", &O::recipe),
                              field("format", &O::format),
                              field("kv", &O::kv),
                              field("ignore", &O::ignore),
                              field("weights_only", &O::weights_only),
                              field("input_scales", &O::input_scales),
                              field("embeddings", &O::embeddings),
                              field("arithmetic", &O::arithmetic),
                              field("compat", &O::compat),
                              field("max_shard_size", &O::max_shard_size),
                              field("kernels", &O::kernels),
                              field("device", &O::device),
                              field("threads", &O::threads),
                              field("requantize", &O::requantize),
                              field("dry_run", &O::dry_run),
                              field("strict", &O::strict),
                              field("resume", &O::resume)};
    add_fields(out, "calib_", &O::calib, calibration_fields());
    return out;
}

std::vector<Field<ConvertCheckpointOptions>> convert_fields() {
    using O = ConvertCheckpointOptions;
    return {field("source", &O::source),
            field("out", &O::out),
            field("format", &O::format),
            field("drop", &O::drop),
            field("max_shard_size", &O::max_shard_size),
            field("threads", &O::threads)};
}

std::vector<Field<ImportCheckpointOptions>> import_fields() {
    using O = ImportCheckpointOptions;
    return {field("file", &O::file), field("out", &O::out), field("pre", &O::pre),
            field("max_shard_size", &O::max_shard_size), field("threads", &O::threads)};
}

std::vector<Field<VerifyCheckpointsOptions>> verify_fields() {
    using O = VerifyCheckpointsOptions;
    return {field("paths", &O::paths), field("against", &O::against), field("threads", &O::threads)};
}

std::vector<Field<EvaluateOptions>> evaluate_fields() {
    using O = EvaluateOptions;
    std::vector<Field<O>> out{field("models", &O::models),
                              field("against", &O::against),
                              field("reference_cache", &O::reference_cache),
                              field("text", &O::text),
                              field("context", &O::context),
                              field("stride", &O::stride),
                              field("chunks", &O::chunks),
                              field("lambada", &O::lambada),
                              field("choices", &O::choices),
                              field("gsm8k", &O::gsm8k),
                              field("humaneval", &O::humaneval),
                              field("limit", &O::limit),
                              field("shots", &O::shots),
                              field("out", &O::out)};
    add_fields(out, "", &O::engine, model_fields());
    return out;
}

std::vector<Field<SearchOptions>> search_fields() {
    using O = SearchOptions;
    std::vector<Field<O>> out{field("source", &O::source),
                              field("out", &O::out),
                              field("bits", &O::bits),
                              field("formats", &O::formats),
                              field("keep", &O::keep),
                              field("cost_model", &O::cost_model),
                              field("score", &O::score),
                              field("scores", &O::scores),
                              field("sweep_low", &O::sweep_low),
                              field("sweep_high", &O::sweep_high),
                              field("sweep_step", &O::sweep_step),
                              field("measure", &O::measure),
                              field("measure_tokens", &O::measure_tokens),
                              field("algorithm", &O::algorithm),
                              field("device", &O::device),
                              field("threads", &O::threads)};
    add_fields(out, "calib_", &O::calib, calibration_fields());
    return out;
}

std::vector<Field<TrainOptions>> train_fields() {
    using O = TrainOptions;
    return {field("config", &O::config),  field("text", &O::text),       field("set", &O::set),
            field("device", &O::device),  field("kernels", &O::kernels), field("threads", &O::threads),
            field("profile", &O::profile)};
}

std::vector<Field<RlOptions>> reinforce_fields() {
    using O = RlOptions;
    return {field("config", &O::config),   field("text", &O::text),
            field("set", &O::set),         field("resume", &O::resume),
            field("device", &O::device),   field("kernels", &O::kernels),
            field("threads", &O::threads), field("gpu_memory", &O::gpu_memory)};
}

std::vector<Field<InspectOptions>> inspect_fields() {
    using O = InspectOptions;
    return {field("path", &O::path), field("summary", &O::summary), field("configs", &O::configs)};
}

nb::dict of_report(const JobReport& report) {
    nb::dict out;
    out["text"] = report.text ? report.text() : std::string();
    out["json"] = report.json ? report.json() : std::string();
    return out;
}

nb::dict result_of(const QuantizeReport& r) {
    constexpr const char* outcomes[] = {"written", "planned", "made_before"};
    nb::dict out = of_report(r);
    out["outcome"] = outcomes[static_cast<size_t>(r.outcome)];
    out["tensors"] = r.tensors;
    out["quantized_tensors"] = r.quantized_tensors;
    out["stored_bytes"] = r.stored_bytes;
    out["bits_per_quantized_weight"] = r.bits_per_quantized_weight;
    out["sqnr_db"] = r.sqnr_db;
    out["warnings"] = r.warnings;
    return out;
}

nb::dict result_of(const CalibrationReport& r) {
    nb::dict out, scales;
    for (const auto& [name, scale] : r.scales) scales[name.c_str()] = scale;
    out["origin"] = r.origin;
    out["scales"] = scales;
    out["warnings"] = r.warnings;
    return out;
}

nb::dict result_of(const ConversionReport& r) {
    nb::dict out;
    out["tensors"] = r.tensors;
    out["quantized"] = r.quantized;
    out["decoded"] = r.decoded;
    out["bytes"] = r.bytes;
    out["lines"] = r.lines;
    return out;
}

nb::dict result_of(const ImportReport& r) {
    nb::dict out;
    out["tensors"] = r.tensors;
    out["weight_bytes"] = r.weight_bytes;
    out["tokenizer"] = r.tokenizer;
    return out;
}

nb::dict result_of(const VerificationReport& r) {
    nb::dict out = of_report(r);
    nb::list checkpoints;
    for (const VerifiedCheckpoint& c : r.checkpoints) {
        nb::dict one;
        one["path"] = c.path;
        one["error"] = c.error;
        one["findings"] = c.findings;
        one["stored_bytes"] = c.stored_bytes;
        one["bits_per_weight"] = c.bits_per_weight;
        one["sqnr_db"] = c.sqnr_db;
        one["passed"] = c.passed();
        checkpoints.append(one);
    }
    out["checkpoints"] = checkpoints;
    out["passed"] = r.passed();
    return out;
}

nb::dict result_of(const EvaluationReport& r) {
    nb::dict out = of_report(r);
    nb::list measured;
    for (const Measured& m : r.measured) {
        nb::dict one;
        one["model"] = m.model;
        one["task"] = m.task;
        one["metric"] = m.metric;
        one["value"] = m.value;
        one["standard_error"] = m.standard_error;
        measured.append(one);
    }
    out["measured"] = measured;
    return out;
}

nb::dict result_of(const SearchedRecipe& r) {
    nb::dict out = of_report(r);
    out["bits"] = r.bits;
    out["score"] = r.score;
    out["kl"] = r.kl;
    out["page"] = r.page;
    return out;
}

template <class Report>
nb::dict run_result(const Report& r) {
    nb::dict out;
    out["steps"] = r.steps;
    out["made_earlier"] = r.made_earlier;
    out["outputs"] = r.outputs;
    out["lines"] = r.lines;
    return out;
}
nb::dict result_of(const TrainReport& r) {
    nb::dict out = run_result(r);
    out["skipped"] = r.skipped;
    return out;
}
nb::dict result_of(const RlReport& r) { return run_result(r); }
nb::dict result_of(const JobReport& r) { return of_report(r); }

JobCallbacks callbacks_of(nb::dict c) {
    const auto get = [&](const char* name) -> nb::object {
        return c.contains(name) ? nb::borrow(c[name]) : nb::none();
    };
    return {get("progress"), get("line"), get("event"), get("cancel")};
}

// Adds the function `name`(options, callbacks) -> results.
template <class Options, class Run>
void add_job(nb::module_& m, nb::dict& defaults, const char* name, std::vector<Field<Options>> fields, Run run) {
    defaults[name] = defaults_of(fields);
    m.def(name, [name, fields = std::move(fields), run](nb::dict options, nb::dict callbacks) {
        const Options o = options_from(std::move(options), fields, name);
        return result_of(run_watched(callbacks_of(std::move(callbacks)), [&](const JobHooks& hooks, JobWatch& watch) {
            if constexpr (std::is_invocable_v<Run, const Options&, const JobHooks&>)
                return run(o, hooks);
            else
                return run(o, hooks, watch);
        }));
    });
}

}  // namespace

void bind_jobs(nb::module_& m) {
    nb::dict defaults;
    nb::module_ jobs = m.def_submodule("jobs");
    add_job(jobs, defaults, "quantize", quantize_fields(),
            [](const QuantizeOptions& o, const JobHooks& h) { return nibble::quantize(o, h); });
    add_job(jobs, defaults, "calibrate", quantize_fields(),
            [](const QuantizeOptions& o, const JobHooks& h) { return nibble::calibrate(o, h); });
    add_job(jobs, defaults, "convert", convert_fields(),
            [](const ConvertCheckpointOptions& o, const JobHooks& h) { return convert_checkpoint(o, h); });
    add_job(jobs, defaults, "import_gguf", import_fields(),
            [](const ImportCheckpointOptions& o, const JobHooks& h) { return import_checkpoint(o, h); });
    add_job(jobs, defaults, "verify", verify_fields(),
            [](const VerifyCheckpointsOptions& o, const JobHooks& h) { return verify_checkpoints(o, h); });
    add_job(jobs, defaults, "evaluate", evaluate_fields(),
            [](const EvaluateOptions& o, const JobHooks& h) { return nibble::evaluate(o, h); });
    add_job(jobs, defaults, "search", search_fields(),
            [](const SearchOptions& o, const JobHooks& h) { return nibble::search(o, h); });
    add_job(jobs, defaults, "inspect", inspect_fields(),
            [](const InspectOptions& o, const JobHooks& h) { return nibble::inspect(o, h); });
    add_job(jobs, defaults, "train", train_fields(), [](const TrainOptions& o, const JobHooks& h, JobWatch& watch) {
        return nibble::train(o, {.job = h, .on_step = [&](const TrainedStep& s) { watch.add_event(s.report.json()); }});
    });
    add_job(jobs, defaults, "reinforce", reinforce_fields(),
            [](const RlOptions& o, const JobHooks& h, JobWatch& watch) {
                return nibble::reinforce(
                    o, {.job = h, .on_step = [&](const ReinforcedStep& s) { watch.add_event(s.report.json()); }});
            });
    jobs.attr("defaults") = defaults;
    jobs.def("recipe_names", &recipe_names);
    jobs.def("recipes", [] { return of_report(value_or_raise(describe_recipes())); });
}

}  // namespace nibble::python

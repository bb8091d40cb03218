#include "jobs/job_table.h"

#include "jobs/option_table.h"
#include "nibble/calibrate.h"
#include "nibble/convert.h"
#include "nibble/evaluate.h"
#include "nibble/inspect.h"
#include "nibble/quantize.h"
#include "nibble/recipes.h"
#include "nibble/search.h"
#include "nibble/train.h"
#include "nibble/verify.h"

#include <fmt/ranges.h>

#include <cmath>

namespace nibble {
namespace {

template <class Options>
using OptionFields = std::vector<OptionField<Options>>;

// Adds the options of a part under names with a prefix.
template <class Options>
void add_calibration(OptionFields<Options>& to) {
    using C = CalibrationText;
    constexpr auto part = &Options::calib;
    to.push_back(option("calib_file", part, &C::file));
    to.push_back(option("calib_range", part, &C::range));
    to.push_back(option("calib_tokens", part, &C::tokens));
    to.push_back(option("calib_sequence", part, &C::sequence));
    to.push_back(option("calib_gradients", part, &C::gradients));
    to.push_back(option("calib_all_experts", part, &C::all_experts));
}

template <class Options>
void add_engine(OptionFields<Options>& to) {
    using M = ModelSettings;
    constexpr auto part = &Options::engine;
    to.push_back(option("compute", part, &M::compute));
    to.push_back(option("kv", part, &M::kv));
    to.push_back(option("ssm_state", part, &M::ssm_state));
    to.push_back(option("kernels", part, &M::kernels));
    to.push_back(option("sums", part, &M::sums));
    to.push_back(option("device", part, &M::device));
    to.push_back(option("threads", part, &M::threads));
    to.push_back(option("weights_only", part, &M::weights_only));
    to.push_back(option("tensor_parallel_size", part, &M::tensor_parallel_size));
}

OptionFields<QuantizeOptions> quantize_fields() {
    using O = QuantizeOptions;
    OptionFields<O> out{option("source", &O::source),
                        option("out", &O::out),
                        option("recipe", &O::recipe),
                        option("format", &O::format),
                        option("kv", &O::kv),
                        option("ignore", &O::ignore),
                        option("weights_only", &O::weights_only),
                        option("input_scales", &O::input_scales),
                        option("embeddings", &O::embeddings),
                        option("arithmetic", &O::arithmetic),
                        option("compat", &O::compat),
                        option("max_shard_size", &O::max_shard_size),
                        option("kernels", &O::kernels),
                        option("device", &O::device),
                        option("threads", &O::threads),
                        option("partial", &O::partial),
                        option("requantize", &O::requantize),
                        option("dry_run", &O::dry_run),
                        option("strict", &O::strict),
                        option("resume", &O::resume)};
    add_calibration(out);
    return out;
}

OptionFields<ConvertCheckpointOptions> convert_fields() {
    using O = ConvertCheckpointOptions;
    return {option("source", &O::source),  option("out", &O::out),         option("format", &O::format),
            option("drop", &O::drop),      option("partial", &O::partial), option("max_shard_size", &O::max_shard_size),
            option("threads", &O::threads)};
}

OptionFields<ImportCheckpointOptions> import_fields() {
    using O = ImportCheckpointOptions;
    return {option("file", &O::file), option("out", &O::out), option("pre", &O::pre),
            option("max_shard_size", &O::max_shard_size), option("threads", &O::threads)};
}

OptionFields<VerifyCheckpointsOptions> verify_fields() {
    using O = VerifyCheckpointsOptions;
    return {option("paths", &O::paths), option("against", &O::against), option("threads", &O::threads),
            option("partial", &O::partial)};
}

OptionFields<EvaluateOptions> evaluate_fields() {
    using O = EvaluateOptions;
    OptionFields<O> out{option("models", &O::models),
                        option("against", &O::against),
                        option("reference_cache", &O::reference_cache),
                        option("text", &O::text),
                        option("context", &O::context),
                        option("stride", &O::stride),
                        option("chunks", &O::chunks),
                        option("lambada", &O::lambada),
                        option("choices", &O::choices),
                        option("gsm8k", &O::gsm8k),
                        option("humaneval", &O::humaneval),
                        option("limit", &O::limit),
                        option("shots", &O::shots),
                        option("out", &O::out)};
    add_engine(out);
    return out;
}

OptionFields<SearchOptions> search_fields() {
    using O = SearchOptions;
    OptionFields<O> out{option("source", &O::source),
                        option("out", &O::out),
                        option("bits", &O::bits),
                        option("formats", &O::formats),
                        option("keep", &O::keep),
                        option("cost_model", &O::cost_model),
                        option("score", &O::score),
                        option("scores", &O::scores),
                        option("sweep_low", &O::sweep_low),
                        option("sweep_high", &O::sweep_high),
                        option("sweep_step", &O::sweep_step),
                        option("measure", &O::measure),
                        option("measure_tokens", &O::measure_tokens),
                        option("algorithm", &O::algorithm),
                        option("device", &O::device),
                        option("threads", &O::threads)};
    add_calibration(out);
    return out;
}

OptionFields<TrainOptions> train_fields() {
    using O = TrainOptions;
    return {option("config", &O::config),  option("text", &O::text),       option("set", &O::set),
            option("device", &O::device),  option("kernels", &O::kernels), option("threads", &O::threads),
            option("profile", &O::profile)};
}

OptionFields<RlOptions> reinforce_fields() {
    using O = RlOptions;
    return {option("config", &O::config),   option("text", &O::text),
            option("set", &O::set),         option("resume", &O::resume),
            option("device", &O::device),   option("kernels", &O::kernels),
            option("threads", &O::threads), option("gpu_memory", &O::gpu_memory)};
}

OptionFields<InspectOptions> inspect_fields() {
    using O = InspectOptions;
    return {option("path", &O::path), option("summary", &O::summary), option("configs", &O::configs)};
}

struct NoOptions {};

OptionFields<ServeOptions> serve_fields() {
    using O = ServeOptions;
    using C = CacheSettings;
    OptionFields<O> out{option("model", &O::model),
                        option("names", &O::names),
                        option("host", &O::host),
                        option("port", &O::port),
                        option("unix_path", &O::unix_path),
                        option("api_keys", &O::api_keys),
                        option("api_key_file", &O::api_key_file),
                        option("cors_origin", &O::cors_origin),
                        option("allowed_hosts", &O::allowed_hosts),
                        option("context", &O::context),
                        option("sequences", &O::sequences),
                        option("queue", &O::queue),
                        option("connections", &O::connections),
                        option("prompt_stretch", &O::prompt_stretch),
                        option("request_timeout", &O::request_timeout),
                        option("max_body", &O::max_body),
                        option("max_request_memory", &O::max_request_memory),
                        option("max_total_memory", &O::max_total_memory),
                        option("stored_responses", &O::stored_responses),
                        option("tool_call_parser", &O::tool_call_parser),
                        option("reasoning_parser", &O::reasoning_parser),
                        option("parse_special", &O::parse_special),
                        option("ignore_unknown", &O::ignore_unknown),
                        option("log_prompts", &O::log_prompts),
                        option("weight_routes", &O::weight_routes),
                        option("kv_memory", &O::cache, &C::kv_memory),
                        option("memory_share", &O::cache, &C::memory_share),
                        option("speculate", &O::cache, &C::speculate),
                        option("no_prefix_cache", &O::cache, &C::no_prefix_cache)};
    add_engine(out);
    return out;
}

// JSON has no infinity and no NaN.
Json number_json(double value) { return std::isfinite(value) ? Json(value) : Json(fmt::format("{}", value)); }

Json report_json(const JobReport& report) {
    return {{"text", report.text ? report.text() : std::string()},
            {"json", report.json ? report.json() : std::string()}};
}

Json result_json(const JobReport& r) { return report_json(r); }

Json result_json(const QuantizeReport& r) {
    constexpr const char* outcomes[] = {"written", "planned", "made_before", "by_another_rank"};
    Json out = report_json(r);
    out["outcome"] = outcomes[static_cast<size_t>(r.outcome)];
    out["tensors"] = r.tensors;
    out["quantized_tensors"] = r.quantized_tensors;
    out["stored_bytes"] = r.stored_bytes;
    out["bits_per_quantized_weight"] = r.bits_per_quantized_weight;
    out["sqnr_db"] = number_json(r.sqnr_db);
    out["warnings"] = r.warnings;
    return out;
}

Json result_json(const CalibrationReport& r) {
    Json scales = Json::object();
    for (const auto& [name, scale] : r.scales) scales[name] = scale;
    return {{"origin", r.origin}, {"scales", std::move(scales)}, {"warnings", r.warnings}};
}

Json result_json(const ConversionReport& r) {
    return {{"tensors", r.tensors},
            {"quantized", r.quantized},
            {"decoded", r.decoded},
            {"bytes", r.bytes},
            {"lines", r.lines}};
}

Json result_json(const ImportReport& r) {
    return {{"tensors", r.tensors}, {"weight_bytes", r.weight_bytes}, {"tokenizer", r.tokenizer}};
}

Json result_json(const VerificationReport& r) {
    Json out = report_json(r);
    Json checkpoints = Json::array();
    for (const VerifiedCheckpoint& c : r.checkpoints)
        checkpoints.push_back({{"path", c.path},
                               {"error", c.error},
                               {"findings", c.findings},
                               {"stored_bytes", c.stored_bytes},
                               {"bits_per_weight", c.bits_per_weight},
                               {"sqnr_db", number_json(c.sqnr_db)},
                               {"passed", c.passed()}});
    out["checkpoints"] = std::move(checkpoints);
    out["passed"] = r.passed();
    return out;
}

Json result_json(const EvaluationReport& r) {
    Json out = report_json(r);
    Json measured = Json::array();
    for (const Measured& m : r.measured)
        measured.push_back({{"model", m.model},
                            {"task", m.task},
                            {"metric", m.metric},
                            {"value", number_json(m.value)},
                            {"standard_error", number_json(m.standard_error)}});
    out["measured"] = std::move(measured);
    return out;
}

Json result_json(const SearchedRecipe& r) {
    Json out = report_json(r);
    out["bits"] = r.bits;
    out["score"] = number_json(r.score);
    out["kl"] = r.kl ? number_json(*r.kl) : Json();
    out["page"] = r.page;
    return out;
}

template <class Report>
Json run_json(const Report& r) {
    return {{"steps", r.steps}, {"made_earlier", r.made_earlier}, {"outputs", r.outputs}, {"lines", r.lines}};
}
Json result_json(const TrainReport& r) {
    Json out = run_json(r);
    out["skipped"] = r.skipped;
    return out;
}
Json result_json(const RlReport& r) { return run_json(r); }

struct NamedJob {
    std::string_view name;
    std::function<Json()> defaults;
    std::function<Result<Json>(const Json&, const NamedJobHooks&)> run;
};

template <class Options, class Run>
NamedJob named(std::string_view name, OptionFields<Options> (*fields)(), Run run) {
    return {name, [=] { return defaults_of(fields()); },
            [=](const Json& options, const NamedJobHooks& hooks) -> Result<Json> {
                NIBBLE_TRY(const Options o, options_of(options, fields(), name));
                NIBBLE_TRY(const auto report, run(o, hooks));
                return result_json(report);
            }};
}

const std::vector<NamedJob>& table() {
    using H = NamedJobHooks;
    static const std::vector<NamedJob> jobs{
        named("quantize", quantize_fields, [](const auto& o, const H& h) { return quantize(o, h.job); }),
        named("calibrate", quantize_fields, [](const auto& o, const H& h) { return calibrate(o, h.job); }),
        named("convert", convert_fields, [](const auto& o, const H& h) { return convert_checkpoint(o, h.job); }),
        named("import_gguf", import_fields, [](const auto& o, const H& h) { return import_checkpoint(o, h.job); }),
        named("verify", verify_fields, [](const auto& o, const H& h) { return verify_checkpoints(o, h.job); }),
        named("evaluate", evaluate_fields, [](const auto& o, const H& h) { return evaluate(o, h.job); }),
        named("search", search_fields, [](const auto& o, const H& h) { return search(o, h.job); }),
        named("inspect", inspect_fields, [](const auto& o, const H& h) { return inspect(o, h.job); }),
        named("train", train_fields,
              [](const auto& o, const H& h) {
                  TrainHooks hooks{.job = h.job, .on_step = {}};
                  if (h.on_step) hooks.on_step = [&](const TrainedStep& s) { h.on_step(s.report.json()); };
                  return train(o, hooks);
              }),
        named("reinforce", reinforce_fields,
              [](const auto& o, const H& h) {
                  RlHooks hooks{.job = h.job, .on_step = {}, .judge = h.judge};
                  if (h.on_step) hooks.on_step = [&](const ReinforcedStep& s) { h.on_step(s.report.json()); };
                  return reinforce(o, hooks);
              }),
        named<NoOptions>(
            "recipes", +[] { return OptionFields<NoOptions>(); },
            [](const NoOptions&, const H&) { return describe_recipes(); }),
    };
    return jobs;
}

Result<const NamedJob*> find_job(std::string_view name) {
    for (const NamedJob& job : table())
        if (job.name == name) return &job;
    return fail(ErrorKind::usage, "there is no job '{}'; jobs: {}", name, fmt::join(job_names(), ", "));
}

}  // namespace

std::vector<std::string_view> job_names() {
    std::vector<std::string_view> names;
    for (const NamedJob& job : table()) names.push_back(job.name);
    return names;
}

Result<Json> job_defaults(std::string_view job) {
    NIBBLE_TRY(const NamedJob* found, find_job(job));
    return found->defaults();
}

Result<Json> run_named_job(std::string_view job, const Json& options, const NamedJobHooks& hooks) {
    NIBBLE_TRY(const NamedJob* found, find_job(job));
    return found->run(options, hooks);
}

Result<ServeOptions> serve_options_of(const Json& options, std::string_view caller) {
    return options_of(options, serve_fields(), caller);
}
Json serve_defaults() { return defaults_of(serve_fields()); }

}  // namespace nibble

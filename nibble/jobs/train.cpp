// Training from a config to an exported model; run_train_job() contains all steps in order.
#include "base/thread_pool.h"
#include "base/trace.h"
#include "checkpoint/output_place.h"
#include "checkpoint/source_files.h"
#include "io/atomic_file.h"
#include "io/journal.h"
#include "jobs/job.h"
#include "jobs/manifest.h"
#include "jobs/run_outputs.h"
#include "jobs/train_job.h"
#include "jobs/train_text.h"
#include "run/begin.h"
#include "run/export.h"
#include "train/data_open.h"

#include "train/host_plan.h"
#include "train/lora_export.h"
#include "train/train_model.h"
#include "train/train_rules.h"
#include "train/train_run.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace nibble {
namespace {

namespace fs = std::filesystem;

bool is_first(const TrainJob& job) { return !job.ranks || job.ranks->rank() == 0; }

void note_all(const JobHooks& hooks, const std::vector<std::string>& lines) {
    for (const std::string& line : lines) hooks.emit_note(line);
}

// Returns, on a CPU, the line about memory. Error: the job does not fit.
Result<std::string> plan_memory(const TrainJob& job, ThreadPool& pool) {
    const TrainConfig& c = job.config;
    NIBBLE_TRY(const auto model, open_train_model(c));
    std::shared_ptr<const Checkpoint> teacher;
    if (!c.teacher.folder.empty()) {
        NIBBLE_TRY(teacher, Checkpoint::open(c.teacher.folder).within("teacher"));
    }
    const int processes = job.ranks ? job.ranks->size() : 1;
    const HostRun run{.rows = (c.batch + processes - 1) / processes,
                      .seq = c.sequence,
                      .saves = !c.output.empty() && c.saving.keep > 0 && is_first(job),
                      .teacher = teacher.get(),
                      .ranks = processes};
    NIBBLE_TRY(const TrainMemoryPlan plan, plan_host_memory(c, *model, run, pool));
    NIBBLE_TRY(const HostTogether together,
               check_host_memory(plan, available_memory(), job.ranks).as(ErrorKind::memory));
    return together.text(plan);
}

// Returns the path of the main result.
fs::path result_of(const TrainConfig& c) { return c.output / (c.lora.rank > 0 && !c.lora.merge ? "adapter" : "model"); }

Status check_export(const TrainConfig& c, TrainEngine& trainer) {
    if (c.export_format == Format::none) return Ok{};
    NIBBLE_TRY(const Format format, trainer.codes_format(c.steps));
    if (format != c.export_format)
        return fail(ErrorKind::recipe, "export.format: {}; the last forward products of this recipe are {}",
                    format_name(c.export_format), format_name(format));
    return RunFolder::check_codes(c.output, codes_folder(c.output, c.export_format), c.resume);
}

// Checked before the computation, because the file is written last.
Status check_profile(const std::string& file, int64_t steps) {
    if (file.empty()) return Ok{};
    NIBBLE_CHECK(check_output_file(file).within("--profile"));
    if (steps < 5) return fail(ErrorKind::usage, "--profile records the third to fifth step; this run has {}", steps);
    return Ok{};
}

Status check_output(const TrainJob& job, const JobHooks& hooks) {
    const TrainConfig& c = job.config;
    if (!c.output.empty()) {
        const std::string next =
            fmt::format("{}begin a new run from it with 'fork: {}', or choose another output",
                        depends_on_length(c) ? "" : "run more steps with --resume, ", c.output.string());
        NIBBLE_TRY(const auto model, open_train_model(c));
        for (const std::string& note : model->notes()) hooks.emit_note(fmt::format("{}: {}", c.model.string(), note));
        return RunFolder::check_result(c.output, result_of(c), c.resume,
                                       planned_run_bytes(*model, c.saving.keep, c.lora.rank > 0), next);
    }
    const char* needs = c.resume                          ? "resume"
                        : !c.fork.empty()                 ? "fork"
                        : c.saving.every > 0              ? "saving.every"
                        : c.export_format != Format::none ? "export.format"
                                                          : nullptr;
    if (needs) return fail(ErrorKind::usage, "{}: needs an output folder: 'output', or -o DIR", needs);
    if (c.data.synthetic) return Ok{};  // a measurement needs no output
    return fail(ErrorKind::usage, "{}: 'output' is missing, so the trained model would be lost; add it, or give -o DIR",
                job.where);
}

// Returns a name that runs share which differ only by their seed.
std::string group_of(const TrainConfig& c, const std::string& data) {
    TrainConfig like = c;
    like.seed = 0;
    return fmt::format("{} {:.8}", train_precision_name(c.precision), hash_text(train_identity(like).dump() + data));
}

// `facts`: "config", "data", and hashes of frozen weights.
RunIdentity identity_of(Json facts) {
    std::string text = facts.dump();
    return {.text = std::move(text), .restate = [facts = std::move(facts)](const Json& stored) -> Result<Json> {
                if (!stored.contains("config")) return fail("is not a state of nibble train");
                Json today = stored;
                NIBBLE_TRY(today["config"], stored_train_identity(stored["config"]));
                // Until commit 8d459c62 frozen weights had no hash.
                for (const char* key : {"base", "teacher"})
                    if (facts.contains(key) && !today.contains(key)) today[key] = facts[key];
                return today;
            }};
}

Result<RunFolderOptions> folder_options(const TrainJob& job, const DataSources& sources, const TrainEngine& trainer,
                                        const JobHooks& hooks) {
    const TrainConfig& c = job.config;
    Json facts{{"config", resume_identity(c)}, {"data", sources.hash}};
    if (const std::string arithmetic = trainer.arithmetic(); !arithmetic.empty()) facts["arithmetic"] = arithmetic;
    // Weights that a step reads but that are in no checkpoint of the run.
    const std::pair<const char*, fs::path> frozen[] = {{"base", c.lora.rank > 0 ? c.model : fs::path()},
                                                       {"teacher", c.teacher.folder}};
    for (const auto& [name, folder] : frozen) {
        if (folder.empty()) continue;
        NIBBLE_TRY(const auto weights, Checkpoint::open(folder));
        NIBBLE_TRY(facts[name], source_hash(*weights));
    }
    return RunFolderOptions{.folder = c.output,
                            .resume = c.resume,
                            .steps = c.steps,
                            .identity = identity_of(std::move(facts)),
                            .fork = c.fork,
                            .another_run = fmt::format("to begin a new run from its state, give another output and "
                                                       "'fork: {}'",
                                                       c.output.string()),
                            .about = {{"name", fs::absolute(c.output).lexically_normal().filename().string()},
                                      {"group", group_of(c, sources.hash)},
                                      {"command", job.command.whole},
                                      {"parameters", trainer.parameters().elements()},
                                      {"config", train_identity(c)}},
                            .saving = c.saving,
                            .warn = hooks.warn};
}

void note_beginning(const TrainJob& job, TrainEngine& trainer, const std::string& memory, int64_t first_step,
                    const JobHooks& hooks) {
    note_all(hooks, train_start_lines(job.config, trainer, memory));
    if (job.ranks)
        hooks.emit_note(fmt::format("  {} ranks; each computes a share of a step's rows", job.ranks->size()));
    if (const std::string line = begin_text(job.config.output, job.config.resume, first_step); !line.empty())
        hooks.emit_note(line);
}

Status write_exports(const TrainJob& job, TrainEngine& trainer, ThreadPool& pool, TrainReport& report) {
    const TrainConfig& c = job.config;
    const RunExport run =
        run_export_of(job, c.shape.empty() && !c.random_start ? c.model : fs::path{}, "training", train_identity(c));
    if (c.export_format != Format::none) {
        const fs::path out = codes_folder(c.output, c.export_format);
        NIBBLE_TRY(const auto codes, trainer.trained_codes(c.steps));
        NIBBLE_CHECK(write_run_export(run, *codes, out, pool));
        add_output(report, out, "the trained model, quantized as in its last step");
    }
    NIBBLE_TRY(const auto model, trainer.trained());  // from here on parameters() has the latest values
    if (c.lora.rank > 0) {
        NIBBLE_CHECK(write_peft_adapter(c.output / "adapter", trainer.parameters(), c.lora, c.model));
        add_output(report, c.output / "adapter", "the adapters, as PEFT reads them");
    }
    if (c.lora.rank > 0 && !c.lora.merge) return Ok{};
    NIBBLE_CHECK(write_run_export(run, *model, c.output / "model", pool));
    add_output(report, c.output / "model", "the trained model");
    return Ok{};
}

Status write_profile(const TrainJob& job, const Trace& trace, TrainReport& report) {
    NIBBLE_CHECK(write_file_atomically(job.profile, trace.to_json().dump() + "\n").within(job.profile));
    report.outputs.push_back(job.profile);
    report.lines.push_back(fmt::format("{}: {} spans of three steps, for chrome://tracing or ui.perfetto.dev",
                                       job.profile, trace.spans()));
    return Ok{};
}

TrainedStep step_of(const StepReport& r, double memory_gib) {
    return {.step = r.step,
            .loss = r.result.loss,
            .gradient_norm = r.result.gradient_norm,
            .learning_rate = r.result.learning_rate,
            .seconds = r.seconds,
            .tokens = r.result.tokens,
            .validation = r.validation,
            .skipped = r.result.skipped,
            .report = {.text = [=] { return step_text(r, memory_gib); },
                       .json = [=] { return step_json(r, memory_gib).dump(); }}};
}

Error stopped_error(const TrainConfig& c, int64_t done, const RunFolder* folder) {
    return fail(ErrorKind::cancelled, "stopped after {} of {} steps; {}", done, c.steps,
                !folder           ? "nothing was written"
                : folder->saves() ? "resume it with --resume"
                                  : "no state was saved");
}

Result<TrainReport> run_job(const TrainJob& job, const TrainHooks& hooks) {
    const TrainConfig& c = job.config;
    const bool first = is_first(job);
    const JobHooks& say = hooks.job;
    if (first) NIBBLE_CHECK(check_train_job(job, say));

    ThreadPool pool(job.threads);
    std::string memory;  // on a CPU
    if (!job.device.cuda) {
        NIBBLE_TRY(memory, plan_memory(job, pool));
    }
    Trace trace;
    Trace* const traced = job.profile.empty() || !first ? nullptr : &trace;
    NIBBLE_TRY(
        const auto trainer,
        open_trainer(c, {.device = job.device, .kernels = job.kernels, .trace = traced, .ranks = job.ranks}, pool));
    NIBBLE_CHECK(check_export(c, *trainer));
    NIBBLE_TRY(DataSources data, open_train_data(c, trainer->config().vocab, say.stop_requested));

    TrainReport report;
    RunBegin run;
    if (!c.output.empty()) {
        NIBBLE_TRY(const auto folder, folder_options(job, data, *trainer, say));
        NIBBLE_TRY(run, begin_run(folder, result_of(c), job.ranks, *trainer, *data.train));
    }
    report.steps = run.first_step;
    report.made_earlier = run.ended;
    if (run.ended) report.lines.push_back(ended_text(result_of(c), c.steps));
    if (run.ended) return report;
    NIBBLE_CHECK(check_profile(job.profile, c.steps - run.first_step));
    if (first) note_beginning(job, *trainer, memory, run.first_step, say);

    double learned = 0;  // weight of all labels
    RunHooks around{.on_step = [&](const StepReport& r) -> Status {
                        if (!first) return Ok{};
                        report.skipped += r.result.skipped;
                        learned += r.result.weight;
                        const double memory_gib = trainer->memory_gib();
                        if (run.folder) run.folder->after_step(step_json(r, memory_gib), *trainer, *data.train);
                        if (hooks.on_step) hooks.on_step(step_of(r, memory_gib));
                        return Ok{};
                    },
                    .stop_requested = say.stop_requested,
                    .first_step = run.first_step,
                    .trace = traced};
    // Repeats a validation during which the run was stopped.
    const bool was_due = c.validation.every > 0 && run.first_step > 0 && run.first_step % c.validation.every == 0;
    if (const auto line = run.folder && was_due ? run.folder->line_without("validation") : std::nullopt)
        around.on_owed_validation = [&, line = *line](double loss) mutable -> Status {
            line["validation"] = loss;
            run.folder->amend(line);
            return Ok{};
        };
    NIBBLE_TRY(report.steps, run_training(c, *trainer, *data.train, data.validation.get(), around));

    const bool complete = report.steps == c.steps;
    if (first && report.skipped > 0)
        say.emit_note(fmt::format("{} step{} skipped: not finite, outliers, or without a token that the loss counts",
                                  report.skipped, report.skipped == 1 ? " was" : "s were"));
    if (run.folder) NIBBLE_CHECK(run.folder->finish(report.steps, *trainer, *data.train));
    if (first && complete && report.steps > run.first_step && learned == 0)
        return fail(ErrorKind::recipe, "no row in {} steps had a label that the loss counts: nothing was learned",
                    report.steps - run.first_step);
    if (first && complete && !c.output.empty()) NIBBLE_CHECK(write_exports(job, *trainer, pool, report));
    NIBBLE_CHECK(trainer->sync());
    if (traced) NIBBLE_CHECK(write_profile(job, trace, report));  // last, so that an error here does not lose the model
    if (first && !complete) return stopped_error(c, report.steps, run.folder.get());
    return report;
}

TrainCache cache_of(const std::string& kv) {
    TrainCache cache;
    cache.queries = kv == "fp8_q";
    if (kv == "fp8" || cache.queries) cache.format = KvFormat::fp8;
    if (kv == "fp8_page") cache.format = KvFormat::fp8_page;
    return cache;
}

Status check(const ForwardQuestion& question, const TrainConfig& c) {
    if (question.late && !c.precision.late_forward)
        return fail(ErrorKind::usage, "--late: precision {} has no late_forward", train_precision_name(c.precision));
    if (question.late && !late_phase(c.precision, c.steps - 1, c.steps))
        return fail(ErrorKind::usage, "--late: the late part of {} is not reached in {} steps",
                    train_precision_name(c.precision), c.steps);
    if (question.kv != "bf16" && c.lora.rank > 0)
        return fail(ErrorKind::usage, "--kv: adapters are trained with K and V in BF16");
    return Ok{};
}

}  // namespace

Result<TrainJob> read_train_job(const TrainOptions& options, const std::vector<KeyOverride>& overrides) {
    const std::string where = options.config.empty() ? "the config" : options.config;
    auto config = options.config.empty() ? parse_train_config(options.text, where, overrides)
                                         : read_train_config(options.config, overrides);
    if (!config.ok()) return std::move(config).error().as(ErrorKind::recipe);
    NIBBLE_CHECK(check(*config, where).as(ErrorKind::recipe));
    NIBBLE_TRY(const DeviceChoice device, parse_device(options.device).as(ErrorKind::usage));
    if (!device.cuda && (config->sharding == Sharding::all || config->order == GradientOrder::free))
        return fail(ErrorKind::usage, "parallel.{} is for GPUs; use --device cuda",
                    config->sharding == Sharding::all ? "shard: all" : "order: free");
    if (device.cuda) NIBBLE_CHECK(check_device_precision(config->precision).as(ErrorKind::recipe));
    return TrainJob{.config = *std::move(config),
                    .where = where,
                    .device = device,
                    .kernels = options.kernels,
                    .threads = options.threads,
                    .profile = options.profile,
                    .command = options.command};
}

Status check_train_job(const TrainJob& job, const JobHooks& hooks) {
    NIBBLE_CHECK(check_output(job, hooks));
    return check_profile(job.profile, job.config.steps);
}

std::string train_job_identity(const TrainJob& job) {
    return fmt::format("{}\nparallel {} {}", train_identity(job.config).dump(),
                       job.config.sharding == Sharding::all ? "all" : "states",
                       job.config.order == GradientOrder::free ? "free" : "tree");
}

Result<TrainReport> run_train_job(const TrainJob& job, const TrainHooks& hooks) {
    return as_job([&] { return run_job(job, hooks); });
}

Result<TrainReport> train(const TrainOptions& options, const TrainHooks& hooks) {
    return as_job([&]() -> Result<TrainReport> {
        NIBBLE_TRY(const auto overrides, key_overrides(options.set, "set").as(ErrorKind::usage));
        NIBBLE_TRY(const TrainJob job, read_train_job(options, overrides));
        return run_job(job, hooks);
    });
}

Result<ForwardCheck> check_train_forward(const TrainJob& job, const ForwardQuestion& question, const JobHooks& hooks) {
    return as_job([&]() -> Result<ForwardCheck> {
        const TrainConfig& c = job.config;
        NIBBLE_CHECK(check(question, c));
        ThreadPool pool(job.threads);
        NIBBLE_TRY(
            const auto trainer,
            open_trainer(c, {.device = job.device, .kernels = job.kernels, .cache = cache_of(question.kv)}, pool));
        NIBBLE_TRY(DataSources data, open_train_data(c, trainer->config().vocab, hooks.stop_requested));
        note_all(hooks, train_start_lines(c, *trainer, ""));
        if (question.late) NIBBLE_CHECK(trainer->enter_phase(c.steps - 1, c.steps));
        NIBBLE_TRY(const TrainBatch batch, data.train->next(c.batch));
        if (trainer->calibrates()) NIBBLE_CHECK(trainer->calibrate({&batch, 1}));
        return check_forward(*trainer, batch);
    });
}

}  // namespace nibble

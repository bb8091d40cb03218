// RL from a config to an exported policy; run_rl_job() contains all steps in order.
#include "base/clock.h"
#include "base/thread_pool.h"
#include "chat/model_text.h"
#include "jobs/job.h"
#include "jobs/loaded_model.h"
#include "jobs/manifest.h"
#include "jobs/reinforce_job.h"
#include "jobs/run_outputs.h"
#include "jobs/train_text.h"
#include "rl/config_task.h"
#include "rl/frozen_policy.h"
#include "rl/generation_policy.h"
#include "rl/policy_export.h"
#include "rl/prompt_place.h"
#include "rl/rl_host_plan.h"
#include "rl/rl_log.h"
#include "rl/rl_page.h"
#include "run/begin.h"
#include "run/deadline.h"
#include "run/export.h"
#include "train/device_train_engine.h"
#include "train/train_model.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <bit>
#include <chrono>

namespace nibble {
namespace {

namespace fs = std::filesystem;

bool is_first_rank(const RlJob& job) { return !job.ranks || job.ranks->rank() == 0; }
int processes_of(const RlJob& job) { return job.ranks ? job.ranks->size() : 1; }

// The objects of a running job; later members use earlier ones.
struct RlParts {
    RlParts(int threads, ModelText of_model) : pool(threads), text(std::move(of_model)) {}
    ThreadPool pool;
    ModelText text;
    std::shared_ptr<const QuestionRows> rows;  // rows of files; null: questions are generated
    std::unique_ptr<RolloutTask> task;
    std::shared_ptr<Parameters> parameters;
    std::string weights;  // hash of the initial weights
    std::unique_ptr<TrainEngine> trainer;
    std::shared_ptr<GenerationPolicy> generator;  // on a CPU with another precision for rollouts; null: the trainer's
                                                  // model generates
    std::unique_ptr<PolicyTrainer> policy;
    std::string memory;  // memory of the processes, on a CPU
};

int64_t power_of_two(int64_t rows) { return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(rows))); }

// Returns a row size for at least one answer.
int64_t row_tokens_on_gpu(const RlConfig& c) {
    const int64_t all = c.prompts * c.generations * c.length, usual = c.row_tokens > 0 ? c.row_tokens : 16384;
    return std::max(c.length, std::min(all, usual));
}

// Opens the trainer, the reference if the loss has a KL term, and, on a GPU, a generator if it has another precision.
Status open_trainer(const RlJob& job, const Checkpoint& checkpoint, RlParts& parts, PolicyTrainerOptions& rollouts) {
    const RlConfig& c = job.config;
    const bool compared = c.loss.kl_penalty > 0;
    const TrainerOptions options{.precision = c.precision,
                                 .optimizer = c.optimizer,
                                 .seed = c.seed,
                                 .kernels = job.kernels,
                                 .sampling = c.generation.sampling(),
                                 .cache = c.generation.cache,
                                 .ranks = job.ranks};
    if (job.device.cuda) {
        // Trainer and engine share the device. The trainer's memory is planned first. The KV cache shares the memory of
        // the trainer's activations and gets half of the remaining memory; the rest is for steps of the engine.
        const int64_t answers = c.prompts * c.generations, of_update = c.train_batch > 0 ? c.train_batch : answers;
        const int64_t row = row_tokens_on_gpu(c), most = most_rollout_rows(of_update, c.length, row);
        NIBBLE_TRY(auto trainer, open_device_trainer(parts.parameters,
                                                     {.train = options,
                                                      .device = job.device,
                                                      .rows = power_of_two(std::max<int64_t>(most, processes_of(job))),
                                                      .seq = row,
                                                      .micro_batch = 1,
                                                      .reference = compared,
                                                      .generation = c.generation.precision,
                                                      .time_shared_part = 0.5},
                                                     parts.pool));
        if (c.generation.precision) {
            NIBBLE_TRY(rollouts.generator, trainer->generating());
            rollouts.renew_generator = [trainer = trainer.get()] { return trainer->renew_generation(); };
            rollouts.generator_sees_neighbours = trainer->generation_sees_neighbours();
        }
        if (compared) rollouts.reference = std::make_shared<DeviceReference>(*trainer);
        parts.trainer = std::move(trainer);
        return Ok{};
    }
    if (compared) {
        NIBBLE_TRY(rollouts.reference,
                   FrozenPolicy::create(checkpoint, c.precision, job.kernels, parts.pool,
                                        static_cast<float>(c.generation.temperature), c.generation.cache, job.ranks));
    }
    NIBBLE_TRY(parts.trainer, Trainer::create(parts.parameters, options, parts.pool));
    if (!c.generation.precision) return Ok{};
    NIBBLE_TRY(parts.generator, GenerationPolicy::create(parts.parameters, *parts.trainer, *c.generation.precision,
                                                         c.generation.cache, job.kernels, parts.pool));
    rollouts.generator = parts.generator->model();
    rollouts.renew_generator = [generator = parts.generator.get()] { return generator->renew(); };
    rollouts.generator_sees_neighbours = parts.generator->sees_neighbours();
    return Ok{};
}

// Returns the caller's function with the values of environments.
JudgeFunction judge_of(const RlHooks& hooks) {
    if (!hooks.judge) return {};
    return [judge = hooks.judge](const std::vector<EnvironmentRequest>& requests) {
        std::vector<AnswerToJudge> answers;
        for (const EnvironmentRequest& r : requests)
            answers.push_back(
                {.prompt = r.prompt, .expected = r.expected, .text = r.text, .turn = r.turn, .state = r.state.dump()});
        std::vector<EnvironmentReply> replies;
        for (Judgement& j : judge(answers)) {
            EnvironmentReply reply{.reward = j.reward, .done = j.done, .observation = std::move(j.observation)};
            Result<Json> state = parse_json(j.state);
            if (!j.failure.empty())
                reply.failure = std::move(j.failure);
            else if (state.ok())
                reply.state = *std::move(state);
            else
                reply.failure = "the state of a judgement: " + state.error().message();
            replies.push_back(std::move(reply));
        }
        return replies;
    };
}

// Opens everything that the run needs. `c`: validation prompts are limited to the available rows.
Status open_parts(RlJob& job, const RlHooks& hooks, RlParts& parts) {
    RlConfig& c = job.config;
    NIBBLE_TRY(const auto checkpoint, Checkpoint::open(c.model));
    NIBBLE_TRY(const ModelConfig model, model_config(*checkpoint));
    if (model.context > 0 && c.length > model.context)
        return fail(ErrorKind::recipe, "policy.max_total_sequence_length {}: {} has a context of {} tokens", c.length,
                    c.model.string(), model.context);
    NIBBLE_TRY(parts.rows, open_question_rows(c, parts.text));
    if (parts.rows && parts.rows->validation_rows() > 0)
        c.validation_prompts = std::min(c.validation_prompts, parts.rows->validation_rows());
    NIBBLE_TRY(parts.task,
               open_config_task(c, parts.text, parts.rows, parts.pool, hooks.job.stop_requested, judge_of(hooks)));
    if (!job.device.cuda) {
        const int64_t free = available_memory();
        NIBBLE_TRY(const TrainMemoryPlan plan,
                   plan_rl_memory(c, *checkpoint, processes_of(job), is_first_rank(job) && c.saving.keep > 0, free,
                                  parts.pool));
        NIBBLE_TRY(const HostTogether together, check_host_memory(plan, free, job.ranks).as(ErrorKind::memory));
        parts.memory = together.text(plan);
    }
    NIBBLE_TRY(parts.parameters,
               Parameters::copy(*checkpoint, published_type(c.precision), parts.pool).within(c.model.string()));
    parts.weights = hash_of(*parts.parameters);
    PolicyTrainerOptions options{.tokenizer = parts.text.tokenizer,
                                 .ranks = job.ranks,
                                 .stop_requested = hooks.job.stop_requested,
                                 .row_tokens = c.row_tokens};
    if (job.device.cuda) {
        options.sequences = 1024, options.row_tokens = row_tokens_on_gpu(c);
        options.even_rows = true;
    }
    NIBBLE_CHECK(open_trainer(job, *checkpoint, parts, options));
    NIBBLE_TRY(options.end_tokens, end_tokens(parts.trainer->config(), *checkpoint, parts.text));
    for (const int32_t id : c.generation.stop_tokens)
        if (id < 0 || id >= parts.trainer->config().vocab)
            return fail(ErrorKind::recipe, "policy.generation.stop_token_ids: {} is none of the {} tokens of {}", id,
                        parts.trainer->config().vocab, c.model.string());
    NIBBLE_TRY(parts.policy, PolicyTrainer::create(c, *parts.trainer, *parts.task, std::move(options)));
    return Ok{};
}

// Until commit 8d459c62 a run stored the text of its config, with other facts among the keys.
Result<Json> todays_facts(const Json& stored) {
    Json config = stored, facts = Json::object();
    const bool by_text = stored.contains("policy") && stored["policy"].is_object();
    if (!by_text && !stored.contains("config")) return fail("is not a state of nibble rl");
    if (by_text) {
        facts["weights"] = config["policy"]["weights"];
        config["policy"].erase("weights");
        if (config.contains("data") && config["data"].is_object() && config["data"].contains("train"))
            facts["data"] = config["data"]["train"];
        if (config.contains("arithmetic")) facts["arithmetic"] = config["arithmetic"];
        config.erase("arithmetic");
    } else {
        facts = stored;
        config = stored["config"];
        // A config with rows does not mention their file, whose keys count only if there is one.
        if (stored.contains("data")) config["data"]["train"] = stored["data"];
    }
    NIBBLE_TRY(facts["config"], stored_rl_identity(config));
    return facts;
}

RunFolderOptions folder_options(const RlJob& job, const RlParts& parts, const JobHooks& hooks) {
    const RlConfig& c = job.config;
    Json facts{{"config", rl_identity(c)}, {"weights", parts.weights}};  // the KL term compares with these weights
    if (parts.rows) facts["data"] = parts.rows->train_hash();
    if (const std::string arithmetic = parts.trainer->arithmetic(); !arithmetic.empty())
        facts["arithmetic"] = arithmetic;
    return {.folder = c.output,
            .resume = c.resume,
            .steps = c.steps,
            .identity = {.text = facts.dump(), .restate = todays_facts},
            .another_run = "choose another output",
            .about = {{"name", fs::absolute(c.output).lexically_normal().filename().string()},
                      {"command", job.command.whole},
                      {"parameters", parts.trainer->parameters().elements()},
                      {"precision", std::string(train_precision_name(c.precision))},
                      {"config", rl_identity(c)}},
            .saving = c.saving,
            .view = rl_view(),
            .warn = hooks.warn};
}

Status check_export(const RlJob& job, const RlParts& parts) {
    const RlConfig& c = job.config;
    if (c.export_format == Format::none) return Ok{};
    NIBBLE_TRY(const Format format, policy_codes_format(*parts.trainer, parts.generator.get(), c.steps));
    if (format != c.export_format)
        return fail(ErrorKind::recipe, "export.format: {}; the forward products of rollouts are {}",
                    format_name(c.export_format), format_name(format));
    if (!is_first_rank(job)) return Ok{};
    return RunFolder::check_codes(c.output, codes_folder(c.output, c.export_format), c.resume);
}

// Returns true if readers of the export compute what rollouts computed. They leave inputs in BF16 if an NVFP4 export
// has no input scales, but row-scaled rollouts had them in NVFP4.
bool serves_the_policy(const RlConfig& c) {
    const TrainPrecision& p = c.generation.precision ? *c.generation.precision : c.precision;
    return p.recipe != TrainRecipe::nvfp4 || p.weights_only || p.stored_inputs;
}

Status write_exports(const RlJob& job, RlParts& parts, RlReport& report) {
    const RlConfig& c = job.config;
    const RunExport run = run_export_of(job, c.model, "reinforcement learning", rl_identity(c));
    if (c.export_format != Format::none) {
        const fs::path out = codes_folder(c.output, c.export_format);
        NIBBLE_TRY(const auto codes, policy_codes(*parts.trainer, parts.generator.get(), c.steps, parts.pool));
        NIBBLE_CHECK(write_run_export(run, *codes, out, parts.pool));
        add_output(
            report, out,
            fmt::format("the policy in the quantized format of its rollouts{}",
                        serves_the_policy(c) ? "" : "; its inputs stay BF16 when it is served, rollouts had NVFP4"));
    }
    NIBBLE_TRY(const auto policy, parts.trainer->trained());
    NIBBLE_CHECK(write_run_export(run, *policy, c.output / "model", parts.pool));
    add_output(report, c.output / "model", "the trained model");
    return Ok{};
}

void note_beginning(const RlJob& job, const RlParts& parts, int64_t first_step, const JobHooks& hooks) {
    const RlConfig& c = job.config;
    hooks.emit_note(fmt::format("{} parameters, {} prompts x {} answers a step, precision {}",
                                parts.parameters->elements(), c.prompts, c.generations,
                                train_precision_name(c.precision)));
    for (const std::string& line : train_table_lines(*parts.trainer)) hooks.emit_note(line);
    for (const std::string& line : rollout_lines(c)) hooks.emit_note(line);
    if (!parts.memory.empty()) hooks.emit_note("  memory: " + parts.memory);
    if (job.ranks)
        hooks.emit_note(fmt::format("  {} ranks; each computes a share of the prompts and rows", job.ranks->size()));
    if (const std::string line = begin_text(c.output, c.resume, first_step); !line.empty()) hooks.emit_note(line);
}

// The steps of a run with validation, log, checkpoints and deadline.
class RlLoop {
public:
    RlLoop(const RlJob& job, RlParts& parts, RunBegin& run, PromptPlace& place, const RlHooks& hooks)
        : c_(job.config),
          parts_(parts),
          folder_(run.folder.get()),
          place_(place),
          hooks_(hooks),
          first_step_(run.first_step),
          done_(run.first_step) {}

    int64_t done() const { return done_; }  // number of learned steps, also after an error
    const RlShares& shares() const { return shares_; }

    // Runs steps until config.steps; fewer if the caller or the deadline stops the run.
    Status run(RunDeadline deadline) {
        NIBBLE_CHECK(make_up_validation());
        while (done_ < c_.steps) {
            NIBBLE_TRY(const bool stops, parts_.trainer->any(hooks_.job.should_stop()));
            if (stops) return Ok{};
            const auto start = std::chrono::steady_clock::now();
            NIBBLE_TRY(const RlStep step, parts_.policy->step(done_));
            if (step.stopped) return Ok{};
            const double seconds = seconds_since(start);
            ++done_;
            shares_.add(step, seconds);
            std::optional<RlValidation> validation;
            const Status validated = validate_if_due(validation);
            if (folder_) note_step(step, validation, seconds);
            NIBBLE_CHECK(Status(validated).within(fmt::format("after step {}", step.step)));
            NIBBLE_CHECK(parts_.trainer->sync());
            NIBBLE_TRY(const bool due, parts_.trainer->any(folder_ && deadline.is_due()));
            if (due) return Ok{};
        }
        return Ok{};
    }

    // Called after an error: saves the steps before it if their state is complete. Returns the error with the result of
    // saving.
    Error save_after(const Error& error) {
        if (done_ == first_step_) return error;
        const auto with = [&](std::string_view what) {
            return fail(error.kind(), "{}; the state after {} steps {}", error.message(), done_, what);
        };
        if (!parts_.policy->can_be_saved()) return with("was incomplete and is not saved: the newest checkpoint stays");
        if (const Status saved = save(); !saved.ok())
            return with(fmt::format("could not be saved: {}", saved.error().message()));
        return folder_ && !folder_->saves() ? error : with("is saved, --resume continues from it");
    }

private:
    Status save() {
        if (folder_) NIBBLE_CHECK(folder_->finish(done_, *parts_.trainer, place_));
        return parts_.trainer->sync();
    }

    // Repeats a validation during which the run was stopped.
    Status make_up_validation() {
        const bool was_due = c_.validation_every > 0 && done_ > 0 && done_ % c_.validation_every == 0;
        std::optional<Json> line = folder_ && was_due ? folder_->line_without("validation_reward") : std::nullopt;
        NIBBLE_TRY(const bool owed, parts_.trainer->any(line.has_value()));
        if (!owed) return Ok{};
        NIBBLE_TRY(const RlValidation validation, parts_.policy->validate());
        if (validation.stopped || !line) return Ok{};
        add_validation(validation, *line);
        folder_->amend(*line);
        return Ok{};
    }

    Status validate_if_due(std::optional<RlValidation>& out) {
        if (c_.validation_every == 0 || done_ % c_.validation_every != 0) return Ok{};
        NIBBLE_TRY(RlValidation validation, parts_.policy->validate());
        if (!validation.stopped) out = std::move(validation);
        return Ok{};
    }

    void note_step(const RlStep& step, const std::optional<RlValidation>& validation, double seconds) {
        const Json line = to_json(step, validation, seconds);
        folder_->write_file(samples_name, samples_text(step.step, step.samples, parts_.text.tokenizer));
        folder_->after_step(line, *parts_.trainer, place_);
        if (!hooks_.on_step) return;
        hooks_.on_step({.step = step.step,
                        .reward = step.reward,
                        .accuracy = step.accuracy,
                        .seconds = seconds,
                        .answers = step.answers,
                        .generated_tokens = step.generated_tokens,
                        .mismatch_tokens = step.metrics.mismatch_tokens,
                        .validation_reward = validation ? std::optional(validation->reward) : std::nullopt,
                        .report = {.text = [=] { return step_text(step, validation, seconds); },
                                   .json = [=] { return line.dump(); }}});
    }

    const RlConfig& c_;
    RlParts& parts_;
    RunFolder* folder_;  // set in the first process; null in the others
    PromptPlace& place_;
    const RlHooks& hooks_;
    int64_t first_step_, done_;
    RlShares shares_;
};

Result<RlReport> run_job(RlJob job, const RlHooks& hooks) {
    const auto start = RunDeadline::Clock::now();
    const bool first = is_first_rank(job);
    const RlConfig& c = job.config;
    if (first) NIBBLE_CHECK(check_rl_job(job, hooks.job));
    if (job.device.cuda) NIBBLE_CHECK(limit_device_memory(job.device.index, job.gpu_memory).within("--gpu-memory"));

    NIBBLE_TRY(ModelText text, open_model_text(c.model));
    RlParts parts(job.threads, std::move(text));
    NIBBLE_CHECK(open_parts(job, hooks, parts));
    NIBBLE_CHECK(check_export(job, parts));
    PromptPlace place(*parts.policy);
    NIBBLE_TRY(RunBegin run,
               begin_run(folder_options(job, parts, hooks.job), c.output / "model", job.ranks, *parts.trainer, place));
    RlReport report{.steps = run.first_step, .made_earlier = run.ended};
    if (run.ended) report.lines.push_back(ended_text(c.output / "model", c.steps));
    if (run.ended) return report;
    if (first) note_beginning(job, parts, run.first_step, hooks.job);

    RlLoop loop(job, parts, run, place, hooks);
    if (const Status ran = loop.run(RunDeadline(c.must_save_by, start)); !ran.ok()) return loop.save_after(ran.error());
    report.steps = loop.done();
    if (first && report.steps > run.first_step) hooks.job.emit_note(loop.shares().text());
    if (run.folder) NIBBLE_CHECK(run.folder->finish(report.steps, *parts.trainer, place));
    const bool complete = report.steps == c.steps;
    if (first && complete) NIBBLE_CHECK(write_exports(job, parts, report));
    NIBBLE_CHECK(parts.trainer->sync());
    if (first && !complete)
        return fail(ErrorKind::cancelled, "stopped after {} of {} steps{}; {}", report.steps, c.steps,
                    hooks.job.should_stop() || c.must_save_by <= 0 ? "" : " by checkpoint_must_save_by",
                    run.folder->saves() ? "resume it with --resume" : "no state was saved");
    return report;
}

}  // namespace

Result<RlJob> read_rl_job(const RlOptions& options, const std::vector<KeyOverride>& overrides) {
    const std::string where = options.config.empty() ? "the config" : options.config;
    auto config = options.config.empty() ? parse_rl_config(options.text, where, overrides)
                                         : read_rl_config(options.config, overrides);
    if (!config.ok()) return std::move(config).error().as(ErrorKind::recipe);
    if (config->output.empty()) return fail(ErrorKind::usage, "{}: 'output' is missing; or give -o DIR", where);
    NIBBLE_TRY(const DeviceChoice device, parse_device(options.device).as(ErrorKind::usage));
    if (!device.cuda && options.gpu_memory < 1) return fail(ErrorKind::usage, "--gpu-memory: belongs to --device cuda");
    config->resume = options.resume;
    return RlJob{.config = *std::move(config),
                 .device = device,
                 .kernels = options.kernels,
                 .threads = options.threads,
                 .gpu_memory = options.gpu_memory,
                 .command = options.command};
}

Status check_rl_job(const RlJob& job, const JobHooks& hooks) {
    const RlConfig& c = job.config;
    NIBBLE_TRY(const auto model, Checkpoint::open(c.model));
    for (const std::string& note : model->notes()) hooks.emit_note(fmt::format("{}: {}", c.model.string(), note));
    return RunFolder::check_result(c.output, c.output / "model", c.resume, planned_run_bytes(*model, c.saving.keep),
                                   "run more steps with --resume, or choose another output");
}

// Returns settings that processes must share in addition to the identity of a resumed run: when they act together.
std::string rl_job_identity(const RlJob& job) {
    const RlConfig& c = job.config;
    return fmt::format("{}\nsteps {}, validation {} of {} x {}", rl_identity(c).dump(), c.steps, c.validation_every,
                       c.validation_prompts, c.validation_answers);
}

Result<RlReport> run_rl_job(const RlJob& job, const RlHooks& hooks) {
    return as_job([&] { return run_job(job, hooks); });
}

Result<RlReport> reinforce(const RlOptions& options, const RlHooks& hooks) {
    return as_job([&]() -> Result<RlReport> {
        NIBBLE_TRY(const auto overrides, key_overrides(options.set, "set").as(ErrorKind::usage));
        NIBBLE_TRY(const RlJob job, read_rl_job(options, overrides));
        return run_job(job, hooks);
    });
}

}  // namespace nibble

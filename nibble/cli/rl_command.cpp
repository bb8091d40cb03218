// `nibble rl CONFIG.yaml`: reinforcement learning, rollouts and updates in one process or in each of several.
#include "base/clock.h"
#include "chat/model_text.h"
#include "checkpoint/convert.h"
#include "cli/command.h"
#include "cli/engine.h"
#include "cli/options.h"
#include "cli/rl_from_nemo.h"
#include "cli/rl_mismatch.h"
#include "cli/rl_report.h"
#include "cli/run_output.h"
#include "cli/terminal.h"
#include "cli/trained_card.h"
#include "cli/version.h"
#include "jobs/manifest.h"
#include "jobs/open_checkpoint.h"
#include "rl/frozen_policy.h"
#include "rl/generation_policy.h"
#include "rl/policy_export.h"
#include "rl/prompt_place.h"
#include "rl/question_rows.h"
#include "rl/rl_host_plan.h"
#include "rl/rl_log.h"
#include "rl/rl_page.h"
#include "rl/rl_ranks.h"
#include "run/deadline.h"
#include "run/folder.h"
#include "run/rank_device.h"
#include "run/ranks.h"
#include "train/device_train_engine.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <bit>
#include <chrono>
#include <cstdio>

namespace nibble {
namespace {

namespace fs = std::filesystem;

struct RlFlags {
    std::string config, nemo, device = "cpu", kernels, output, command_line, card_command;
    std::vector<std::string> set;
    std::optional<int64_t> steps;
    bool resume = false, quiet = false, json = false, mismatch = false, keys = false;
    int threads = 0, ranks = 0, gpus = 0;
    double gpu_memory = 1;
    MismatchFlags lab;
};

Result<RlConfig> rl_config(const RlFlags& flags) {
    std::vector<KeyOverride> overrides;
    for (const std::string& text : flags.set) {
        NIBBLE_TRY(auto one, key_override(text, "--set"));
        overrides.push_back(std::move(one));
    }
    if (flags.steps) overrides.push_back({"grpo.max_num_steps", std::to_string(*flags.steps), "--steps"});
    if (!flags.output.empty()) overrides.push_back({"output", Json(flags.output).dump(), "--output"});
    NIBBLE_TRY(RlConfig c, read_rl_config(flags.config, overrides));
    c.resume = flags.resume;
    if (c.output.empty()) return fail("{}: 'output' is missing; or give -o DIR", flags.config);
    return c;
}

// Trainer, task and what both need, in the order of their lives.
struct RlJob {
    const JobRanks& ranks;
    ThreadPool pool;
    std::shared_ptr<Parameters> parameters;
    std::string weights;  // the hash of those that the run begins with
    std::optional<Tokenizer> tokenizer;
    std::shared_ptr<const QuestionRows> rows;  // of files; null: the task makes its questions
    std::optional<AnswerReward> reward;        // of answers to rows that no environment judges
    std::unique_ptr<TrainEngine> trainer;
    std::shared_ptr<GenerationPolicy> generator;  // of another precision; null: the trainer's model
    std::unique_ptr<RolloutTask> task;
    std::unique_ptr<PolicyTrainer> policy;
    std::string memory;  // of this process and its neighbours, on a CPU

    RlJob(const JobRanks& of, int threads) : ranks(of), pool(of.threads(threads)) {}
};

Result<std::unique_ptr<Environment>> environment_of(const RlTask& task, const std::atomic<bool>* stop) {
    if (task.command.empty()) return std::unique_ptr<Environment>();
    const auto timeout = std::chrono::milliseconds(static_cast<int64_t>(task.timeout_seconds * 1000));
    return start_environment(
        {.command = task.command, .processes = static_cast<int>(task.processes), .timeout = timeout, .stop = stop});
}

Result<std::shared_ptr<const QuestionRows>> rows_of(const RlConfig& c) {
    const auto read = [&](const fs::path& file) {
        // An environment gets the answer as it stands in the row.
        return read_question_file({.file = file,
                                   .input_key = c.task.input_key,
                                   .output_key = c.task.output_key,
                                   .rule = c.task.command.empty() ? c.task.reward.rule : AnswerRule::exact});
    };
    NIBBLE_TRY(QuestionFile train, read(c.task.train));
    std::optional<QuestionFile> validation;
    if (!c.task.validation.empty()) {
        NIBBLE_TRY(validation, read(c.task.validation));
    }
    return std::make_shared<const QuestionRows>(std::move(train), std::move(validation), c.seed);
}

// Questions and rewards: of `rows`, or where there are none of a built-in task.
QuestionTaskOptions questions_of(const RlConfig& c, const RlJob& job) {
    if (job.rows) {
        return QuestionTaskOptions{
            .question = [rows = job.rows](uint64_t number) { return rows->question(number); },
            .reward = [&reward = job.reward](const TaskQuestion& q,
                                             std::string_view text) { return (*reward)(text, q.answer); },
            .answer = [rule = c.task.reward.rule](std::string_view text) { return given_answer(rule, text); }};
    }
    return QuestionTaskOptions{
        .question = [kind = c.task.kind, difficulty = c.task.difficulty,
                     seed = c.seed](uint64_t number) { return task_question(kind, difficulty, seed, number); },
        .reward = [kind = c.task.kind](const TaskQuestion& q, std::string_view text) -> Result<double> {
            return task_reward(kind, q, text);
        },
        .answer = [kind = c.task.kind](std::string_view text) { return task_answer(kind, text); }};
}

Status check_chat(const RlConfig& c, const ModelText& text) {
    if (!c.task.chat || text.chat) return Ok{};
    return fail("{}: has no chat template; data.chat: false asks without one", c.model.string());
}

auto encoder_of(const RlConfig& c, const ModelText& text) {
    return [&text, chat = c.task.chat](const std::string& prompt) {
        if (!chat) return encode_prompt(text, prompt);
        return encode_chat(text, Json::array({{{"role", "user"}, {"content", prompt}}}));
    };
}

// Before a run, as far as questions are known.
Status check_rows(const RlConfig& c, const ModelText& text, const QuestionRows& rows) {
    NIBBLE_CHECK(check_chat(c, text));
    const auto encode = encoder_of(c, text);
    return rows.check_room(
        [&](const TaskQuestion& q) -> Result<int64_t> {
            NIBBLE_TRY(const auto tokens, encode(task_prompt(c.task.prompt, q.prompt)).within(q.where));
            return std::ssize(tokens);
        },
        c.length);
}

Result<std::unique_ptr<RolloutTask>> task_of(const RlConfig& c, const ModelText& text, RlJob& job,
                                             const std::atomic<bool>* stop) {
    NIBBLE_CHECK(check_chat(c, text));
    QuestionTaskOptions options = questions_of(c, job);
    options.pool = &job.pool;
    options.stop = stop;
    NIBBLE_TRY(options.environment, environment_of(c.task, stop));
    options.prompt = c.task.prompt;
    options.encode = encoder_of(c, text);
    options.encode_observation = [&text, chat = c.task.chat](const std::string& observation, int32_t last) {
        return chat ? encode_chat_reply(text, observation, last) : encode_text(text, observation);
    };
    return question_task(std::move(options));
}

int64_t power_of_two(int64_t rows) { return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(rows))); }

// Room for one answer at least.
int64_t row_tokens_on_gpu(const RlConfig& c) {
    const int64_t all = c.prompts * c.generations * c.length, usual = c.row_tokens > 0 ? c.row_tokens : 16384;
    return std::max(c.length, std::min(all, usual));
}

// The trainer, the reference where the loss has a KL term, and on a GPU what generates in another precision.
Status open_trainer(const RlConfig& c, const RlFlags& flags, const DeviceChoice& device, const Checkpoint& checkpoint,
                    RlJob& job, PolicyTrainerOptions& rollouts) {
    const bool compared = c.loss.kl_penalty > 0;
    const TrainerOptions options{.precision = c.precision,
                                 .optimizer = c.optimizer,
                                 .seed = c.seed,
                                 .kernels = flags.kernels,
                                 .sampling = c.generation.sampling(),
                                 .cache = c.generation.cache,
                                 .ranks = job.ranks.group()};
    if (device.cuda) {
        // Trainer and engine share the device: the trainer's plan comes first. Keys and values have the memory of
        // activations in turn with these, and half of what is left; the rest is for steps of the engine.
        const int64_t answers = c.prompts * c.generations, of_update = c.train_batch > 0 ? c.train_batch : answers;
        const int64_t row = row_tokens_on_gpu(c), most = most_rollout_rows(of_update, c.length, row);
        NIBBLE_TRY(auto trainer, open_device_trainer(job.parameters,
                                                     {.train = options,
                                                      .device = device,
                                                      .rows = power_of_two(std::max<int64_t>(most, job.ranks.size())),
                                                      .seq = row,
                                                      .micro_batch = 1,
                                                      .reference = compared,
                                                      .generation = c.generation.precision,
                                                      .lend = 0.5},
                                                     job.pool));
        if (c.generation.precision) {
            NIBBLE_TRY(rollouts.generator, trainer->generating());
            rollouts.renew_generator = [trainer = trainer.get()] { return trainer->renew_generation(); };
            rollouts.generator_sees_neighbours = trainer->generation_sees_neighbours();
        }
        if (compared) rollouts.reference = std::make_shared<DeviceReference>(*trainer);
        job.trainer = std::move(trainer);
        return Ok{};
    }
    if (compared) {
        NIBBLE_TRY(rollouts.reference, FrozenPolicy::create(checkpoint, c.precision, flags.kernels, job.pool,
                                                            static_cast<float>(c.generation.temperature),
                                                            c.generation.cache, job.ranks.group()));
    }
    NIBBLE_TRY(job.trainer, Trainer::create(job.parameters, options, job.pool));
    return Ok{};
}

Status open_job(RlConfig& c, const RlFlags& flags, const DeviceChoice& device, const ModelText& text,
                const JobHooks& hooks, RlJob& job) {
    const bool fp32 = c.precision.recipe == TrainRecipe::fp32;
    NIBBLE_TRY(const auto checkpoint, open_checkpoint(c.model, printing_hooks(false)));
    NIBBLE_TRY(const ModelConfig model, model_config(*checkpoint));
    if (model.context > 0 && c.length > model.context)
        return fail("policy.max_total_sequence_length {}: {} has a context of {} tokens", c.length, c.model.string(),
                    model.context);
    if (!c.task.train.empty()) {
        NIBBLE_TRY(job.rows, rows_of(c));
        NIBBLE_CHECK(check_rows(c, text, *job.rows));
        if (c.task.command.empty()) {
            NIBBLE_TRY(job.reward, AnswerReward::create(c.task.reward).within("data.reward"));
        }
        if (job.rows->validation_rows() > 0)
            c.validation_prompts = std::min(c.validation_prompts, job.rows->validation_rows());
    }
    if (!device.cuda) {
        const int64_t free = available_memory();
        NIBBLE_TRY(const TrainMemoryPlan plan, plan_rl_memory(c, *checkpoint, job.ranks.size(),
                                                              job.ranks.first() && c.saving.keep > 0, free, job.pool));
        NIBBLE_TRY(const HostTogether together, check_host_memory(plan, free, job.ranks.group()));
        job.memory = together.text(plan);
    }
    NIBBLE_TRY(job.parameters,
               Parameters::copy(*checkpoint, fp32 ? DType::f32 : DType::bf16, job.pool).within(c.model.string()));
    job.weights = hash_of(*job.parameters);
    PolicyTrainerOptions options{.tokenizer = text.tokenizer,
                                 .ranks = job.ranks.group(),
                                 .stop_requested = hooks.stop_requested,
                                 .row_tokens = c.row_tokens};
    if (device.cuda) {
        options.sequences = 1024, options.row_tokens = row_tokens_on_gpu(c);
        options.even_rows = true;
    }
    job.tokenizer = text.tokenizer;
    NIBBLE_CHECK(open_trainer(c, flags, device, *checkpoint, job, options));
    if (c.generation.precision && !device.cuda) {
        NIBBLE_TRY(job.generator, GenerationPolicy::create(job.parameters, *job.trainer, *c.generation.precision,
                                                           c.generation.cache, flags.kernels, job.pool));
        options.generator = job.generator->model();
        options.renew_generator = [generator = job.generator.get()] { return generator->renew(); };
        options.generator_sees_neighbours = job.generator->sees_neighbours();
    }
    NIBBLE_TRY(options.end_tokens, end_tokens(job.trainer->config(), *checkpoint, text));
    for (const int32_t id : c.generation.stop_tokens)
        if (id < 0 || id >= job.trainer->config().vocab)
            return fail("policy.generation.stop_token_ids: {} is none of the {} tokens of {}", id,
                        job.trainer->config().vocab, c.model.string());
    NIBBLE_TRY(job.task, task_of(c, text, job, hooks.stop_requested));
    NIBBLE_TRY(job.policy, PolicyTrainer::create(c, *job.trainer, *job.task, std::move(options)));
    return Ok{};
}

// Until commit 8d459c62 a run stored the text of its config, with the other facts among the keys.
Result<Json> todays_facts(const Json& stored) {
    Json config = stored, facts = Json::object();
    const bool by_text = stored.contains("policy") && stored["policy"].is_object();
    if (!by_text && !stored.contains("config")) return fail("is no state of nibble rl");
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
        // A config with rows says nothing of their file, whose keys count only where there is one.
        if (stored.contains("data")) config["data"]["train"] = stored["data"];
    }
    NIBBLE_TRY(facts["config"], stored_rl_identity(config));
    return facts;
}

Result<RunFolderOptions> rl_folder(const RlConfig& c, const RlFlags& flags, const RlJob& job, const JobHooks& hooks) {
    Json facts{{"config", rl_identity(c)}, {"weights", job.weights}};  // the KL term compares with the first weights
    if (job.rows) facts["data"] = job.rows->train_hash();
    if (const std::string arithmetic = job.trainer->arithmetic(); !arithmetic.empty()) facts["arithmetic"] = arithmetic;
    return RunFolderOptions{.folder = c.output,
                            .resume = c.resume,
                            .steps = c.steps,
                            .identity = {.text = facts.dump(), .restate = todays_facts},
                            .another_run = "choose another output",
                            .about = {{"name", fs::absolute(c.output).lexically_normal().filename().string()},
                                      {"command", flags.command_line},
                                      {"parameters", job.trainer->parameters().elements()},
                                      {"precision", std::string(train_precision_name(c.precision))},
                                      {"config", rl_identity(c)}},
                            .saving = c.saving,
                            .view = rl_view(),
                            .warn = hooks.warn};
}

fs::path codes_of(const RlConfig& c) { return c.output / fmt::format("model-{}", format_name(c.export_format)); }

// Readers of NVFP4 exports without scales of inputs leave inputs in BF16; row-scaled rollouts had them in NVFP4.
bool serves_the_policy(const RlConfig& c) {
    const TrainPrecision& p = c.generation.precision ? *c.generation.precision : c.precision;
    return p.recipe != TrainRecipe::nvfp4 || p.weights_only || p.stored_inputs;
}

// Before a run: whether what it is to leave can be had.
Status check_policy_export(const RlConfig& c, RlJob& job) {
    if (c.export_format == Format::none) return Ok{};
    NIBBLE_TRY(const Format format, policy_codes_format(*job.trainer, job.generator.get(), c.steps));
    if (format != c.export_format)
        return fail("export.format: {}; the forward products of rollouts are {}", format_name(c.export_format),
                    format_name(format));
    return job.ranks.first() ? RunFolder::check_codes(c.output, codes_of(c), c.resume) : Status(Ok{});
}

Status write_policy(const RlConfig& c, const RlFlags& flags, RlJob& job) {
    const fs::path out = c.output / "model";
    const bool speaks = !flags.quiet && !flags.json;
    const Manifest manifest{.command_line = flags.command_line, .settings = rl_identity(c)};
    const TrainedCard card{.output = c.output,
                           .base = c.model,
                           .how = "reinforcement learning",
                           .precision = std::string(train_precision_name(c.precision)),
                           .steps = c.steps,
                           .command = flags.card_command};
    if (c.export_format != Format::none) {
        NIBBLE_TRY(const auto codes, policy_codes(*job.trainer, job.generator.get(), c.steps, job.pool));
        NIBBLE_CHECK(RunFolder::clear_export(codes_of(c), c.resume));
        NIBBLE_CHECK(convert(*codes,
                             {.to = codes->dialect(),
                              .out = codes_of(c),
                              .manifest = to_text(manifest),
                              .card = trained_card(card, true)},
                             job.pool, {}));
        if (speaks)
            fmt::print("{}: the policy in the codes of its rollouts{}\n", codes_of(c).string(),
                       serves_the_policy(c) ? "" : "; its inputs stay BF16 when it is served, rollouts had NVFP4");
    }
    NIBBLE_TRY(const auto policy, job.trainer->trained());
    NIBBLE_CHECK(RunFolder::clear_export(out, c.resume));
    NIBBLE_CHECK(
        convert(*policy, {.out = out, .manifest = to_text(manifest), .card = trained_card(card, false)}, job.pool, {}));
    if (speaks) fmt::print("{}: the trained model\n", out.string());
    return Ok{};
}

// What rank 0 notes of a step.
void note_step(const RlFlags& flags, const RlStep& step, const std::optional<RlValidation>& validation, double seconds,
               RlJob& job, RunFolder& folder, PromptPlace& place) {
    const Json line = to_json(step, validation, seconds);
    folder.write_beside(samples_name, samples_text(step.step, step.samples, job.tokenizer));
    folder.after_step(line, *job.trainer, place);
    if (flags.json)
        fmt::print("{}", json_line(line));
    else if (!flags.quiet)
        fmt::print("{}\n", step_text(step, validation, seconds));
    std::fflush(stdout);
}

// A run that was stopped during a validation makes it up.
Status validate_again(const RlConfig& c, RlJob& job, RunFolder* folder, int64_t done) {
    const bool was_due = c.validation_every > 0 && done > 0 && done % c.validation_every == 0;
    std::optional<Json> line = folder && was_due ? folder->line_without("validation_reward") : std::nullopt;
    NIBBLE_TRY(const bool owed, job.trainer->any(line.has_value()));
    if (!owed) return Ok{};
    NIBBLE_TRY(const RlValidation validation, job.policy->validate());
    if (validation.stopped || !line) return Ok{};
    add_validation(validation, *line);
    folder->amend(*line);
    return Ok{};
}

// Steps [done, c.steps); fewer where the user or the limit of time says so. done: behind every step that was learned,
// after an error too. folder: of rank 0, null in the others.
Status run_steps(const RlConfig& c, const RlFlags& flags, RlJob& job, RunFolder* folder, int64_t& done,
                 PromptPlace& place, const JobHooks& hooks, RunDeadline deadline, RlShares& shares) {
    NIBBLE_CHECK(validate_again(c, job, folder, done));
    while (done < c.steps) {
        NIBBLE_TRY(const bool stops, job.trainer->any(hooks.should_stop()));
        if (stops) return Ok{};
        const auto start = std::chrono::steady_clock::now();
        NIBBLE_TRY(const RlStep step, job.policy->step(done));
        if (step.stopped) return Ok{};
        const double seconds = seconds_since(start);
        ++done;
        shares.add(step, seconds);
        std::optional<RlValidation> validation;
        Status validated = Ok{};
        if (c.validation_every > 0 && done % c.validation_every == 0) {
            auto value = job.policy->validate();
            if (!value.ok())
                validated = std::move(value).error();
            else if (!value->stopped)
                validation = *std::move(value);
        }
        if (folder) note_step(flags, step, validation, seconds, job, *folder, place);
        NIBBLE_CHECK(std::move(validated).within(fmt::format("behind step {}", step.step)));
        NIBBLE_CHECK(job.trainer->sync());
        NIBBLE_TRY(const bool due, job.trainer->any(folder && deadline.is_due()));
        if (due) return Ok{};
    }
    return Ok{};
}

// What an error says that ended a run behind `done` steps, `first` of which were there before: whether they are saved.
Error saved_behind(const Error& error, int64_t first, int64_t done, RlJob& job, RunFolder* folder, PromptPlace& place) {
    if (done == first) return error;
    if (!job.policy->can_be_saved())
        return fail(
            "{}; the state behind {} steps was not whole and is not saved: the newest checkpoint "
            "stays",
            error.message(), done);
    const auto save = [&]() -> Status {
        if (folder) NIBBLE_CHECK(folder->finish(done, *job.trainer, place));
        return job.trainer->sync();
    };
    if (const Status saved = save(); !saved.ok())
        return fail("{}; the state behind {} steps could not be saved: {}", error.message(), done,
                    saved.error().message());
    if (folder && !folder->saves()) return error;
    return fail("{}; the state behind {} steps is saved, --resume goes on from it", error.message(), done);
}

// The state that rank 0 begins with, in the others; the step that comes first.
Result<int64_t> begin_together(const JobRanks& ranks, const RunFolder* folder, const RunFolderOptions& options,
                               TrainEngine& trainer, PromptPlace& place) {
    int64_t first_step = folder ? folder->first_step() : 0;
    if (!ranks.group()) return first_step;
    const auto share = [&](const std::string& text) -> Result<std::string> {
        const auto* bytes = reinterpret_cast<const std::byte*>(text.data());
        NIBBLE_TRY(const RankBytes all, ranks.group()->share({bytes, bytes + text.size()}));
        return std::string(reinterpret_cast<const char*>(all.data()), all.size());
    };
    NIBBLE_TRY(const std::string identity, share(options.identity.text));
    if (identity != options.identity.text)
        return fail("another job than rank 0's: {} here, {} there", options.identity.text, identity);
    NIBBLE_TRY(const std::string file, share(folder ? folder->began_with().string() : ""));
    if (ranks.first() || file.empty()) return first_step;
    NIBBLE_TRY(const RunPlace begun, read_state(file, options.identity, trainer));
    NIBBLE_CHECK(place.set_place(begun.source).within(file));
    return begun.step;
}

Result<Outcome> run_job(RlConfig& config, const RlFlags& flags, const DeviceChoice& device, const JobRanks& ranks) {
    const auto start = RunDeadline::Clock::now();
    const bool speaks = ranks.first() && !flags.quiet && !flags.json;
    NIBBLE_TRY(const ModelText text, open_model_text(config.model));
    if (device.cuda) NIBBLE_CHECK(limit_device_memory(device.index, flags.gpu_memory).within("--gpu-memory"));
    Console console(true);
    const JobHooks hooks = console.hooks();
    RlJob job(ranks, flags.threads);
    NIBBLE_CHECK(open_job(config, flags, device, text, hooks, job));
    NIBBLE_CHECK(check_policy_export(config, job));
    PromptPlace place(*job.policy);
    NIBBLE_TRY(const auto options, rl_folder(config, flags, job, hooks));
    std::unique_ptr<RunFolder> folder;
    if (ranks.first()) {
        NIBBLE_TRY(folder, RunFolder::open(options, *job.trainer, place));
    }
    NIBBLE_TRY(const int64_t first, begin_together(ranks, folder.get(), options, *job.trainer, place));
    NIBBLE_TRY(const bool ended,
               ended_earlier(folder.get(), config.output / "model", first, config.steps, *job.trainer));
    if (ended && speaks) print_ended_earlier(config.output / "model", config.steps);
    if (ended) return Outcome{};
    if (speaks) {
        fmt::print("{} parameters, {} prompts x {} answers a step, precision {}\n", job.parameters->elements(),
                   config.prompts, config.generations, train_precision_name(config.precision));
        print_rl_formats(config, *job.trainer);
        if (!job.memory.empty()) fmt::print("  memory: {}\n", job.memory);
        if (ranks.group()) fmt::print("  {} ranks, prompts and rows dealt to them\n", ranks.size());
        print_where_it_begins(config.output, config.resume, first);
    }
    int64_t done = first;
    RlShares shares;
    if (const Status ran = run_steps(config, flags, job, folder.get(), done, place, hooks,
                                     RunDeadline(config.must_save_by, start), shares);
        !ran.ok())
        return saved_behind(ran.error(), first, done, job, folder.get(), place);
    if (speaks && done > first) fmt::print("{}\n", shares.text());
    if (folder) NIBBLE_CHECK(folder->finish(done, *job.trainer, place));
    if (folder && done == config.steps) NIBBLE_CHECK(write_policy(config, flags, job));
    NIBBLE_CHECK(job.trainer->sync());
    if (done < config.steps && ranks.first())
        return fail("stopped after {} of {} steps{}; {}", done, config.steps,
                    hooks.should_stop() || config.must_save_by <= 0 ? "" : " by checkpoint_must_save_by",
                    folder->saves() ? "resume it with --resume" : "no state was saved");
    return Outcome{};
}

// What ranks must have in common: beside what a resumed run must, when they do what together.
std::string job_of(const RlConfig& c) {
    return fmt::format("{}\n{}\nsteps {}, validation {} of {} x {}", version_text(), rl_identity(c).dump(), c.steps,
                       c.validation_every, c.validation_prompts, c.validation_answers);
}

Result<Outcome> run_rl(RlFlags flags) {
    if (flags.gpus > 0) {
        flags.ranks = flags.gpus;
        if (flags.device == "cpu") flags.device = "cuda";
    }
    NIBBLE_TRY(DeviceChoice device, parse_device(flags.device));
    if (!device.cuda && flags.gpu_memory < 1) return fail("--gpu-memory: belongs to --device cuda");
    NIBBLE_TRY(const RankPlace place, rank_place());
    if (device.cuda) NIBBLE_CHECK(choose_rank_device(flags.ranks, place, device));
    NIBBLE_TRY(RlConfig config, rl_config(flags));
    if (place.rank == 0) {
        NIBBLE_TRY(const auto model, Checkpoint::open(config.model));
        NIBBLE_CHECK(RunFolder::check_result(config.output, config.output / "model", config.resume,
                                             planned_run_bytes(*model, config.saving),
                                             "go on to more steps with --resume, or choose another output"));
    }
    NIBBLE_CHECK(check_rl_ranks(config, place.alone() ? flags.ranks : place.size, device.cuda));
    // The answers of a rank may take much longer than those of the others.
    NIBBLE_TRY(const JobRanks ranks,
               JobRanks::join(flags.ranks, {.identity = job_of(config), .patience = std::chrono::hours(2)}));
    NIBBLE_CHECK(check_own_devices(device, ranks.group()));
    auto outcome = run_job(config, flags, device, ranks);
    if (ranks.first()) return outcome;
    return std::move(outcome).within(fmt::format("rank {}", ranks.rank()));
}

}  // namespace

void add_rl(CLI::App& app, RunCommand& run) {
    auto flags = std::make_shared<RlFlags>();
    CLI::App* command = app.add_subcommand("rl", "reinforcement learning: rollouts and updates in one process");
    CLI::Option* config = command->add_option("config", flags->config, "a YAML file (docs/rl.md)");
    CLI::Option* lab = command->add_flag(
        "--mismatch", flags->mismatch,
        "no learning: count the tokens whose log-probability differs in any bit between rollouts and training; instead "
        "of a config a MODEL or --shape");
    CLI::Option* shape = command->add_option("--shape", flags->lab.shape, "of random weights: 60m, 124m, 350m, 1b ...")
                             ->needs(lab)
                             ->excludes(config);
    command->add_option("--layers", flags->lab.layers, "fewer layers than the shape has")
        ->needs(shape)
        ->check(CLI::Range(1, 1000));
    command
        ->add_option("--recipe", flags->lab.recipes,
                     "of --mismatch: bf16, fp32, fp8_block, mxfp8, nvfp4_row_scaled, nvfp4_w4a16, nvfp4_w4a4 (together "
                     "the default; on a GPU bf16), fp8, nvfp4; may be given several times")
        ->needs(lab)
        ->allow_extra_args(false);
    command
        ->add_option(
            "--kv", flags->lab.kv,
            "of --mismatch: the KV cache, bf16, fp8 (under scales of the prompts) or fp8_q (queries in FP8, too); "
            "default: bf16, then fp8")
        ->needs(lab)
        ->check(CLI::IsMember({"bf16", "fp8", "fp8_q"}));
    command->add_option("--temperature", flags->lab.temperature, "of --mismatch: what is drawn from, and learned")
        ->needs(lab)
        ->check(CLI::Range(0.01, 100.0));
    command->add_option("--top-p", flags->lab.top_p, "the same")->needs(lab)->check(CLI::Range(0.0001, 1.0));
    command->add_option("--top-k", flags->lab.top_k, "the same; 0: off")->needs(lab)->check(CLI::Range(0, 1 << 20));
    command->add_option("--prompts", flags->lab.prompts, "of --mismatch")->needs(lab)->check(CLI::Range(1, 4096));
    CLI::Option* nemo = command
                            ->add_option("--from-nemo", flags->nemo,
                                         "no learning: translates a NeMo RL recipe (YAML) into a config, to -o FILE or "
                                         "the screen; what has no counterpart is told on stderr")
                            ->excludes(config)
                            ->excludes(lab);
    CLI::Option* keys =
        command->add_flag("--keys", flags->keys, "prints every key of a config: values, default, meaning")
            ->excludes(config)
            ->excludes(lab)
            ->excludes(nemo);
    command->add_option("--steps", flags->steps, "overrides the config's grpo.max_num_steps")
        ->check(CLI::Range(int64_t{1}, int64_t{1} << 40))
        ->excludes(lab)
        ->excludes(nemo);
    command->add_option("--set", flags->set, "KEY=VALUE sets one key of the config; may be given several times")
        ->allow_extra_args(false)
        ->excludes(lab)
        ->excludes(nemo);
    command->add_option("-o,--output", flags->output, "folder of the run; overrides the config")->excludes(lab);
    command->add_flag("--resume", flags->resume, "go on from the newest checkpoint in the output")
        ->excludes(lab)
        ->excludes(nemo);
    CLI::Option* ranks =
        command
            ->add_option(
                "--ranks", flags->ranks,
                "so many processes deal prompts and rows, on GPUs one each; default: what mpirun or srun started; with "
                "--mismatch they are compared with one")
            ->check(CLI::Range(1, 4096))
            ->excludes(nemo);
    command->add_option("--gpus", flags->gpus, "the same on so many GPUs")
        ->check(CLI::Range(1, 4096))
        ->excludes(ranks)
        ->excludes(nemo);
    add_device_flag(*command, flags->device);
    command
        ->add_option("--gpu-memory", flags->gpu_memory,
                     "the share of a GPU's memory that a process takes at most, where several runs share the GPU")
        ->check(CLI::Range(0.01, 1.0))
        ->excludes(nemo)
        ->excludes(lab)
        ->capture_default_str();
    add_kernels_flag(*command, flags->kernels, "forces the CPU kernels: avx512, avx2, ref");
    add_threads_flag(*command, flags->threads);
    add_json_flag(*command, flags->json);
    add_quiet_flag(*command, flags->quiet);
    command->footer(
        "Examples:\n  nibble rl rl.yaml -o runs/sums\n  nibble rl --mismatch SmolLM2-135M --recipe nvfp4_row_scaled");
    command->callback([flags, command, config, lab, shape, nemo, keys, &run] {
        if (keys->count() > 0) {
            run = []() -> Result<Outcome> {
                fmt::print("{}", keys_as_text(rl_keys()));
                return Outcome{};
            };
            return;
        }
        if (nemo->count() > 0) {
            run = [flags] { return run_from_nemo(flags->nemo, flags->output); };
            return;
        }
        if (config->count() + shape->count() == 0)
            throw CLI::RequiredError(lab->count() > 0 ? "MODEL or --shape" : "config");
        flags->command_line = command_line_of(*command);
        flags->card_command = command_for_card(*command);
        if (lab->count() > 0) {
            flags->lab.model = flags->config;
            flags->lab.ranks = flags->gpus > 0 ? flags->gpus : flags->ranks;
            if (flags->gpus > 0 && flags->device == "cpu") flags->device = "cuda";
            flags->lab.device = flags->device, flags->lab.kernels = flags->kernels;
            flags->lab.threads = flags->threads, flags->lab.json = flags->json, flags->lab.quiet = flags->quiet;
            run = [flags] { return run_mismatch(flags->lab); };
            return;
        }
        run = [flags] { return run_rl(*flags); };
    });
}

}  // namespace nibble

// `nibble rl CONFIG.yaml`: reinforcement learning with rollouts and updates, in one or several processes.
#include "cli/command.h"
#include "cli/engine.h"
#include "cli/options.h"
#include "cli/rank_flags.h"
#include "cli/rl_from_nemo.h"
#include "cli/terminal.h"
#include "jobs/bit_equality.h"
#include "jobs/reinforce_job.h"
#include "rl/rl_ranks.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <cstdio>

namespace nibble {
namespace {

struct RlFlags {
    RlOptions options;
    std::string nemo, output;
    std::optional<int64_t> steps;
    bool quiet = false, json = false, mismatch = false, keys = false;
    RankFlags ranks;
    BitEqualityOptions lab;

    bool speaks() const { return !quiet && !json; }
};

// Returns the overrides for flags that set keys of the config.
Result<std::vector<KeyOverride>> overrides_of(const RlFlags& flags) {
    NIBBLE_TRY(auto list, key_overrides(flags.options.set, "--set").as(ErrorKind::usage));
    if (flags.steps) list.push_back({"grpo.max_num_steps", std::to_string(*flags.steps), "--steps"});
    if (!flags.output.empty()) list.push_back({"output", Json(flags.output).dump(), "--output"});
    return list;
}

Result<Outcome> run_rl(RlFlags flags) {
    flags.ranks.choose_device(flags.options.device);
    NIBBLE_TRY(const auto overrides, overrides_of(flags));
    NIBBLE_TRY(RlJob job, read_rl_job(flags.options, overrides));
    NIBBLE_CHECK(flags.ranks.choose_gpu(job.device));
    if (flags.ranks.several() && flags.ranks.place().rank == 0) NIBBLE_CHECK(check_rl_job(job, {}));
    NIBBLE_CHECK(check_rl_ranks(job.config, flags.ranks.size(), job.device.cuda));
    // Answers of one rank may take much longer than those of others.
    NIBBLE_TRY(const JobRanks ranks, flags.ranks.join(rl_job_identity(job), job.device, std::chrono::hours(2)));
    job.ranks = ranks.group();
    job.threads = ranks.threads(flags.options.threads);
    Console console(true);
    RlHooks hooks{.job = console.hooks()};
    hooks.job.note = [speaks = flags.speaks()](std::string_view line) {
        if (speaks) fmt::print("{}\n", line);
    };
    hooks.on_step = [&flags](const ReinforcedStep& step) {
        if (flags.json) fmt::print("{}\n", step.report.json());
        if (flags.speaks()) fmt::print("{}\n", step.report.text());
        std::fflush(stdout);
    };
    auto report = run_rl_job(job, hooks);
    if (!report.ok())
        return ranks.first() ? std::move(report).error()
                             : std::move(report).error().within(fmt::format("rank {}", ranks.rank()));
    if (ranks.first() && flags.speaks())
        for (const std::string& line : report->lines) fmt::print("{}\n", line);
    return Outcome{};
}

// Findings: a recipe that promises equal bits has others, or a control does not show.
Result<Outcome> run_mismatch(RlFlags flags) {
    BitEqualityOptions& lab = flags.lab;
    lab.model = flags.options.config, lab.kernels = flags.options.kernels;
    flags.ranks.choose_device(flags.options.device);
    NIBBLE_TRY(lab.device, parse_device(flags.options.device));
    NIBBLE_CHECK(flags.ranks.choose_gpu(lab.device));
    if (lab.device.cuda) NIBBLE_CHECK(open_device(lab.device));
    NIBBLE_TRY(const JobRanks ranks, flags.ranks.join("bit equality", lab.device, std::chrono::hours(2)));
    lab.ranks = ranks.group(), lab.threads = ranks.threads(flags.options.threads);
    const auto print = [](std::string_view line) { fmt::print("{}\n", line), std::fflush(stdout); };
    NIBBLE_TRY(const BitEqualityReport found,
               check_bit_equality(lab, flags.speaks() ? std::function<void(std::string_view)>(print) : nullptr));
    if (!ranks.first()) return Outcome{};
    if (flags.json) fmt::print("{}", json_line({{"recipes", found.recipes}}));
    if (!flags.json && found.broken > 0)
        fmt::print(stderr, "nibble: {} of the promises above {} broken\n", found.broken,
                   found.broken == 1 ? "is" : "are");
    if (!flags.json && found.unseen > 0)
        fmt::print(stderr,
                   "nibble: {} of the controls above {} not show: whether the comparison would see such a difference "
                   "in this model is not known; more --prompts, or no filters, may tell\n",
                   found.unseen, found.unseen == 1 ? "does" : "do");
    return Outcome{.findings = found.broken + found.unseen > 0};
}

}  // namespace

void add_rl(CLI::App& app, RunCommand& run) {
    auto flags = std::make_shared<RlFlags>();
    CLI::App* command =
        app.add_subcommand("rl", "train a model by reinforcement learning, with rollouts of the same model");
    CLI::Option* config = command->add_option("config", flags->options.config, "a YAML file (docs/topics/rl.md)");
    CLI::Option* lab =
        command->add_flag("--mismatch", flags->mismatch,
                          "instead of training, count the tokens whose log-probability differs in any bit between "
                          "rollouts and training; takes a MODEL or --shape instead of a config");
    CLI::Option* shape = command
                             ->add_option("--shape", flags->lab.shape,
                                          "with --mismatch: a model with random weights: 60m, 124m, 350m, 1b ...")
                             ->needs(lab)
                             ->excludes(config);
    command->add_option("--layers", flags->lab.layers, "number of layers, fewer than the shape's")
        ->needs(shape)
        ->check(CLI::Range(1, 1000));
    command
        ->add_option("--recipe", flags->lab.recipes,
                     "with --mismatch: bf16, fp32, fp8_block, mxfp8, nvfp4_row_scaled, nvfp4_w4a16, nvfp4_w4a4 "
                     "(default: all of these; on a GPU bf16), fp8, nvfp4; may be given several times")
        ->needs(lab)
        ->allow_extra_args(false);
    command
        ->add_option("--kv", flags->lab.kv,
                     "with --mismatch: format of the KV cache: bf16, fp8 (scales from the prompts) or fp8_q (queries "
                     "in FP8, too); default: bf16, then fp8")
        ->needs(lab)
        ->check(CLI::IsMember({"bf16", "fp8", "fp8_q"}));
    command
        ->add_option("--temperature", flags->lab.temperature,
                     "with --mismatch: temperature of the distribution that is sampled and learned")
        ->needs(lab)
        ->check(CLI::Range(0.01, 100.0));
    command->add_option("--top-p", flags->lab.top_p, "with --mismatch: sampling filter; 1: off")
        ->needs(lab)
        ->check(CLI::Range(0.0001, 1.0));
    command->add_option("--top-k", flags->lab.top_k, "with --mismatch: sampling filter; 0: off")
        ->needs(lab)
        ->check(CLI::Range(0, 1 << 20));
    command->add_option("--prompts", flags->lab.prompts, "with --mismatch: number of prompts")
        ->needs(lab)
        ->check(CLI::Range(1, 4096));
    CLI::Option* nemo = command
                            ->add_option("--from-nemo", flags->nemo,
                                         "convert a NeMo RL recipe (YAML) to a config, written to -o FILE or standard "
                                         "output; keys without a counterpart are listed on stderr")
                            ->excludes(config)
                            ->excludes(lab);
    CLI::Option* keys =
        command->add_flag("--keys", flags->keys, "print every key of a config: values, default, meaning")
            ->excludes(config)
            ->excludes(lab)
            ->excludes(nemo);
    command->add_option("--steps", flags->steps, "overrides the config's grpo.max_num_steps")
        ->check(CLI::Range(int64_t{1}, int64_t{1} << 40))
        ->excludes(lab)
        ->excludes(nemo);
    command->add_option("--set", flags->options.set, "KEY=VALUE sets one key of the config; may be given several times")
        ->allow_extra_args(false)
        ->excludes(lab)
        ->excludes(nemo);
    command->add_option("-o,--output", flags->output, "folder of the run; overrides the config")->excludes(lab);
    command->add_flag("--resume", flags->options.resume, "resume from the newest checkpoint in the output folder")
        ->excludes(lab)
        ->excludes(nemo);
    for (CLI::Option* option :
         flags->ranks.add(*command,
                          "number of processes that share prompts and rows, with one GPU each; default: as started by "
                          "mpirun or srun; with --mismatch they are compared with one process"))
        option->excludes(nemo);
    add_refused_degree(*command, "--tensor-parallel-size,--tp",
                       "every rank generates with the whole model: take --ranks, which divides the prompts");
    add_refused_degree(*command, "--pipeline-parallel-size,--pp", "take --ranks, which divides the prompts");
    add_device_flag(*command, flags->options.device);
    command
        ->add_option("--gpu-memory", flags->options.gpu_memory,
                     "largest share of a GPU's memory for one process, if several runs share the GPU")
        ->check(CLI::Range(0.01, 1.0))
        ->excludes(nemo)
        ->excludes(lab)
        ->capture_default_str();
    add_kernels_flag(*command, flags->options.kernels, "CPU kernels: avx512, avx2, ref");
    add_threads_flag(*command, flags->options.threads);
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
        flags->options.command.whole = command_line_of(*command);
        flags->options.command.card = command_for_card(*command);
        if (lab->count() > 0) {
            run = [flags] { return run_mismatch(*flags); };
            return;
        }
        run = [flags] { return run_rl(*flags); };
    });
}

}  // namespace nibble

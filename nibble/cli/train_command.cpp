// `nibble train CONFIG.yaml`: pretraining and fine-tuning. `nibble train --shape NAME --synthetic`: a measurement.
#include "cli/command.h"
#include "cli/options.h"
#include "cli/rank_flags.h"
#include "cli/terminal.h"
#include "cli/train_compare.h"
#include "cli/usage.h"
#include "jobs/train_job.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <cstdio>
#include <set>

namespace nibble {
namespace {

struct TrainFlags {
    TrainOptions options;
    std::string shape, precision, output, shard, order;
    std::optional<int64_t> steps, batch, seq, layers;
    std::vector<std::string> compare;
    bool synthetic = false, resume = false, quiet = false, json = false, check_forward = false, keys = false;
    ForwardQuestion question;  // options of check_forward
    RankFlags ranks;

    bool speaks() const { return !quiet && !json; }
};

// Returns the overrides for flags that set keys of the config.
Result<std::vector<KeyOverride>> overrides_of(const TrainFlags& flags) {
    NIBBLE_TRY(auto list, key_overrides(flags.options.set, "--set").as(ErrorKind::usage));
    const auto number = [&](const char* key, const std::optional<int64_t>& value, const char* flag) {
        if (value) list.push_back({key, std::to_string(*value), flag});
    };
    const auto text = [&](const char* key, const std::string& value, const char* flag) {
        if (!value.empty()) list.push_back({key, Json(value).dump(), flag});
    };
    number("steps", flags.steps, "--steps");
    number("batch", flags.batch, "--batch");
    number("sequence", flags.seq, "--seq");
    text("shape", flags.shape, "--shape");
    number("layers", flags.layers, "--layers");
    text("output", flags.output, "--output");
    text("parallel.shard", flags.shard, "--shard");
    text("parallel.order", flags.order, "--order");
    text("precision", flags.precision, "--precision");
    if (flags.resume) list.push_back({"resume", "true", "--resume"});
    if (flags.synthetic) list.push_back({"data.synthetic", "true", "--synthetic"});
    return list;
}

Result<Outcome> report_forward(const TrainFlags& flags, const TrainJob& job, const ForwardCheck& check) {
    Json ways = Json::array();
    for (const ForwardWay& way : check.ways) {
        ways.push_back(
            {{"way", way.name}, {"labels", way.labels}, {"mismatches", way.mismatches}, {"apart", way.apart}});
        if (flags.speaks())
            fmt::print("{}: {} log-probabilities, {} with other bits{}\n", way.name, way.labels, way.mismatches,
                       way.mismatches ? fmt::format(", largest difference {:.3g}", way.apart) : "");
    }
    const std::string& kv = flags.question.kv;
    if (flags.json)
        fmt::print("{}", json_line({{"kv", kv},
                                    {"late", flags.question.late},
                                    {"promised", check.promised},
                                    {"mismatches", check.mismatches()},
                                    {"ways", ways}}));
    else if (!flags.quiet && kv != "bf16")
        fmt::print("K and V{} through E4M3 on both sides{}\n", kv == "fp8_q" ? ", and Q," : "",
                   kv == "fp8_page" ? "" : ", scales of the first batch");
    if (!check.promised && flags.speaks())
        fmt::print("{} does not guarantee equal bits, because its input scales depend on the whole tensor\n",
                   train_precision_name(job.config.precision));
    return Outcome{.findings = check.promised && check.mismatches() > 0};
}

void print_lines(const std::vector<std::string>& lines) {
    for (const std::string& line : lines) fmt::print("{}\n", line);
}

Result<Outcome> run_train(TrainFlags flags) {
    if (flags.options.config.empty() && !flags.synthetic)
        return fail(ErrorKind::usage, "--shape: a shape has no text; measure it with --synthetic");
    if (flags.options.config.empty()) flags.options.text = "steps: 10";
    flags.ranks.choose_device(flags.options.device);
    NIBBLE_TRY(const auto overrides, overrides_of(flags));
    NIBBLE_TRY(TrainJob job, read_train_job(flags.options, overrides));
    NIBBLE_CHECK(flags.ranks.choose_gpu(job.device));
    Console console(true);
    TrainHooks hooks{.job = console.hooks()};
    hooks.job.note = [speaks = flags.speaks()](std::string_view line) {
        if (speaks) fmt::print("{}\n", line);
    };
    hooks.on_step = [&flags](const TrainedStep& step) {
        if (flags.json) fmt::print("{}\n", step.report.json());
        if (flags.speaks()) fmt::print("{}\n", step.report.text());
        std::fflush(stdout);
    };
    if (flags.check_forward) {
        if (flags.ranks.several()) return fail("--check-forward runs in one process; remove --ranks");
        NIBBLE_TRY(const ForwardCheck check, check_train_forward(job, flags.question, hooks.job));
        return report_forward(flags, job, check);
    }
    if (flags.ranks.several() && flags.ranks.place().rank == 0) NIBBLE_CHECK(check_train_job(job, {}));
    NIBBLE_TRY(const JobRanks ranks, flags.ranks.join(train_job_identity(job), job.device));
    job.ranks = ranks.group();
    job.threads = ranks.threads(flags.options.threads);
    auto report = run_train_job(job, hooks);
    if (!report.ok())
        return ranks.first() ? std::move(report).error()
                             : std::move(report).error().within(fmt::format("rank {}", ranks.rank()));
    if (ranks.first() && flags.speaks()) print_lines(report->lines);
    return Outcome{};
}

// Rejects options that have no effect with `one`.
void refuse_all_but(const CLI::App& command, const CLI::Option& one, const std::set<std::string>& allowed) {
    for (const CLI::Option* o : command.get_options())
        if (o->count() > 0 && !allowed.contains(o->get_name())) throw CLI::ExcludesError(one.get_name(), o->get_name());
}

}  // namespace

void add_train(CLI::App& app, RunCommand& run) {
    auto flags = std::make_shared<TrainFlags>();
    CLI::App* command = app.add_subcommand("train", "pretrain or fine-tune a model");
    CLI::Option* config = command->add_option("config", flags->options.config, "a YAML file (docs/topics/training.md)");
    CLI::Option* shape =
        command->add_option("--shape", flags->shape, "measure a model of this shape instead: 60m, 124m, 350m, 1b ...");
    shape->excludes(config);
    CLI::Option* compare = command
                               ->add_option("--compare", flags->compare,
                                            "instead of training, compare finished runs; -o PAGE.html writes charts")
                               ->excludes(config)
                               ->excludes(shape);
    command->add_flag("--synthetic", flags->synthetic, "use random tokens instead of data")->needs(shape);
    command->add_option("--layers", flags->layers, "number of layers, fewer than the shape's")
        ->needs(shape)
        ->check(CLI::Range(1, 1000));
    command->add_option("--precision", flags->precision, "precision recipe of the products; overrides the config");
    command->add_option("--steps", flags->steps, "overrides the config")
        ->check(CLI::Range(int64_t{1}, int64_t{1} << 40));
    command->add_option("--batch", flags->batch, "rows per step; overrides the config")->check(CLI::Range(1, 1 << 20));
    command->add_option("--seq", flags->seq, "tokens per row; overrides the config")->check(CLI::Range(1, 1 << 24));
    command->add_option("--set", flags->options.set, "KEY=VALUE sets one key of the config; may be given several times")
        ->allow_extra_args(false);
    CLI::Option* keys =
        command->add_flag("--keys", flags->keys, "print every key of a config: values, default, meaning");
    CLI::Option* check_forward = command->add_flag(
        "--check-forward", flags->check_forward,
        "instead of training, compare the bits of log-probabilities with the engine's; exit status 1 if they differ");
    command->add_option("--kv", flags->question.kv, "with --check-forward: format of the KV cache")
        ->needs(check_forward)
        ->check(one_of({"bf16", "fp8", "fp8_q", "fp8_page"}))
        ->capture_default_str();
    command->add_flag("--late", flags->question.late, "with --check-forward: use the products of late_forward")
        ->needs(check_forward);
    command->add_option("-o,--output", flags->output, "folder of the run; overrides the config");
    command->add_flag("--resume", flags->resume, "resume from the newest checkpoint in the output folder");
    flags->ranks.add(
        *command,
        "number of processes that share the rows of a step, with one GPU each; default: as started by mpirun or srun");
    command
        ->add_option("--shard", flags->shard,
                     "what is distributed over several GPUs: states (of the optimizer), or all (weights and gradients, "
                     "too); overrides the config")
        ->check(CLI::IsMember({"states", "all"}));
    command
        ->add_option("--order", flags->order,
                     "how several GPUs add gradients: tree (the same bits as one GPU), or free (NCCL's order); "
                     "overrides the config")
        ->check(CLI::IsMember({"tree", "free"}));
    command->add_option("--profile", flags->options.profile, "write a Chrome trace of the third to fifth step");
    add_device_flag(*command, flags->options.device);
    add_kernels_flag(*command, flags->options.kernels, "CPU kernels: avx512, avx2, ref");
    add_threads_flag(*command, flags->options.threads);
    add_json_flag(*command, flags->json);
    add_quiet_flag(*command, flags->quiet);
    command->footer(
        "Examples:\n"
        "  nibble train config.yaml\n"
        "  nibble train --compare runs/bf16 runs/nvfp4 -o gap.html\n"
        "  nibble train --shape 124m --synthetic --precision nvfp4 --steps 5 --batch 2 --seq 256");
    command->callback([flags, command, config, shape, compare, keys, check_forward, &run] {
        if (keys->count() > 0) {
            refuse_all_but(*command, *keys, {"--keys"});
            run = []() -> Result<Outcome> {
                fmt::print("{}", keys_as_text(train_schema().reference()));
                return Outcome{};
            };
            return;
        }
        if (config->count() + shape->count() + compare->count() == 0) throw CLI::RequiredError("config");
        if (compare->count() > 0) refuse_all_but(*command, *compare, {"--compare", "--output", "--json", "--quiet"});
        if (check_forward->count() > 0)
            for (const char* other : {"--resume", "--profile"})
                if (command->count(other) > 0) throw CLI::ExcludesError("--check-forward", other);
        flags->options.command.whole = command_line_of(*command);
        flags->options.command.card = command_for_card(*command);
        if (compare->count() > 0) {
            run = [flags]() -> Result<Outcome> {
                NIBBLE_CHECK(compare_runs(flags->compare, flags->output, flags->json));
                return Outcome{};
            };
            return;
        }
        run = [flags] { return run_train(*flags); };
    });
}

}  // namespace nibble

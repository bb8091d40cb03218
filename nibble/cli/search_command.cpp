// `nibble search SRC --bits 4.8 -o recipe.yaml`: which linears deserve more bits. Scores every group in every format,
// chooses, and writes the recipe that `nibble quantize` runs, with the scores and the sweep beside it.
#include "checkpoint/output_place.h"
#include "cli/calibration_options.h"
#include "cli/command.h"
#include "cli/engine.h"
#include "cli/open_checkpoint.h"
#include "cli/options.h"
#include "cli/terminal.h"
#include "cli/usage.h"
#include "io/atomic_file.h"
#include "quant/search_scores.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <chrono>
#include <cstdio>

namespace nibble {
namespace {

namespace fs = std::filesystem;

struct SearchConfig {
    std::string source, out, score = "fisher", scores, algorithm = "max", cost_model = "weights", measure,
                             device = "cpu";
    std::vector<std::string> formats = {"nvfp4", "fp8"}, keep;
    CalibrationFlags calib{.tokens = 4096, .sequence = 512};
    int64_t measure_tokens = 4096;
    double bits = 4.8, sweep_low = 4.5, sweep_high = 8, sweep_step = 0.25;
    int threads = 0;
    bool json = false, quiet = false;
    std::string command_line;
};

Result<SearchSpace> make_space(const SearchConfig& config, const Checkpoint& source) {
    SearchSpaceOptions options{.formats = config.formats};
    for (const std::string& keep : config.keep) {
        NIBBLE_TRY(auto parsed, parse_keep(keep));
        options.keep.push_back(std::move(parsed));
    }
    if (config.cost_model == "active_moe") options.cost_model = CostModel::active_moe;
    return search_space(source.tensors(), source.config(), options);
}

// recipe.yaml -> recipe.json, recipe.html
fs::path beside(const std::string& out, const char* extension) { return fs::path(out).replace_extension(extension); }

// Where an unfinished search keeps its scores.
fs::path work_folder(const std::string& out) { return out + ".unfinished"; }

class SearchRun {
public:
    SearchRun(const SearchConfig& config, const JobHooks& hooks)
        : config_(config), hooks_(hooks), pool_(config.threads) {}

    Result<SearchReport> run() {
        const auto begin = std::chrono::steady_clock::now();
        NIBBLE_TRY(source_, open_checkpoint(config_.source, config_.quiet));
        report_.source = config_.source;
        report_.command = config_.command_line;
        NIBBLE_TRY(report_.space, make_space(config_, *source_));
        options_.scratch = fs::absolute(config_.out).parent_path();
        NIBBLE_TRY(options_.device, parse_device(config_.device).within("--device"));
        if (options_.device.cuda) NIBBLE_CHECK(open_device(options_.device));
        NIBBLE_CHECK(get_scores());
        NIBBLE_TRY(report_.chosen, choose(report_.space, report_.scores, config_.bits));
        NIBBLE_TRY(report_.sweep,
                   sweep(report_.space, report_.scores, config_.sweep_low, config_.sweep_high, config_.sweep_step));
        if (!config_.measure.empty()) NIBBLE_CHECK(measure());
        report_.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
        return std::move(report_);
    }

    // What the recipe means for the checkpoint, before it is written.
    Status check(const SearchReport& report) const {
        NIBBLE_CHECK(plan_of(report.space, report.chosen.choice, source_->tensors(), source_->config()));
        return Ok{};
    }

private:
    // A target that is out of reach is known before anything is scored.
    Status check_target() const {
        SearchScores none{};
        for (const SearchGroup& group : report_.space.groups) none.values.emplace_back(group.candidates.size(), 0.0);
        NIBBLE_CHECK(choose(report_.space, none, config_.bits));
        return Ok{};
    }

    Status read_text() {
        if (!sequences_.empty()) return Ok{};
        if (config_.calib.file.empty()) return fail("a search runs the model on text: pass --calib FILE");
        NIBBLE_TRY(sequences_, calibration_sequences(config_.calib, *source_, hooks_));
        return Ok{};
    }

    // What decides a bit of the scores: the model, the groups and their candidates, the method, the text.
    Status open_journal() {
        std::string groups, text;
        for (const SearchGroup& group : report_.space.groups)
            groups += fmt::format("{} {}\n", group.name, fmt::join(group.candidates, ","));
        for (const auto& sequence : sequences_) text += fmt::format("{}\n", fmt::join(sequence, ","));
        NIBBLE_TRY(const std::string model, fingerprint(*source_, {}));
        const fs::path folder = work_folder(config_.out);
        std::error_code error;
        fs::create_directories(folder, error);
        if (error) return fail("{}: cannot create: {}", folder.string(), error.message());
        NIBBLE_TRY(journal_, Journal::open(folder, {{"version of nibble", NIBBLE_VERSION},
                                                    {"model", model},
                                                    {"formats", fmt::format("{}", fmt::join(config_.formats, ","))},
                                                    {"groups", hash_text(groups)},
                                                    {"score", config_.score},
                                                    {"device", options_.device.cuda ? "cuda" : "cpu"},
                                                    {"text", hash_text(text)}}));
        options_.journal = journal_.get();
        return Ok{};
    }

    Result<const Trials*> trials() {
        if (trials_) return &*trials_;
        NIBBLE_CHECK(read_text());
        NIBBLE_TRY(trials_,
                   Trials::create(*source_, report_.space, config_.calib.file, sequences_, options_, pool_, hooks_));
        return &*trials_;
    }

    Status get_scores() {
        NIBBLE_CHECK(check_target());
        if (!config_.scores.empty()) {
            NIBBLE_TRY(const Json json, read_json_file(config_.scores));
            NIBBLE_TRY(report_.scores, scores_from_json(json, report_.space, config_.scores));
            return Ok{};
        }
        NIBBLE_TRY(options_.method, parse_score_method(config_.score));
        if (options_.device.cuda && options_.method != ScoreMethod::kl)
            hooks_.warn(
                fmt::format("{} scores are gradients, which only the CPU computes; ranges and --measure run on {}, "
                            "and so do --score kl",
                            config_.score, config_.device));
        NIBBLE_CHECK(read_text());
        NIBBLE_CHECK(open_journal());
        NIBBLE_TRY(const Trials* all, trials());
        NIBBLE_TRY(report_.scores, search_scores(*all, config_.calib.file, sequences_, options_, hooks_));
        return Ok{};
    }

    Status measure() {
        NIBBLE_TRY(const Trials* all, trials());
        CalibrationFlags flags = config_.calib;
        flags.file = config_.measure;
        flags.tokens = config_.measure_tokens;
        NIBBLE_TRY(const auto text, calibration_sequences(flags, *source_, hooks_));
        NIBBLE_TRY(auto meter, KlMeter::create(*source_, text, options_, pool_));
        std::string ids;
        for (const auto& sequence : text) ids += fmt::format("{}\n", fmt::join(sequence, ","));
        const std::string measured = hash_text(ids);
        report_.measured_on = config_.measure;
        report_.measured_tokens = meter.tokens();
        std::vector<SearchPoint*> points = {&report_.chosen};
        for (SearchPoint& point : report_.sweep) points.push_back(&point);
        std::map<std::vector<size_t>, double> known;  // targets may share a choice
        for (size_t i = 0; i < points.size(); ++i) {
            if (hooks_.should_stop()) return fail("search stopped on request");
            if (hooks_.progress)
                hooks_.progress({"measure", fmt::format("{:.3f} bits", points[i]->target), static_cast<int64_t>(i),
                                 static_cast<int64_t>(points.size()), "points"});
            if (const auto found = known.find(points[i]->choice); found != known.end()) {
                points[i]->kl = found->second;
                continue;
            }
            const auto unit = static_cast<int64_t>(report_.space.groups.size() + i);
            const Json facts{{"text", measured}, {"choice", points[i]->choice}};
            if (const auto kept = journal_ ? journal_->finished(unit) : std::nullopt;
                kept && kept->value("point", Json()) == facts && kept->value("kl", Json()).is_number()) {
                points[i]->kl = (*kept)["kl"].get<double>();
            } else {
                NIBBLE_TRY(const auto trial, all->of(points[i]->choice));
                NIBBLE_TRY(points[i]->kl, meter.measure(*trial));
                if (journal_) NIBBLE_CHECK(journal_->append(unit, Json{{"point", facts}, {"kl", *points[i]->kl}}));
            }
            known[points[i]->choice] = *points[i]->kl;
        }
        return Ok{};
    }

    const SearchConfig& config_;
    const JobHooks& hooks_;
    ThreadPool pool_;
    ScoreOptions options_;
    std::unique_ptr<Checkpoint> source_;
    SearchReport report_;
    std::vector<std::vector<int32_t>> sequences_;
    std::optional<Trials> trials_;
    std::unique_ptr<Journal> journal_;  // null when the scores are given
};

// Looked at before the work, not after it. A search that was killed while it wrote them goes on.
Status check_outputs(const SearchConfig& config) {
    NIBBLE_CHECK(check_output_file(config.out));
    std::error_code ignored;
    if (fs::exists(work_folder(config.out), ignored)) return Ok{};
    for (const fs::path& path : {fs::path(config.out), beside(config.out, ".json"), beside(config.out, ".html")})
        if (fs::exists(fs::symlink_status(path, ignored)))
            return fail("{}: exists already; remove it or choose another output", path.string());
    return Ok{};
}

Result<Outcome> run_search(const SearchConfig& config) {
    NIBBLE_CHECK(check_outputs(config));
    Console console(config.quiet || config.json);
    const JobHooks hooks = console.hooks();
    SearchRun search(config, hooks);
    NIBBLE_TRY(const SearchReport report, search.run());
    NIBBLE_CHECK(search.check(report));
    console.end_line();
    NIBBLE_CHECK(
        write_file_atomically(config.out, recipe_text(report.space, report.chosen, config.algorithm, &report.scores)));
    const std::string json = to_json(report).dump(1) + "\n";
    NIBBLE_CHECK(write_file_atomically(beside(config.out, ".json"), json));
    NIBBLE_CHECK(write_file_atomically(beside(config.out, ".html"), report_page(report)));
    std::error_code ignored;
    fs::remove_all(work_folder(config.out), ignored);
    if (config.json || !config.quiet) std::fputs(config.json ? json.c_str() : report_text(report).c_str(), stdout);
    if (!config.json && !config.quiet)
        fmt::print("recipe: {}{}\nreport: {}\n", config.out,
                   std::ranges::count(config.formats, "w8a16_fp8")
                       ? " (w8a16_fp8: quantize --format compressed-tensors; Model Optimizer has no such layout)"
                       : "",
                   beside(config.out, ".html").string());
    return Outcome{};
}

}  // namespace

void add_search(CLI::App& app, RunCommand& run) {
    auto config = std::make_shared<SearchConfig>();
    CLI::App* command = app.add_subcommand("search", "which layers deserve more bits: a mixed-precision recipe");
    command->add_option("source", config->source, "Hugging Face folder or .gguf file")->required();
    command
        ->add_option("-o,--output", config->out,
                     "the recipe to write, ending in .yaml; .json (scores) and .html go beside it")
        ->required()
        ->check([](const std::string& name) {
            return name.ends_with(".yaml") ? std::string() : "the recipe's name must end in .yaml";
        });
    command->add_option("--bits", config->bits, "most effective bits per weight of the linears")->capture_default_str();
    command->add_option("--formats", config->formats, "candidates beside none, with commas between them")
        ->delimiter(',')
        ->check(one_of({"nvfp4", "w4a16_nvfp4", "mxfp4", "w4a16_mxfp4", "fp8", "w8a16_fp8", "mxfp8"}))
        ->capture_default_str();
    command
        ->add_option("--keep", config->keep,
                     "PATTERN=FORMAT: linears that are not searched; may be given several times")
        ->allow_extra_args(false);
    command->add_option("--cost-model", config->cost_model, "active_moe: experts cost by how often they run")
        ->check(one_of({"weights", "active_moe"}))
        ->capture_default_str();
    command
        ->add_option("--score", config->score,
                     "fisher, modelopt: gradients, one backward pass; kl: a forward pass per group and format")
        ->check(one_of({"fisher", "modelopt", "kl"}))
        ->capture_default_str();
    command->add_option("--scores", config->scores, "take the scores of an earlier search's .json");
    add_calibration_flags(*command, config->calib);
    command->add_option("--sweep-from", config->sweep_low, "first target of the table")->capture_default_str();
    command->add_option("--sweep-to", config->sweep_high, "last target of the table")->capture_default_str();
    command->add_option("--sweep-step", config->sweep_step, "between them")->capture_default_str();
    command->add_option("--measure", config->measure, "a text on which the KL divergence of every target is measured");
    command->add_option("--measure-tokens", config->measure_tokens, "tokens taken from it")->capture_default_str();
    command->add_option("--algorithm", config->algorithm, "of the recipe")
        ->check(one_of({"max", "nibble_best"}))
        ->capture_default_str();
    add_device_flag(*command, config->device,
                    "cpu, cuda or cuda:N: where text goes forward (--score kl, --measure, ranges of inputs)");
    add_threads_flag(*command, config->threads);
    add_json_flag(*command, config->json);
    add_quiet_flag(*command, config->quiet, "no progress, no summary");
    command->footer(
        "Examples:\n"
        "  nibble search Qwen3-8B --bits 4.8 --calib chats.jsonl -o mixed.yaml --measure wiki.txt\n"
        "  nibble search Qwen3-8B --bits 5.5 --scores mixed.json -o mixed-5.5.yaml\n"
        "  nibble search Qwen3-8B --calib chats.jsonl -o mixed.yaml --formats w4a16_nvfp4,fp8 --keep '*lm_head*=none'");
    command->callback([config, command, &run] {
        if (config->measure.empty()) check_calibration_flags(*command, config->calib);
        const double most_points = 1000;  // of the table
        if (!(config->sweep_step > 0) || (config->sweep_high - config->sweep_low) / config->sweep_step > most_points)
            usage_error("a sweep from {} to {} by {} has no end, or more than {} points", config->sweep_low,
                        config->sweep_high, config->sweep_step, most_points);
        if (config->calib.file.empty() && config->scores.empty())
            usage_error("a search runs the model on text: give --calib FILE, or --scores of an earlier search");
        config->command_line = command_line_of(*command);
        run = [config] { return run_search(*config); };
    });
}

}  // namespace nibble

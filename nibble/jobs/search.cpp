#include "nibble/search.h"

#include "checkpoint/output_place.h"
#include "io/atomic_file.h"
#include "jobs/calibration_text.h"
#include "jobs/job.h"
#include "jobs/loaded_model.h"
#include "jobs/one_process.h"
#include "jobs/open_checkpoint.h"
#include "quant/search_scores.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <chrono>

namespace nibble {
namespace {

namespace fs = std::filesystem;

Result<SearchSpace> make_space(const SearchOptions& options, const Checkpoint& source) {
    SearchSpaceOptions space{.formats = options.formats};
    for (const std::string& keep : options.keep) {
        NIBBLE_TRY(auto parsed, parse_keep(keep).as(ErrorKind::usage));
        space.keep.push_back(std::move(parsed));
    }
    if (options.cost_model == "active_moe") space.cost_model = CostModel::active_moe;
    return search_space(source.tensors(), source.config(), space).as(ErrorKind::recipe);
}

// Returns recipe.json or recipe.html for recipe.yaml.
fs::path sibling(const std::string& out, const char* extension) { return fs::path(out).replace_extension(extension); }

// Returns the folder in which an unfinished search saves its scores.
fs::path work_folder(const std::string& out) { return out + ".unfinished"; }

class SearchRun {
public:
    SearchRun(const SearchOptions& options, const JobHooks& hooks)
        : options_(options), hooks_(hooks), pool_(options.threads) {}

    Result<SearchReport> run() {
        const auto begin = std::chrono::steady_clock::now();
        NIBBLE_TRY(source_, open_checkpoint(options_.source, hooks_));
        report_.source = options_.source;
        report_.command = options_.command;
        NIBBLE_TRY(report_.space, make_space(options_, *source_));
        score_options_.scratch = fs::absolute(options_.out).parent_path();
        NIBBLE_TRY(score_options_.device, parse_device(options_.device).within("--device"));
        if (score_options_.device.cuda) NIBBLE_CHECK(open_device(score_options_.device).as(ErrorKind::device));
        NIBBLE_CHECK(get_scores());
        NIBBLE_TRY(report_.chosen, choose(report_.space, report_.scores, options_.bits).as(ErrorKind::recipe));
        NIBBLE_TRY(report_.sweep,
                   sweep(report_.space, report_.scores, options_.sweep_low, options_.sweep_high, options_.sweep_step));
        if (!options_.measure.empty()) NIBBLE_CHECK(measure());
        report_.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
        return std::move(report_);
    }

    // Resolves the recipe for the checkpoint before it is written.
    Status check(const SearchReport& report) const {
        NIBBLE_CHECK(plan_of(report.space, report.chosen.choice, source_->tensors(), source_->config()));
        return Ok{};
    }

private:
    // Rejects a target that cannot be reached before anything is scored.
    Status check_target() const {
        SearchScores none{};
        for (const SearchGroup& group : report_.space.groups) none.values.emplace_back(group.candidates.size(), 0.0);
        NIBBLE_CHECK(choose(report_.space, none, options_.bits).as(ErrorKind::recipe));
        return Ok{};
    }

    Status read_text() {
        if (!sequences_.empty()) return Ok{};
        if (options_.calib.file.empty())
            return fail(ErrorKind::usage, "a search runs the model on text: pass --calib FILE");
        NIBBLE_TRY(sequences_, calibration_sequences(options_.calib, *source_, hooks_));
        return Ok{};
    }

    // Identifies the journal by everything that affects the bits of the scores: the model, the groups and their
    // candidates, the method, the text.
    Status open_journal() {
        std::string groups, text;
        for (const SearchGroup& group : report_.space.groups)
            groups += fmt::format("{} {}\n", group.name, fmt::join(group.candidates, ","));
        for (const auto& sequence : sequences_) text += fmt::format("{}\n", fmt::join(sequence, ","));
        NIBBLE_TRY(const std::string model, fingerprint(*source_, {}));
        const fs::path folder = work_folder(options_.out);
        std::error_code error;
        fs::create_directories(folder, error);
        if (error) return fail(ErrorKind::file, "{}: cannot create: {}", folder.string(), error.message());
        NIBBLE_TRY(journal_, Journal::open(folder, {{"version of nibble", NIBBLE_VERSION},
                                                    {"model", model},
                                                    {"formats", fmt::format("{}", fmt::join(options_.formats, ","))},
                                                    {"groups", hash_text(groups)},
                                                    {"score", options_.score},
                                                    {"device", score_options_.device.cuda ? "cuda" : "cpu"},
                                                    {"text", hash_text(text)}}));
        score_options_.journal = journal_.get();
        return Ok{};
    }

    Result<const Trials*> trials() {
        if (trials_) return &*trials_;
        NIBBLE_CHECK(read_text());
        NIBBLE_TRY(trials_, Trials::create(*source_, report_.space, options_.calib.file, sequences_, score_options_,
                                           pool_, hooks_));
        return &*trials_;
    }

    Status get_scores() {
        NIBBLE_CHECK(check_target());
        if (!options_.scores.empty()) {
            NIBBLE_TRY(const Json json, read_json_file(options_.scores));
            NIBBLE_TRY(report_.scores, scores_from_json(json, report_.space, options_.scores));
            return Ok{};
        }
        NIBBLE_TRY(score_options_.method, parse_score_method(options_.score).as(ErrorKind::usage));
        if (score_options_.device.cuda && score_options_.method != ScoreMethod::kl)
            hooks_.emit_warning(
                fmt::format("{} scores are gradients, which only the CPU computes; ranges and --measure run on {}, "
                            "and so do --score kl",
                            options_.score, options_.device));
        NIBBLE_CHECK(read_text());
        NIBBLE_CHECK(open_journal());
        NIBBLE_TRY(const Trials* all, trials());
        NIBBLE_TRY(report_.scores, search_scores(*all, options_.calib.file, sequences_, score_options_, hooks_));
        return Ok{};
    }

    Status measure() {
        NIBBLE_TRY(const Trials* all, trials());
        CalibrationText calib = options_.calib;
        calib.file = options_.measure;
        calib.tokens = options_.measure_tokens;
        NIBBLE_TRY(const auto text, calibration_sequences(calib, *source_, hooks_));
        NIBBLE_TRY(auto meter, KlMeter::create(*source_, text, score_options_, pool_));
        std::string ids;
        for (const auto& sequence : text) ids += fmt::format("{}\n", fmt::join(sequence, ","));
        const std::string measured = hash_text(ids);
        report_.measured_on = options_.measure;
        report_.measured_tokens = meter.tokens();
        std::vector<SearchPoint*> points = {&report_.chosen};
        for (SearchPoint& point : report_.sweep) points.push_back(&point);
        std::map<std::vector<size_t>, double> known;  // several targets may have the same choice
        for (size_t i = 0; i < points.size(); ++i) {
            if (hooks_.should_stop()) return fail(ErrorKind::cancelled, "search stopped on request");
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

    const SearchOptions& options_;
    const JobHooks& hooks_;
    ThreadPool pool_;
    ScoreOptions score_options_;
    std::unique_ptr<Checkpoint> source_;
    SearchReport report_;
    std::vector<std::vector<int32_t>> sequences_;
    std::optional<Trials> trials_;
    std::unique_ptr<Journal> journal_;  // null: the scores are given
};

// Checks the outputs before the work. A search that was killed while it wrote them can continue.
Status check_outputs(const SearchOptions& options) {
    NIBBLE_CHECK(check_output_file(options.out).as(ErrorKind::file));
    std::error_code ignored;
    if (fs::exists(work_folder(options.out), ignored)) return Ok{};
    for (const fs::path& path : {fs::path(options.out), sibling(options.out, ".json"), sibling(options.out, ".html")})
        if (fs::exists(fs::symlink_status(path, ignored)))
            return fail(ErrorKind::file, "{}: exists already; remove it or choose another output", path.string());
    return Ok{};
}

Result<SearchedRecipe> search_job(const SearchOptions& options, const JobHooks& hooks) {
    NIBBLE_CHECK(need_one_process("nibble search"));
    NIBBLE_CHECK(check_options(options));
    NIBBLE_CHECK(check_outputs(options));
    SearchRun search(options, hooks);
    NIBBLE_TRY(SearchReport report, search.run());
    NIBBLE_CHECK(search.check(report));
    NIBBLE_CHECK(write_file_atomically(options.out,
                                       recipe_text(report.space, report.chosen, options.algorithm, &report.scores)));
    NIBBLE_CHECK(write_file_atomically(sibling(options.out, ".json"), to_json(report).dump(1) + "\n"));
    NIBBLE_CHECK(write_file_atomically(sibling(options.out, ".html"), report_page(report)));
    std::error_code ignored;
    fs::remove_all(work_folder(options.out), ignored);
    SearchedRecipe out;
    out.bits = report.chosen.bits;
    out.score = report.chosen.score;
    out.kl = report.chosen.kl;
    out.page = sibling(options.out, ".html").string();
    const auto all = std::make_shared<const SearchReport>(std::move(report));
    out.text = [all] { return report_text(*all); };
    out.json = [all] { return to_json(*all).dump(1) + "\n"; };
    return out;
}

}  // namespace

Status check_options(const SearchOptions& o) {
    const double most_points = 1000;  // largest number of points in the table
    if (!(o.sweep_step > 0) || (o.sweep_high - o.sweep_low) / o.sweep_step > most_points)
        return fail(ErrorKind::usage, "a sweep from {} to {} by {} has no end, or more than {} points", o.sweep_low,
                    o.sweep_high, o.sweep_step, most_points);
    if (o.calib.file.empty() && o.scores.empty())
        return fail(ErrorKind::usage,
                    "a search runs the model on text: give --calib FILE, or --scores of an earlier search");
    if (!o.out.ends_with(".yaml")) return fail(ErrorKind::usage, "the recipe's name must end in .yaml");
    if (o.cost_model != "weights" && o.cost_model != "active_moe")
        return fail(ErrorKind::usage, "--cost-model {}: choose weights or active_moe", o.cost_model);
    if (o.algorithm != "max" && o.algorithm != "nibble_best")
        return fail(ErrorKind::usage, "--algorithm {}: choose max or nibble_best", o.algorithm);
    return Ok{};
}

Result<SearchedRecipe> search(const SearchOptions& options, const JobHooks& hooks) {
    return as_job([&] { return search_job(options, hooks).as(ErrorKind::checkpoint); });
}

}  // namespace nibble

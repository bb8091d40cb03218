#include "nibble/evaluate.h"

#include "checkpoint/output_place.h"
#include "engine/answer_all.h"
#include "eval/generation_tasks.h"
#include "eval/likelihood_tasks.h"
#include "eval/report.h"
#include "eval/run.h"
#include "eval/text_task.h"
#include "io/atomic_file.h"
#include "jobs/job.h"
#include "jobs/loaded_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <numeric>

namespace nibble {
namespace {

namespace fs = std::filesystem;

double clock_seconds() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// A model under evaluation with its engine and tokenizer.
struct Loaded {
    LoadedModel engine;
    Tokenizer tokenizer;
    std::vector<int32_t> eos;
    Subject subject;
};

// Items of one task begin with the same examples, which the prefix cache computes once.
Result<std::vector<TextAnswer>> greedy_answers(const Loaded& loaded, const TextRequest& request) {
    std::vector<Request> requests;
    int64_t longest = 0;
    for (const auto& prompt : request.prompts) {
        Request& r = requests.emplace_back();
        r.prompt = prompt;
        r.sampling.temperature = 0;
        r.max_tokens = request.max_tokens;
        r.stop = request.stop;
        r.eos = loaded.eos;
        longest = std::max(longest, std::ssize(prompt) + request.max_tokens);
    }
    EngineOptions options{.sequences = 16, .context = longest};
    options.queue = std::ssize(requests);
    NIBBLE_TRY(const auto engine, Engine::create(loaded.engine.model, loaded.tokenizer, options));
    std::vector<WholeAnswer> answers;
    NIBBLE_CHECK(answer_all(*engine, std::move(requests), {}, answers));
    std::vector<TextAnswer> texts;
    for (WholeAnswer& a : answers) texts.push_back({std::move(a.text), a.finish == FinishReason::stop});
    return texts;
}

Result<std::unique_ptr<Loaded>> load(const std::string& path, const std::string& name, const ModelSettings& settings,
                                     ThreadPool& pool, const JobHooks& hooks) {
    NIBBLE_TRY(ModelText text, open_model_text(path));
    NIBBLE_TRY(LoadedModel engine, LoadedModel::open(path, settings, pool, hooks));
    NIBBLE_TRY(auto eos, end_tokens(engine, text));
    std::unique_ptr<Loaded> loaded(new Loaded{std::move(engine), std::move(text.tokenizer), std::move(eos), {}});
    loaded->subject = {name, loaded->engine.model.get(), &loaded->tokenizer,
                       [at = loaded.get()](const TextRequest& request) { return greedy_answers(*at, request); },
                       hooks.stop_requested};
    return loaded;
}

// Returns the names for tables: the last component of each path, or whole paths if two are equal.
std::vector<std::string> names_of(const std::vector<std::string>& paths) {
    std::vector<std::string> names;
    for (const std::string& path : paths) names.push_back(name_of(path));
    for (size_t i = 0; i < names.size(); ++i)
        if (std::ranges::count(names, name_of(paths[i])) > 1) names[i] = paths[i];
    return names;
}

class Evaluation {
public:
    Evaluation(const EvaluateOptions& options, const JobHooks& hooks)
        : options_(options), hooks_(hooks), pool_(options.engine.threads) {}

    Result<EvalReport> run() {
        NIBBLE_CHECK(open_tasks());
        std::vector<std::string> paths = options_.models;
        if (!options_.against.empty()) {
            const auto listed = std::ranges::find(paths, options_.against);
            if (listed != paths.end()) paths.erase(listed);
            paths.push_back(options_.against);  // last: the other models are compared with it
            report_.reference = static_cast<int>(paths.size()) - 1;
        }
        const std::vector<std::string> names = names_of(paths);
        NIBBLE_CHECK(fingerprints(paths));
        if (!options_.against.empty()) {
            reference_.name = names.back();
            reference_.fingerprint = fingerprints_.back();
            reference_.cache = options_.reference_cache;
            reference_.load = [this, path = paths.back(), name = names.back()] { return load_reference(path, name); };
        }
        NIBBLE_CHECK(open_journal(paths));
        for (size_t i = 0; i < paths.size(); ++i) NIBBLE_CHECK(evaluate(i, paths[i], names[i]));
        return std::move(report_);
    }

private:
    Status open_tasks() {
        if (!options_.text.empty()) {
            NIBBLE_TRY(TextFile file, read_evaluation_text(options_.text));
            tasks_.push_back(std::make_unique<TextTask>(
                std::move(file), TextTaskOptions{options_.context, options_.stride, options_.chunks},
                options_.against.empty() ? nullptr : &reference_));
        }
        if (!options_.lambada.empty()) {
            NIBBLE_TRY(LinesFile file, read_lines_file(options_.lambada, options_.limit));
            tasks_.push_back(std::make_unique<LambadaTask>(std::move(file)));
        }
        for (const std::string& path : options_.choices) {
            NIBBLE_TRY(LinesFile file, read_lines_file(path, options_.limit));
            tasks_.push_back(std::make_unique<ChoiceTask>(std::move(file)));
        }
        if (!options_.gsm8k.empty()) {
            const int64_t lines = options_.limit > 0 ? options_.limit + options_.shots : 0;
            NIBBLE_TRY(LinesFile file, read_lines_file(options_.gsm8k, lines));
            tasks_.push_back(std::make_unique<Gsm8kTask>(std::move(file), options_.shots));
        }
        if (!options_.humaneval.empty()) {
            NIBBLE_TRY(LinesFile file, read_lines_file(options_.humaneval, options_.limit));
            tasks_.push_back(std::make_unique<HumanEvalTask>(std::move(file)));
        }
        return Ok{};
    }

    Status fingerprints(const std::vector<std::string>& paths) {
        for (const std::string& path : paths) {
            NIBBLE_TRY(const auto checkpoint, Checkpoint::open(path));
            NIBBLE_TRY(fingerprints_.emplace_back(), fingerprint(*checkpoint, options_.engine));
            SubjectResult subject{.path = path, .settings = to_json(options_.engine)};
            int64_t elements = 0;
            for (const CheckpointTensor& t : checkpoint->tensors()) {
                subject.stored_bytes += t.stored_bytes;
                elements += std::accumulate(t.shape.begin(), t.shape.end(), int64_t{1}, std::multiplies<>());
            }
            subject.bits_per_element = elements > 0 ? 8.0 * double(subject.stored_bytes) / double(elements) : 0;
            report_.subjects.push_back(std::move(subject));
        }
        return Ok{};
    }

    Status open_journal(const std::vector<std::string>& paths) {
        if (options_.out.empty()) return Ok{};
        std::error_code error;
        fs::create_directories(options_.out, error);
        if (error) return fail(ErrorKind::file, "{}: cannot be made: {}", options_.out, error.message());
        JobIdentity identity;
        for (size_t i = 0; i < paths.size(); ++i)
            identity.emplace_back(fmt::format("checkpoint {}", paths[i]), fingerprints_[i]);
        for (const auto& task : tasks_) identity.emplace_back("task " + task->name(), task->settings().dump());
        auto opened = Journal::open(options_.out, identity);
        if (!opened.ok() && fs::exists(fs::path(options_.out) / "eval.json", error))
            return fail(ErrorKind::file,
                        "{}: holds the results of another evaluation (other checkpoints, tasks or settings); choose "
                        "another folder, or remove this one",
                        options_.out);
        NIBBLE_TRY(journal_, std::move(opened));
        return Ok{};
    }

    Result<const Subject*> load_reference(const std::string& path, const std::string& name) {
        if (!loaded_reference_) {
            NIBBLE_TRY(loaded_reference_, load(path, name, options_.engine, pool_, hooks_));
        }
        return &loaded_reference_->subject;
    }

    Status evaluate(size_t i, const std::string& path, const std::string& name) {
        const bool reference = static_cast<int>(i) == report_.reference;
        SubjectResult& result = report_.subjects[i];
        result.name = name;
        const double start = clock_seconds();
        std::span<const std::unique_ptr<Task>> tasks = tasks_;
        if (reference && !options_.text.empty() && i > 0) {
            // The comparison has scored the text already, so it contains the reference's perplexity.
            result.tasks.push_back(reference_perplexity(report_.subjects[0].tasks[0]));
            tasks = tasks.subspan(1);
        }
        if (!tasks.empty()) {
            std::unique_ptr<Loaded> own;
            const Subject* subject = nullptr;
            if (reference) {
                NIBBLE_TRY(subject, load_reference(path, name));
            } else {
                NIBBLE_TRY(own, load(path, name, options_.engine, pool_, hooks_));
                subject = &own->subject;
            }
            // Tasks keep their numbers in the journal.
            const auto first = static_cast<int64_t>(tasks_.size() - tasks.size());
            NIBBLE_TRY(auto results,
                       run_tasks(*subject, static_cast<int64_t>(i), tasks, first, journal_.get(), hooks_));
            std::ranges::move(results, std::back_inserter(result.tasks));
        }
        result.seconds = clock_seconds() - start;
        return Ok{};
    }

    const EvaluateOptions& options_;
    const JobHooks& hooks_;
    ThreadPool pool_;
    std::vector<std::unique_ptr<Task>> tasks_;
    std::vector<std::string> fingerprints_;
    std::unique_ptr<Journal> journal_;
    Reference reference_;
    std::unique_ptr<Loaded> loaded_reference_;
    EvalReport report_;
};

Status write_files(const EvalReport& report, const std::string& folder) {
    NIBBLE_CHECK(write_file_atomically(fs::path(folder) / "eval.json", to_json(report).dump(1) + "\n"));
    NIBBLE_CHECK(write_file_atomically(fs::path(folder) / "eval.html", render_html(report)));
    for (size_t i = 0; i < report.subjects.size(); ++i)
        for (const TaskResult& task : report.subjects[i].tasks) {
            const auto samples = task.details.find("samples");
            if (samples == task.details.end()) continue;
            std::string lines;
            for (const Json& line : *samples) lines += line.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
            std::string file = fmt::format("{}.{}.jsonl", report.subjects[i].name, task.task);
            std::ranges::replace(file, '/', '_');
            NIBBLE_CHECK(write_file_atomically(fs::path(folder) / file, lines));
        }
    return Ok{};
}

EvaluationReport evaluation_report(EvalReport report) {
    EvaluationReport out;
    for (const SubjectResult& subject : report.subjects)
        for (const TaskResult& task : subject.tasks)
            for (const Metric& m : task.metrics)
                out.measured.push_back({subject.name, task.task, m.name, m.estimate.value, m.estimate.error});
    const auto all = std::make_shared<const EvalReport>(std::move(report));
    out.text = [all] { return report_text(*all); };
    out.json = [all] { return to_json(*all).dump(1) + "\n"; };
    return out;
}

Result<EvaluationReport> evaluate_job(const EvaluateOptions& options, const JobHooks& hooks) {
    NIBBLE_CHECK(check_options(options));
    if (!options.out.empty()) NIBBLE_CHECK(check_output_folder(options.out, 0).as(ErrorKind::file));
    if (!options.reference_cache.empty()) NIBBLE_CHECK(check_output_file(options.reference_cache).as(ErrorKind::file));
    NIBBLE_TRY(EvalReport report, Evaluation(options, hooks).run());
    if (!options.out.empty()) NIBBLE_CHECK(write_files(report, options.out));
    return evaluation_report(std::move(report));
}

}  // namespace

Status check_options(const EvaluateOptions& o) {
    if (!o.reference_cache.empty() && (o.against.empty() || o.text.empty()))
        return fail(ErrorKind::usage, "--reference-cache stores the predictions of --against for --text; give both");
    if (!o.humaneval.empty() && o.out.empty())
        return fail(ErrorKind::usage, "--humaneval writes a file; give -o a folder");
    if (o.text.empty() && o.lambada.empty() && o.choices.empty() && o.gsm8k.empty() && o.humaneval.empty())
        return fail(ErrorKind::usage,
                    "nothing to measure; give --text, --lambada, --choices, --gsm8k or --humaneval a file");
    if (o.models.empty()) return fail(ErrorKind::usage, "no checkpoint to evaluate");
    return Ok{};
}

Result<EvaluationReport> evaluate(const EvaluateOptions& options, const JobHooks& hooks) {
    return as_job([&] { return evaluate_job(options, hooks).as(ErrorKind::checkpoint); });
}

}  // namespace nibble

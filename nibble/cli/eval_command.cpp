// `nibble eval MODEL...`: what checkpoints can do, and what is left of a reference.
#include "base/json_fields.h"
#include "checkpoint/output_place.h"
#include "cli/engine.h"
#include "cli/open_checkpoint.h"
#include "cli/terminal.h"
#include "cli/usage.h"
#include "eval/generation_tasks.h"
#include "eval/likelihood_tasks.h"
#include "eval/report.h"
#include "eval/run.h"
#include "eval/text_task.h"
#include "io/atomic_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <numeric>

namespace nibble {
namespace {

namespace fs = std::filesystem;

struct EvalConfig {
    std::vector<std::string> models;
    std::string against, reference_cache, text, lambada, gsm8k, humaneval, out;
    std::vector<std::string> choices;
    TextTaskOptions perplexity;
    int64_t limit = 0, shots = 5;
    bool json = false;
    EngineFlags engine;
};

double clock_seconds() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// A subject with what it points to.
struct Loaded {
    LoadedModel engine;
    Tokenizer tokenizer;
    std::vector<int32_t> eos;
    Subject subject;
};

// Items of one task begin alike: the prefix cache computes their examples once.
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

Result<std::unique_ptr<Loaded>> load(const std::string& path, const std::string& name, const EngineFlags& flags,
                                     ThreadPool& pool) {
    NIBBLE_TRY(ModelText text, open_model_text(path));
    NIBBLE_TRY(LoadedModel engine, LoadedModel::open(path, flags, pool));
    NIBBLE_TRY(auto eos, end_tokens(engine, text));
    std::unique_ptr<Loaded> loaded(new Loaded{std::move(engine), std::move(text.tokenizer), std::move(eos), {}});
    loaded->subject = {name, loaded->engine.model.get(), &loaded->tokenizer,
                       [at = loaded.get()](const TextRequest& request) { return greedy_answers(*at, request); }};
    return loaded;
}

// Names in tables: the last component of a path, or the whole path where two are alike.
std::vector<std::string> names_of(const std::vector<std::string>& paths) {
    std::vector<std::string> names;
    for (const std::string& path : paths) names.push_back(name_of(path));
    for (size_t i = 0; i < names.size(); ++i)
        if (std::ranges::count(names, name_of(paths[i])) > 1) names[i] = paths[i];
    return names;
}

class Evaluation {
public:
    explicit Evaluation(const EvalConfig& config) : config_(config), pool_(config.engine.threads) {}

    Result<EvalReport> run(const JobHooks& hooks) {
        NIBBLE_CHECK(open_tasks());
        std::vector<std::string> paths = config_.models;
        if (!config_.against.empty()) {
            const auto listed = std::ranges::find(paths, config_.against);
            if (listed != paths.end()) paths.erase(listed);
            paths.push_back(config_.against);  // last: others are compared with it
            report_.reference = static_cast<int>(paths.size()) - 1;
        }
        const std::vector<std::string> names = names_of(paths);
        NIBBLE_CHECK(fingerprints(paths));
        if (!config_.against.empty()) {
            reference_.name = names.back();
            reference_.fingerprint = fingerprints_.back();
            reference_.cache = config_.reference_cache;
            reference_.load = [this, path = paths.back(), name = names.back()] { return load_reference(path, name); };
        }
        NIBBLE_CHECK(open_journal(paths));
        for (size_t i = 0; i < paths.size(); ++i) NIBBLE_CHECK(evaluate(i, paths[i], names[i], hooks));
        return std::move(report_);
    }

private:
    Status open_tasks() {
        if (!config_.text.empty()) {
            NIBBLE_TRY(TextFile file, read_evaluation_text(config_.text));
            tasks_.push_back(std::make_unique<TextTask>(std::move(file), config_.perplexity,
                                                        config_.against.empty() ? nullptr : &reference_));
        }
        if (!config_.lambada.empty()) {
            NIBBLE_TRY(LinesFile file, read_lines_file(config_.lambada, config_.limit));
            tasks_.push_back(std::make_unique<LambadaTask>(std::move(file)));
        }
        for (const std::string& path : config_.choices) {
            NIBBLE_TRY(LinesFile file, read_lines_file(path, config_.limit));
            tasks_.push_back(std::make_unique<ChoiceTask>(std::move(file)));
        }
        if (!config_.gsm8k.empty()) {
            const int64_t lines = config_.limit > 0 ? config_.limit + config_.shots : 0;
            NIBBLE_TRY(LinesFile file, read_lines_file(config_.gsm8k, lines));
            tasks_.push_back(std::make_unique<Gsm8kTask>(std::move(file), config_.shots));
        }
        if (!config_.humaneval.empty()) {
            NIBBLE_TRY(LinesFile file, read_lines_file(config_.humaneval, config_.limit));
            tasks_.push_back(std::make_unique<HumanEvalTask>(std::move(file)));
        }
        return Ok{};
    }

    Status fingerprints(const std::vector<std::string>& paths) {
        for (const std::string& path : paths) {
            NIBBLE_TRY(const auto checkpoint, open_checkpoint(path, true));
            NIBBLE_TRY(fingerprints_.emplace_back(), fingerprint(*checkpoint, config_.engine));
            SubjectResult subject{.path = path, .settings = to_json(config_.engine)};
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
        if (config_.out.empty()) return Ok{};
        std::error_code error;
        fs::create_directories(config_.out, error);
        if (error) return fail("{}: cannot be made: {}", config_.out, error.message());
        JobIdentity identity;
        for (size_t i = 0; i < paths.size(); ++i)
            identity.emplace_back(fmt::format("checkpoint {}", paths[i]), fingerprints_[i]);
        for (const auto& task : tasks_) identity.emplace_back("task " + task->name(), task->settings().dump());
        NIBBLE_TRY(journal_, Journal::open(config_.out, identity));
        return Ok{};
    }

    Result<const Subject*> load_reference(const std::string& path, const std::string& name) {
        if (!loaded_reference_) {
            NIBBLE_TRY(loaded_reference_, load(path, name, config_.engine, pool_));
        }
        return &loaded_reference_->subject;
    }

    Status evaluate(size_t i, const std::string& path, const std::string& name, const JobHooks& hooks) {
        const bool reference = static_cast<int>(i) == report_.reference;
        SubjectResult& result = report_.subjects[i];
        result.name = name;
        const double start = clock_seconds();
        std::span<const std::unique_ptr<Task>> tasks = tasks_;
        if (reference && !config_.text.empty() && i > 0) {
            // The text was scored on the way: every comparison holds the reference's perplexity.
            result.tasks.push_back(reference_perplexity(report_.subjects[0].tasks[0]));
            tasks = tasks.subspan(1);
        }
        if (!tasks.empty()) {
            std::unique_ptr<Loaded> own;
            const Subject* subject = nullptr;
            if (reference) {
                NIBBLE_TRY(subject, load_reference(path, name));
            } else {
                NIBBLE_TRY(own, load(path, name, config_.engine, pool_));
                subject = &own->subject;
            }
            // Tasks keep their number in the journal.
            const auto first = static_cast<int64_t>(tasks_.size() - tasks.size());
            NIBBLE_TRY(auto results, run_tasks(*subject, static_cast<int64_t>(i), tasks, first, journal_.get(), hooks));
            std::ranges::move(results, std::back_inserter(result.tasks));
        }
        result.seconds = clock_seconds() - start;
        return Ok{};
    }

    const EvalConfig& config_;
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

Result<Outcome> run_eval(const EvalConfig& config) {
    if (!config.out.empty()) NIBBLE_CHECK(check_output_folder(config.out, 0));
    if (!config.reference_cache.empty()) NIBBLE_CHECK(check_output_file(config.reference_cache));
    Console console(config.json || config.engine.quiet);
    const JobHooks hooks = console.hooks();
    Evaluation evaluation(config);
    NIBBLE_TRY(const EvalReport report, evaluation.run(hooks));
    console.end_line();
    if (!config.out.empty()) NIBBLE_CHECK(write_files(report, config.out));
    std::fputs(config.json ? (to_json(report).dump(1) + "\n").c_str() : report_text(report).c_str(), stdout);
    if (!config.out.empty() && !config.json)
        fmt::print("\nreport: {}\n", (fs::path(config.out) / "eval.html").string());
    return Outcome{};
}

}  // namespace

void add_eval(CLI::App& app, RunCommand& run) {
    auto config = std::make_shared<EvalConfig>();
    CLI::App* command = app.add_subcommand("eval", "what checkpoints can do, and what is left of a reference");
    command->add_option("models", config->models, "checkpoints: folders or .gguf files")->required();
    command->add_option("--against", config->against, "the reference checkpoint, often the unquantized one");
    command->add_option("--reference-cache", config->reference_cache,
                        "a file for the reference's log-probabilities; made at first, read later");
    command->add_option("--text", config->text, "a text: perplexity, and KL divergence from the reference");
    command->add_option("--context", config->perplexity.context, "tokens of a window of the text")
        ->capture_default_str();
    command->add_option("--stride", config->perplexity.stride,
                        "move the window by so many tokens; default: llama-perplexity's windows, side by side");
    command->add_option("--chunks", config->perplexity.chunks, "at most so many windows; 0: all")
        ->capture_default_str();
    command->add_option("--lambada", config->lambada, "lines {\"text\"}: the last word");
    command
        ->add_option("--choices", config->choices,
                     "lines {\"context\", \"choices\", \"answer\"}: the likeliest; may be given several times")
        ->allow_extra_args(false);
    command->add_option("--gsm8k", config->gsm8k, "lines {\"question\", \"answer\"}: generated answers");
    command->add_option("--shots", config->shots, "worked examples before a question: the file's first lines")
        ->check(CLI::Range(0, 100))
        ->capture_default_str();
    command->add_option("--humaneval", config->humaneval,
                        "lines {\"task_id\", \"prompt\"}: writes completions, runs none");
    command->add_option("--limit", config->limit, "at most so many items of a task; 0: all")
        ->check(CLI::Range(int64_t{0}, int64_t{1} << 40))
        ->capture_default_str();
    command->add_option("-o,--output", config->out,
                        "a folder for eval.json, eval.html and a journal: the same command continues after a stop");
    command->add_flag("--json", config->json, "machine-readable");
    add_engine_flags(*command, config->engine);
    command->footer("Example:\n  nibble eval out/nvfp4 out/fp8 --against SmolLM2-135M --text wiki.txt -o report");
    command->callback([config, &run] {
        const EvalConfig& c = *config;
        if (!c.reference_cache.empty() && (c.against.empty() || c.text.empty()))
            usage_error("--reference-cache holds what --against says about --text; give both");
        if (!c.humaneval.empty() && c.out.empty()) usage_error("--humaneval writes a file; give -o a folder");
        if (c.text.empty() && c.lambada.empty() && c.choices.empty() && c.gsm8k.empty() && c.humaneval.empty())
            usage_error("nothing to measure; give --text, --lambada, --choices, --gsm8k or --humaneval a file");
        run = [config] { return run_eval(*config); };
    });
}

}  // namespace nibble

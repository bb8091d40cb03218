#include "cli/bench_study.h"

#include "base/json_fields.h"
#include "checkpoint/output_place.h"
#include "cli/engine.h"
#include "cli/options.h"
#include "cli/terminal.h"
#include "cli/usage.h"
#include "io/atomic_file.h"
#include "jobs/open_checkpoint.h"
#include "quant/recipe.h"
#include "quant/resolve.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <set>
#include <thread>

extern char** environ;

namespace nibble {
namespace {

namespace fs = std::filesystem;
using Words = std::vector<std::string>;

struct StudyConfig {
    std::string source, out, calib, text, lambada, gsm8k, kv_memory;
    Words recipes, ready, choices;
    std::vector<int64_t> concurrencies;
    int64_t isl = 128, osl = 128, rounds = 4, limit = 0, chunks = 0;
    bool json = false;
    EngineFlags engine;
};

struct Subject {
    std::string name;
    fs::path path;
    std::string recipe;       // empty: it is there
    bool calibrates = false;  // the recipe needs --calib
};

Words engine_words(const EngineFlags& e) {
    Words words{"--device", e.device, "--compute", e.compute, "--sums", e.sums, "--threads", std::to_string(e.threads)};
    if (!e.kv.empty()) words.insert(words.end(), {"--kv", e.kv});
    if (!e.kernels.empty()) words.insert(words.end(), {"--kernels", e.kernels});
    if (e.weights_only) words.push_back("--weights-only");
    return words;
}

Result<std::string> file_text(const fs::path& path) {
    std::ifstream in(path, std::ios::binary);
    if (!in) return fail("{}: cannot be read", path.string());
    return std::string(std::istreambuf_iterator<char>(in), {});
}

// "AMD EPYC 9654, 2 threads"
std::string cpu_text(int threads) {
    std::ifstream in("/proc/cpuinfo");
    std::string name = "CPU";
    for (std::string line; std::getline(in, line);) {
        if (!line.starts_with("model name")) continue;
        if (const size_t colon = line.find(": "); colon != line.npos) name = line.substr(colon + 2);
        break;
    }
    const int used = threads > 0 ? threads : static_cast<int>(std::thread::hardware_concurrency());
    return fmt::format("{}, {} thread{}", name, used, used == 1 ? "" : "s");
}

// Runs this program with `words`; what it prints goes to `output`. Every step is a process of its own, so that memory
// and loading are measured from nothing.
Status run_self(const Words& words, const fs::path& output) {
    std::error_code error;
    const std::string self = fs::read_symlink("/proc/self/exe", error).string();
    if (error) return fail("/proc/self/exe: {}", error.message());
    std::vector<char*> arguments{const_cast<char*>(self.c_str())};
    for (const std::string& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
    arguments.push_back(nullptr);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 1, output.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644);
    pid_t pid = -1;
    const int failed = posix_spawn(&pid, self.c_str(), &actions, nullptr, arguments.data(), environ);
    posix_spawn_file_actions_destroy(&actions);
    if (failed != 0) return fail("{}: {}", self, std::strerror(failed));
    int status = 0;
    while (waitpid(pid, &status, 0) < 0)
        if (errno != EINTR) return fail("{}: {}", self, std::strerror(errno));
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return Ok{};
    return fail(
        "nibble {} ended with {}; the same command goes on from here", fmt::join(words, " "),
        WIFEXITED(status) ? fmt::format("status {}", WEXITSTATUS(status)) : fmt::format("signal {}", WTERMSIG(status)));
}

class Study {
public:
    explicit Study(const StudyConfig& config) : config_(config), out_(config.out) {}

    Result<Json> run() {
        NIBBLE_CHECK(check());
        for (const Subject& s : subjects_)
            if (!s.recipe.empty()) NIBBLE_CHECK(make(s));
        Json list = Json::array();
        for (const Subject& s : subjects_) {
            NIBBLE_TRY(Json one, serve(s));
            list.push_back(std::move(one));
        }
        NIBBLE_CHECK(evaluate(list));
        Json study{{"nibble_study", 1},      {"model", config_.source}, {"version", NIBBLE_VERSION},
                   {"device", device_name_}, {"isl", config_.isl},      {"osl", config_.osl},
                   {"checkpoints", list}};
        NIBBLE_CHECK(write_file_atomically(out_ / "study.json", study.dump(1) + "\n"));
        NIBBLE_CHECK(write_file_atomically(out_ / "study.html", study_page(study)));
        return study;
    }

private:
    // Everything that can be known before the first hour of work.
    Status check() {
        NIBBLE_TRY(const auto source, Checkpoint::open(config_.source));
        NIBBLE_CHECK(refuse_output_in_source(config_.out, config_.source));
        if (const std::string already = quantized_text(*source); !already.empty())
            return fail("{}: {}: a study begins with BF16, which `nibble import` makes of a GGUF file", config_.source,
                        already);
        int64_t bytes = 0;
        for (const CheckpointTensor& t : source->tensors()) bytes += t.stored_bytes;
        subjects_.push_back({"bf16", config_.source, ""});
        for (const std::string& recipe : config_.recipes) {
            NIBBLE_TRY(const Recipe known, load_recipe(recipe));
            NIBBLE_TRY(const Plan plan, resolve(known, source->tensors(), source->config(), {}).within(recipe));
            if (config_.calib.empty() && !plan.needs_activations.empty())
                return fail("{}: the recipe needs activations: give --calib TEXT, or take another recipe", recipe);
            const std::string name = fs::path(recipe).stem().string();
            subjects_.push_back({name, out_ / "models" / name, recipe, !plan.needs_activations.empty()});
        }
        for (const std::string& ready : config_.ready) {
            const size_t equals = ready.find('=');
            const std::string path = equals == ready.npos ? ready : ready.substr(equals + 1);
            NIBBLE_TRY(const auto opened, Checkpoint::open(path));
            subjects_.push_back({equals == ready.npos ? name_of(path) : ready.substr(0, equals), path, ""});
        }
        std::set<std::string> names;
        for (const Subject& s : subjects_)
            if (!names.insert(s.name).second) return fail("two checkpoints are called '{}': say NAME=PATH", s.name);
        for (const std::string& file : {config_.calib, config_.text, config_.lambada, config_.gsm8k})
            if (!file.empty()) NIBBLE_CHECK(readable(file));
        for (const std::string& file : config_.choices) NIBBLE_CHECK(readable(file));
        NIBBLE_TRY(const DeviceChoice device, parse_device(config_.engine.device).within("--device"));
        device_name_ = cpu_text(config_.engine.threads);
        if (device.cuda) {
            NIBBLE_TRY(const DeviceInfo info, open_device(device));
            device_name_ = info.name;
        }
        NIBBLE_TRY(const ModelText text, open_model_text(config_.source));
        std::error_code error;
        fs::create_directories(out_ / "steps", error);
        if (!error) fs::create_directories(out_ / "models", error);
        if (error) return fail("{}: {}", config_.out, error.message());
        // A recipe leaves less than three quarters of the bytes, embeddings included.
        const auto space = fs::space(out_, error);
        const int64_t wanted = bytes * 3 / 4 * std::ssize(config_.recipes);
        if (!error && space.available < static_cast<uintmax_t>(wanted))
            return fail("{}: {} bytes are free, {} may be needed", config_.out, space.available, wanted);
        return Ok{};
    }

    static Status readable(const std::string& path) {
        if (!std::ifstream(path)) return fail("{}: cannot be read", path);
        return Ok{};
    }

    static Json key_of(const Words& words, const std::string& of) {
        return {{"words", words}, {"checkpoint", of}, {"version", NIBBLE_VERSION}};
    }
    static std::string noted(const Words& words, const std::string& of, const Json& result) {
        return Json{{"key", key_of(words, of)}, {"result", result}}.dump() + "\n";
    }

    // The step's result: from the folder where the same words gave it for the same checkpoint, else made now.
    Result<Json> step(const std::string& name, const Words& words, const std::string& of, const Words& more = {}) {
        const fs::path file = out_ / "steps" / (name + ".json");
        if (fs::exists(file)) {
            NIBBLE_TRY(const std::string text, file_text(file));
            if (const auto kept = parse_json(text);
                kept.ok() && kept->is_object() && kept->value("key", Json()) == key_of(words, of))
                return (*kept)["result"];
        }
        if (!config_.engine.quiet) say("nibble: study: " + name);
        const fs::path output = out_ / "steps" / (name + ".out");
        Words all = words;
        all.insert(all.end(), more.begin(), more.end());
        NIBBLE_CHECK(run_self(all, output));
        NIBBLE_TRY(const std::string text, file_text(output));
        Json result;
        if (!text.empty()) {
            NIBBLE_TRY(result, parse_json(text).within(name));
        }
        NIBBLE_CHECK(write_file_atomically(file, noted(words, of, result)));
        std::error_code ignored;
        fs::remove(output, ignored);
        return result;
    }

    Result<std::string> identity(const fs::path& path) const {
        NIBBLE_TRY(const auto checkpoint, Checkpoint::open(path));
        return fingerprint(*checkpoint, config_.engine);
    }

    Status make(const Subject& s) {
        Words words{"quantize", config_.source, "-o", s.path.string(), "--recipe", s.recipe, "--quiet"};
        if (s.calibrates) words.insert(words.end(), {"--calib", config_.calib});
        NIBBLE_TRY(const std::string source, identity(config_.source));
        const fs::path note = out_ / "steps" / (s.name + ".quantize.json");
        std::error_code ignored;
        if (!fs::exists(s.path)) {
            fs::remove(note, ignored);
        } else if (!fs::exists(note)) {
            // Published, and killed before it was noted: `quantize` publishes whole checkpoints only.
            return write_file_atomically(note, noted(words, source, nullptr));
        }
        Words more;
        if (fs::exists(s.path.string() + ".partial")) more.push_back("--resume");
        NIBBLE_TRY(const Json done, step(s.name + ".quantize", words, source, more));
        return Ok{};
    }

    Result<Json> serve(const Subject& s) {
        Words words{"bench",
                    "serve",
                    s.path.string(),
                    "--concurrency",
                    fmt::format("{}", fmt::join(config_.concurrencies, ",")),
                    "--rounds",
                    std::to_string(config_.rounds),
                    "--isl",
                    std::to_string(config_.isl),
                    "--osl",
                    std::to_string(config_.osl),
                    "--max-num-seqs",
                    std::to_string(std::ranges::max(config_.concurrencies)),
                    "--json"};
        if (!config_.kv_memory.empty()) words.insert(words.end(), {"--kv-memory", config_.kv_memory});
        for (std::string& word : engine_words(config_.engine)) words.push_back(std::move(word));
        NIBBLE_TRY(const std::string of, identity(s.path));
        NIBBLE_TRY(const Json loads, step(s.name + ".serve", words, of));
        const Json& served = loads[0]["served"];
        int64_t weights = 0;
        for (const Json& f : served["formats"]) weights += f["bytes"].get<int64_t>();
        return Json{{"name", s.name},
                    {"path", s.path.string()},
                    {"recipe", s.recipe.empty() ? Json(nullptr) : Json(s.recipe)},
                    {"weight_bytes", weights},
                    {"memory_bytes", served["memory_bytes"]},
                    {"kv_bytes", served["kv_bytes"]},
                    {"load_seconds", served["load_seconds"]},
                    {"formats", served["formats"]},
                    {"loads", loads},
                    {"tasks", Json::array()}};
    }

    Status evaluate(Json& list) {
        Words words{"eval"};
        std::string of;
        for (const Subject& s : subjects_) {
            if (s.path != config_.source) words.push_back(s.path.string());
            NIBBLE_TRY(const std::string one, identity(s.path));
            of += one;
        }
        if (words.size() == 1) words.push_back(config_.source);
        const size_t bare = words.size();
        const auto add = [&](const char* flag, const std::string& value) {
            if (!value.empty()) words.insert(words.end(), {flag, value});
        };
        add("--text", config_.text);
        add("--lambada", config_.lambada);
        add("--gsm8k", config_.gsm8k);
        for (const std::string& file : config_.choices) add("--choices", file);
        if (words.size() == bare) return Ok{};
        if (subjects_.size() > 1) add("--against", config_.source);
        if (config_.limit > 0) add("--limit", std::to_string(config_.limit));
        if (config_.chunks > 0) add("--chunks", std::to_string(config_.chunks));
        add("-o", (out_ / "eval").string());
        for (std::string& word : engine_words(config_.engine)) words.push_back(std::move(word));
        words.insert(words.end(), {"--json", "--quiet"});
        NIBBLE_TRY(const Json found, step("eval", words, of));
        for (const Json& one : found["checkpoints"])
            for (Json& row : list)
                if (row["path"] == one["path"]) row["tasks"] = one["tasks"];
        return Ok{};
    }

    const StudyConfig& config_;
    fs::path out_;
    std::string device_name_;
    std::vector<Subject> subjects_;
};

Result<Outcome> run_study(const StudyConfig& config) {
    NIBBLE_TRY(const Json study, Study(config).run().within("bench study"));
    if (config.json)
        fmt::print("{}\n", json_line(study));
    else
        fmt::print("{}\n{}/study.html has the plots\n", study_text(study), config.out);
    return Outcome{};
}

}  // namespace

void add_bench_study(CLI::App& bench, RunCommand& run) {
    auto config = std::make_shared<StudyConfig>();
    CLI::App* command = bench.add_subcommand("study", "a BF16 checkpoint beside its own in fewer bits: speed and loss");
    command->add_option("model", config->source, "a BF16 checkpoint: folder or .gguf file")->required();
    command->add_option("-o,--output", config->out, "a folder for checkpoints, steps, study.json and study.html")
        ->required();
    command
        ->add_option("-r,--recipe", config->recipes,
                     "makes a checkpoint, may be given several times; default, without --checkpoint: w4a16_nvfp4 and "
                     "fp8 (without "
                     "--calib: fp8_per_channel_per_token)")
        ->allow_extra_args(false);
    command
        ->add_option("--checkpoint", config->ready, "one that is there, PATH or NAME=PATH; may be given several times")
        ->allow_extra_args(false);
    command->add_option("--calib", config->calib, "calibration text, for the recipes that need one");
    command->add_option("--concurrency", config->concurrencies, "clients at once; default 1, 2, 4 ... 256")
        ->delimiter(',')
        ->check(CLI::Range(1, 4096));
    command->add_option("--rounds", config->rounds, "requests a client")
        ->check(CLI::Range(1, 1 << 20))
        ->capture_default_str();
    command->add_option("--isl", config->isl, "tokens of prompts")
        ->check(CLI::Range(1, 1 << 24))
        ->capture_default_str();
    command->add_option("--osl", config->osl, "tokens of answers")
        ->check(CLI::Range(1, 1 << 24))
        ->capture_default_str();
    command->add_option("--text", config->text, "a text: perplexity, and KL divergence from the BF16 checkpoint");
    command->add_option("--lambada", config->lambada, "as `nibble eval`");
    command->add_option("--choices", config->choices, "as `nibble eval`; may be given several times")
        ->allow_extra_args(false);
    command->add_option("--gsm8k", config->gsm8k, "as `nibble eval`");
    command->add_option("--limit", config->limit, "at most so many items of a task; 0: all")
        ->check(CLI::Range(int64_t{0}, int64_t{1} << 40));
    command->add_option("--chunks", config->chunks, "at most so many windows of the text; 0: all")
        ->check(CLI::Range(int64_t{0}, int64_t{1} << 40));
    command->add_option("--kv-memory", config->kv_memory, "as `nibble serve`")->check(read_by(parse_size));
    add_json_flag(*command, config->json);
    add_engine_flags(*command, config->engine);
    command->footer(
        "The same command continues after a stop. Example:\n"
        "  nibble bench study SmolLM2-135M -o study --text wiki.txt --concurrency 1,4,16");
    command->callback([config, &run] {
        if (config->concurrencies.empty()) config->concurrencies = {1, 2, 4, 8, 16, 32, 64, 128, 256};
        if (config->recipes.empty() && config->ready.empty())
            config->recipes = {"w4a16_nvfp4", config->calib.empty() ? "fp8_per_channel_per_token" : "fp8"};
        run = [config] { return run_study(*config); };
    });
}

}  // namespace nibble

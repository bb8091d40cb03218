// `nibble serve MODEL`: an OpenAI-compatible server.
#include "cli/engine.h"
#include "cli/options.h"
#include "cli/terminal.h"
#include "page/numbers.h"
#include "server/model_server.h"

#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <fstream>
#include <iterator>
#include <map>
#include <thread>

namespace nibble {
namespace {

struct ServeConfig {
    std::string path, host = "127.0.0.1", unix_path, key_file, cors_origin;
    std::vector<std::string> names, keys;
    uint16_t port = 8000;
    int64_t context = 0, sequences = 0, queue = 1024;
    double drain_seconds = 30, most_seconds = 0;
    int64_t connections = 8192;
    std::string most_body = "32MB";
    bool ignore_unknown = false, log_prompts = false;
    EngineFlags engine;
    CacheFlags cache;
};

Result<std::vector<std::string>> api_keys(const ServeConfig& config) {
    std::vector<std::string> keys = config.keys;
    if (!config.key_file.empty()) {
        std::ifstream in(config.key_file);
        if (!in) return fail("--api-key-file {}: cannot be read", config.key_file);
        for (std::string line; std::getline(in, line);) {
            while (!line.empty() && (line.back() == '\r' || line.back() == ' ')) line.pop_back();
            if (!line.empty() && line[0] != '#') keys.push_back(line);
        }
        if (keys.empty()) return fail("--api-key-file {}: has no key", config.key_file);
    }
    for (const std::string& key : keys)
        if (key.empty()) return fail("--api-key: a key is empty");
    return keys;
}

std::string license_of(const std::filesystem::path& path) {
    for (const char* name : {"LICENSE", "LICENSE.txt", "LICENSE.md"}) {
        std::ifstream in(path / name, std::ios::binary);
        std::string text(std::istreambuf_iterator<char>(in), {});
        if (!text.empty() && text.size() < (1 << 20)) return text;
    }
    return {};
}

// How many tensors lie in which format, and what the engine was given.
Json facts_of(const LoadedModel& loaded, const Engine& engine, double seconds) {
    std::map<std::string, std::pair<int64_t, int64_t>> formats;  // tensors, bytes
    for (const CheckpointTensor& t : loaded.checkpoint->tensors()) {
        auto& [count, bytes] = formats[t.quantized() ? std::string(format_name(t.format)) : t.stored_type];
        ++count;
        bytes += static_cast<int64_t>(t.stored_bytes);
    }
    Json list = Json::array();
    for (const auto& [name, sum] : formats)
        list.push_back({{"format", name}, {"tensors", sum.first}, {"bytes", sum.second}});
    const ModelConfig& config = loaded.model->config();
    return {{"architecture", config.architecture},
            {"kernels", loaded.model->kernels()},
            {"formats", std::move(list)},
            {"context", engine.capacity()},
            {"vocabulary", config.vocab},
            {"sequences", engine.limits().sequences},
            {"kv_bytes", engine.limits().kv_memory},
            {"load_seconds", seconds}};
}

void tell_choices(const Json& facts) {
    std::string formats;
    for (const Json& f : facts["formats"])
        formats +=
            fmt::format("{}{} {} ({} tensors)", formats.empty() ? "" : ", ", human_bytes(f["bytes"].get<int64_t>()),
                        f["format"].get<std::string>(), f["tensors"].get<int64_t>());
    fmt::print(stderr, "nibble: {} on {}: {}; cache {}, {} sequences, context {}; loaded in {:.1f} s\n",
               facts["architecture"].get<std::string>(), facts["kernels"].get<std::string>(), formats,
               human_bytes(facts["kv_bytes"].get<int64_t>()), facts["sequences"].get<int64_t>(),
               facts["context"].get<int64_t>(), facts["load_seconds"].get<double>());
}

Result<ServedModel> load_served(const ServeConfig& config, ThreadPool& pool) {
    const auto start = std::chrono::steady_clock::now();
    NIBBLE_TRY(ModelText text, open_model_text(config.path));
    NIBBLE_TRY(const LoadedModel loaded, LoadedModel::open(config.path, config.engine, pool));
    // What neither the request nor generation_config.json says is as OpenAI has it.
    NIBBLE_TRY(Request like, sampled_request({}, loaded, text, {.temperature = 1.0f, .top_p = 1.0f}));
    NIBBLE_TRY(EngineOptions options, engine_options(config.cache, config.sequences));
    options.context = config.context;
    options.queue = config.queue;
    NIBBLE_TRY(auto engine, Engine::create(loaded.model, text.tokenizer, options));
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    Json facts = facts_of(loaded, *engine, seconds);
    std::vector<std::string> names = config.names;
    if (names.empty()) names.push_back(name_of(config.path));
    std::shared_ptr<const ChatTemplate> chat;
    if (text.chat) chat = std::make_shared<const ChatTemplate>(*std::move(text.chat));
    return ServedModel{.names = std::move(names),
                       .root = config.path,
                       .engine = std::move(engine),
                       .tokenizer = std::move(text.tokenizer),
                       .chat = std::move(chat),
                       .variables = std::move(text.variables),
                       .like = std::move(like),
                       .created = std::time(nullptr),
                       .license = license_of(config.path),
                       .facts = std::move(facts)};
}

Result<Outcome> run_serve(const ServeConfig& config) {
    ServerOptions options;
    options.address = {.host = config.host, .port = config.port, .unix_path = config.unix_path};
    options.limits.connections = static_cast<size_t>(config.connections);
    NIBBLE_TRY(const int64_t body, parse_size(config.most_body).within("--max-body"));
    options.limits.body_bytes = static_cast<size_t>(body);
    options.limits.bodies_bytes = std::max(options.limits.bodies_bytes, 2 * options.limits.body_bytes);
    NIBBLE_TRY(options.api_keys, api_keys(config));
    options.cors_origin = config.cors_origin;
    options.ignore_unknown = config.ignore_unknown;
    options.log_prompts = config.log_prompts;
    options.most_seconds = config.most_seconds;
    if (!config.engine.quiet) options.log = [](const std::string& line) { fmt::print(stderr, "{}\n", line); };
    ThreadPool pool(config.engine.threads);  // outlives the engine
    Console console(true);
    const JobHooks hooks = console.hooks();
    NIBBLE_TRY(const auto server, ModelServer::listen(std::move(options)));
    NIBBLE_TRY(ServedModel model, load_served(config, pool).within("serve"));
    if (!config.engine.quiet) tell_choices(model.facts);
    const std::string name = model.names[0];
    server->serve(std::move(model));
    const HttpAddress& at = server->address();
    if (!config.engine.quiet)
        fmt::print(stderr, "nibble: {} is served at {}{}{}\n", name, at.unix_path.empty() ? "http://" : "", to_text(at),
                   config.keys.empty() && config.key_file.empty() ? "" : " (with a key)");
    while (!hooks.should_stop()) std::this_thread::sleep_for(std::chrono::milliseconds(50));
    if (!config.engine.quiet)
        fmt::print(stderr, "nibble: finishes what runs; ends in {} s at most\n", config.drain_seconds);
    server->drain(std::chrono::steady_clock::now() + std::chrono::duration_cast<std::chrono::steady_clock::duration>(
                                                         std::chrono::duration<double>(config.drain_seconds)));
    return Outcome{};
}

}  // namespace

void add_serve(CLI::App& app, RunCommand& run) {
    auto config = std::make_shared<ServeConfig>();
    CLI::App* command = app.add_subcommand("serve", "an OpenAI-compatible server for a model");
    command->add_option("model", config->path, "a checkpoint: folder or .gguf file")->required();
    CLI::Option* host = command->add_option("--host", config->host, "address to listen at; 0.0.0.0: all of the machine")
                            ->capture_default_str();
    CLI::Option* port =
        command->add_option("--port", config->port, "0: one that is free, told on stderr")->capture_default_str();
    command->add_option("--unix", config->unix_path, "a unix socket in place of host and port")
        ->excludes(host)
        ->excludes(port);
    command
        ->add_option("--served-model-name", config->names,
                     "what clients call the model, may be given several times; default: the path's last part")
        ->allow_extra_args(false);
    command->add_option("--api-key", config->keys, "a key that clients must give; may be given several times")
        ->allow_extra_args(false);
    command->add_option("--api-key-file", config->key_file, "a file with a key a line");
    command->add_option("--cors-origin", config->cors_origin, "of browsers' pages that may ask, or *; default: none");
    command->add_option("--max-model-len", config->context, "tokens of a prompt and its answer; 0: the model's")
        ->check(CLI::Range(int64_t{0}, int64_t{1} << 30));
    command->add_option("--max-num-seqs", config->sequences, "answers that run together; 0: 64, on a GPU 1,024")
        ->check(CLI::Range(0, 4096));
    command->add_option("--queue", config->queue, "answers that wait; more are told 429")
        ->check(CLI::Range(1, 1 << 20))
        ->capture_default_str();
    command->add_option("--max-connections", config->connections, "more are told 503")
        ->check(CLI::Range(1, 1 << 20))
        ->capture_default_str();
    command->add_option("--max-body", config->most_body, "of a request: bytes, or a number with KB or MB")
        ->capture_default_str();
    command->add_option("--request-timeout", config->most_seconds, "seconds of a request at most; 0: no limit")
        ->check(CLI::Range(0.0, 1e9));
    command->add_option("--drain-timeout", config->drain_seconds, "seconds that SIGTERM leaves to what runs")
        ->check(CLI::Range(0.0, 1e6))
        ->capture_default_str();
    command->add_flag("--ignore-unknown", config->ignore_unknown,
                      "ignore parameters that no route knows, as vLLM does, instead of refusing them");
    command->add_flag("--log-prompts", config->log_prompts, "put the bodies of requests into the log");
    add_cache_flags(*command, config->cache);
    add_engine_flags(*command, config->engine);
    command->footer(
        "A line of JSON a request goes to stderr (--quiet: none). SIGTERM and Ctrl-C end the server when what runs is "
        "done.\nExample:\n  nibble serve SmolLM2-135M --port 8000");
    command->callback([config, &run] { run = [config] { return run_serve(*config); }; });
}

}  // namespace nibble

// `nibble serve MODEL`: an OpenAI-compatible server.
#include "cli/engine.h"
#include "cli/options.h"
#include "cli/terminal.h"
#include "cli/usage.h"
#include "jobs/kernel_table.h"
#include "jobs/serve.h"
#include "page/numbers.h"

#include <fmt/format.h>

#include <algorithm>
#include <thread>

namespace nibble {
namespace {

struct ServeConfig {
    ServedSettings model;
    std::string host = "127.0.0.1", unix_path, key_file, cors_origin;
    std::vector<std::string> keys, allowed_hosts;
    uint16_t port = 8000;
    double drain_seconds = 30, most_seconds = 0;
    int64_t connections = 8192;
    std::string most_body = "32MB", stored = "64MB", request_memory = "256MB", total_memory;
    bool ignore_unknown = false, log_prompts = false, quiet = false;
};

Result<std::vector<std::string>> api_keys(const ServeConfig& config) {
    std::vector<std::string> keys = config.keys;
    if (!config.key_file.empty()) {
        NIBBLE_TRY(const auto more, read_api_keys(config.key_file).within("--api-key-file"));
        keys.insert(keys.end(), more.begin(), more.end());
    }
    for (const std::string& key : keys)
        if (key.empty()) return fail(ErrorKind::usage, "--api-key: a key is empty");
    return keys;
}

void tell_choices(const Json& facts) {
    std::string formats;
    for (const Json& f : facts["formats"])
        formats +=
            fmt::format("{}{} {} ({} tensors)", formats.empty() ? "" : ", ", human_bytes(f["bytes"].get<int64_t>()),
                        f["format"].get<std::string>(), f["tensors"].get<int64_t>());
    say(fmt::format("nibble: {} on {}: {}; cache {}, {} sequences, context {}; loaded in {:.1f} s",
                    facts["architecture"].get<std::string>(), facts["kernels"].get<std::string>(), formats,
                    human_bytes(facts["kv_bytes"].get<int64_t>()), facts["sequences"].get<int64_t>(),
                    facts["context"].get<int64_t>(), facts["load_seconds"].get<double>()));
    for (const std::string& line : folded_kernels_lines(facts["layers"])) say("nibble:   " + line);
}

Result<int64_t> size_or_none(std::string_view word) {
    if (word == "0") return 0;
    return parse_size(word);
}

Result<ServeOptions> serve_options(const ServeConfig& config) {
    ServeOptions options{.model = config.model};
    ServerOptions& server = options.server;
    server.address = {.host = config.host, .port = config.port, .unix_path = config.unix_path};
    server.limits.connections = static_cast<size_t>(config.connections);
    NIBBLE_TRY(const int64_t body, parse_size(config.most_body).within("--max-body"));
    server.limits.body_bytes = static_cast<size_t>(body);
    server.limits.bodies_bytes = std::max(server.limits.bodies_bytes, 2 * server.limits.body_bytes);
    NIBBLE_TRY(server.request_bytes, parse_size(config.request_memory).within("--max-request-memory"));
    server.requests_bytes = usual_memory_of_requests();
    if (!config.total_memory.empty()) {
        NIBBLE_TRY(server.requests_bytes, parse_size(config.total_memory).within("--max-total-memory"));
    }
    NIBBLE_TRY(server.api_keys, api_keys(config));
    server.cors_origin = config.cors_origin;
    server.allowed_hosts = config.allowed_hosts;
    server.ignore_unknown = config.ignore_unknown;
    server.log_prompts = config.log_prompts;
    NIBBLE_TRY(server.stored_bytes, size_or_none(config.stored).within("--stored-responses"));
    server.most_seconds = config.most_seconds;
    if (!config.quiet) server.log = say;
    return options;
}

Result<Outcome> run_serve(const ServeConfig& config) {
    NIBBLE_TRY(const ServeOptions options, serve_options(config));
    Console console(true, config.quiet);
    const JobHooks hooks = console.hooks();
    NIBBLE_TRY(const auto server, serve(options, hooks));
    if (!config.quiet) {
        tell_choices(server->facts());
        say(fmt::format("nibble: {} is served at {}{}", server->name(), server->url(),
                        options.server.api_keys.empty() ? "" : " (with a key)"));
    }
    while (!hooks.should_stop()) std::this_thread::sleep_for(std::chrono::milliseconds(50));
    if (!config.quiet) say(fmt::format("nibble: finishes what runs; ends in {} s at most", config.drain_seconds));
    server->stop(std::chrono::duration<double>(config.drain_seconds));
    return Outcome{};
}

}  // namespace

void add_serve(CLI::App& app, RunCommand& run) {
    auto config = std::make_shared<ServeConfig>();
    CLI::App* command = app.add_subcommand("serve", "an OpenAI-compatible server for a model");
    command->add_option("model", config->model.path, "a checkpoint: folder or .gguf file")->required();
    CLI::Option* host = command->add_option("--host", config->host, "address to listen at; 0.0.0.0: all of the machine")
                            ->capture_default_str();
    CLI::Option* port =
        command->add_option("--port", config->port, "0: one that is free, told on stderr")->capture_default_str();
    command->add_option("--unix", config->unix_path, "a unix socket in place of host and port")
        ->excludes(host)
        ->excludes(port);
    command->add_option("--served-model-name", config->model.names,
                        "names of the model for clients, one or more; answers have the first; default: the path's last "
                        "part");
    command->add_option("--api-key", config->keys, "a key that clients must give; may be given several times")
        ->allow_extra_args(false);
    command->add_option("--api-key-file", config->key_file, "a file with a key a line");
    command->add_option("--cors-origin", config->cors_origin, "of browsers' pages that may ask, or *; default: none");
    command
        ->add_option("--allowed-host", config->allowed_hosts,
                     "a name that clients may call the server without a key, or *; default: localhost and addresses; "
                     "may be given several times")
        ->allow_extra_args(false);
    command->add_option("--max-model-len", config->model.context, "tokens of a prompt and its answer; 0: the model's")
        ->check(CLI::Range(int64_t{0}, int64_t{1} << 30));
    command->add_option("--max-num-seqs", config->model.sequences, "answers that run together; 0: 64, on a GPU 1,024")
        ->check(CLI::Range(0, 4096));
    command
        ->add_option("--prompt-stretch", config->model.stretch,
                     "a step that reads prompts beside running answers takes at most so many times as long as one "
                     "without; default: 3 on a GPU; 0: 64 rows of prompts, on a GPU 1,024")
        ->check(CLI::Range(0.0, 1e6));
    command->add_option("--queue", config->model.queue, "answers that wait; more are told 429")
        ->check(CLI::Range(1, 1 << 20))
        ->capture_default_str();
    command->add_option("--max-connections", config->connections, "more are told 503")
        ->check(CLI::Range(1, 1 << 20))
        ->capture_default_str();
    command->add_option("--max-body", config->most_body, "of a request: 32MB, 512K, or bytes")
        ->check(read_by(parse_size))
        ->capture_default_str();
    command
        ->add_option("--stored-responses", config->stored,
                     "memory for answers of /v1/responses that later requests go on from; 0: none is stored")
        ->check(read_by(size_or_none))
        ->capture_default_str();
    command
        ->add_option("--max-request-memory", config->request_memory,
                     "memory of the largest possible answer of a request; more gets 400")
        ->check(read_by(parse_size))
        ->capture_default_str();
    command
        ->add_option("--max-total-memory", config->total_memory,
                     "the same of all requests together; more gets 503; default: an eighth of the memory, at least "
                     "1GB")
        ->check(read_by(parse_size));
    command->add_option("--request-timeout", config->most_seconds, "seconds of a request at most; 0: no limit")
        ->check(CLI::Range(0.0, 1e9));
    command->add_option("--drain-timeout", config->drain_seconds, "seconds that SIGTERM leaves to what runs")
        ->check(CLI::Range(0.0, 1e6))
        ->capture_default_str();
    command->add_flag("--ignore-unknown", config->ignore_unknown,
                      "ignore parameters that no route knows, as vLLM does, instead of refusing them");
    const auto choices = [](std::vector<std::string> names) {
        names.insert(names.begin(), {"auto", "none"});
        return names;
    };
    command
        ->add_option("--tool-call-parser", config->model.tools,
                     "format of tool calls; auto: what the chat template shows")
        ->check(one_of(choices(tool_format_names())))
        ->capture_default_str();
    command
        ->add_option("--reasoning-parser", config->model.reasoning,
                     "format of reasoning; auto: what the chat template shows")
        ->check(one_of(choices(reasoning_format_names())))
        ->capture_default_str();
    command->add_flag("--parse-special", config->model.parse_special,
                      "control tokens count as such in messages, too, not only in what the chat template wrote");
    command->add_flag("--log-prompts", config->log_prompts, "put the bodies of requests into the log");
    add_cache_flags(*command, config->model.cache);
    add_engine_flags(*command, config->model.engine, config->quiet);
    command->footer(
        "A line of JSON a request goes to stderr (--quiet: none). SIGTERM and Ctrl-C end the server when what runs is "
        "done.\nExample:\n  nibble serve SmolLM2-135M --port 8000");
    command->callback([config, &run] { run = [config] { return run_serve(*config); }; });
}

}  // namespace nibble

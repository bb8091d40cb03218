// `nibble serve MODEL`: an OpenAI-compatible server.
#include "chat/chat_format.h"
#include "cli/engine.h"
#include "cli/options.h"
#include "cli/terminal.h"
#include "cli/usage.h"
#include "cli/vllm_flags.h"
#include "nibble/serve.h"

#include <fmt/format.h>

#include <sstream>
#include <thread>

namespace nibble {
namespace {

struct ServeConfig : ServeOptions {
    double drain_seconds = 30;
    bool quiet = false;
};

void say_lines(const std::string& text) {
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) say("nibble: " + line);
}

Result<Outcome> run_serve(const ServeConfig& config) {
    ServeOptions options = config;
    if (!config.quiet) options.log = say;
    Console console(true, config.quiet);
    const JobHooks hooks = console.hooks();
    NIBBLE_TRY(const bool done, joined(options.engine, hooks));
    if (done) return Outcome{};
    NIBBLE_TRY(const auto server, serve(options, hooks));
    if (!config.quiet) {
        say_lines(server->text());
        say(fmt::format("nibble: {} is served at {}{}", server->name(), server->url(),
                        config.api_keys.empty() && config.api_key_file.empty() ? "" : " (with a key)"));
    }
    while (!hooks.should_stop()) {
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
        const Status there = ranks_alive(options.engine);
        if (there.ok()) continue;
        server->stop(std::chrono::seconds(0));
        return there.error();
    }
    if (!config.quiet)
        say(fmt::format("nibble: shutting down after running requests, within {} s", config.drain_seconds));
    server->stop(std::chrono::duration<double>(config.drain_seconds));
    return Outcome{};
}

}  // namespace

void add_serve(CLI::App& app, RunCommand& run) {
    auto config = std::make_shared<ServeConfig>();
    CLI::App* command = app.add_subcommand("serve", "serve a model with an OpenAI-compatible API");
    command->add_option("model", config->model, "a checkpoint: folder or .gguf file")->required();
    CLI::Option* host =
        command->add_option("--host", config->host, "address to listen on; 0.0.0.0: all addresses of the machine")
            ->capture_default_str();
    CLI::Option* port = command->add_option("--port", config->port, "0: any free port, printed on stderr")
                            ->check(CLI::Range(0, 65535))
                            ->capture_default_str();
    command->add_option("--unix", config->unix_path, "unix socket, replaces host and port")
        ->excludes(host)
        ->excludes(port);
    command->add_option(
        "--served-model-name", config->names,
        "names of the model for clients; answers contain the first; default: the last part of the path");
    command->add_option("--api-key", config->api_keys, "API key that clients must send; may be given several times")
        ->allow_extra_args(false);
    command->add_option("--api-key-file", config->api_key_file, "file with one API key per line");
    command->add_option("--cors-origin", config->cors_origin,
                        "origin of browser pages that may send requests, or *; default: none");
    command
        ->add_option("--allowed-host", config->allowed_hosts,
                     "host name that clients without a key may use, or *; default: localhost and addresses; may be "
                     "given several times")
        ->allow_extra_args(false);
    command
        ->add_option("--max-model-len", config->context,
                     "most tokens of a prompt and its answer; 0: the model's context")
        ->check(CLI::Range(int64_t{0}, int64_t{1} << 30));
    command->add_option("--max-num-seqs", config->sequences, "most answers that run together; 0: 64, on a GPU 1,024")
        ->check(CLI::Range(0, 4096));
    command
        ->add_option("--prompt-stretch", config->prompt_stretch,
                     "limit of how much prefill may slow a decoding step (factor); default: 3 on a GPU; 0: limit "
                     "prefill to 64 rows per step, on a GPU 1,024")
        ->check(CLI::Range(0.0, 1e6));
    command->add_option("--queue", config->queue, "queued requests; further ones get HTTP 429")
        ->check(CLI::Range(1, 1 << 20))
        ->capture_default_str();
    command->add_option("--max-connections", config->connections, "open connections; further ones get HTTP 503")
        ->check(CLI::Range(1, 1 << 20))
        ->capture_default_str();
    command->add_option("--max-body", config->max_body, "largest body of a request: 32MB, 512K, or bytes")
        ->check(read_by(parse_size))
        ->capture_default_str();
    command
        ->add_option("--stored-responses", config->stored_responses,
                     "memory for answers of /v1/responses that later requests may continue; 0: none are stored")
        ->check(read_by(parse_size_or_zero))
        ->capture_default_str();
    command
        ->add_option("--max-request-memory", config->max_request_memory,
                     "largest memory for one request's possible answer; larger requests get HTTP 400")
        ->check(read_by(parse_size))
        ->capture_default_str();
    command
        ->add_option("--max-total-memory", config->max_total_memory,
                     "largest memory for the possible answers of all requests together; further requests get HTTP 503; "
                     "default: an eighth of the memory, at least 1GB")
        ->check(read_by(parse_size));
    command
        ->add_option("--request-timeout", config->request_timeout, "longest time of a request in seconds; 0: no limit")
        ->check(CLI::Range(0.0, 1e9));
    command
        ->add_option("--drain-timeout", config->drain_seconds,
                     "seconds that running requests may continue after SIGTERM")
        ->check(CLI::Range(0.0, 1e6))
        ->capture_default_str();
    command->add_flag("--ignore-unknown", config->ignore_unknown,
                      "ignore unknown request parameters, as vLLM does, instead of rejecting the request");
    const auto choices = [](std::vector<std::string> names) {
        names.insert(names.begin(), {"auto", "none"});
        return names;
    };
    command
        ->add_option("--tool-call-parser", config->tool_call_parser,
                     "format of tool calls; auto: detected from the chat template")
        ->check(one_of(choices(tool_format_names())))
        ->capture_default_str();
    command
        ->add_option("--reasoning-parser", config->reasoning_parser,
                     "format of reasoning; auto: detected from the chat template")
        ->check(one_of(choices(reasoning_format_names())))
        ->capture_default_str();
    command->add_flag("--parse-special", config->parse_special,
                      "control tokens in messages keep their function; default: they are plain text");
    command->add_flag("--weight-routes", config->weight_routes,
                      "add routes with which clients replace the weights, pause the model and free its memory");
    command->add_flag("--log-prompts", config->log_prompts, "write request bodies to the log");
    add_cache_flags(*command, config->cache);
    add_engine_flags(*command, config->engine, config->quiet);
    add_parallel_flags(*command, config->engine);
    add_vllm_flags(*command, *config);
    command->footer(
        "One line of JSON per request is written to stderr (--quiet: none). SIGTERM and Ctrl-C end the server after "
        "running\nrequests have finished.\nExample:\n  nibble serve SmolLM2-135M --port 8000");
    command->callback([config, &run] { run = [config] { return run_serve(*config); }; });
}

}  // namespace nibble

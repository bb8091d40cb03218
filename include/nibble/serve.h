// The job of `nibble serve`: an OpenAI-compatible server in this process.
//
//   auto server = serve({.model = "Qwen3-8B", .port = 0}, {});
//   ... (*server)->url() ...
//   (*server)->stop(std::chrono::seconds(30));
#pragma once

#include "nibble/error.h"
#include "nibble/hooks.h"
#include "nibble/model_settings.h"
#include "nibble/sampling.h"

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace nibble {

// Only `model` is required.
struct ServeOptions {
    std::string model;               // folder or .gguf file
    std::vector<std::string> names;  // names of the model for clients; answers contain the first; empty: the last part
                                     // of the path

    std::string host = "127.0.0.1";
    uint16_t port = 8000;                    // 0: any free port
    std::string unix_path;                   // path of a unix socket, replaces host and port
    std::vector<std::string> api_keys;       // clients must send one of these keys; empty: no key is required
    std::string api_key_file;                // file with more keys, one per line
    std::string cors_origin;                 // origin of browser pages that may send requests, or "*"; empty: none
    std::vector<std::string> allowed_hosts;  // host names that clients without a key may use, or "*"

    int64_t context = 0;                   // most tokens of a prompt and its answer; 0: the model's limit
    int64_t sequences = 0;                 // answers that run together; 0: the engine's default
    int64_t queue = 1024;                  // most waiting answers; further requests get HTTP 429
    int64_t connections = 8192;            // most connections; further ones get HTTP 503
    std::optional<double> prompt_stretch;  // limit of the time of a step with prompt rows, as a factor of one without;
                                           // 0: limit the prompt rows instead; no value: 3 on a GPU, 0 on a CPU
    double request_timeout = 0;            // seconds; 0: no limit
    std::string max_body = "32MB";         // size of a request's body
    std::string max_request_memory = "256MB";  // memory of the largest possible answer of a request; larger requests
                                               // get HTTP 400
    std::string max_total_memory;  // the same for all requests together (else HTTP 503); empty: an eighth of the
                                   // machine's memory, at least 1 GiB
    std::string stored_responses = "64MB";  // memory for answers of /v1/responses that later requests may continue;
                                            // "0": none are stored

    std::string tool_call_parser = "auto";  // format of tool calls; auto: detected from the chat template
    std::string reasoning_parser = "auto";  // format of reasoning; auto: detected from the chat template
    bool parse_special = false;             // text in messages may contain control tokens
    bool ignore_unknown = false;            // ignore unknown parameters of requests instead of rejecting them
    bool log_prompts = false;               // write the bodies of requests to the log
    bool weight_routes = false;             // clients may replace the weights, name folders with new ones, and pause
    std::function<void(const std::string& line)> log;  // receives one JSON line per request; called by any thread

    ModelSettings engine;
    CacheSettings cache;
};

// A server with its model, threads and memory. Its own threads answer requests until stop() or destruction.
class RunningServer {
public:
    ~RunningServer();
    RunningServer(const RunningServer&) = delete;
    RunningServer& operator=(const RunningServer&) = delete;

    std::string url() const;          // returns "http://127.0.0.1:8000", or the path of the unix socket
    uint16_t port() const;            // the actual port, also if ServeOptions::port is 0
    const std::string& name() const;  // name of the model in answers
    std::string text() const;         // describes the chosen formats, kernels and limits in lines
    std::string facts() const;        // the same as JSON

    // Rejects new requests, lets running ones finish for at most `most`, then cancels them and closes all connections.
    // Returns when this is done. Later calls do nothing.
    void stop(std::chrono::duration<double> most);

private:
    struct State;
    explicit RunningServer(std::unique_ptr<State> state);
    friend Result<std::unique_ptr<RunningServer>> serve(const ServeOptions&, const JobHooks&);
    std::unique_ptr<State> state_;
};

// Opens the port (health probes are answered at once), loads the model and starts to answer requests. Errors by kind:
// file (an address in use, a missing file), usage (options out of range), checkpoint, device, memory.
Result<std::unique_ptr<RunningServer>> serve(const ServeOptions& options, const JobHooks& hooks);

}  // namespace nibble

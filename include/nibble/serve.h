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

struct ServeOptions {
    std::string model;               // folder or .gguf file
    std::vector<std::string> names;  // of the model for clients; answers have the first; empty: the path's last part

    std::string host = "127.0.0.1";
    uint16_t port = 8000;                    // 0: one that is free
    std::string unix_path;                   // a unix socket in place of host and port
    std::vector<std::string> api_keys;       // keys of which clients must give one; empty: everybody may ask
    std::string api_key_file;                // a file with more of them, one a line
    std::string cors_origin;                 // origin of browsers' pages that may ask, or "*"; empty: none
    std::vector<std::string> allowed_hosts;  // names that clients may call the server without a key, or "*"

    int64_t context = 0;                   // most tokens of a prompt and its answer; 0: the model's
    int64_t sequences = 0;                 // answers that run together; 0: the engine's choice
    int64_t queue = 1024;                  // answers that wait; more get 429
    int64_t connections = 8192;            // more get 503
    std::optional<double> prompt_stretch;  // how many times as long a step may take that also reads prompts; 0: rows of
                                           // prompts are limited instead; none: 3 on a GPU, 0 on a CPU
    double request_timeout = 0;            // seconds; 0: no limit
    std::string max_body = "32MB";         // of a request
    std::string max_request_memory = "256MB";  // of the largest possible answer of a request; more gets 400
    std::string max_total_memory;              // the same of all requests; more gets 503; empty: an eighth of the
                                               // machine's memory, at least 1 GiB
    std::string stored_responses = "64MB";     // for answers of /v1/responses that later requests continue; "0": none

    std::string tool_call_parser = "auto";             // format of tool calls; auto: as the chat template shows
    std::string reasoning_parser = "auto";             // format of reasoning; the same
    bool parse_special = false;                        // control tokens count as such in messages, too
    bool ignore_unknown = false;                       // unknown parameters of requests are ignored, not refused
    bool log_prompts = false;                          // the log has the bodies of requests
    std::function<void(const std::string& line)> log;  // a line of JSON a request; called by any thread

    ModelSettings engine;
    CacheSettings cache;
};

// A server with its model, threads and memory. Answers requests from other threads until stop() or its destruction.
class RunningServer {
public:
    ~RunningServer();
    RunningServer(const RunningServer&) = delete;
    RunningServer& operator=(const RunningServer&) = delete;

    std::string url() const;          // "http://127.0.0.1:8000", or the path of the unix socket
    uint16_t port() const;            // the one that was free where port 0 was asked for
    const std::string& name() const;  // of the model in answers
    std::string text() const;         // formats, kernels and limits that were chosen, as lines
    std::string facts() const;        // the same as JSON

    // Refuses new requests, lets running ones finish for at most `most`, cancels the others and closes all
    // connections. Returns when that is done. Later calls do nothing.
    void stop(std::chrono::duration<double> most);

private:
    struct State;
    explicit RunningServer(std::unique_ptr<State> state);
    friend Result<std::unique_ptr<RunningServer>> serve(const ServeOptions&, const JobHooks&);
    std::unique_ptr<State> state_;
};

// Listens (health probes are answered at once), loads the model and begins to answer. Errors by kind: file (an address
// in use, a missing file), usage (options out of range), checkpoint, device, memory.
Result<std::unique_ptr<RunningServer>> serve(const ServeOptions& options, const JobHooks& hooks);

}  // namespace nibble

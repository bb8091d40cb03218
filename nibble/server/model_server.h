// An OpenAI-compatible server over one engine: routes, request bodies, answers as JSON and as server-sent events, keys,
// metrics, a log. docs/serving.md lists routes and parameters.
//
//   NIBBLE_TRY(auto server, ModelServer::listen(options));   // answers health probes from now on
//   NIBBLE_TRY(auto engine, Engine::create(...));
//   server->serve({...});                                    // ready
//   server->drain(deadline);
//
// Threads: one of the HTTP server, which also makes JSON of the short things that the engine says; one for long answers
// and log-probabilities; two that read bodies and make tokens of text, and one for requests that bring a template, a
// schema or the like, which wait for each other alone; the engine's own, which only hands its events over.
#pragma once

#include "http/server.h"
#include "server/served_model.h"

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace nibble {

struct ServerOptions {
    HttpAddress address;  // port 0: one that is free
    HttpLimits limits;
    std::vector<std::string> api_keys;       // empty: everybody may ask
    std::string cors_origin;                 // of browsers' pages that may ask ("*": all); empty: none
    std::vector<std::string> allowed_hosts;  // names in Host, where no key is asked for ("*": all); see server/access.h
    bool ignore_unknown = false;             // a parameter that no route knows is ignored, as vLLM does, not an error
    bool log_prompts = false;
    int64_t stored_bytes = 64 << 20;               // of answers of /v1/responses that are kept; 0: none is
    std::chrono::milliseconds keep_alive{15'000};  // a stream without a byte for so long gets a comment
    double most_seconds = 0;                       // of a request; 0: no limit
    // Limits of memory for the largest possible answer of one request (more gets 400), and of all requests together
    // (503).
    int64_t request_bytes = int64_t{256} << 20, requests_bytes = int64_t{1} << 30;
    std::function<void(const std::string& line)> log;  // JSON, a line a request; may be empty; called by any thread
};

class ModelServer {
public:
    // Error: the address's.
    static Result<std::unique_ptr<ModelServer>> listen(ServerOptions options);
    ~ModelServer();
    ModelServer(const ModelServer&) = delete;
    ModelServer& operator=(const ModelServer&) = delete;

    const HttpAddress& address() const;
    // Starts the engine; /health and /v1/health/ready say 200 from now on. Once.
    void serve(ServedModel model);
    // Refuses new requests, lets those that run finish until `deadline`, then cancels them, and closes the connections.
    void drain(std::chrono::steady_clock::time_point deadline);

private:
    struct State;
    explicit ModelServer(std::unique_ptr<State> state);
    std::unique_ptr<State> state_;
};

}  // namespace nibble

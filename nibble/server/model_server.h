// An OpenAI-compatible server with one engine: routes, request bodies, answers as JSON and server-sent events, API
// keys, metrics, a log. docs/server-api.md lists routes and parameters.
//
//   NIBBLE_TRY(auto server, ModelServer::listen(options));   // answers health probes from now on
//   NIBBLE_TRY(auto engine, Engine::create(...));
//   server->serve({...});                                    // ready
//   server->drain(deadline);
//
// Threads: the HTTP server's thread, which also makes short JSON answers; one for long answers and log-probabilities;
// two that read bodies and tokenize text; one for requests with a template, a schema or the like, so that slow ones
// only delay each other; one that replaces weights; the engine's own thread, which only passes on its events.
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
    HttpAddress address;  // port 0: any free port
    HttpLimits limits;
    std::vector<std::string> api_keys;       // empty: no key is required
    std::string cors_origin;                 // origin of browser pages that may send requests ("*": all); empty: none
    std::vector<std::string> allowed_hosts;  // accepted Host names if no key is required ("*": all); see
                                             // server/access.h
    bool ignore_unknown = false;             // ignore unknown parameters, as vLLM does, instead of returning an error
    bool log_prompts = false;
    bool weight_routes = false;       // clients may replace the weights, pause the engine and free its memory
    int64_t stored_bytes = 64 << 20;  // bytes of stored answers of /v1/responses; 0: none are stored
    std::chrono::milliseconds keep_alive{15'000};  // a stream without a byte for this long gets a comment
    double most_seconds = 0;                       // longest time of a request; 0: no limit
    // Limits of memory for the largest possible answer of one request (else 400), and of all requests together (else
    // 503).
    int64_t request_bytes = int64_t{256} << 20, requests_bytes = int64_t{1} << 30;
    std::function<void(const std::string& line)> log;  // receives one JSON line per request; may be empty; called by
                                                       // any thread
};

class ModelServer {
public:
    // Opens the port. Error: the address cannot be used.
    static Result<std::unique_ptr<ModelServer>> listen(ServerOptions options);
    ~ModelServer();
    ModelServer(const ModelServer&) = delete;
    ModelServer& operator=(const ModelServer&) = delete;

    const HttpAddress& address() const;
    // Starts the engine. From now on /health and /v1/health/ready return 200. Call once.
    void serve(ServedModel model);
    // Rejects new requests, lets running ones finish until `deadline`, then cancels them and closes the connections.
    void drain(std::chrono::steady_clock::time_point deadline);

private:
    struct State;
    explicit ModelServer(std::unique_ptr<State> state);
    std::unique_ptr<State> state_;
};

}  // namespace nibble

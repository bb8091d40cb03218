// The job of `nibble serve`: an OpenAI-compatible server in this process.
//
//   NIBBLE_TRY(const auto server, serve({.model = {.path = "Qwen3-8B"}, .server = {.address = {.port = 0}}}, hooks));
//   ... server->url() ...
//   server->stop(std::chrono::seconds(30));
#pragma once

#include "jobs/job.h"
#include "jobs/served.h"
#include "server/model_server.h"

#include <chrono>
#include <memory>
#include <string>

namespace nibble {

struct ServeOptions {
    ServedSettings model;
    ServerOptions server;  // request_bytes and requests_bytes: its defaults, or usual_memory_of_requests()
};

// An eighth of the memory of the machine, or of the container where that has a limit; at least 1 GiB: the usual
// ServerOptions::requests_bytes.
int64_t usual_memory_of_requests();

// Keys from a file with one key a line; lines that begin with # are comments. Errors: of kind file; no key in it.
Result<std::vector<std::string>> read_api_keys(const std::string& path);

// A server with its model, threads and memory. Answers requests from other threads until stop() or its destruction.
class RunningServer {
public:
    ~RunningServer();
    RunningServer(const RunningServer&) = delete;
    RunningServer& operator=(const RunningServer&) = delete;

    const HttpAddress& address() const;  // with the port that was free where port 0 was asked for
    std::string url() const;             // "http://127.0.0.1:8000", or the path of a unix socket
    const std::string& name() const;     // of the model in answers
    const Json& facts() const;           // ServedModel::facts

    // Refuses new requests, lets running ones finish for at most `most`, cancels the others and closes all
    // connections. Returns when that is done. Later calls do nothing.
    void stop(std::chrono::duration<double> most);

private:
    struct State;
    explicit RunningServer(std::unique_ptr<State> state);
    friend Result<std::unique_ptr<RunningServer>> serve(const ServeOptions&, const JobHooks&);
    std::unique_ptr<State> state_;
};

// Listens (health probes are answered at once), loads the model and begins to answer. Errors: the address is in use
// (file), options out of range (usage), a model that cannot be read (checkpoint) or does not fit (memory).
Result<std::unique_ptr<RunningServer>> serve(const ServeOptions& options, const JobHooks& hooks);

}  // namespace nibble

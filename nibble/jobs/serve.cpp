#include "nibble/serve.h"

#include "jobs/job.h"
#include "jobs/kernel_table.h"
#include "jobs/served.h"
#include "jobs/words.h"
#include "page/numbers.h"
#include "server/model_server.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>

namespace nibble {
namespace {

// Returns the memory of the machine in bytes, or the container's limit.
int64_t machine_memory() {
    int64_t bytes = int64_t{::sysconf(_SC_PHYS_PAGES)} * ::sysconf(_SC_PAGESIZE), limit = 0;
    if (std::ifstream("/sys/fs/cgroup/memory.max") >> limit) bytes = std::min(bytes, limit);
    return bytes;
}

Result<std::vector<std::string>> api_keys(const ServeOptions& options) {
    std::vector<std::string> keys = options.api_keys;
    if (!options.api_key_file.empty()) {
        std::ifstream in(options.api_key_file);
        if (!in) return fail(ErrorKind::file, "--api-key-file {}: cannot be read", options.api_key_file);
        for (std::string line; std::getline(in, line);) {
            const size_t first = line.find_first_not_of(" \t"), last = line.find_last_not_of(" \t\r");
            if (first != line.npos && line[first] != '#') keys.push_back(line.substr(first, last + 1 - first));
        }
        if (keys.empty()) return fail(ErrorKind::usage, "--api-key-file {}: has no key", options.api_key_file);
    }
    for (const std::string& key : keys)
        if (key.empty()) return fail(ErrorKind::usage, "--api-key: a key is empty");
    return keys;
}

Result<ServerOptions> server_options(const ServeOptions& options) {
    ServerOptions server;
    server.address = {.host = options.host, .port = options.port, .unix_path = options.unix_path};
    server.limits.connections = static_cast<size_t>(options.connections);
    NIBBLE_TRY(const int64_t body, parse_size(options.max_body).within("--max-body"));
    server.limits.body_bytes = static_cast<size_t>(body);
    server.limits.bodies_bytes = std::max(server.limits.bodies_bytes, 2 * server.limits.body_bytes);
    NIBBLE_TRY(server.request_bytes, parse_size(options.max_request_memory).within("--max-request-memory"));
    server.requests_bytes = std::max(server.requests_bytes, machine_memory() / 8);
    if (!options.max_total_memory.empty()) {
        NIBBLE_TRY(server.requests_bytes, parse_size(options.max_total_memory).within("--max-total-memory"));
    }
    NIBBLE_TRY(server.stored_bytes, parse_size_or_zero(options.stored_responses).within("--stored-responses"));
    NIBBLE_TRY(server.api_keys, api_keys(options));
    server.cors_origin = options.cors_origin;
    server.allowed_hosts = options.allowed_hosts;
    server.ignore_unknown = options.ignore_unknown;
    server.log_prompts = options.log_prompts;
    server.weight_routes = options.weight_routes;
    server.most_seconds = options.request_timeout;
    server.log = options.log;
    return server;
}

}  // namespace

struct RunningServer::State {
    explicit State(int threads) : pool(threads) {}
    ThreadPool pool;  // must outlive the engine, which `server` owns
    std::string name;
    Json facts;
    std::unique_ptr<ModelServer> server;
    bool stopped = false;
};

RunningServer::RunningServer(std::unique_ptr<State> state) : state_(std::move(state)) {}
RunningServer::~RunningServer() { stop({}); }

uint16_t RunningServer::port() const { return state_->server->address().port; }
const std::string& RunningServer::name() const { return state_->name; }

std::string RunningServer::url() const {
    const HttpAddress& at = state_->server->address();
    return (at.unix_path.empty() ? "http://" : "") + to_text(at);
}

std::string RunningServer::facts() const { return state_->facts.dump(1, ' ', false, Json::error_handler_t::replace); }

std::string RunningServer::text() const {
    const Json& facts = state_->facts;
    std::string formats;
    for (const Json& f : facts["formats"])
        formats +=
            fmt::format("{}{} {} ({} tensors)", formats.empty() ? "" : ", ", human_bytes(f["bytes"].get<int64_t>()),
                        f["format"].get<std::string>(), f["tensors"].get<int64_t>());
    std::string text =
        fmt::format("{} on {}: {}; cache {}, {} sequences, context {}; loaded in {:.1f} s\n",
                    facts["architecture"].get<std::string>(), facts["kernels"].get<std::string>(), formats,
                    human_bytes(facts["kv_bytes"].get<int64_t>()), facts["sequences"].get<int64_t>(),
                    facts["context"].get<int64_t>(), facts["load_seconds"].get<double>());
    for (const std::string& line : folded_kernels_lines(facts["layers"])) text += "  " + line + "\n";
    return text;
}

void RunningServer::stop(std::chrono::duration<double> most) {
    using Clock = std::chrono::steady_clock;
    if (std::exchange(state_->stopped, true)) return;
    state_->server->drain(Clock::now() + std::chrono::duration_cast<Clock::duration>(most));
}

Result<std::unique_ptr<RunningServer>> serve(const ServeOptions& options, const JobHooks& hooks) {
    return as_job([&]() -> Result<std::unique_ptr<RunningServer>> {
        NIBBLE_TRY(ServerOptions server, server_options(options));
        auto state = std::make_unique<RunningServer::State>(options.engine.threads);
        NIBBLE_TRY(state->server, ModelServer::listen(std::move(server)).as(ErrorKind::file));
        NIBBLE_TRY(ServedModel model,
                   load_served(options, state->pool, hooks).within("serve").as(ErrorKind::checkpoint));
        state->name = model.names[0];
        state->facts = model.facts;
        state->server->serve(std::move(model));
        return std::unique_ptr<RunningServer>(new RunningServer(std::move(state)));
    });
}

}  // namespace nibble

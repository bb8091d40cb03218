#include "jobs/serve.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>

namespace nibble {

struct RunningServer::State {
    explicit State(int threads) : pool(threads) {}
    ThreadPool pool;  // outlives the engine, which `server` holds
    std::string name;
    Json facts;
    std::unique_ptr<ModelServer> server;
    bool stopped = false;
};

RunningServer::RunningServer(std::unique_ptr<State> state) : state_(std::move(state)) {}
RunningServer::~RunningServer() { stop({}); }

const HttpAddress& RunningServer::address() const { return state_->server->address(); }
const std::string& RunningServer::name() const { return state_->name; }
const Json& RunningServer::facts() const { return state_->facts; }

std::string RunningServer::url() const { return (address().unix_path.empty() ? "http://" : "") + to_text(address()); }

void RunningServer::stop(std::chrono::duration<double> most) {
    using Clock = std::chrono::steady_clock;
    if (std::exchange(state_->stopped, true)) return;
    state_->server->drain(Clock::now() + std::chrono::duration_cast<Clock::duration>(most));
}

Result<std::unique_ptr<RunningServer>> serve(const ServeOptions& options, const JobHooks& hooks) {
    return as_job([&]() -> Result<std::unique_ptr<RunningServer>> {
        auto state = std::make_unique<RunningServer::State>(options.model.engine.threads);
        NIBBLE_TRY(state->server, ModelServer::listen(options.server).as(ErrorKind::file));
        NIBBLE_TRY(ServedModel model,
                   load_served(options.model, state->pool, hooks).within("serve").as(ErrorKind::checkpoint));
        state->name = model.names[0];
        state->facts = model.facts;
        state->server->serve(std::move(model));
        return std::unique_ptr<RunningServer>(new RunningServer(std::move(state)));
    });
}

int64_t usual_memory_of_requests() {
    int64_t bytes = int64_t{::sysconf(_SC_PHYS_PAGES)} * ::sysconf(_SC_PAGESIZE), limit = 0;
    if (std::ifstream("/sys/fs/cgroup/memory.max") >> limit) bytes = std::min(bytes, limit);
    return std::max(ServerOptions{}.requests_bytes, bytes / 8);
}

Result<std::vector<std::string>> read_api_keys(const std::string& path) {
    std::ifstream in(path);
    if (!in) return fail(ErrorKind::file, "{}: cannot be read", path);
    std::vector<std::string> keys;
    for (std::string line; std::getline(in, line);) {
        const size_t first = line.find_first_not_of(" \t"), last = line.find_last_not_of(" \t\r");
        if (first != line.npos && line[first] != '#') keys.push_back(line.substr(first, last + 1 - first));
    }
    if (keys.empty()) return fail(ErrorKind::usage, "{}: has no key", path);
    return keys;
}

}  // namespace nibble

// `nibble bench serve URL|MODEL...`: measures latency and throughput as clients of a server.
#pragma once

#include "nibble/serve.h"
#include "server/load_run.h"

#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

namespace nibble {

struct BenchServeOptions {
    std::vector<std::string> targets;
    std::vector<int64_t> concurrencies;
    std::vector<double> rates;
    std::string prompts, page, key;
    LoadPlan plan;
    double goal_ttft_ms = 0, goal_tpot_ms = 0;
    int64_t requests = 0, rounds = 4;
    bool json = false;
    ServeOptions served;
    bool quiet = false;
};

// Prints one line per target and load, or JSON. Returns true if a request failed. `hooks` get notes about the served
// checkpoints.
Result<bool> bench_serve(const BenchServeOptions& options, const JobHooks& hooks, std::FILE* out);

}  // namespace nibble

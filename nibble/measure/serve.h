// `nibble bench serve URL|MODEL...`: times and throughput as clients of a server see them.
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

// A line for every target and load, or JSON. True: a request failed. `hooks` get notes of the checkpoints that are
// served.
Result<bool> bench_serve(const BenchServeOptions& options, const JobHooks& hooks, std::FILE* out);

}  // namespace nibble

// Load test of an OpenAI-compatible server (nibble, llama-server, vLLM): runs many clients and measures latencies.
// Definitions are those of `vllm bench serve` and AIPerf:
//   TTFT  from the request to the first piece with text
//   ITL   between two pieces with text
//   TPOT  (end to end - TTFT) / (tokens - 1), for requests with at least two tokens
#pragma once

#include "base/error.h"
#include "http/address.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace nibble {

struct LoadPlan {
    HttpUrl url;
    std::string model;  // empty: the first model of /v1/models
    std::string api_key;
    std::vector<std::string> texts;                   // prompts, used in a cycle; empty: random tokens
    int64_t input_tokens = 128, output_tokens = 128;  // tokens of random prompts; tokens of every answer (ignore_eos)
    int64_t vocabulary = 10'000;                      // random token ids are below it
    int64_t requests = 64;
    int64_t concurrency = 1;  // closed loop: number of clients with one request each at a time
    double rate = 0;          // > 0: open loop: requests per second with exponential gaps; `concurrency` is ignored
    uint64_t seed = 0;
    double patience_seconds = 600;               // longest time without a byte
    std::optional<double> ttft_goal, tpot_goal;  // goals in seconds; goodput counts requests that meet both
};

struct LoadRecord {
    bool ok = false;
    std::string error;
    double ttft = 0, latency = 0;
    std::vector<double> gaps;
    int64_t input_tokens = 0, output_tokens = 0;
};

struct LoadQuantiles {
    double mean = 0, p50 = 0, p90 = 0, p99 = 0;
};
// Returns mean and quantiles; zeros without values. A quantile is the smallest value that this share of values does not
// exceed.
LoadQuantiles quantiles(std::vector<double> values);

struct LoadResult {
    LoadPlan plan;
    double seconds = 0;  // from the first request to the last byte
    int64_t done = 0, failed = 0, good = 0;
    int64_t input_tokens = 0, output_tokens = 0;
    LoadQuantiles ttft, tpot, itl, latency;  // in seconds
    std::string first_error;
    double output_rate() const { return seconds > 0 ? double(output_tokens) / seconds : 0; }
    double request_rate() const { return seconds > 0 ? double(done) / seconds : 0; }
    double goodput() const { return seconds > 0 ? double(good) / seconds : 0; }
};
LoadResult summarize(const LoadPlan& plan, const std::vector<LoadRecord>& records, double seconds);

// Runs the load. Error: the server cannot be reached. Failed requests are counted, with the message of the first.
Result<LoadResult> run_load(const LoadPlan& plan);

}  // namespace nibble

// Drives an OpenAI server with many clients and measures what they feel: ours, llama-server, vLLM. Definitions are
// those of `vllm bench serve` and AIPerf:
//   TTFT  from the request to the first piece with text
//   ITL   between two pieces with text
//   TPOT  (end to end - TTFT) / (tokens - 1), of requests with at least two tokens
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
    std::string model;  // empty: the first of /v1/models
    std::string api_key;
    std::vector<std::string> texts;                   // prompts, taken in turn; empty: random tokens
    int64_t input_tokens = 128, output_tokens = 128;  // of random prompts; of every answer (ignore_eos)
    int64_t vocabulary = 10'000;                      // random tokens are below it
    int64_t requests = 64;
    int64_t concurrency = 1;  // closed loop: so many clients, one request each at a time
    double rate = 0;          // > 0: open loop: requests a second, exponential gaps, `concurrency` is not looked at
    uint64_t seed = 0;
    double patience_seconds = 600;               // without a byte
    std::optional<double> ttft_goal, tpot_goal;  // seconds; goodput counts requests that keep both
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
// Of nothing: zeros. A quantile is the smallest value that so many do not exceed.
LoadQuantiles quantiles(std::vector<double> values);

struct LoadResult {
    LoadPlan plan;
    double seconds = 0;  // from the first request to the last byte
    int64_t done = 0, failed = 0, good = 0;
    int64_t input_tokens = 0, output_tokens = 0;
    LoadQuantiles ttft, tpot, itl, latency;  // seconds
    std::string first_error;
    double output_rate() const { return seconds > 0 ? double(output_tokens) / seconds : 0; }
    double request_rate() const { return seconds > 0 ? double(done) / seconds : 0; }
    double goodput() const { return seconds > 0 ? double(good) / seconds : 0; }
};
LoadResult summarize(const LoadPlan& plan, const std::vector<LoadRecord>& records, double seconds);

// Error: the server cannot be reached. Requests that fail are counted, with the first one's message.
Result<LoadResult> run_load(const LoadPlan& plan);

}  // namespace nibble

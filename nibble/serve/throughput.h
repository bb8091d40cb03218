// How many tokens per second an engine makes when all requests are queued at once, as `trtllm-bench throughput` counts:
// tokens of all answers by the time from the first submit to the end of the last answer, prompts included.
#pragma once

#include "serve/engine.h"

#include <atomic>
#include <functional>

namespace nibble {

struct ThroughputLoad {
    int64_t input = 128, output = 128;  // tokens of every prompt and of every answer
    int64_t requests = 64;
    int64_t period = 0;  // a prompt is its first `period` tokens again and again; 0: it does not repeat
    uint64_t seed = 1;   // of the prompts' random tokens
    bool greedy = true;  // else drawn by probability
    // Shares of the requests. Masked: a word is forbidden, so that the host makes a mask for every token, as it does
    // for grammars. Biased: with a logit_bias of 0.
    double masked = 0, biased = 0;
};

struct Throughput {
    int64_t requests = 0, input_tokens = 0, output_tokens = 0;
    double seconds = 0;
    int64_t steps = 0, step_rows = 0, overlapped_steps = 0;
    int64_t most_running = 0;
    int64_t preemptions = 0;
    int64_t draft_tokens = 0, accepted_tokens = 0;
    int64_t deferred_rows = 0, host_rows = 0;  // as EngineStats has them
    double prompt_step_seconds = 0;            // of the steps that had rows of prompts
    double requests_per_second() const { return static_cast<double>(requests) / seconds; }
    double output_per_second() const { return static_cast<double>(output_tokens) / seconds; }
    double total_per_second() const { return static_cast<double>(input_tokens + output_tokens) / seconds; }
};

// `engine` is idle, has no thread of its own, and its queue holds the load's requests. Error: a request that the engine
// refuses or that ends in another way than by its length.
Result<Throughput> measure_throughput(Engine& engine, const ThroughputLoad& load,
                                      const std::function<void(int64_t finished)>& progress = {});

// Beside it: the model alone, no scheduler and no answers. Tokens per second of `sequences` texts that go on together
// for `steps` tokens behind `context` tokens; the texts are forks of one, so they read the same pages. Needs as much
// memory as its texts do not share. The median of `repetitions`.
Result<double> measure_steady_decode(const LanguageModel& model, int64_t sequences, int64_t context, int64_t steps,
                                     int repetitions = 3);

}  // namespace nibble

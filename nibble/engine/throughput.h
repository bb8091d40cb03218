// Measures tokens per second of an engine with all requests queued at once. Counts as `trtllm-bench throughput` does:
// the tokens of all answers, divided by the time from the first submit to the end of the last answer (prompts
// included).
#pragma once

#include "engine/engine.h"

#include <atomic>
#include <functional>

namespace nibble {

struct ThroughputLoad {
    int64_t input = 128, output = 128;  // tokens of every prompt and of every answer
    int64_t requests = 64;
    int64_t period = 0;  // a prompt repeats its first `period` tokens; 0: no repetition
    uint64_t seed = 1;   // seed of the prompts' random tokens
    bool greedy = true;  // false: tokens are sampled
    // Shares of the requests. masked: a word is forbidden, so the host computes a mask for every token, as for
    // grammars. biased: with a logit_bias of 0.
    double masked = 0, biased = 0;
};

struct Throughput {
    int64_t requests = 0, input_tokens = 0, output_tokens = 0;
    double seconds = 0;
    int64_t steps = 0, step_rows = 0, overlapped_steps = 0;
    int64_t most_running = 0;
    int64_t preemptions = 0;
    int64_t draft_tokens = 0, accepted_tokens = 0;
    int64_t deferred_rows = 0, host_rows = 0;  // see EngineStats
    double prompt_step_seconds = 0;            // time of the steps with prompt rows
    double requests_per_second() const { return static_cast<double>(requests) / seconds; }
    double output_per_second() const { return static_cast<double>(output_tokens) / seconds; }
    double total_per_second() const { return static_cast<double>(input_tokens + output_tokens) / seconds; }
};

// Measures the throughput. `engine` must be idle and have no own thread, and its queue must hold all requests. Error: a
// request that the engine rejects, or that does not end by its length.
Result<Throughput> measure_throughput(Engine& engine, const ThroughputLoad& load,
                                      const std::function<void(int64_t finished)>& progress = {});

// Measures the model alone, without scheduler and answers: tokens per second of `sequences` texts that decode `steps`
// tokens together after `context` tokens; the median of `repetitions`. The texts are forks of one text, so they share
// its pages.
Result<double> measure_steady_decode(const LanguageModel& model, int64_t sequences, int64_t context, int64_t steps,
                                     int repetitions = 3);

}  // namespace nibble

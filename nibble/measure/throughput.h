// `nibble bench throughput`: output tokens per second of an engine without HTTP, all requests queued at once.
#pragma once

#include "measure/subject.h"
#include "nibble/model_settings.h"
#include "nibble/sampling.h"

#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

namespace nibble {

struct BenchThroughputOptions {
    BenchSubject subject;
    std::vector<int64_t> input{128}, output{128};          // tokens of prompts and of answers: pairs
    int64_t period = 0;                                    // of prompts; 0: they do not repeat
    double masked = 0, biased = 0;                         // shares of the requests, see ThroughputLoad
    int64_t requests = 0;                                  // 0: twice as many as run together
    int64_t sequences = 0, step_rows = 0, mixed_rows = 0;  // of the engine; 0: its choice
    ModelSettings engine;
    CacheSettings cache;
    bool json = false, quiet = false;
};

// A line for every pair, beside what the model alone decodes in the same run.
Status bench_throughput(const BenchThroughputOptions& options, std::FILE* out);

}  // namespace nibble

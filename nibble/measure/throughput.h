// `nibble bench throughput`: measures output tokens per second of an engine without HTTP, with all requests queued at
// once.
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
    std::vector<int64_t> input{128}, output{128};          // tokens of prompts and of answers, in pairs
    int64_t period = 0;                                    // period of the prompts' tokens; 0: they do not repeat
    double masked = 0, biased = 0;                         // shares of the requests; see ThroughputLoad
    int64_t requests = 0;                                  // 0: twice the number that run together
    int64_t sequences = 0, step_rows = 0, mixed_rows = 0;  // limits of the engine; 0: the engine's default
    ModelSettings engine;
    CacheSettings cache;
    bool json = false, quiet = false;
};

// Prints one line per pair, with the decoding rate of the model alone in the same run.
Status bench_throughput(const BenchThroughputOptions& options, std::FILE* out);

}  // namespace nibble

// `nibble bench model`: measures the time to load, prefill and decode a model, after a check that decoding gives the
// bits of the prefill.
#pragma once

#include "measure/subject.h"

#include <cstdint>
#include <cstdio>
#include <string>

namespace nibble {

struct BenchModelOptions {
    BenchSubject subject;
    std::string device = "cpu";
    int64_t prompt = 512;        // tokens per prefill
    int64_t decode = 64;         // tokens that are decoded one by one
    int64_t context = 0;         // tokens before the decoded ones
    int64_t sequences = 16;      // sequences decoded together, in addition to the measurement of one
    int threads = 0;             // 0: all cores
    std::string kernel;          // one kernel entry; empty: the best for this CPU
    std::string sums = "lanes";  // "lanes" or "tiles"
    bool f32 = false;            // use Compute::f32
    bool weights_only = false;
    int repetitions = 5;
    bool json = false;
};

// Reports medians. Decoding covers positions from `context` on, again in every repetition. Bytes and multiply-adds of
// blocks and head per second are compared with the read and multiply-add rates of the machine in the same run
// (kernels/machine_limits.h).
Status bench_model(const BenchModelOptions& options, std::FILE* out);

}  // namespace nibble

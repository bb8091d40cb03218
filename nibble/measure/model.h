// `nibble bench model`: a model's time to load, prefill and decode, after a check that decoding gives the bits of the
// prefill.
#pragma once

#include "measure/subject.h"

#include <cstdint>
#include <cstdio>
#include <string>

namespace nibble {

struct BenchModelOptions {
    BenchSubject subject;
    std::string device = "cpu";
    int64_t prompt = 512;        // tokens of a prefill
    int64_t decode = 64;         // tokens decoded one by one
    int64_t context = 0;         // tokens before them
    int64_t sequences = 16;      // decoded together, beside one alone
    int threads = 0;             // 0: all cores
    std::string kernel;          // one entry; empty: the best of this CPU
    std::string sums = "lanes";  // or tiles
    bool f32 = false;            // Compute::f32
    bool weights_only = false;
    int repetitions = 5;
    bool json = false;
};

// Medians. Decoding runs at positions from `context` on, anew in every repetition. Bytes of the blocks and the head,
// and their multiply-adds, per second stand beside what the machine reads and multiplies in the same run
// (kernels/machine_limits.h).
Status bench_model(const BenchModelOptions& options, std::FILE* out);

}  // namespace nibble

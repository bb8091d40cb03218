// How a model computes: number formats, device, threads.
#pragma once

#include <memory>
#include <string>

namespace nibble {

class RankTeam;

// The members are the words of the command line.
struct ModelSettings {
    std::string compute = "bf16";  // rounding between operators: bf16, or f32 (no rounding)
    std::string kv;  // format of the KV cache: bf16, fp8, fp8_cast, fp8_page, nvfp4, nvfp4_cast; empty: the
                     // checkpoint's
    std::string ssm_state = "f32";  // format of Mamba-2 states between tokens: f32, bf16, fp16, fp16_stochastic
    std::string kernels;            // CPU kernels: avx512, avx2, amx, ref; empty: the fastest
    std::string sums = "lanes";     // order of sums in products: lanes, tiles
    std::string device = "cpu";     // cpu, cuda, cuda:N
    int threads = 0;                // 0: one per core
    bool weights_only = false;      // do not quantize the inputs of products
    int tensor_parallel_size = 1;   // ranks that run the model together: threads of this process, or those of `team`
    // The other processes that a launcher started. Only the program's own commands set it; null: there are none.
    std::shared_ptr<RankTeam> team;
};

}  // namespace nibble

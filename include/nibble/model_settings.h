// How a model computes: number formats, device, threads.
#pragma once

#include <string>

namespace nibble {

// Words as the command line has them.
struct ModelSettings {
    std::string compute = "bf16";  // rounding between operators: bf16, or f32 for none
    std::string kv;  // KV cache: bf16, fp8, fp8_cast, fp8_page, nvfp4, nvfp4_cast; empty: the checkpoint's
    std::string ssm_state = "f32";  // Mamba-2 states between tokens: f32, bf16, fp16, fp16_stochastic
    std::string kernels;            // CPU kernels: avx512, avx2, amx, ref; empty: the fastest
    std::string sums = "lanes";     // order of sums in products: lanes, tiles
    std::string device = "cpu";     // cpu, cuda, cuda:N
    int threads = 0;                // 0: one per core
    bool weights_only = false;      // inputs of products stay unquantized
};

}  // namespace nibble

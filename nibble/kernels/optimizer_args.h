// Arguments of the functions in kernels/optimizer_cuda.h: plain values for host and device code.
#pragma once

#include <cstddef>
#include <cstdint>

namespace nibble::cuda {

// One update as defined in train/optimizer.h, each operation rounded. Nothing changes if *clip is NaN.
struct AdamW {
    int64_t count = 0;
    float* master = nullptr;
    float* m = nullptr;
    float* v = nullptr;
    const float* gradient = nullptr;
    std::byte* published = nullptr;  // BF16 copy of the masters
    const float* clip = nullptr;
    float beta2 = 0, rest1 = 0, rest2 = 0, epsilon = 0, rate = 0, root = 0;
    float keep = 1;  // factor of the master before the update, if `decay`
    bool decay = false;
};

// The key of an update's random bits, together with parameter and element.
struct StateDraws {
    uint64_t seed = 0;
    uint32_t step = 0;  // step of the optimizer, from 1
};

// Maps elements of the flat arrays to parameters: from begin[i] on they belong to parameter id[i]; ascending.
struct FlatOwners {
    int count = 0;
    const int64_t* begin = nullptr;
    const uint32_t* id = nullptr;
};

// AdamW with m and v in BF16, rounded stochastically. `plain` holds everything except m and v.
struct NarrowAdamW {
    AdamW plain;
    uint16_t* m = nullptr;
    uint16_t* v = nullptr;
    int64_t first = 0;  // index of plain.master in the flat arrays, a multiple of 4
    FlatOwners owners;
    StateDraws draws;
};

// Muon's update of one matrix [rows, cols]; columns are a multiple of 8. Products and sums are FP32 in an order that
// depends on the shape only; the norm's squares are FP64.
struct Muon {
    int64_t rows = 0, cols = 0;
    float* master = nullptr;
    float* m = nullptr;  // FP32; null: narrow_m
    uint16_t* narrow_m = nullptr;
    const float* gradient = nullptr;
    std::byte* published = nullptr;  // BF16 copy of the masters
    const float* clip = nullptr;
    float momentum = 0, rate = 0, keep = 1;  // rate multiplies the direction; keep multiplies the master first
    uint32_t id = 0;                         // id of the parameter
    StateDraws draws;
    std::byte* workspace = nullptr;  // muon_workspace(rows, cols)
};

}  // namespace nibble::cuda

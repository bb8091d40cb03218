// Kernels called by kernels/cuda/sampling/sampling.cpp, which checks the arguments.
#pragma once

#include "kernels/sampling_row.h"

#include <cuda_runtime_api.h>

namespace nibble::cuda {

struct SampleArgs {
    float* logits = nullptr;
    const SampleRow* requests = nullptr;
    SeenSlot* seen = nullptr;
    ChosenToken* out = nullptr;
    const int32_t* places = nullptr;  // used with masks
    const uint32_t* masks = nullptr;
    const int32_t* words = nullptr;
    int32_t* words_out = nullptr;
    int64_t word_count = 0;
    int64_t rows = 0, width = 0;
    bool round = false, overlap = false;
};
cudaError_t launch_sample(const SampleArgs& args, cudaStream_t stream);
// Computes the log-probabilities of rows with SampleRow::scored; call after launch_sample().
cudaError_t launch_score(const SampleArgs& args, cudaStream_t stream);
cudaError_t launch_carry(const CarriedToken* list, int64_t count, const ChosenToken* from, int32_t* tokens,
                         cudaStream_t stream);

}  // namespace nibble::cuda

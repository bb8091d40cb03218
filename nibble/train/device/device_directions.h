// The strongest directions of a unit's inputs on a GPU (train/input_directions.h). P and the statistics are on the
// device. The host computes the orthonormal columns.
#pragma once

#include "kernels/cast_cuda.h"
#include "train/device/device_ranks.h"
#include "train/device/train_linear.h"
#include "train/input_directions.h"

namespace nibble {

class DeviceDirections {
public:
    DeviceDirections(int64_t cols, int64_t rank, const CastRandom& random) : host_(cols, rank, random) {}

    int64_t rank() const { return host_.rank(); }
    int64_t pitch() const { return (rank() + 7) / 8 * 8; }  // elements per row of A
    int64_t bytes() const;
    int64_t state_size() const { return 2 * host_.cols() * rank(); }
    Status load(DeviceArena& arena, const Stream& stream);

    // Like InputDirections::split(). x [n, cols] BF16; a [n, pitch()] BF16; rest [n, cols] BF16 or null.
    Status split(const std::byte* x, int64_t n, std::byte* a, std::byte* rest, const Stream& stream) const;
    // Adds turned [rows, pitch()] P^T to dw [rows, cols].
    Status add_term(const float* turned, int64_t rows, float* dw, const Stream& stream) const;

    // watched: this process has the first rows of the step.
    Status begin_step(bool watched, const Stream& stream);
    // Adds x^T a to the step's Z, for the first 4096 rows of a step.
    Status observe(const std::byte* x, const std::byte* a, int64_t n, TrainWork& work);
    DeviceRanks::Numbers of_step() const { return {step_, numbers()}; }
    // Adds the step's Z to Z; no effect if *clip is NaN.
    Status end_step(const float* clip, const Stream& stream);
    // These functions wait for the stream.
    Status renew(const Stream& stream);
    Result<std::vector<float>> state(const Stream& stream) const;
    Status set_state(const std::vector<float>& state, const Stream& stream);

private:
    int64_t numbers() const { return host_.cols() * pitch(); }  // elements of Z
    Status upload(const Stream& stream);
    Result<InputDirections> now(const Stream& stream) const;

    InputDirections host_;   // has P; its Z is that of the last renewal
    float* p_ = nullptr;     // [cols, rank]
    float* z_ = nullptr;     // [cols, pitch]
    float* step_ = nullptr;  // the current step's part of Z
    int64_t seen_ = 0;       // rows in step_
};

}  // namespace nibble

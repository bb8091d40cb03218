// Tracks the strongest directions of a linear's inputs by subspace iteration during training: P [cols, rank] with
// orthonormal columns, rounded to BF16.
#pragma once

#include "train/train_cast.h"

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

namespace nibble {

class InputDirections {
public:
    static constexpr int64_t most_observed = 4096;  // rows per step

    InputDirections() = default;
    // Starts from orthonormalized normal random numbers.
    InputDirections(int64_t cols, int64_t rank, const CastRandom& random);

    int64_t rank() const { return rank_; }
    int64_t cols() const { return cols_; }
    const float* p() const { return p_.data(); }  // [cols, rank]
    // Writes a [n, rank] = BF16(x P) and r [n, cols] = BF16(x - a P^T); r may be null. Sums are FP32 in ascending
    // order.
    void split(const float* x, int64_t n, float* a, float* r, ThreadPool& pool) const;
    // Accumulates Z += x^T a over the first most_observed rows of a step. end_step() commits it.
    void observe(const float* x, const float* a, int64_t n, ThreadPool& pool);
    // Returns the accumulated values of this step, [cols, rank].
    const std::vector<float>& of_step() const { return step_; }
    void set_of_step(std::span<const float> step) { std::ranges::copy(step, step_.begin()); }
    void begin_step();  // discards values that end_step() did not commit
    void end_step();
    // Sets P = BF16(orthonormal columns of Z + 1e-6 P) and Z = 0.
    void renew();

    // State for checkpoints: P, then Z.
    std::vector<float> state() const;
    bool set_state(const std::vector<float>& state);

private:
    int64_t cols_ = 0, rank_ = 0;
    std::vector<float> p_, z_, step_;  // [cols, rank]; step_: the current step's part of Z
    int64_t seen_ = 0;                 // rows in step_
};

}  // namespace nibble

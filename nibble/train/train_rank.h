// The strongest directions of a linear's inputs, followed by subspace iteration while it trains: P [cols, rank] with
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
    static constexpr int64_t most_observed = 4096;  // rows of a step

    InputDirections() = default;
    // Orthonormalized normal numbers.
    InputDirections(int64_t cols, int64_t rank, const CastRandom& random);

    int64_t rank() const { return rank_; }
    int64_t cols() const { return cols_; }
    const float* p() const { return p_.data(); }  // [cols, rank]
    // a [n, rank] = BF16(x P); r [n, cols] = BF16(x - a P^T), where it is wanted. Sums ascend in FP32.
    void split(const float* x, int64_t n, float* a, float* r, ThreadPool& pool) const;
    // Z += x^T a over rows, of the first most_observed rows of a step; counts when the step is done.
    void observe(const float* x, const float* a, int64_t n, ThreadPool& pool);
    // What was observed since then, [cols, rank].
    const std::vector<float>& of_step() const { return step_; }
    void set_of_step(std::span<const float> step) { std::ranges::copy(step, step_.begin()); }
    void begin_step();  // forgets what was observed since end_step()
    void end_step();
    // P = BF16(orthonormal columns of Z + 1e-6 P), Z = 0.
    void renew();

    // P, then Z: what a checkpoint keeps.
    std::vector<float> state() const;
    bool set_state(const std::vector<float>& state);

private:
    int64_t cols_ = 0, rank_ = 0;
    std::vector<float> p_, z_, step_;  // [cols, rank]; step_: of Z, of the step in hand
    int64_t seen_ = 0;                 // rows in it
};

}  // namespace nibble

// Second moments of the rows that enter a linear (its Hessian, up to a factor) or of the gradients that leave it.
//
//   Gram        sum_t w_t x_t x_t^T                 [n, n]        w_t = 1 where no weights are given
//   LocalGram   its 16x16 diagonal blocks           [n/16, 16, 16]
//
// With byte kernels a Gram multiplies in 8-bit integers (kernels/byte_product.h): rows times the root of their weight,
// in chunks of 4032 that wait as codes; three times as fast, and what the codes lose (about 1e-4 of the diagonal) is
// far below damping.
//
// Otherwise rows are cut into chunks of 512 counted from the first row ever added, whatever the calls: inside a chunk
// each entry is one FP32 chain of fused multiply-adds in token order; chunk sums are added in FP64. So neither the
// batch split nor the threads nor the instruction set shows in a bit.
#pragma once

#include "base/error.h"
#include "base/thread_pool.h"
#include "kernels/byte_product.h"
#include "kernels/solver.h"

#include <cstdint>
#include <span>
#include <vector>

namespace nibble {

// Rows that wait until their chunk is full, and each row times its weight.
class RowChunk {
public:
    RowChunk(int64_t n, int64_t capacity) : n_(n), capacity_(capacity) {}
    // Takes as many rows as fit and returns how many.
    int64_t take(const float* x, int64_t rows, int64_t stride, const float* weights);
    void clear() { rows_ = 0; }
    bool full() const { return rows_ == capacity_; }
    int64_t rows() const { return rows_; }
    int64_t cols() const { return n_; }
    const float* row_data() const { return x_.data(); }
    const float* weighted_data() const { return weighted_.empty() ? x_.data() : weighted_.data(); }

private:
    int64_t n_, capacity_;
    int64_t rows_ = 0;
    std::vector<float> x_, weighted_;  // [capacity, n]; the second is empty until a weight is not 1
};

// The same as columns of codes, each row times the root of its weight. 192 rows share a scale; what is less waits.
class ByteChunk {
public:
    ByteChunk(int64_t n, int64_t capacity) : n_(n), capacity_(capacity) {}
    // As RowChunk's, for the whole blocks of 192 rows and what begins or ends one; `finite` is cleared when a row is
    // not.
    int64_t take(const ByteKernels& k, const float* x, int64_t rows, int64_t stride, const float* weights,
                 ThreadPool& pool, bool& finite);
    bool full() const { return codes_.rows && codes_.cols == capacity_; }
    bool empty() const { return !(codes_.rows && codes_.cols) && waiting_ == 0; }
    // All rows taken, as [n, rows].
    const ByteMatrix& codes(const ByteKernels& k, ThreadPool& pool);
    void clear() { codes_.cols = 0; }

private:
    void start();

    int64_t n_, capacity_;
    ByteMatrix codes_;
    int64_t waiting_ = 0;
    std::vector<float> rest_, roots_;  // [192, n]; [rows]
};

class Gram {
public:
    static constexpr int64_t chunk = 512, byte_chunk = 21 * byte_block;

    // Kernels outlive the object. bytes: null, or the faster sums.
    Gram(int64_t n, const SolverKernels& kernels, const ByteKernels* bytes = nullptr)
        : kernels_(&kernels),
          bytes_(bytes),
          chunk_(n, chunk),
          codes_(n, byte_chunk),
          sums_(static_cast<size_t>(n * n)) {}

    // x: `rows` rows of n, `stride` floats apart; weights: one per row, >= 0, or none. A value that is not finite is an
    // error that names row and column.
    Status add(const float* x, int64_t rows, int64_t stride, std::span<const float> weights, ThreadPool& pool);
    // Adds the last, short chunk and fills the lower triangle. Nothing may be added afterwards.
    void finish(ThreadPool& pool);

    // += factor * a matrix given by its upper triangle, row by row; after finish().
    void add_upper(const float* upper, double factor, ThreadPool& pool);

    int64_t size() const { return chunk_.cols(); }
    int64_t tokens() const { return tokens_; }
    double weight() const { return weight_; }
    // [n, n] row-major; after finish().
    std::span<const double> sums() const { return sums_; }
    // From sums computed elsewhere (a file, a test): [n, n], symmetric.
    static Gram of(std::span<const double> sums, int64_t n, int64_t tokens, double weight);

private:
    void flush(ThreadPool& pool);

    const SolverKernels* kernels_;
    const ByteKernels* bytes_;
    Status add_bytes(const float* x, int64_t rows, int64_t stride, std::span<const float> weights, ThreadPool& pool);

    RowChunk chunk_;
    ByteChunk codes_;
    int64_t tokens_ = 0;
    double weight_ = 0;
    std::vector<double> sums_;
};

class LocalGram {
public:
    static constexpr int64_t block = 16;

    // n is a multiple of 16.
    LocalGram(int64_t n, const SolverKernels& kernels)
        : kernels_(&kernels), chunk_(n, Gram::chunk), sums_(static_cast<size_t>(n * block)) {}

    Status add(const float* x, int64_t rows, int64_t stride, std::span<const float> weights, ThreadPool& pool);
    void finish(ThreadPool& pool);

    int64_t size() const { return chunk_.cols(); }
    int64_t tokens() const { return tokens_; }
    // Block j [16, 16], divided by the number of tokens in FP32; after finish(). Zero without tokens.
    std::vector<float> mean() const;

private:
    void flush(ThreadPool& pool);

    const SolverKernels* kernels_;
    RowChunk chunk_;
    int64_t tokens_ = 0;
    std::vector<double> sums_;
};

}  // namespace nibble

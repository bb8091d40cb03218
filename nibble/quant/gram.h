// Second moments of the inputs of a linear (its Hessian, up to a factor) or of the gradients of its outputs.
//
//   Gram        sum_t w_t x_t x_t^T                 [n, n]        w_t = 1 if no weights are given
//   LocalGram   its 16x16 diagonal blocks           [n/16, 16, 16]
//
// With byte kernels, a Gram multiplies in 8-bit integers (kernels/byte_product.h): rows times the root of their weight,
// in chunks of 4032 rows that are stored as codes. This is three times as fast. The error (about 1e-4 of the diagonal)
// is far below the damping.
//
// Without them, rows are divided into chunks of 512, counted from the first row whatever the calls. Inside a chunk each
// entry is one FP32 chain of fused multiply-adds in token order; chunk sums are added in FP64. The bits therefore do
// not depend on batches, threads or instruction sets.
#pragma once

#include "base/error.h"
#include "base/thread_pool.h"
#include "kernels/byte_product.h"
#include "kernels/solver.h"

#include <cstdint>
#include <span>
#include <vector>

namespace nibble {

// Collects rows, and each row times its weight, until a chunk is full.
class RowChunk {
public:
    RowChunk(int64_t n, int64_t capacity) : n_(n), capacity_(capacity) {}
    // Takes as many rows as fit and returns their number.
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
    std::vector<float> x_, weighted_;  // [capacity, n]; weighted_ is empty until a weight differs from 1
};

// Collects rows as columns of 8-bit codes, each row times the root of its weight. 192 rows share a scale; fewer rows
// are kept as floats.
class ByteChunk {
public:
    ByteChunk(int64_t n, int64_t capacity) : n_(n), capacity_(capacity) {}
    // Like RowChunk::take(), for whole blocks of 192 rows and the rows that begin or end a block. `finite` is cleared
    // if a value is not finite.
    int64_t take(const ByteKernels& k, const float* x, int64_t rows, int64_t stride, const float* weights,
                 ThreadPool& pool, bool& finite);
    bool full() const { return codes_.rows && codes_.cols == capacity_; }
    bool empty() const { return !(codes_.rows && codes_.cols) && waiting_ == 0; }
    // Returns all rows as codes [n, rows].
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

    // The kernels must outlive the object. bytes: null, or kernels for the faster sums.
    Gram(int64_t n, const SolverKernels& kernels, const ByteKernels* bytes = nullptr)
        : kernels_(&kernels),
          bytes_(bytes),
          chunk_(n, chunk),
          codes_(n, byte_chunk),
          sums_(static_cast<size_t>(n * n)) {}

    // Adds x: `rows` rows of n, `stride` floats from row to row. weights: one per row, >= 0, or empty (all 1). Error: a
    // value that is not finite; names row and column.
    Status add(const float* x, int64_t rows, int64_t stride, std::span<const float> weights, ThreadPool& pool);
    // Adds the last, partial chunk and fills the lower triangle. No rows may be added afterwards.
    void finish(ThreadPool& pool);

    // Adds factor * a symmetric matrix given by its upper triangle, row by row. Requires finish().
    void add_upper(const float* upper, double factor, ThreadPool& pool);

    int64_t size() const { return chunk_.cols(); }
    int64_t tokens() const { return tokens_; }
    double weight() const { return weight_; }
    // Returns [n, n], row-major. Requires finish().
    std::span<const double> sums() const { return sums_; }
    // Makes a Gram from given sums [n, n], symmetric (from a file or a test).
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

    // n must be a multiple of 16.
    LocalGram(int64_t n, const SolverKernels& kernels)
        : kernels_(&kernels), chunk_(n, Gram::chunk), sums_(static_cast<size_t>(n * block)) {}

    Status add(const float* x, int64_t rows, int64_t stride, std::span<const float> weights, ThreadPool& pool);
    void finish(ThreadPool& pool);

    int64_t size() const { return chunk_.cols(); }
    int64_t tokens() const { return tokens_; }
    // Returns blocks j [16, 16], divided by the number of tokens in FP32; zero without tokens. Requires finish().
    std::vector<float> mean() const;

private:
    void flush(ThreadPool& pool);

    const SolverKernels* kernels_;
    RowChunk chunk_;
    int64_t tokens_ = 0;
    std::vector<double> sums_;
};

}  // namespace nibble

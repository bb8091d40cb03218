#include "quant/gram.h"

#include "formats/minifloat.h"

#include <algorithm>
#include <cmath>

namespace nibble {
namespace {

constexpr int64_t row_block = 96;

constexpr int64_t gram_rows = 64;

// Calls work(t) for every row, on all threads.
template <class Work>
void each_row(int64_t rows, ThreadPool& pool, Work work) {
    pool.parallel_for((rows + gram_rows - 1) / gram_rows, [&](int64_t part) {
        const int64_t first = part * gram_rows;
        for (int64_t t = first; t < std::min(first + gram_rows, rows); ++t) work(t);
    });
}

Status check_finite(const float* x, int64_t rows, int64_t stride, int64_t n, ThreadPool& pool) {
    std::vector<uint32_t> carry(static_cast<size_t>(rows));  // bit 31: an exponent of all ones
    each_row(rows, pool, [&](int64_t t) {
        uint32_t c = 0;
        for (int64_t j = 0; j < n; ++j) c |= (float_bits(x[t * stride + j]) & 0x7F800000u) + 0x00800000u;
        carry[static_cast<size_t>(t)] = c;
    });
    for (int64_t t = 0; t < rows; ++t)
        if (carry[static_cast<size_t>(t)] >> 31) {
            const float* bad = std::find_if(x + t * stride, x + t * stride + n, [](float v) { return !is_finite(v); });
            return fail("row {}, column {} is not finite", t, bad - (x + t * stride));
        }
    return Ok{};
}

Status check_weights(std::span<const float> weights) {
    for (size_t t = 0; t < weights.size(); ++t)
        if (!(weights[t] >= 0.0f) || !is_finite(weights[t]))
            return fail("the weight of row {} is {}: must be finite and not negative", t, weights[t]);
    return Ok{};
}

// Copies the upper triangle to the lower one.
void mirror(std::vector<double>& sums, int64_t n, ThreadPool& pool) {
    constexpr int64_t tile = 32;
    pool.parallel_for((n + tile - 1) / tile, [&](int64_t part) {
        // columns of the upper triangle, rows of the lower one
        const int64_t first = part * tile, last = std::min(first + tile, n);
        for (int64_t begin = 0; begin < last; begin += tile)
            for (int64_t j = first; j < last; ++j)
                for (int64_t i = begin; i < std::min(begin + tile, j); ++i)
                    sums[static_cast<size_t>(j * n + i)] = sums[static_cast<size_t>(i * n + j)];
    });
}

// Adds rows to the chunk and calls flush() whenever it is full.
template <class Flush>
void feed(RowChunk& chunk, const float* x, int64_t rows, int64_t stride, std::span<const float> weights, Flush flush) {
    for (int64_t t = 0; t < rows;) {
        t += chunk.take(x + t * stride, rows - t, stride, weights.empty() ? nullptr : weights.data() + t);
        if (chunk.full()) flush();
    }
}

}  // namespace

int64_t RowChunk::take(const float* x, int64_t rows, int64_t stride, const float* weights) {
    const int64_t count = std::min(rows, capacity_ - rows_);
    x_.resize(static_cast<size_t>(capacity_ * n_));
    for (int64_t t = 0; t < count; ++t) std::copy_n(x + t * stride, n_, x_.data() + (rows_ + t) * n_);
    if (weights && weighted_.empty()) weighted_ = x_;
    if (!weighted_.empty())
        for (int64_t t = 0; t < count; ++t) {
            const float w = weights ? weights[t] : 1.0f;
            for (int64_t j = 0; j < n_; ++j)
                weighted_[static_cast<size_t>((rows_ + t) * n_ + j)] = w * x[t * stride + j];
        }
    rows_ += count;
    return count;
}

void ByteChunk::start() {
    if (codes_.rows) return;
    codes_.resize(n_, capacity_);
    codes_.cols = 0;
}

int64_t ByteChunk::take(const ByteKernels& k, const float* x, int64_t rows, int64_t stride, const float* weights,
                        ThreadPool& pool, bool& finite) {
    start();
    if (waiting_ == 0 && rows >= byte_block) {
        const int64_t count = std::min(rows, capacity_ - codes_.cols) / byte_block * byte_block;
        if (weights) {
            roots_.resize(static_cast<size_t>(count));
            std::transform(weights, weights + count, roots_.begin(), [](float w) { return std::sqrt(w); });
        }
        finite &=
            append_byte_columns(k, x, count, stride, weights ? roots_.data() : nullptr, pool, codes_, codes_.cols);
        return count;
    }
    const int64_t count = std::min(rows, byte_block - waiting_);
    rest_.resize(static_cast<size_t>(byte_block * n_));
    for (int64_t t = 0; t < count; ++t) {
        const float root = weights ? std::sqrt(weights[t]) : 1.0f;
        float* row = rest_.data() + (waiting_ + t) * n_;
        for (int64_t j = 0; j < n_; ++j) row[j] = root * x[t * stride + j];
        finite &= std::all_of(row, row + n_, [](float v) { return is_finite(v); });
    }
    waiting_ += count;
    if (waiting_ == byte_block) {
        append_byte_columns(k, rest_.data(), byte_block, n_, nullptr, pool, codes_, codes_.cols);
        waiting_ = 0;
    }
    return count;
}

const ByteMatrix& ByteChunk::codes(const ByteKernels& k, ThreadPool& pool) {
    start();
    if (waiting_) append_byte_columns(k, rest_.data(), waiting_, n_, nullptr, pool, codes_, codes_.cols);
    waiting_ = 0;
    return codes_;
}

Status Gram::add(const float* x, int64_t rows, int64_t stride, std::span<const float> weights, ThreadPool& pool) {
    NIBBLE_CHECK(check_weights(weights));
    if (bytes_) {
        NIBBLE_CHECK(add_bytes(x, rows, stride, weights, pool));
    } else {
        NIBBLE_CHECK(check_finite(x, rows, stride, size(), pool));
        feed(chunk_, x, rows, stride, weights, [&] { flush(pool); });
    }
    tokens_ += rows;
    for (int64_t t = 0; t < rows; ++t) weight_ += weights.empty() ? 1.0 : double{weights[static_cast<size_t>(t)]};
    return Ok{};
}

// The scales of codes show that a value is not finite, but not which one.
Status Gram::add_bytes(const float* x, int64_t rows, int64_t stride, std::span<const float> weights, ThreadPool& pool) {
    bool finite = true;
    for (int64_t t = 0; t < rows;) {
        t += codes_.take(*bytes_, x + t * stride, rows - t, stride, weights.empty() ? nullptr : weights.data() + t,
                         pool, finite);
        if (codes_.full()) flush(pool);
    }
    if (finite) return Ok{};
    NIBBLE_CHECK(check_finite(x, rows, stride, size(), pool));
    return fail("a row times the square root of its weight is not finite");
}

void Gram::flush(ThreadPool& pool) {
    const int64_t n = size(), blocks = (n + row_block - 1) / row_block;
    if (bytes_) {
        add_byte_gram(*bytes_, codes_.codes(*bytes_, pool), sums_.data(), pool);
        codes_.clear();
        return;
    }
    pool.parallel_for(blocks, [&](int64_t block) {
        // Computes the upper triangle, and the part of the lower triangle that is in diagonal blocks.
        const int64_t i = block * row_block, rows = std::min(row_block, n - i), cols = n - i;
        std::vector<float> part(static_cast<size_t>(rows * cols));
        kernels_->rank_update(
            {rows, cols, chunk_.rows(), chunk_.weighted_data() + i, n, chunk_.row_data() + i, n, part.data(), cols});
        for (int64_t y = 0; y < rows; ++y)
            for (int64_t x = y; x < cols; ++x)
                sums_[static_cast<size_t>((i + y) * n + i + x)] += double{part[static_cast<size_t>(y * cols + x)]};
    });
    chunk_.clear();
}

void Gram::finish(ThreadPool& pool) {
    if (chunk_.rows() || !codes_.empty()) flush(pool);
    const int64_t n = size();
    chunk_ = RowChunk(n, 0), codes_ = ByteChunk(n, 0);  // frees their memory
    mirror(sums_, n, pool);
}

void Gram::add_upper(const float* upper, double factor, ThreadPool& pool) {
    const int64_t n = size();
    pool.parallel_for(n, [&](int64_t i) {
        const float* row = upper + i * n - i * (i + 1) / 2;  // row[j] is entry (i, j)
        for (int64_t j = i; j < n; ++j) sums_[static_cast<size_t>(i * n + j)] += factor * double{row[j]};
    });
    mirror(sums_, n, pool);
}

Gram Gram::of(std::span<const double> sums, int64_t n, int64_t tokens, double weight) {
    Gram gram(n, solver_kernels().back());
    gram.sums_.assign(sums.begin(), sums.end());
    gram.tokens_ = tokens;
    gram.weight_ = weight;
    return gram;
}

Status LocalGram::add(const float* x, int64_t rows, int64_t stride, std::span<const float> weights, ThreadPool& pool) {
    NIBBLE_CHECK(check_weights(weights));
    NIBBLE_CHECK(check_finite(x, rows, stride, size(), pool));
    feed(chunk_, x, rows, stride, weights, [&] { flush(pool); });
    tokens_ += rows;
    return Ok{};
}

void LocalGram::flush(ThreadPool& pool) {
    const int64_t n = size();
    pool.parallel_for(n / block, [&](int64_t b) {
        float part[block * block] = {};
        kernels_->rank_update({block, block, chunk_.rows(), chunk_.weighted_data() + b * block, n,
                               chunk_.row_data() + b * block, n, part, block});
        for (int64_t i = 0; i < block * block; ++i)
            sums_[static_cast<size_t>(b * block * block + i)] += double{part[i]};
    });
    chunk_.clear();
}

void LocalGram::finish(ThreadPool& pool) {
    if (chunk_.rows()) flush(pool);
    chunk_ = RowChunk(size(), 0);
}

std::vector<float> LocalGram::mean() const {
    std::vector<float> mean(sums_.size());
    for (size_t i = 0; i < mean.size() && tokens_ > 0; ++i)
        mean[i] = static_cast<float>(sums_[i] / static_cast<double>(tokens_));
    return mean;
}

}  // namespace nibble

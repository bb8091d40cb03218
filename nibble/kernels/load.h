// Reads single weights of a BF16 or F32 matrix at any alignment.
#pragma once

#include "formats/minifloat.h"
#include "kernels/lane_sum.h"
#include "tensor/matrix.h"

#include <algorithm>
#include <cstring>

namespace nibble::ref {

inline float load(const MatrixView& m, int64_t row, int64_t col) {
    const std::byte* at = m.data + (row * m.cols + col) * (m.dtype == DType::f32 ? 4 : 2);
    if (m.dtype == DType::f32) {
        float x;
        std::memcpy(&x, at, sizeof x);
        return x;
    }
    uint16_t code;
    std::memcpy(&code, at, sizeof code);
    return bf16_to_float(code);
}

// Returns the value that is encoded: a BF16 weight is rounded to BF16.
inline float load_rounded(const MatrixView& m, DType weights, int64_t row, int64_t col) {
    const float x = load(m, row, col);
    return weights == DType::bf16 ? round_to_bf16(x) : x;
}

// A rectangle of a matrix: a block, a row or a tile.
struct Region {
    int64_t row, rows, col, cols;
};

template <class Visit>
void for_each(const Region& r, Visit visit) {
    for (int64_t i = r.row; i < r.row + r.rows; ++i)
        for (int64_t j = r.col; j < r.col + r.cols; ++j) visit(i, j);
}

inline float region_amax(const MatrixView& m, const Region& r) {
    float amax = 0;
    for_each(r, [&](int64_t i, int64_t j) { amax = std::max(amax, magnitude(load(m, i, j))); });
    return amax;
}

// Sums a row: element j goes to lane j % 16.
class LaneSum {
public:
    void add(int64_t j, double x) { lane_[j % 16] += x; }
    double total() const { return lane_total(lane_); }

private:
    double lane_[16] = {};
};

// Sums value(i, j) over a region, row by row.
template <class Value>
double region_sum(const Region& r, Value value) {
    double sum = 0;
    for (int64_t i = r.row; i < r.row + r.rows; ++i) {
        LaneSum lanes;
        for (int64_t j = 0; j < r.cols; ++j) lanes.add(j, value(i, r.col + j));
        sum += lanes.total();
    }
    return sum;
}

inline double square(float x) { return double{x} * double{x}; }

}  // namespace nibble::ref

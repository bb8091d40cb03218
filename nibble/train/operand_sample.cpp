#include "train/operand_sample.h"

namespace nibble {

CastQuality measure(const OperandSample& s, ThreadPool& pool) {
    std::vector<float> x(s.values.size());
    for (size_t i = 0; i < x.size(); ++i) x[i] = bf16_to_float(s.values[i]);
    return cast_quality(x.data(), s.cols, s.cols,
                        cast_rows(x.data(), s.rows, s.cols, s.cols, s.rule, s.random, s.given, pool, s.largest));
}

}  // namespace nibble

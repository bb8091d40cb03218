#include "train/device/operand_samples.h"

#include <algorithm>

namespace nibble {
namespace {

bool has_tensor_scale(const CastRule& rule) {
    return rule.format == CastFormat::fp8 || rule.format == CastFormat::fp8_e5m2 ||
           (rule.format == CastFormat::nvfp4 && !rule.row_scaled && !rule.stored);
}
std::byte* raw(float* p) { return reinterpret_cast<std::byte*>(p); }

}  // namespace

void OperandSamples::begin(int64_t rows) {
    rows_ = rows;
    std::ranges::fill(units_, UnitSample{});
}

Status OperandSamples::take(size_t unit, Part part, const cuda::CastSource& x, int64_t most, const CastRule& rule,
                            const CastRandom& random, const float* given, const Stream& stream) {
    UnitSample& of_unit = units_[unit];
    std::optional<OperandSample>& to = part == inputs    ? of_unit.inputs
                                       : part == weights ? of_unit.weights
                                                         : of_unit.gradients;
    if (to || x.rows == 0) return Ok{};
    OperandSample s{.rows = std::min({x.rows, most, rows_}), .cols = x.cols, .rule = rule, .random = random};
    s.values.resize(static_cast<size_t>(s.rows * s.cols));
    NIBBLE_CHECK(copy_to_host(reinterpret_cast<std::byte*>(s.values.data()), x.x, 2 * s.rows * s.cols, stream));
    float scale = 0;
    if (given) {
        NIBBLE_CHECK(copy_to_host(raw(&scale), reinterpret_cast<const std::byte*>(given), sizeof scale, stream));
    } else if (has_tensor_scale(rule)) {
        NIBBLE_CHECK(fill_device(raw(largest_), 0, sizeof *largest_, stream));
        NIBBLE_CHECK(cuda::see_largest(x.x, x.rows * x.cols, largest_, stream));
        NIBBLE_CHECK(copy_to_host(raw(&s.largest), raw(largest_), sizeof s.largest, stream));
    }
    NIBBLE_CHECK(stream.synchronize());
    if (given) s.given = scale;
    to = std::move(s);
    return Ok{};
}

}  // namespace nibble

#include "kernels/cast_cuda.h"
#include "kernels/cuda/quantize/cast_launch.h"
#include "tensor/cuda/call.h"

#include <initializer_list>

namespace nibble::cuda {
namespace {

cudaStream_t cast_queue(const Stream& stream) { return static_cast<cudaStream_t>(stream.handle()); }
const uint16_t* halves(const std::byte* p) { return reinterpret_cast<const uint16_t*>(p); }
uint16_t* halves(std::byte* p) { return reinterpret_cast<uint16_t*>(p); }

Result<CastArgs> cast_arguments(const CastSource& from, int64_t padded, int64_t block, const CastValues& to) {
    const int64_t stride = from.stride ? from.stride : from.cols;
    if (from.rows < 1 || from.cols < 8 || from.cols % 8 || stride % 8 || stride < from.cols)
        return fail("cast: [{}, {}] with the stride {}; columns must be a multiple of 8", from.rows, from.cols, stride);
    if (from.rows > most_cast_rows) return fail("cast: {} rows; at most {}", from.rows, most_cast_rows);
    for (const void* p : {static_cast<const void*>(from.x), static_cast<const void*>(to.values)})
        if (!p || reinterpret_cast<uintptr_t>(p) % 16) return fail("cast: device pointers must be 16-byte aligned");
    return CastArgs{.x = halves(from.x),
                    .rows = from.rows,
                    .cols = from.cols,
                    .stride = stride,
                    .source_scale = from.scale,
                    .by_row = from.scale_by_row,
                    .factor = from.factor,
                    .values = halves(to.values),
                    .pitch = from.down ? from.cols : padded,
                    .groups = (from.reduction() + block - 1) / block,
                    .outer = from.outer(),
                    .scale = to.scale,
                    .amax = from.amax ? const_cast<float*>(from.amax) : to.amax,
                    .has_amax = from.amax != nullptr,
                    .seen = to.seen,
                    .product = to.factor};
}

Status check_factor(const CastFactor& f, int64_t rows, bool down) {
    if (!f.other || (f.out && (f.count == 1 || (f.count == rows && !down)))) return Ok{};
    return fail("cast: {} factors of {} rows", f.count, rows);
}

}  // namespace

Status cast_values(const CastSource& from, const CastRule& rule, const CastRandom& random, const float* given,
                   const CastValues& to, const Stream& stream) {
    if (rule.format == CastFormat::fp8_block || rule.format == CastFormat::fp8_block2)
        return fail("cast: blocks of 128 give codes only");
    const bool mx = rule.format == CastFormat::mxfp8;
    if (from.amax && rule.rotate) return fail("cast: amax is not supported for rotated numbers");
    NIBBLE_TRY(CastArgs a, cast_arguments(from, cast_padded(from.reduction(), rule), mx ? mx_group : nv_group, to));
    if (rule.square && (from.down || from.cols % 16)) return fail("cast: tiles of 16 x 16 of {} columns", from.cols);
    if (rule.four_over_six && (rule.rotate || rule.stochastic))
        return fail("cast: four over six supports neither rotation nor stochastic rounding");
    if (rule.row_scaled && (from.down || rule.rotate))
        return fail("cast: scales per row are not supported down the columns or with rotation");
    if (!mx && (!to.scale || (!rule.row_scaled && !to.amax))) return fail("cast: the output for scales is null");
    NIBBLE_CHECK(check_factor(to.factor, from.rows, from.down));
    a.rule = rule, a.random = random, a.given = given;
    return cuda_status(launch_cast(a, from.down, cast_queue(stream)), "cast: kernel launch");
}

bool casts_both(const CastRule& rows, const CastRule& columns) {
    const auto searches = [](const CastRule& r) { return r.square || r.four_over_six || r.row_scaled; };
    return rows.format == columns.format && (rows.format == CastFormat::mxfp8 || rows.format == CastFormat::nvfp4) &&
           !rows.rotate && rows.stochastic == columns.stochastic && !searches(rows) && !searches(columns);
}

Status cast_both(const CastSource& from, const CastRule& rows, const CastRandom& rows_random, const CastRule& columns,
                 const CastRandom& columns_random, const CastBoth& to, const Stream& stream) {
    if (from.down || from.amax || !casts_both(rows, columns))
        return fail("cast: no kernel for both directions by these rules");
    const bool mx = rows.format == CastFormat::mxfp8;
    if (!mx && (!to.scales || !to.amax)) return fail("cast: the output for scales is null");
    CastSource turned = from;
    turned.down = true;
    // Columns that are not rotated have the same magnitudes as rows.
    NIBBLE_CHECK(check_factor(to.factor, from.rows, false));
    const CastValues of_rows{.values = to.rows, .scale = to.scales, .amax = to.amax, .factor = to.factor};
    const CastValues of_columns{.values = to.columns, .scale = to.scales + !mx, .amax = to.amax + columns.rotate};
    const int64_t block = mx ? mx_group : nv_group;
    NIBBLE_TRY(CastArgs a, cast_arguments(from, cast_padded(from.cols, rows), block, of_rows));
    NIBBLE_TRY(CastArgs b, cast_arguments(turned, cast_padded(from.rows, columns), block, of_columns));
    a.rule = rows, a.random = rows_random, b.rule = columns, b.random = columns_random;
    return cuda_status(launch_cast_both(a, b, cast_queue(stream)), "cast: kernel launch");
}

Status cast_blocks(const CastSource& from, const CastRule& rule, const CastValues& to, const Stream& stream) {
    if (rule.format != CastFormat::fp8_block && rule.format != CastFormat::fp8_block2)
        return fail("cast: codes of blocks need the format fp8_block");
    if (from.scale || !to.scale) return fail("cast: blocks of 128 need an output for scales and no given scale");
    const int64_t padded = cast_padded(from.reduction(), rule);
    NIBBLE_TRY(CastArgs a, cast_arguments(from, padded, fp8_group, to));
    a.pitch = padded, a.rule = rule;
    return cuda_status(launch_block_codes(a, from.down, cast_queue(stream)), "cast: kernel launch");
}

Status cast_codes(const CastSource& from, const CastRule& rule, const float* given, const CastCodes& to,
                  const Stream& stream) {
    const bool tensor = rule.format == CastFormat::fp8 || rule.format == CastFormat::fp8_e5m2;
    if (!tensor && rule.format != CastFormat::fp8_block && rule.format != CastFormat::fp8_block2)
        return fail("cast: codes of eight bits need the format fp8 or fp8_block");
    if (from.rows < 1 || from.cols < 8 || from.cols % 8 || (from.stride && from.stride != from.cols) || from.down ||
        from.scale)
        return fail("cast: codes of [{}, {}] with the stride {}; rows must be adjacent, columns a multiple of 8",
                    from.rows, from.cols, from.stride);
    for (const void* p :
         {static_cast<const void*>(from.x), static_cast<const void*>(to.rows), static_cast<const void*>(to.columns)})
        if (reinterpret_cast<uintptr_t>(p) % 16) return fail("cast: device pointers must be 16-byte aligned");
    if (!from.x || (!to.rows && !to.columns)) return fail("cast: the source or both outputs are null");
    if (tensor ? !to.scale || (!given && !to.amax)
               : (to.rows && !to.row_scales.at) || (to.columns && !to.column_scales.at))
        return fail("cast: the output for scales is null");
    NIBBLE_CHECK(check_factor(to.factor, from.rows, false));
    const auto in_groups = [](int64_t n) { return (n + fp8_group - 1) / fp8_group * fp8_group; };
    const CodesArgs a{.x = halves(from.x),
                      .rows = from.rows,
                      .cols = from.cols,
                      .rule = rule,
                      .given = given,
                      .to_rows = reinterpret_cast<uint8_t*>(to.rows),
                      .tiles = to.tiles,
                      .row_pitch = in_groups(from.cols),
                      .to_columns = reinterpret_cast<uint8_t*>(to.columns),
                      .column_pitch = in_groups(from.rows),
                      .row_scales = to.rows ? to.row_scales : CodeScales{},
                      .column_scales = to.columns ? to.column_scales : CodeScales{},
                      .scale = to.scale,
                      .amax = from.amax ? const_cast<float*>(from.amax) : to.amax,
                      .has_amax = from.amax != nullptr,
                      .seen = to.seen,
                      .product = to.factor};
    return cuda_status(launch_codes_of(a, cast_queue(stream)), "cast: kernel launch");
}

Status eden_values(const CastSource& from, const CastRandom& random, const CastRandom& signs, uint64_t first_sign,
                   const CastValues& to, const Stream& stream) {
    const int64_t padded = (from.reduction() + eden_group - 1) / eden_group * eden_group;
    NIBBLE_TRY(CastArgs a, cast_arguments(from, padded, eden_group, to));
    if (a.groups > 65535 || !to.scale || !to.amax) return fail("cast: {} groups of 128", a.groups);
    a.random = random, a.signs = signs, a.first_sign = first_sign;
    return cuda_status(launch_eden(a, from.down, cast_queue(stream)), "cast: kernel launch");
}

Status product_scales(const float* a, const float* b, float constant, float* out, int64_t count, const Stream& stream) {
    return cuda_status(launch_product_scales(a, b, constant, out, count, cast_queue(stream)),
                       "product_scales: kernel launch");
}

Status see_largest(const std::byte* x, int64_t count, float* seen, const Stream& stream) {
    if (count < 8 || count % 8 || reinterpret_cast<uintptr_t>(x) % 16)
        return fail("see_largest: {} numbers are not a multiple of 8", count);
    return cuda_status(launch_see_largest(halves(x), count, seen, cast_queue(stream)), "see_largest: kernel launch");
}

Status clear_clipped(const std::byte* x, int64_t count, const float* input_scale, std::byte* dx, const Stream& stream) {
    if (count < 8 || count % 8 || reinterpret_cast<uintptr_t>(x) % 16 || reinterpret_cast<uintptr_t>(dx) % 16)
        return fail("clear_clipped: {} numbers are not a multiple of 8", count);
    return cuda_status(
        launch_clear_clipped(halves(x), count, input_scale, reinterpret_cast<uint16_t*>(dx), cast_queue(stream)),
        "clear_clipped: kernel launch");
}

Status renew_scales(const DelayedScales& d, const float* clip, const Stream& stream) {
    if (d.count < 1 || d.history < 1) return fail("scales of {} tensors, {} steps", d.count, d.history);
    return cuda_status(launch_renew_scales(d, clip, cast_queue(stream)), "renew_scales: kernel launch");
}

Status split_rows(const SplitRows& s, const Stream& stream) {
    if (s.n < 1 || s.cols < 1 || s.rank < 1 || s.rank > most_directions || s.pitch < s.rank || s.pitch % 8)
        return fail("split: [{}, {}] along {} directions, with the stride {}", s.n, s.cols, s.rank, s.pitch);
    return cuda_status(launch_split_rows(s, cast_queue(stream)), "split: kernel launch");
}

Status add_term(const float* turned, int64_t rows, const SplitRows& of, float* dw, const Stream& stream) {
    return cuda_status(launch_add_term(turned, rows, of.pitch, of.p, of.cols, of.rank, dw, cast_queue(stream)),
                       "add_term: kernel launch");
}

Status add_rows(float* y, int64_t stride, const float* more, int64_t n, int64_t cols, const Stream& stream) {
    return cuda_status(launch_add_rows(y, stride, more, n, cols, cast_queue(stream)), "add_rows: kernel launch");
}

Status add_step(float* to, const float* from, int64_t count, const float* clip, const Stream& stream) {
    return cuda_status(launch_add_step(to, from, count, clip, cast_queue(stream)), "add_step: kernel launch");
}

}  // namespace nibble::cuda

#include "kernels/cpu/quantize_cpu.h"

#include "formats/fp8.h"
#include "formats/int4.h"
#include "formats/mx.h"
#include "formats/nvfp4.h"
#include "kernels/cpu/panel.h"
#include "kernels/lane_sum.h"
#include "kernels/ref/quantize_ref.h"

#include <algorithm>
#include <limits>

namespace nibble::cpu {
namespace {

constexpr int tile = fp8_tile;

float amax_of(const WeightRows& rows, const void* w, int64_t n) {
    return float_from_bits(rows.max_magnitude_bits(w, n));
}

Quotient quotient_of(DType weights) {
    return weights == DType::bf16 ? Quotient::bf16 : weights == DType::f16 ? Quotient::f16 : Quotient::f32;
}

ConstDivisor const_divisor(float c, Arithmetic arithmetic) {
    const bool multiply = arithmetic == Arithmetic::reciprocal;
    return {multiply ? 1.0f / c : c, multiply};
}

FakeFp8 fake_fp8(float amax) {
    const Fp8FakeScale k = fp8_fake_scale(amax);
    return {k.up, k.down};
}

// ---- FP8 rows and tiles --------------------------------------------------------------------------------------------

struct Region {
    int64_t row, rows, col, cols;
};

double region_loss(const WeightRows& rows, const MatrixView& w, const Region& r, FakeFp8 fake) {
    double loss = 0;
    for (int64_t i = r.row; i < r.row + r.rows; ++i) {
        RowSum sum{};
        rows.fp8_loss(weights_at(w, i, r.col), r.cols, fake, sum);
        loss += lane_total(sum.lane);
    }
    return loss;
}

void fp8_region(const WeightRows& rows, const MatrixView& w, const Region& r, float floor, Arithmetic arithmetic,
                std::span<const float> multipliers, const QuantSpan& out, float& scale, QuantStats& stats) {
    float amax = floor;
    for (int64_t i = r.row; i < r.row + r.rows; ++i)
        amax = std::max(amax, amax_of(rows, weights_at(w, i, r.col), r.cols));
    if (!multipliers.empty()) {
        float best = 1.0f;
        double least = 0;
        for (size_t c = 0; c < multipliers.size(); ++c) {
            const double loss = region_loss(rows, w, r, fake_fp8(amax * multipliers[c]));
            if (c == 0 || loss < least) best = multipliers[c], least = loss;
        }
        if (best > 1.0f) ++stats.raised_blocks;
        amax *= best;
    }
    scale = fp8_scale(amax, arithmetic);
    for (int64_t i = r.row; i < r.row + r.rows; ++i)
        rows.fp8(weights_at(w, i, r.col), r.cols, scale, Quotient::f32, out.codes + i * w.cols + r.col);
}

// ---- NVFP4 -------------------------------------------------------------------------------------------------------

// The sweep's candidates, and whether they have the property that lets best_sweep() skip most of them.
struct SweepTable {
    float scales[128], amaxes[128];
    bool doubles = true;

    SweepTable(float g, FakeScale fake, Arithmetic arithmetic) {
        scales[0] = amaxes[0] = 0;
        for (int v = 1; v <= e4m3_max_code; ++v) {
            scales[v] = nvfp4_sweep_scale(static_cast<uint8_t>(v), g, fake, arithmetic);
            amaxes[v] = nvfp4_sweep_amax(static_cast<uint8_t>(v), g, arithmetic);
            doubles &= scales[v] > scales[v - 1];
            if (v >= 16) doubles &= scales[v] == 2 * scales[v - 8];
            if (v < 16 && v % 2 == 0) doubles &= scales[v] == 2 * scales[v / 2];
        }
        scales[127] = std::numeric_limits<float>::infinity();
        amaxes[127] = 0;
    }
};

// Returns true if no intermediate of a search with this maximum overflows or becomes subnormal.
bool ordinary(float g) { return g >= 0x1p-30f && g <= 0x1p40f; }

void nvfp4(const RowKernels& k, const MatrixView& w, const WeightSpec& spec, const TensorAmax& amax,
           const QuantSpan& out, QuantStats& stats) {
    const WeightRows& rows = rows_for(k, w, spec.weights);
    const int64_t blocks = block_scale_bytes(spec.format, w.rows, w.cols);
    Nvfp4Plan plan{};
    plan.tensor_scale = out.tensor_scale;
    plan.dynamic_divisor = e2m1_max * out.tensor_scale;
    if (spec.format == Format::nvfp4_bs32) return rows.nvfp4_bs32(w.data, blocks, plan, out.codes, out.block_scales);

    plan.six = const_divisor(e2m1_max, spec.arithmetic);
    plan.normalization = spec.normalization;
    plan.group_scale = div_const(amax.store, e2m1_max, spec.arithmetic);
    using enum Nvfp4Plan::Mode;
    plan.mode = spec.static_scales ? maximum : dynamic;
    const auto run = [&] { stats.raised_blocks += rows.nvfp4(w.data, blocks, plan, out.codes, out.block_scales); };
    if (!spec.static_scales || spec.search.kind == Search::Kind::max) return run();

    const FakeScale fake = nvfp4_fake_scale(amax.search, spec.normalization, spec.arithmetic);
    plan.fake_up = fake.up;
    plan.fake_down = fake.down;
    if (!ordinary(amax.search)) return ref::quantize(w, spec, amax, out, stats);
    if (spec.search.kind == Search::Kind::sweep) {
        const SweepTable table(amax.search, fake, spec.arithmetic);
        if (!table.doubles) return ref::quantize(w, spec, amax, out, stats);
        plan.mode = sweep;
        plan.sweep_scales = table.scales;
        plan.sweep_amaxes = table.amaxes;
        return run();
    }
    const std::vector<float> multipliers = search_multipliers(spec.search);
    plan.mode = multiples;
    plan.multipliers = multipliers.data();
    plan.multiplier_count = static_cast<int>(multipliers.size());
    run();
}

}  // namespace

Scan scan(const RowKernels& k, const MatrixView& panel) {
    const WeightRows& rows = rows_for(k, panel);
    constexpr int64_t piece = 8192;
    Scan result;
    const int64_t n = panel.rows * panel.cols;
    for (int64_t i = 0; i < n; i += piece) {
        const MatrixView part{panel.dtype, 1, std::min(piece, n - i), weights_at(panel, 0, i)};
        const uint32_t bits = rows.max_magnitude_bits(part.data, part.cols);
        if (bits < 0x7F800000u) {
            result.amax = std::max(result.amax, float_from_bits(bits));
            continue;
        }
        const Scan slow = ref::scan(part);
        result.amax = std::max(result.amax, slow.amax);
        if (result.first_nonfinite < 0) result.first_nonfinite = i + slow.first_nonfinite;
    }
    return result;
}

void quantize(const RowKernels& k, const MatrixView& panel, const WeightSpec& spec, const TensorAmax& amax,
              const QuantSpan& out, QuantStats& stats) {
    const WeightRows& rows = rows_for(k, panel, spec.weights);
    const int64_t n = panel.rows * panel.cols;
    const bool searched = spec.search.kind == Search::Kind::multipliers;
    switch (spec.format) {
        case Format::none:
            return;
        case Format::fp8:
            return rows.fp8(panel.data, n, fp8_tensor_divisor(out.tensor_scale, spec.arithmetic, spec.weights),
                            quotient_of(spec.weights), out.codes);
        case Format::fp8_row:
        case Format::fp8_block128: {
            const std::vector<float> multipliers = searched ? search_multipliers(spec.search) : std::vector<float>{};
            const int64_t height = spec.format == Format::fp8_row ? 1 : tile;
            const int64_t width = spec.format == Format::fp8_row ? std::max<int64_t>(panel.cols, 1) : tile;
            const float floor = spec.format == Format::fp8_row ? 0.0f : amax.store;
            float* scale = out.float_scales;
            for (int64_t i = 0; i < panel.rows; i += height)
                for (int64_t j = 0; j < panel.cols; j += width)
                    fp8_region(rows, panel, {i, std::min(height, panel.rows - i), j, std::min(width, panel.cols - j)},
                               floor, spec.arithmetic, multipliers, out, *scale++, stats);
            return;
        }
        case Format::mxfp8:
            return rows.mxfp8(panel.data, n / mx_block, out.codes, out.block_scales);
        case Format::mxfp4:
            return rows.mxfp4(panel.data, n / mx_block, out.codes, out.block_scales);
        case Format::nvfp4:
        case Format::nvfp4_bs32:
            return nvfp4(k, panel, spec, amax, out, stats);
        case Format::int4:
            for (int64_t g = 0; g < n / int4_group; ++g) {
                const std::byte* w = weights_at(panel, 0, g * int4_group);
                out.float_scales[g] = int4_scale(amax_of(rows, w, int4_group));
                rows.int4(w, int4_group, out.float_scales[g], quotient_of(spec.weights),
                          out.codes + g * int4_group / 2);
            }
            return;
    }
}

void tensor_losses(const RowKernels& k, const MatrixView& panel, const WeightSpec& spec, const TensorAmax& amax,
                   std::span<const float> multipliers, std::span<double> losses) {
    const WeightRows& rows = rows_for(k, panel);
    // Iterates over rows outside, so that each row is read from memory once; each sum still adds its rows in order.
    for (int64_t i = 0; i < panel.rows; ++i) {
        for (size_t c = 0; c < multipliers.size(); ++c) {
            const float g = amax.search * multipliers[c];
            RowSum sum{};
            if (spec.format == Format::fp8) {
                rows.fp8_loss(weights_at(panel, i, 0), panel.cols, fake_fp8(g), sum);
            } else {
                const float gs = nvfp4_fake_group_scale(g, spec.arithmetic);
                rows.nvfp4_dynamic_loss(weights_at(panel, i, 0), panel.cols / nvfp4_block, {e2m1_max * gs, gs}, sum);
            }
            losses[c] += lane_total(sum.lane);
        }
    }
}

}  // namespace nibble::cpu

#include "kernels/ref/quantize_ref.h"

#include "formats/fp8.h"
#include "formats/int4.h"
#include "formats/mx.h"
#include "formats/nvfp4.h"
#include "kernels/load.h"

namespace nibble::ref {
namespace {

void store_nibble(uint8_t* codes, int64_t index, uint8_t code) {
    uint8_t& byte = codes[index / 2];
    byte = index % 2 ? static_cast<uint8_t>((byte & 0x0Fu) | code << 4) : static_cast<uint8_t>((byte & 0xF0u) | code);
}

struct Job {
    const MatrixView& w;
    const WeightSpec& spec;
    const TensorAmax& amax;
    const QuantSpan& out;
    QuantStats& stats;
    std::vector<float> multipliers;
};

// Returns the first multiplier of least loss.
template <class Loss>
float best_multiplier(const Job& job, Loss loss) {
    float best = 1.0f;
    double least = 0;
    bool first = true;
    for (float m : job.multipliers) {
        const double l = loss(m);
        if (first || l < least) best = m, least = l;
        first = false;
    }
    if (best > 1.0f) ++job.stats.raised_blocks;
    return best;
}

// ---- FP8 ---------------------------------------------------------------------------------------------------------

double fp8_loss(const MatrixView& w, const Region& region, float amax) {
    return region_sum(region, [&](int64_t i, int64_t j) {
        const float x = load(w, i, j);
        return square(x - fp8_fake_value(x, amax));
    });
}

// Quantizes one row or tile with its own scale.
void fp8_region(const Job& job, const Region& region, float floor, float& scale) {
    float amax = std::max(floor, region_amax(job.w, region));
    if (job.spec.search.kind == Search::Kind::multipliers)
        amax *= best_multiplier(job, [&](float m) { return fp8_loss(job.w, region, amax * m); });
    scale = fp8_scale(amax, job.spec.arithmetic);
    for_each(region, [&](int64_t i, int64_t j) {
        job.out.codes[i * job.w.cols + j] = fp8_code(load_rounded(job.w, job.spec.weights, i, j), scale);
    });
}

void fp8_rows(const Job& job) {
    for (int64_t i = 0; i < job.w.rows; ++i) fp8_region(job, {i, 1, 0, job.w.cols}, 0.0f, job.out.float_scales[i]);
}

void fp8_tiles(const Job& job) {
    float* scale = job.out.float_scales;
    for (int64_t i = 0; i < job.w.rows; i += fp8_tile)
        for (int64_t j = 0; j < job.w.cols; j += fp8_tile)
            fp8_region(job,
                       {i, std::min<int64_t>(fp8_tile, job.w.rows - i), j, std::min<int64_t>(fp8_tile, job.w.cols - j)},
                       job.amax.store, *scale++);
}

void fp8_tensor(const Job& job) {
    const float divisor = fp8_tensor_divisor(job.out.tensor_scale, job.spec.arithmetic, job.spec.weights);
    for_each({0, job.w.rows, 0, job.w.cols}, [&](int64_t i, int64_t j) {
        job.out.codes[i * job.w.cols + j] =
            fp8_tensor_code(load_rounded(job.w, job.spec.weights, i, j), divisor, job.spec.weights);
    });
}

// ---- MX ----------------------------------------------------------------------------------------------------------

void mx_block_at(const Job& job, const Region& block, uint8_t& scale) {
    const bool fp4 = job.spec.format == Format::mxfp4;
    const float amax = region_amax(job.w, block);
    scale = fp4 ? mxfp4_scale(amax) : mxfp8_scale(amax);
    const float inverse = mx_inverse_scale(scale);
    for_each(block, [&](int64_t i, int64_t j) {
        const float x = load_rounded(job.w, job.spec.weights, i, j);
        const int64_t index = i * job.w.cols + j;
        if (fp4)
            store_nibble(job.out.codes, index, mxfp4_code(x, inverse));
        else
            job.out.codes[index] = mxfp8_code(x, inverse);
    });
}

// ---- INT4 --------------------------------------------------------------------------------------------------------

void int4_groups(const Job& job) {
    for (int64_t i = 0; i < job.w.rows; ++i)
        for (int64_t j = 0; j < job.w.cols; j += int4_group) {
            const Region group{i, 1, j, int4_group};
            float& scale = job.out.float_scales[(i * job.w.cols + j) / int4_group];
            scale = int4_scale(region_amax(job.w, group));
            for_each(group, [&](int64_t r, int64_t c) {
                store_nibble(job.out.codes, r * job.w.cols + c,
                             int4_code(load_rounded(job.w, job.spec.weights, r, c), scale, job.spec.weights));
            });
        }
}

// ---- NVFP4 -------------------------------------------------------------------------------------------------------

float nvfp4_loss(const Job& job, const Region& block, float scale) {
    float w[nvfp4_block];
    for (int k = 0; k < nvfp4_block; ++k) w[k] = load(job.w, block.row, block.col + k);
    return nvfp4_fake_loss(w, scale);
}

// Returns the maximum stored for a static block: its own, a multiple of it, or one of the 126 candidates.
float nvfp4_searched_amax(const Job& job, const Region& block) {
    const WeightSpec& spec = job.spec;
    const FakeScale fake = nvfp4_fake_scale(job.amax.search, spec.normalization, spec.arithmetic);
    if (spec.search.kind == Search::Kind::sweep) {
        uint8_t best = 1;
        float least = 0;
        for (uint8_t v = 1; v <= e4m3_max_code; ++v) {
            const float loss = nvfp4_loss(job, block, nvfp4_sweep_scale(v, job.amax.search, fake, spec.arithmetic));
            if (v == 1 || loss < least) best = v, least = loss;
        }
        return nvfp4_sweep_amax(best, job.amax.search, spec.arithmetic);
    }
    const float amax = region_amax(job.w, block);
    if (spec.search.kind == Search::Kind::max) return amax;
    return amax * best_multiplier(job, [&](float m) {
               return nvfp4_loss(job, block, nvfp4_fake_block_scale(amax * m, fake, spec.arithmetic));
           });
}

void nvfp4_block_at(const Job& job, const Region& block, uint8_t& scale) {
    const WeightSpec& spec = job.spec;
    scale = spec.static_scales ? nvfp4_static_scale(nvfp4_searched_amax(job, block), job.amax.store, spec.normalization,
                                                    spec.arithmetic)
                               : nvfp4_dynamic_scale(region_amax(job.w, block), job.out.tensor_scale);
    const float decode_scale = nvfp4_decode_scale(scale, job.out.tensor_scale);
    for_each(block, [&](int64_t i, int64_t j) {
        store_nibble(job.out.codes, i * job.w.cols + j,
                     nvfp4_code(load_rounded(job.w, job.spec.weights, i, j), decode_scale));
    });
}

template <class Block>
void blocks(const Job& job, Block block) {
    const int size = format_layout(job.spec.format).block;
    uint8_t* scale = job.out.block_scales;
    for (int64_t i = 0; i < job.w.rows; ++i)
        for (int64_t j = 0; j < job.w.cols; j += size) block(job, Region{i, 1, j, size}, *scale++);
}

}  // namespace

Scan scan(const MatrixView& panel) {
    Scan result;
    for_each({0, panel.rows, 0, panel.cols}, [&](int64_t i, int64_t j) {
        const float x = load(panel, i, j);
        if (is_finite(x))
            result.amax = std::max(result.amax, magnitude(x));
        else if (result.first_nonfinite < 0)
            result.first_nonfinite = i * panel.cols + j;
    });
    return result;
}

void quantize(const MatrixView& panel, const WeightSpec& spec, const TensorAmax& amax, const QuantSpan& out,
              QuantStats& stats) {
    const Job job{panel, spec, amax, out, stats, search_multipliers(spec.search)};
    switch (spec.format) {
        case Format::none:
            return;
        case Format::fp8:
            return fp8_tensor(job);
        case Format::fp8_row:
            return fp8_rows(job);
        case Format::fp8_block128:
            return fp8_tiles(job);
        case Format::mxfp8:
        case Format::mxfp4:
            return blocks(job, mx_block_at);
        case Format::nvfp4:
        case Format::nvfp4_bs32:
            return blocks(job, nvfp4_block_at);
        case Format::int4:
            return int4_groups(job);
    }
}

void tensor_losses(const MatrixView& panel, const WeightSpec& spec, const TensorAmax& amax,
                   std::span<const float> multipliers, std::span<double> losses) {
    for (size_t c = 0; c < multipliers.size(); ++c) {
        const float g = amax.search * multipliers[c];
        for (int64_t i = 0; i < panel.rows; ++i) {
            if (spec.format == Format::fp8) {
                losses[c] += fp8_loss(panel, {i, 1, 0, panel.cols}, g);
                continue;
            }
            float scale = 0;
            losses[c] += region_sum({i, 1, 0, panel.cols}, [&](int64_t, int64_t j) {
                if (j % nvfp4_block == 0)
                    scale = nvfp4_fake_dynamic_scale(region_amax(panel, {i, 1, j, nvfp4_block}), g, spec.arithmetic);
                const float x = load(panel, i, j);
                return square(x - nvfp4_fake_value(x, scale));
            });
        }
    }
}

}  // namespace nibble::ref

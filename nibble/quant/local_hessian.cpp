#include "quant/local_hessian.h"

#include "formats/nvfp4.h"
#include "kernels/load.h"

#include <algorithm>
#include <atomic>
#include <limits>

namespace nibble {
namespace {

constexpr int64_t hessian_block = nvfp4_block;

// Candidate block maxima and their fake scales, padded to whole groups of 16 with the first candidate.
struct Candidates {
    std::vector<float> amax, scale;

    size_t groups() const { return scale.size() / 16; }
    void pad() {
        while (scale.size() % 16) scale.push_back(scale.front());
    }
};

Candidates sweep_candidates(const WeightSpec& spec, float g) {
    const FakeScale fake = nvfp4_fake_scale(g, spec.normalization, spec.arithmetic);
    Candidates c;
    for (int v = 1; v <= e4m3_max_code; ++v) {
        c.amax.push_back(nvfp4_sweep_amax(static_cast<uint8_t>(v), g, spec.arithmetic));
        c.scale.push_back(nvfp4_sweep_scale(static_cast<uint8_t>(v), g, fake, spec.arithmetic));
    }
    c.pad();
    return c;
}

// The candidate with the least loss d^T h d; the first of equals.
struct Choice {
    size_t candidate = 0;
    bool blind = true;  // all candidates have loss 0, and so would weights of zero
};

Choice least_loss(const float* x, const float* h, const Candidates& c, const SolverKernels& kernels) {
    Choice choice;
    float least = std::numeric_limits<float>::infinity(), loss[16];
    for (size_t group = 0; group < c.groups(); ++group) {
        kernels.block_losses(x, h, c.scale.data() + group * 16, loss);
        for (size_t i = 0; i < 16 && group * 16 + i < c.amax.size(); ++i) {
            if (loss[i] != 0.0f) choice.blind = false;
            if (loss[i] < least) least = loss[i], choice.candidate = group * 16 + i;
        }
    }
    if (choice.blind) {
        constexpr float zeros[16] = {};
        kernels.block_losses(x, h, zeros, loss);
        choice.blind = loss[0] == 0.0f;
    }
    return choice;
}

}  // namespace

Result<SolveGaps> quantize_local_hessian(const MatrixView& weight, std::span<const float> hessian,
                                         const WeightSpec& spec, const TensorAmax& amax, const SolverKernels& kernels,
                                         ThreadPool& pool, const QuantSpan& out, QuantStats& stats) {
    const int64_t per_row = weight.cols / hessian_block;
    if (spec.format != Format::nvfp4 || !spec.static_scales || spec.search.kind == Search::Kind::max)
        return fail("local_hessian chooses static nvfp4 scales by sweep or multipliers, not {}", to_string(spec));
    if (weight.cols % hessian_block) return fail("{} columns are not whole blocks of 16", weight.cols);
    if (!hessian.empty() && static_cast<int64_t>(hessian.size()) != per_row * hessian_block * hessian_block)
        return fail("{} Hessian entries for {} columns", hessian.size(), weight.cols);

    float identity[hessian_block * hessian_block] = {};
    for (int64_t i = 0; i < hessian_block; ++i) identity[i * hessian_block + i] = 1.0f;
    const bool sweep = spec.search.kind == Search::Kind::sweep;
    const Candidates swept = sweep ? sweep_candidates(spec, amax.search) : Candidates{};
    const std::vector<float> multipliers = search_multipliers(spec.search);
    const FakeScale fake = nvfp4_fake_scale(amax.search, spec.normalization, spec.arithmetic);
    std::atomic<int64_t> raised{0}, blind{0};
    pool.parallel_for(weight.rows, [&](int64_t r) {
        Candidates own;
        for (int64_t b = 0; b < per_row; ++b) {
            float x[hessian_block], largest = 0;
            for (int64_t k = 0; k < hessian_block; ++k) {
                x[k] = ref::load(weight, r, b * hessian_block + k);
                largest = std::max(largest, magnitude(x[k]));
            }
            if (!sweep) {
                own = {};
                for (float m : multipliers) {
                    own.amax.push_back(largest * m);
                    own.scale.push_back(nvfp4_fake_block_scale(largest * m, fake, spec.arithmetic));
                }
                own.pad();
            }
            const Candidates& c = sweep ? swept : own;
            const float* h = hessian.empty() ? identity : hessian.data() + b * hessian_block * hessian_block;
            Choice choice = least_loss(x, h, c, kernels);
            const bool by_blind_choice = choice.blind && largest > 0.0f;
            blind += by_blind_choice;
            const bool again = by_blind_choice && spec.search.maximum_when_blind;
            if (again && h != identity) choice = least_loss(x, identity, c, kernels);
            const bool by_maximum = again && choice.blind;
            if (!by_maximum && !sweep && multipliers[choice.candidate] > 1.0f) ++raised;
            const uint8_t scale = nvfp4_static_scale(by_maximum ? largest : c.amax[choice.candidate], amax.store,
                                                     spec.normalization, spec.arithmetic);
            const float decode_scale = nvfp4_decode_scale(scale, out.tensor_scale);
            out.block_scales[r * per_row + b] = scale;
            uint8_t* codes = out.codes + (r * per_row + b) * (hessian_block / 2);
            for (int64_t k = 0; k < hessian_block; k += 2) {
                const auto code = [&](int64_t i) {
                    return nvfp4_code(ref::load_rounded(weight, spec.weights, r, b * hessian_block + i), decode_scale);
                };
                codes[k / 2] = static_cast<uint8_t>(code(k) | code(k + 1) << 4);
            }
        }
    });
    stats.raised_blocks += raised;
    return SolveGaps{.blind_blocks = blind};
}

}  // namespace nibble

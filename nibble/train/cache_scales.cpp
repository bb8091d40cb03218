#include "train/cache_scales.h"

#include "train/rank_message.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace nibble {
namespace {

constexpr float e4m3_largest = 448;

float cache_scale(std::vector<float>& maxima, const CacheCalibration& how, float before) {
    if (maxima.empty()) return before;
    std::ranges::sort(maxima);
    const auto place = std::llround(how.percentile / 100 * static_cast<double>(maxima.size() - 1));
    const float scale = maxima[static_cast<size_t>(place)] * static_cast<float>(how.margin) / e4m3_largest;
    return scale > 0 && std::isfinite(scale) ? scale : before;
}

// The largest magnitude, and how many are above `most`.
float largest(const float* x, int64_t n, float most, int64_t& above) {
    float m = 0;
    for (int64_t i = 0; i < n; ++i) {
        const float a = std::abs(x[i]);
        m = std::max(m, a);
        above += a > most;
    }
    return m;
}

}  // namespace

Status check(const TrainCache& c) {
    if (c.format != KvFormat::none && c.format != KvFormat::fp8 && c.format != KvFormat::fp8_page)
        return fail("KV cache {}: training knows bf16, fp8 and fp8_page", kv_name(c.format));
    if (!(c.calibration.percentile >= 0 && c.calibration.percentile <= 100))
        return fail("KV cache: percentile {} is not from 0 to 100", c.calibration.percentile);
    if (!(c.calibration.margin > 0 && c.calibration.margin <= 1000))
        return fail("KV cache: margin {} is not above 0", c.calibration.margin);
    return Ok{};
}

CacheScales::CacheScales(std::span<const Block> blocks, const CacheCalibration& how) : how_(how) {
    for (const Block& block : blocks) {
        const MixerConfig& mixer = block.config().mixer;
        if (std::holds_alternative<AttentionConfig>(mixer) || std::holds_alternative<LatentAttentionConfig>(mixer))
            blocks_.push_back({.prefix = block.config().prefix});
    }
    seen_.resize(blocks_.size());
}

Status CacheScales::kv(const std::string& prefix, const float* k, const float* v, int64_t rows, int64_t k_cols,
                       int64_t v_cols) {
    const auto found = std::ranges::find(blocks_, prefix, &BlockScales::prefix);
    if (found == blocks_.end()) return fail("{}: no block of this name has a KV cache", prefix);
    Seen& seen = seen_[static_cast<size_t>(found - blocks_.begin())];
    int64_t above = 0;
    const float k_most = ready_ ? e4m3_largest * found->k : INFINITY,
                v_most = ready_ ? e4m3_largest * found->v : INFINITY;
    const float k_max = largest(k, rows * k_cols, k_most, above), v_max = largest(v, rows * v_cols, v_most, above);
    if (seen.row != row_) seen.k.push_back(0), seen.v.push_back(0);
    seen.row = row_;
    seen.k.back() = std::max(seen.k.back(), k_max), seen.v.back() = std::max(seen.v.back(), v_max);
    use_.values += rows * (k_cols + v_cols), use_.clipped += above;
    return Ok{};
}

void CacheScales::add_row(std::span<const float> maxima) {
    for (size_t b = 0; b < blocks_.size(); ++b) {
        seen_[b].k.push_back(maxima[2 * b]);
        seen_[b].v.push_back(maxima[2 * b + 1]);
    }
}

void CacheScales::add_use(const Use& use) { use_.values += use.values, use_.clipped += use.clipped; }

void CacheScales::renew() {
    for (size_t b = 0; b < blocks_.size(); ++b) {
        blocks_[b].k = cache_scale(seen_[b].k, how_, blocks_[b].k);
        blocks_[b].v = cache_scale(seen_[b].v, how_, blocks_[b].v);
        seen_[b] = {};
    }
    last_ = use_, use_ = {};
    ready_ = true, due_ = false;
}

Status CacheScales::gather(RankGroup* group) {
    if (!group || !due_) return Ok{};
    RankBytes own;
    put_number(own, use_.values);
    put_number(own, use_.clipped);
    for (const Seen& seen : seen_) put_numbers(own, seen.k), put_numbers(own, seen.v);
    NIBBLE_TRY(const auto from, group->gather(std::move(own)));
    set_seen(from);
    return Ok{};
}

// Scales see sorted maxima, so the order of ranks does not matter.
void CacheScales::set_seen(std::span<const RankBytes> of_ranks) {
    std::vector<Seen> all(seen_.size());
    Use use;
    for (const RankBytes& bytes : of_ranks) {
        RankReader in(bytes);
        use.values += in.number(), use.clipped += in.number();
        for (Seen& seen : all)
            for (std::vector<float>* maxima : {&seen.k, &seen.v}) {
                const auto part = in.numbers<float>();
                maxima->insert(maxima->end(), part.begin(), part.end());
            }
    }
    seen_ = std::move(all), use_ = use;
}

void CacheScales::after_update(bool updated) {
    if (!due_) return;
    if (!updated) {  // numbers of such a step are not to be trusted
        seen_.assign(seen_.size(), {});
        last_ = use_, use_ = {};
        due_ = false;
        return;
    }
    renew();
}

std::vector<float> CacheScales::state() const {
    std::vector<float> all;
    for (const BlockScales& b : blocks_) {
        all.push_back(ready_ ? b.k : 0);
        all.push_back(ready_ ? b.v : 0);
    }
    return all;
}

Status CacheScales::set_state(std::span<const float> state) {
    if (state.size() != 2 * blocks_.size())
        return fail("{} scales of a KV cache for {} attention blocks", state.size(), blocks_.size());
    const bool none = std::ranges::all_of(state, [](float s) { return s == 0; });
    if (!none && !std::ranges::all_of(state, [](float s) { return s > 0 && std::isfinite(s); }))
        return fail("a scale of the KV cache is not positive and finite");
    if (none && ready_) return fail("a state without scales of the KV cache");  // pages would have another layout
    for (size_t b = 0; !none && b < blocks_.size(); ++b) blocks_[b].k = state[2 * b], blocks_[b].v = state[2 * b + 1];
    ready_ = !none, due_ = false;
    seen_.assign(seen_.size(), {});
    return Ok{};
}

Result<std::shared_ptr<CacheScales>> cache_scales_of(const std::shared_ptr<const Checkpoint>& checkpoint,
                                                     const TrainCache& cache, ThreadPool& pool) {
    NIBBLE_TRY(const ModelConfig config, model_config(*checkpoint));
    NIBBLE_TRY(const ModelParts parts, load_parts(config, *checkpoint, {}, pool, WeightSource::Mode::outline));
    return std::make_shared<CacheScales>(parts.blocks, cache.calibration);
}

CachedCheckpoint::CachedCheckpoint(std::shared_ptr<const Checkpoint> base, std::shared_ptr<const CacheScales> scales)
    : base_(std::move(base)), scales_(std::move(scales)) {
    tensors_.assign(base_->tensors().begin(), base_->tensors().end());
    for (const CacheScales::BlockScales& b : scales_->blocks())
        for (const char* name : {".k_proj.k_scale", ".v_proj.v_scale"}) {
            CheckpointTensor t;
            t.name = b.prefix + name;
            t.dtype = DType::f32;
            t.stored_bytes = 4;
            t.stored_type = "F32";
            tensors_.push_back(std::move(t));
        }
}

Result<MatrixView> CachedCheckpoint::read_plain(size_t index, int64_t begin, int64_t count, Matrix& scratch) const {
    const size_t first = base_->tensors().size();
    if (index < first) return base_->read_plain(index, begin, count, scratch);
    const CacheScales::BlockScales& b = scales_->blocks()[(index - first) / 2];
    const float scale = (index - first) % 2 == 0 ? b.k : b.v;
    scratch = Matrix(DType::f32, 1, 1);
    std::memcpy(scratch.data.data(), &scale, sizeof scale);
    return scratch.view();
}

}  // namespace nibble

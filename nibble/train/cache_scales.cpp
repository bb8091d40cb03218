#include "train/cache_scales.h"

#include "train/rank_message.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string_view>
#include <utility>

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

constexpr std::array<std::string_view, CacheScales::most_sides> scale_names{".k_proj.k_scale", ".v_proj.v_scale",
                                                                            ".q_proj.q_scale"};

}  // namespace

Status check(const TrainCache& c) {
    if (c.format != KvFormat::none && c.format != KvFormat::fp8 && c.format != KvFormat::fp8_page)
        return fail("KV cache {}: training supports bf16, fp8 and fp8_page", kv_name(c.format));
    if (c.queries && c.format != KvFormat::fp8)
        return fail("FP8 queries need an fp8 KV cache; this one is {}", kv_name(c.format));
    if (!(c.calibration.percentile >= 0 && c.calibration.percentile <= 100))
        return fail("KV cache: percentile {} is not from 0 to 100", c.calibration.percentile);
    if (!(c.calibration.margin > 0 && c.calibration.margin <= 1000))
        return fail("KV cache: margin {} is not above 0", c.calibration.margin);
    return Ok{};
}

CacheScales::CacheScales(std::span<const Block> blocks, const TrainCache& cache)
    : sides_(cache.queries ? 3 : 2), how_(cache.calibration) {
    for (const Block& block : blocks) {
        const MixerConfig& mixer = block.config().mixer;
        if (std::holds_alternative<AttentionConfig>(mixer) || std::holds_alternative<LatentAttentionConfig>(mixer))
            blocks_.push_back({.prefix = block.config().prefix});
    }
    seen_.resize(blocks_.size());
}

Result<size_t> CacheScales::block_of(const std::string& prefix) const {
    const auto found = std::ranges::find(blocks_, prefix, &BlockScales::prefix);
    if (found == blocks_.end()) return fail("no block named '{}' has a KV cache", prefix);
    return static_cast<size_t>(found - blocks_.begin());
}

int64_t CacheScales::see(size_t block, size_t side, const float* x, int64_t rows, int64_t cols, int64_t stride) {
    const float most = ready_ ? e4m3_largest * blocks_[block].side(side) : INFINITY;
    float largest = 0;
    int64_t above = 0;
    for (int64_t r = 0; r < rows; ++r)
        for (int64_t i = 0; i < cols; ++i) {
            const float a = std::abs(x[r * stride + i]);
            largest = std::max(largest, a);
            above += a > most;
        }
    Seen& seen = seen_[block];
    std::vector<float>& maxima = seen.maxima[side];
    if (std::exchange(seen.row[side], row_) != row_) maxima.push_back(0);
    maxima.back() = std::max(maxima.back(), largest);
    return above;
}

Status CacheScales::kv(const std::string& prefix, const float* k, const float* v, int64_t rows, int64_t k_cols,
                       int64_t v_cols) {
    NIBBLE_TRY(const size_t block, block_of(prefix));
    use_.values += rows * (k_cols + v_cols);
    use_.clipped += see(block, 0, k, rows, k_cols, k_cols) + see(block, 1, v, rows, v_cols, v_cols);
    return Ok{};
}

Status CacheScales::queries(const std::string& prefix, const float* q, int64_t rows, int64_t cols, int64_t stride) {
    if (sides_ < 3) return Ok{};
    NIBBLE_TRY(const size_t block, block_of(prefix));
    use_.q_values += rows * cols;
    use_.q_clipped += see(block, 2, q, rows, cols, stride);
    return Ok{};
}

void CacheScales::add_row(std::span<const float> maxima) {
    for (size_t i = 0; i < size(); ++i) seen_[i / sides_].maxima[i % sides_].push_back(maxima[i]);
}

void CacheScales::add_use(const Use& use) {
    use_.values += use.values, use_.clipped += use.clipped;
    use_.q_values += use.q_values, use_.q_clipped += use.q_clipped;
}

void CacheScales::renew() {
    for (size_t b = 0; b < blocks_.size(); ++b) {
        for (size_t i = 0; i < sides_; ++i) {
            float& scale = blocks_[b].side(i);
            scale = cache_scale(seen_[b].maxima[i], how_, scale);
        }
        seen_[b] = {};
    }
    last_ = use_, use_ = {};
    ready_ = true, due_ = false;
}

Status CacheScales::gather(RankGroup* group) {
    if (!group || !due_) return Ok{};
    RankBytes own;
    for (const int64_t n : {use_.values, use_.clipped, use_.q_values, use_.q_clipped}) put_number(own, n);
    for (const Seen& seen : seen_)
        for (const std::vector<float>& maxima : seen.maxima) put_numbers(own, maxima);
    NIBBLE_TRY(const auto from, group->gather(std::move(own)));
    set_seen(from);
    return Ok{};
}

// Replaces the statistics by those of all ranks. Scales use sorted maxima, so the order of ranks does not matter.
void CacheScales::set_seen(std::span<const RankBytes> of_ranks) {
    std::vector<Seen> all(seen_.size());
    use_ = {};
    for (const RankBytes& bytes : of_ranks) {
        RankReader in(bytes);
        for (int64_t* n : {&use_.values, &use_.clipped, &use_.q_values, &use_.q_clipped}) *n += in.number();
        for (Seen& seen : all)
            for (std::vector<float>& maxima : seen.maxima) {
                const auto part = in.numbers<float>();
                maxima.insert(maxima.end(), part.begin(), part.end());
            }
    }
    seen_ = std::move(all);
}

void CacheScales::after_update(bool updated) {
    if (!due_) return;
    if (!updated) {  // maxima of a skipped step are unreliable
        seen_.assign(seen_.size(), {});
        last_ = use_, use_ = {};
        due_ = false;
        return;
    }
    renew();
}

std::vector<float> CacheScales::state() const {
    std::vector<float> all;
    for (size_t i = 0; i < size(); ++i) all.push_back(ready_ ? blocks_[i / sides_].side(i % sides_) : 0);
    return all;
}

Status CacheScales::set_state(std::span<const float> state) {
    if (state.size() != size())
        return fail("the state has {} scales of the KV cache for {} attention blocks", state.size(), blocks_.size());
    const bool none = std::ranges::all_of(state, [](float s) { return s == 0; });
    if (!none && !std::ranges::all_of(state, [](float s) { return s > 0 && std::isfinite(s); }))
        return fail("a scale of the KV cache is not positive and finite");
    if (none && ready_) return fail("the state has no scales of the KV cache");  // pages would have another layout
    for (size_t i = 0; !none && i < size(); ++i) blocks_[i / sides_].side(i % sides_) = state[i];
    ready_ = !none, due_ = false;
    seen_.assign(seen_.size(), {});
    return Ok{};
}

Result<std::shared_ptr<CacheScales>> cache_scales_of(const std::shared_ptr<const Checkpoint>& checkpoint,
                                                     const TrainCache& cache, ThreadPool& pool) {
    NIBBLE_TRY(const ModelConfig config, model_config(*checkpoint));
    NIBBLE_TRY(const ModelParts parts, load_parts(config, *checkpoint, {}, pool, WeightSource::Mode::outline));
    return std::make_shared<CacheScales>(parts.blocks, cache);
}

CachedCheckpoint::CachedCheckpoint(std::shared_ptr<const Checkpoint> base, std::shared_ptr<const CacheScales> scales)
    : base_(std::move(base)), scales_(std::move(scales)) {
    tensors_.assign(base_->tensors().begin(), base_->tensors().end());
    for (const CacheScales::BlockScales& b : scales_->blocks())
        for (size_t i = 0; i < scales_->sides(); ++i) {
            CheckpointTensor t;
            t.name = fmt::format("{}{}", b.prefix, scale_names[i]);
            t.dtype = DType::f32;
            t.stored_bytes = 4;
            t.stored_type = "F32";
            tensors_.push_back(std::move(t));
        }
}

Result<MatrixView> CachedCheckpoint::read_plain(size_t index, int64_t begin, int64_t count, Matrix& scratch) const {
    const size_t first = base_->tensors().size();
    if (index < first) return base_->read_plain(index, begin, count, scratch);
    const size_t sides = scales_->sides();
    const float scale = scales_->blocks()[(index - first) / sides].side((index - first) % sides);
    scratch = Matrix(DType::f32, 1, 1);
    std::memcpy(scratch.data.data(), &scale, sizeof scale);
    return scratch.view();
}

}  // namespace nibble

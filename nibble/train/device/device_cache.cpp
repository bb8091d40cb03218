#include "train/device/device_cache.h"

#include "base/checked.h"

#include <algorithm>
#include <cstring>

namespace nibble {
namespace {

constexpr int64_t clipped_bytes = 16;

int64_t scale_pitch(int heads) { return round_up<int64_t>(heads, 4); }  // rows of scales are aligned to 16 bytes
int64_t scale_count(int heads) { return 2 * scale_pitch(heads) + scale_pitch(1); }

std::byte* cache_bytes(const void* p) { return const_cast<std::byte*>(static_cast<const std::byte*>(p)); }

}  // namespace

std::array<cuda::CacheSide, cuda::most_cache_sides> TrainCacheRows::with_scales(const Sides& x, bool scaled) const {
    std::array<cuda::CacheSide, cuda::most_cache_sides> with{};
    for (size_t i = 0; i < static_cast<size_t>(sides); ++i)
        with[i] = {x[i].x, x[i].width, scaled ? scales[i] : nullptr};
    return with;
}

Status TrainCacheRows::see(const Sides& x, const Stream& stream) const {
    cuda::SeeCache s{
        .rows = rows, .row_tokens = row_tokens, .count = sides, .maxima = maxima, .apart = apart, .clipped = clipped};
    std::ranges::copy(with_scales(x, ready), s.sides);
    return cuda::see_cache(s, stream);
}

Result<TrainCacheRows::Sides> TrainCacheRows::read(const Sides& x, DeviceStep& step) const {
    if (!rounds) return x;
    Sides out = x;
    cuda::RoundCache r{.tokens = rows * row_tokens, .count = sides};
    std::ranges::copy(with_scales(x, true), r.sides);
    for (size_t i = 0; i < static_cast<size_t>(sides); ++i) {
        NIBBLE_TRY(r.out[i], step.scratch.allocate(2 * r.tokens * x[i].width));
        out[i].x = r.out[i];
    }
    NIBBLE_CHECK(cuda::round_cache(r, step.stream));
    return out;
}

Status TrainCacheRows::clear(const Sides& x, const std::array<std::byte*, cuda::most_cache_sides>& d, int64_t stride,
                             const Stream& stream) const {
    if (!rounds) return Ok{};
    cuda::ClearClipped c{.tokens = rows * row_tokens, .count = sides, .stride = stride};
    std::ranges::copy(with_scales(x, true), c.sides);
    std::ranges::copy(d, c.d);
    return cuda::clear_clipped(c, stream);
}

std::vector<DeviceCache::Block> DeviceCache::blocks_of(std::span<const DeviceLayer> layers) {
    std::vector<Block> blocks;
    for (size_t i = 0; i < layers.size(); ++i)
        if (const DeviceKv* kv = layers[i].mixer->kv())
            blocks.push_back({.layer = i,
                              .heads = kv->shape.kv_heads,
                              .widths = int64_t{kv->shape.kv_heads} * (kv->shape.k_dim + kv->shape.v_dim),
                              .q_width = int64_t{layers[i].mixer->attention()->q_heads} * kv->shape.k_dim});
    return blocks;
}

int64_t DeviceCache::bytes(std::span<const DeviceLayer> layers, int64_t rows) {
    const std::vector<Block> blocks = blocks_of(layers);
    int64_t sum = 3 * DeviceArena::alignment + clipped_bytes +
                  4 * rows * static_cast<int64_t>(CacheScales::most_sides) * std::ssize(blocks);
    for (const Block& b : blocks) sum += round_up<int64_t>(4 * scale_count(b.heads), DeviceArena::alignment);
    return sum;
}

void DeviceCache::set_type(std::span<const DeviceLayer> layers, cuda::KvType type) {
    for (const DeviceLayer& layer : layers)
        if (DeviceKv* kv = layer.mixer->kv()) kv->shape.type = type;
}

Result<std::unique_ptr<DeviceCache>> DeviceCache::create(std::unique_ptr<CacheScales> scales, bool mirrored,
                                                         std::span<const DeviceLayer> layers, int64_t rows,
                                                         const DeviceInfo& device, const Stream& stream) {
    std::unique_ptr<DeviceCache> c(new DeviceCache(std::move(scales), mirrored, stream));
    c->blocks_ = blocks_of(layers);
    c->most_rows_ = rows;
    if (c->blocks_.size() != c->scales_->blocks().size())
        return fail("the KV cache has {} blocks, but there are scales for {}", c->blocks_.size(),
                    c->scales_->blocks().size());
    NIBBLE_TRY(c->memory_, DeviceArena::create(device.index, bytes(layers, rows)));
    NIBBLE_TRY(std::byte * seen, c->memory_->allocate(clipped_bytes + c->seen_bytes(rows)));
    c->clipped_ = reinterpret_cast<uint64_t*>(seen);
    c->maxima_ = reinterpret_cast<float*>(seen + clipped_bytes);
    c->block_of_.assign(layers.size(), -1);
    for (size_t b = 0; b < c->blocks_.size(); ++b) {
        Block& block = c->blocks_[b];
        NIBBLE_TRY(block.scales, c->memory_->allocate_array<float>(scale_count(block.heads)));
        c->block_of_[block.layer] = static_cast<int>(b);
    }
    NIBBLE_TRY(c->landing_, PinnedBuffer::create(clipped_bytes + c->seen_bytes(rows)));
    NIBBLE_CHECK(c->upload());
    return c;
}

void DeviceCache::attach(std::span<const DeviceLayer> layers) {
    set_type(layers, cuda::KvType::e4m3);
    for (const Block& b : blocks_) {
        DeviceKv& kv = *layers[b.layer].mixer->kv();
        const int64_t pitch = scale_pitch(b.heads);
        kv.k_scales = b.scales, kv.v_scales = b.scales + pitch;
        if (scales_->sides() > 2) kv.q_scale = b.scales + 2 * pitch;
    }
}

Status DeviceCache::upload() { return upload(scales_->state()); }

Status DeviceCache::upload(std::span<const float> state) {
    std::vector<float> all;
    const size_t sides = scales_->sides();
    for (size_t b = 0; b < blocks_.size(); ++b) {
        const int64_t pitch = scale_pitch(blocks_[b].heads);
        all.clear();
        for (size_t i = 0; i < sides; ++i)
            all.insert(all.end(), static_cast<size_t>(i < 2 ? pitch : 1), state[sides * b + i]);
        NIBBLE_CHECK(
            copy_to_device(cache_bytes(blocks_[b].scales), cache_bytes(all.data()), 4 * std::ssize(all), stream_));
        NIBBLE_CHECK(stream_.synchronize());
    }
    return Ok{};
}

Status DeviceCache::begin_step() {
    return fill_device(cache_bytes(clipped_), 0, clipped_bytes + seen_bytes(most_rows_), stream_);
}

void DeviceCache::begin_rows(int64_t first_row, int64_t rows, int64_t row_tokens) {
    rows_of_.clear();
    const auto apart = static_cast<int64_t>(scales_->size()), sides = static_cast<int64_t>(scales_->sides());
    for (const Block& b : blocks_)
        rows_of_.push_back({.scales = {b.scales, b.scales + scale_pitch(b.heads), b.scales + 2 * scale_pitch(b.heads)},
                            .sides = static_cast<int>(sides),
                            .rounds = mirrored_ && scales_->ready(),
                            .ready = scales_->ready(),
                            .rows = rows,
                            .row_tokens = row_tokens,
                            .maxima = maxima_ + first_row * apart + sides * std::ssize(rows_of_),
                            .apart = apart,
                            .clipped = clipped_});
}

const TrainCacheRows* DeviceCache::of(size_t layer) const {
    const int b = block_of_[layer];
    return b < 0 ? nullptr : &rows_of_[static_cast<size_t>(b)];
}

Status DeviceCache::fetch(const Rows& rows) {
    fetched_ = rows;
    return copy_to_host(landing_->data(), cache_bytes(clipped_), clipped_bytes + seen_bytes(rows.end), stream_);
}

void DeviceCache::take() {
    std::array<uint64_t, 2> clipped{};
    std::memcpy(clipped.data(), landing_->data(), sizeof clipped);
    const auto* maxima = reinterpret_cast<const float*>(landing_->data() + clipped_bytes);
    for (int64_t r = fetched_.first; r < fetched_.end; ++r)
        scales_->add_row({maxima + r * static_cast<int64_t>(scales_->size()), scales_->size()});
    CacheScales::Use use{.clipped = static_cast<int64_t>(clipped[0]), .q_clipped = static_cast<int64_t>(clipped[1])};
    for (const Block& b : blocks_) {
        use.values += fetched_.tokens * b.widths;
        if (scales_->sides() > 2) use.q_values += fetched_.tokens * b.q_width;
    }
    scales_->add_use(use);
}

}  // namespace nibble

#include "train/device/device_cache.h"

#include "base/checked.h"

#include <cstring>

namespace nibble {
namespace {

constexpr int64_t clipped_bytes = 16;

int64_t scale_pitch(int heads) { return round_up<int64_t>(heads, 4); }  // rows of scales are 16-byte aligned

std::byte* cache_bytes(const void* p) { return const_cast<std::byte*>(static_cast<const std::byte*>(p)); }

}  // namespace

Status TrainCacheRows::see(const std::byte* k, int64_t k_width, const std::byte* v, int64_t v_width,
                           const Stream& stream) const {
    return cuda::see_cache({.rows = rows,
                            .row_tokens = row_tokens,
                            .k = {k, k_width, ready ? k_scale : nullptr},
                            .v = {v, v_width, ready ? v_scale : nullptr},
                            .maxima = maxima,
                            .apart = apart,
                            .clipped = clipped},
                           stream);
}

Status TrainCacheRows::round(const std::byte* k, int64_t k_width, const std::byte* v, int64_t v_width, std::byte* k_out,
                             std::byte* v_out, const Stream& stream) const {
    return cuda::round_cache({.tokens = rows * row_tokens,
                              .k = {k, k_width, k_scale},
                              .v = {v, v_width, v_scale},
                              .k_out = k_out,
                              .v_out = v_out},
                             stream);
}

Status TrainCacheRows::clear(const std::byte* k, int64_t k_width, const std::byte* v, int64_t v_width, std::byte* dk,
                             std::byte* dv, int64_t stride, const Stream& stream) const {
    return cuda::clear_clipped({.tokens = rows * row_tokens,
                                .k = {k, k_width, k_scale},
                                .v = {v, v_width, v_scale},
                                .dk = dk,
                                .dv = dv,
                                .stride = stride},
                               stream);
}

std::vector<DeviceCache::Block> DeviceCache::blocks_of(std::span<const DeviceLayer> layers) {
    std::vector<Block> blocks;
    for (size_t i = 0; i < layers.size(); ++i)
        if (const DeviceKv* kv = layers[i].mixer->kv())
            blocks.push_back({.layer = i,
                              .heads = kv->shape.kv_heads,
                              .widths = int64_t{kv->shape.kv_heads} * (kv->shape.k_dim + kv->shape.v_dim)});
    return blocks;
}

int64_t DeviceCache::bytes(std::span<const DeviceLayer> layers, int64_t rows) {
    const std::vector<Block> blocks = blocks_of(layers);
    int64_t sum = 3 * DeviceArena::alignment + clipped_bytes + 8 * rows * std::ssize(blocks);
    for (const Block& b : blocks) sum += round_up<int64_t>(8 * scale_pitch(b.heads), DeviceArena::alignment);
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
        return fail("a KV cache of {} blocks, scales of {}", c->blocks_.size(), c->scales_->blocks().size());
    NIBBLE_TRY(c->memory_, DeviceArena::create(device.index, bytes(layers, rows)));
    NIBBLE_TRY(std::byte * seen, c->memory_->allocate(clipped_bytes + c->seen_bytes(rows)));
    c->clipped_ = reinterpret_cast<uint64_t*>(seen);
    c->maxima_ = reinterpret_cast<float*>(seen + clipped_bytes);
    c->block_of_.assign(layers.size(), -1);
    for (size_t b = 0; b < c->blocks_.size(); ++b) {
        Block& block = c->blocks_[b];
        NIBBLE_TRY(block.scales, c->memory_->allocate_array<float>(2 * scale_pitch(block.heads)));
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
        kv.k_scales = b.scales, kv.v_scales = b.scales + scale_pitch(b.heads);
    }
}

Status DeviceCache::upload() { return upload(scales_->state()); }

Status DeviceCache::upload(std::span<const float> state) {
    std::vector<float> all;
    for (size_t b = 0; b < blocks_.size(); ++b) {
        const int64_t pitch = scale_pitch(blocks_[b].heads);
        all.clear();
        for (const float scale : state.subspan(2 * b, 2)) all.insert(all.end(), static_cast<size_t>(pitch), scale);
        NIBBLE_CHECK(copy_to_device(cache_bytes(blocks_[b].scales), cache_bytes(all.data()), 8 * pitch, stream_));
        NIBBLE_CHECK(stream_.synchronize());
    }
    return Ok{};
}

Status DeviceCache::begin_step() {
    return fill_device(cache_bytes(clipped_), 0, clipped_bytes + seen_bytes(most_rows_), stream_);
}

void DeviceCache::begin_rows(int64_t first_row, int64_t rows, int64_t row_tokens) {
    rows_of_.clear();
    const int64_t apart = 2 * std::ssize(blocks_);
    for (const Block& b : blocks_)
        rows_of_.push_back({.k_scale = b.scales,
                            .v_scale = b.scales + scale_pitch(b.heads),
                            .rounds = mirrored_ && scales_->ready(),
                            .ready = scales_->ready(),
                            .rows = rows,
                            .row_tokens = row_tokens,
                            .maxima = maxima_ + first_row * apart + 2 * std::ssize(rows_of_),
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
    uint64_t clipped = 0;
    std::memcpy(&clipped, landing_->data(), sizeof clipped);
    const auto* maxima = reinterpret_cast<const float*>(landing_->data() + clipped_bytes);
    for (int64_t r = fetched_.first; r < fetched_.end; ++r)
        scales_->add_row({maxima + 2 * r * std::ssize(blocks_), 2 * blocks_.size()});
    int64_t widths = 0;
    for (const Block& b : blocks_) widths += b.widths;
    scales_->add_use({.values = fetched_.tokens * widths, .clipped = static_cast<int64_t>(clipped)});
}

}  // namespace nibble

// The scales of an FP8 KV cache (train/cache_scales.h) where a GPU trains: what attention blocks divide K and V by, and
// what the next scales follow from. The numbers are gathered by the way back, which has K and V as rows anyway, and
// come to the host with the step's loss.
#pragma once

#include "kernels/cache_rows_cuda.h"
#include "model/device/mixer.h"
#include "train/cache_scales.h"

#include <array>
#include <memory>
#include <optional>
#include <span>
#include <vector>

namespace nibble {

// Of one block, while a micro-batch is computed.
struct TrainCacheRows {
    std::array<const float*, cuda::most_cache_sides> scales{};
    int sides = 2;        // K and V; with a third Q, too
    bool rounds = false;  // attention reads them so
    bool ready = false;   // there are scales
    int64_t rows = 0, row_tokens = 0;
    float* maxima = nullptr;  // as SeeCache
    int64_t apart = 0;
    uint64_t* clipped = nullptr;

    // K, V and Q [tokens, width], before anything is rounded.
    struct Rows {
        const std::byte* x = nullptr;
        int64_t width = 0;
    };
    using Sides = std::array<Rows, cuda::most_cache_sides>;
    Status see(const Sides& x, const Stream& stream) const;
    // x as attention read it: rounded in scratch memory (round_bytes()), or itself.
    Result<Sides> read(const Sides& x, DeviceStep& step) const;
    // What scales clipped has no gradient; rows of d lie `stride` elements apart.
    Status clear(const Sides& x, const std::array<std::byte*, cuda::most_cache_sides>& d, int64_t stride,
                 const Stream& stream) const;

private:
    std::array<cuda::CacheSide, cuda::most_cache_sides> with_scales(const Sides& x, bool scaled) const;
};

class DeviceCache {
public:
    // Of these layers of a model; a step has up to `rows` rows. mirrored: training reads K and V so, too.
    static Result<std::unique_ptr<DeviceCache>> create(std::unique_ptr<CacheScales> scales, bool mirrored,
                                                       std::span<const DeviceLayer> layers, int64_t rows,
                                                       const DeviceInfo& device, const Stream& stream);
    static int64_t bytes(std::span<const DeviceLayer> layers, int64_t rows);

    // What shapes of passes follow from; attach() sets it, too.
    static void set_type(std::span<const DeviceLayer> layers, cuda::KvType type);

    CacheScales& scales() { return *scales_; }
    bool mirrored() const { return mirrored_; }
    // These layers keep K and V in E4M3 from now on, under the scales wherever they are renewed. The layers are those
    // of create(), or of another model of this shape.
    void attach(std::span<const DeviceLayer> layers);
    // The scales, or these (as CacheScales::state()), to the device; waits.
    Status upload();
    Status upload(std::span<const float> state);

    // Nothing was seen yet.
    Status begin_step();
    void begin_rows(int64_t first_row, int64_t rows, int64_t row_tokens);
    // Null where the layer has no cache. Valid until the next begin_rows().
    const TrainCacheRows* of(size_t layer) const;
    // While this holds, forward passes see K and V; otherwise the way back does.
    void calibrate(bool on) { calibrating_ = on; }
    bool calibrating() const { return calibrating_; }
    // What the step's rows [first, end), `tokens` in all, had: on its way to the host; once it has arrived, to the
    // scales.
    struct Rows {
        int64_t first = 0, end = 0, tokens = 0;
    };
    Status fetch(const Rows& rows);
    void take();

private:
    struct Block {
        size_t layer = 0;
        int heads = 0;
        int64_t widths = 0, q_width = 0;  // of K and V together; of Q
        float* scales = nullptr;          // of K and of V one for every head, each [pitch(heads)], then that of Q
    };
    DeviceCache(std::unique_ptr<CacheScales> scales, bool mirrored, const Stream& stream)
        : scales_(std::move(scales)), mirrored_(mirrored), stream_(stream) {}
    static std::vector<Block> blocks_of(std::span<const DeviceLayer> layers);
    int64_t seen_bytes(int64_t rows) const { return 4 * rows * static_cast<int64_t>(scales_->size()); }

    std::unique_ptr<CacheScales> scales_;
    bool mirrored_, calibrating_ = false;
    const Stream& stream_;
    std::optional<DeviceArena> memory_;
    std::vector<Block> blocks_;
    std::vector<TrainCacheRows> rows_of_;  // by block
    std::vector<int> block_of_;            // by layer; -1: none
    float* maxima_ = nullptr;              // [rows of a step, CacheScales::size()]
    uint64_t* clipped_ = nullptr;          // of K and V, of Q
    std::optional<PinnedBuffer> landing_;  // clipped_, maxima_
    Rows fetched_;
    int64_t most_rows_ = 0;
};

}  // namespace nibble

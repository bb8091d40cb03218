// The scales of an FP8 KV cache (train/cache_scales.h) in a GPU trainer: the divisors of K and V in attention blocks,
// and the statistics for the next scales. The backward pass collects the statistics, because it has K and V as rows.
// They are copied to the host with the step's loss.
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

// The cache of one block during a micro-batch.
struct TrainCacheRows {
    std::array<const float*, cuda::most_cache_sides> scales{};
    int sides = 2;        // 2: K and V; 3: also Q
    bool rounds = false;  // attention reads values rounded to FP8
    bool ready = false;   // the scales are known
    int64_t rows = 0, row_tokens = 0;
    float* maxima = nullptr;  // as in SeeCache
    int64_t apart = 0;
    uint64_t* clipped = nullptr;

    // K, V and Q [tokens, width], before rounding.
    struct Rows {
        const std::byte* x = nullptr;
        int64_t width = 0;
    };
    using Sides = std::array<Rows, cuda::most_cache_sides>;
    Status see(const Sides& x, const Stream& stream) const;
    // Returns x as attention read it: rounded, in scratch memory (round_bytes()), or x itself.
    Result<Sides> read(const Sides& x, DeviceStep& step) const;
    // Sets the gradient of clipped values to zero; rows of d are `stride` elements apart.
    Status clear(const Sides& x, const std::array<std::byte*, cuda::most_cache_sides>& d, int64_t stride,
                 const Stream& stream) const;

private:
    std::array<cuda::CacheSide, cuda::most_cache_sides> with_scales(const Sides& x, bool scaled) const;
};

class DeviceCache {
public:
    // Creates scales for these layers; a step has at most `rows` rows. mirrored: the training forward pass also rounds
    // K and V.
    static Result<std::unique_ptr<DeviceCache>> create(std::unique_ptr<CacheScales> scales, bool mirrored,
                                                       std::span<const DeviceLayer> layers, int64_t rows,
                                                       const DeviceInfo& device, const Stream& stream);
    static int64_t bytes(std::span<const DeviceLayer> layers, int64_t rows);

    // Sets the cache type of layers, on which the shapes of passes depend. attach() also sets it.
    static void set_type(std::span<const DeviceLayer> layers, cuda::KvType type);

    CacheScales& scales() { return *scales_; }
    bool mirrored() const { return mirrored_; }
    // From now on these layers store K and V in E4M3 under the current scales. The layers are those of create(), or
    // those of another model with the same shape.
    void attach(std::span<const DeviceLayer> layers);
    // Copies the scales, or `state` (as CacheScales::state()), to the device, and waits.
    Status upload();
    Status upload(std::span<const float> state);

    // Clears the statistics.
    Status begin_step();
    void begin_rows(int64_t first_row, int64_t rows, int64_t row_tokens);
    // Null if the layer has no cache. Valid until the next begin_rows().
    const TrainCacheRows* of(size_t layer) const;
    // true: forward passes collect the statistics; false: backward passes do.
    void calibrate(bool on) { calibrating_ = on; }
    bool calibrating() const { return calibrating_; }
    // fetch() queues the copy of the statistics of the step's rows [first, end), `tokens` in total, to the host. take()
    // adds them to the scales after the copy has arrived.
    struct Rows {
        int64_t first = 0, end = 0, tokens = 0;
    };
    Status fetch(const Rows& rows);
    void take();

private:
    struct Block {
        size_t layer = 0;
        int heads = 0;
        int64_t widths = 0, q_width = 0;  // widths: of K and V together; q_width: of Q
        float* scales = nullptr;          // one per head for K and for V, each [pitch(heads)], then one for Q
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
    uint64_t* clipped_ = nullptr;          // counts of K and V, then of Q
    std::optional<PinnedBuffer> landing_;  // clipped_, then maxima_
    Rows fetched_;
    int64_t most_rows_ = 0;
};

}  // namespace nibble

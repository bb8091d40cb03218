// Pools the keys of runs of tokens (DeepSeek-V4). With kv = wkv(x), g = wgate(x) + ape[t mod rate], and w one run of
// `rate` tokens that is complete:
//   pooled_w = rope(norm(sum over t of softmax over t(g_t) * kv_t)), per channel, at the run's first position
// With `overlaps`, kv and g have 2 dim channels: the tokens of run w - 1 give their first dim, those of run w their
// last. Sums run over t ascending. kv and g of every token, and each pooled key, lie in the page of the token (that
// completes the run) in FP32, so forks, shared tiles and rewinds include them.
#pragma once

#include "model/cpu/block.h"
#include "model/cpu/norm.h"
#include "model/weight_source.h"

namespace nibble {

struct CompressorShape {
    int dim = 0;
    int64_t rate = 0;  // divides 64, or is a multiple of it
    bool overlaps = false;
    Rope rope;  // rotates the last rope.dims dimensions
};

class Compressor {
public:
    // `prefix`: "model.layers.0.attn.compressor".
    static Result<Compressor> load(const ModelConfig& model, const std::string& prefix, const CompressorShape& shape,
                                   WeightSource& weights);

    std::vector<const Linear*> linears() const { return {&kv_, &gate_}; }
    int64_t page_bytes() const;
    // One segment: its pages, each with this compressor's part at `offset`.
    struct Pages {
        std::byte* const* pages = nullptr;
        int64_t offset = 0;
    };
    // Stores the rows of x and pools the runs that they complete. `pages`: one per segment.
    Status forward(const Batch& batch, const float* x, std::span<const Pages> pages, Workspace& work,
                   Observer* observer) const;
    // Returns pooled key w [dim].
    const float* pooled(const Pages& pages, int64_t w) const { return slot(pages, w); }

private:
    int64_t width() const { return int64_t{shape_.dim} * (shape_.overlaps ? 2 : 1); }
    float* token(const Pages& pages, int64_t position) const;
    float* slot(const Pages& pages, int64_t w) const;
    void pool(const Pages& pages, int64_t w, Workspace& work) const;

    CompressorShape shape_;
    Linear kv_, gate_;
    std::vector<float> ape_;  // [rate, width]
    Norm norm_;
    std::vector<float> frequencies_;
};

}  // namespace nibble

// DeepSeek-V4's attention: one head of keys, which are the values too, in a window, and pooled keys of all tokens
// before; an indexer may choose among the pooled ones.
//   q = rope(rms(wq_b(norm(wq_a(x)))));  k = v = rope(norm(wkv(x)))        rope: the last rope.dims dimensions of a
//   head o = attention over pooled keys w < (t + 1) / rate, then over the window, with a sink per head y = wo_b(per
//   group of heads: wo_a(rope back(o)))
// The tiles of the softmax are runs of 64 pooled keys, then runs of 64 positions (kernels/attention.h).
#pragma once

#include "model/cpu/block.h"
#include "model/cpu/compressor.h"
#include "model/weight_source.h"

#include <optional>

namespace nibble {

class CompressedAttention : public Mixer {
public:
    static Result<std::unique_ptr<Mixer>> load(const ModelConfig& model, const BlockConfig& block,
                                               const CompressedAttentionConfig& config, WeightSource& weights);

    Status forward(const Batch& batch, const float* x, float* y, Workspace& work, Observer* observer) const override;
    Status backward(const Batch& batch, const float* x, const float* dy, float* dx, Workspace& work, Observer* observer,
                    GradientSink* sink) const override;
    std::vector<const Linear*> linears() const override;
    std::vector<std::span<const Linear>> units() const override;
    StateLayout state() const override { return {page_bytes(), config_.rate > 0 ? 0 : config_.window, 0}; }

private:
    struct Projected {
        float *latent, *q, *k;
    };
    Result<Projected> project(const Batch& batch, const float* x, Workspace& work, Observer* observer) const;
    // Rotates the last dimensions of `count` heads of one row by its position, or back.
    void rotate(float* x, int64_t count, const float* cos, const float* sin, const Workspace& work) const;
    int64_t page_bytes() const;
    Compressor::Pages index_pages(const Compressor::Pages& pages) const {
        return {pages.pages, pages.offset + compressor_->page_bytes()};
    }
    // The pages of every segment: those of its sequence, or memory of the arena.
    std::vector<Compressor::Pages> pages_of(const Batch& batch, Workspace& work) const;
    // The indexer's queries and weights.
    struct IndexRows {
        float *q, *weights;
    };
    Result<IndexRows> index_rows(const Batch& batch, const float* x, const float* latent, Workspace& work,
                                 Observer* observer) const;
    // Returns the attention of one segment over gathered pooled keys and its window.
    AttentionJob job_of(const Batch& batch, size_t segment, const Projected& p, const Compressor::Pages& pages,
                        const std::optional<IndexRows>& index, float* y, Workspace& work) const;
    void choose_pooled(int64_t row, int64_t rows, int64_t start, const Compressor::Pages& pages, const IndexRows& index,
                       uint64_t* bits, int64_t words, Workspace& work) const;
    Status project_out(float* mixed, int64_t rows, float* y, Workspace& work, Observer* observer) const;

    std::string prefix_;
    int index_ = 0;
    CompressedAttentionConfig config_;
    KvShape kv_;
    float eps_ = 0;
    std::vector<float> ones_, sinks_;
    Norm q_norm_, kv_norm_;
    Linear q_a_, q_b_, k_;
    std::vector<Linear> out_a_;  // by group
    Linear out_b_;
    std::optional<Compressor> compressor_, index_compressor_;
    IndexShape index_shape_;
    Linear index_q_, index_weights_;
};

}  // namespace nibble

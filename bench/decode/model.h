// One decoding step of a Llama-shaped model in NVFP4 with random weights, made of the library's kernels.
#pragma once

#include "kernels/elementwise_cuda.h"
#include "kernels/matmul_cuda.h"

#include <random>
#include <vector>

namespace nibble::bench {

inline constexpr int head_dim = 128;

struct ModelShape {
    int layers = 32, hidden = 4096, intermediate = 14336, q_heads = 32, kv_heads = 8, vocabulary = 128256;
    cuda::KvType kv = cuda::KvType::bf16;
    int context = 1024;  // tokens of every sequence, the newest included
    int sequences = 1;
    bool fuse = true;  // activation inside gate and up
    int qkv() const { return (q_heads + 2 * kv_heads) * head_dim; }
};

class DecodeModel {
public:
    // Weights and cache of the sequences; sequence s has the same cache and token whatever shape.sequences is.
    static Result<DecodeModel> make(const ModelShape& shape, const DeviceInfo& device, DeviceArena& arena,
                                    const Stream& stream);
    // `without`: leaves these kernels out, to see what they add to a step.
    enum class Part { none, norm, qkv, rope, attention, out, up, down, head };
    Status step(bool overlap, const Stream& stream, Part without = Part::none) const;
    // Bytes a step cannot but read: weights and cache.
    double bytes() const;
    const float* logits() const { return logits_; }
    const int32_t* next_tokens() const { return next_; }

private:
    struct Product {
        cuda::MatmulPlan plan;
        int64_t at = 0;  // in a layer
        int64_t bytes = 0;
    };
    Result<Product> product(int n, int k, int64_t at, bool gated, const DeviceInfo& device);
    // x in the order the plan reads; gated: where activated products go.
    Status multiply(const Product& p, int layer, const std::byte* x, float* y, bool overlap, const Stream& stream,
                    std::byte* gated = nullptr, const cuda::MatmulOptions::Norm& norm = {}) const;

    ModelShape shape_;
    std::byte* pool_ = nullptr;     // random records
    std::byte* weights_ = nullptr;  // layer after layer, then the head
    int64_t layer_bytes_ = 0;
    Product qkv_, out_, up_, down_, head_;
    cuda::AttentionPlan attention_;
    cuda::AttentionInput attention_input_;
    cuda::RopeAppend rope_;
    cuda::KvCache cache_;  // of the first layer; the others follow
    int64_t cache_bytes_ = 0;
    std::byte *table_ = nullptr, *h_ = nullptr, *other_h_ = nullptr, *x_ = nullptr, *wide_ = nullptr, *heads_ = nullptr,
              *permuted_ = nullptr;
    std::byte *workspace_ = nullptr, *attention_workspace_ = nullptr;
    float *y_ = nullptr, *qkv_out_ = nullptr, *scale_ = nullptr, *norm_ = nullptr, *logits_ = nullptr;
    int32_t *tokens_ = nullptr, *next_ = nullptr;
};

}  // namespace nibble::bench

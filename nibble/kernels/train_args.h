// Arguments of the functions in kernels/train_cuda.h, passed to kernels unchanged.
#pragma once

#include <cstddef>
#include <cstdint>

namespace nibble::cuda {

// Gradient of y = rms_norm(x) * weight. Writes dx, or with `add` adds to it; `rows` receives the same values rounded to
// BF16. Either may be null.
struct NormBackward {
    int64_t tokens = 0, width = 0;  // width: at most 16384
    const std::byte* x = nullptr;   // [tokens, width] BF16
    const float* weight = nullptr;  // [width]
    const std::byte* dy = nullptr;  // [tokens, width] BF16
    float* dx = nullptr;            // [tokens, width]; may be null
    bool add = false;
    std::byte* rows = nullptr;  // [tokens, width] BF16; may be null; may be dy
    float* dweight = nullptr;   // [width], written; may be null
    float eps = 0;
    std::byte* workspace = nullptr;  // norm_backward_workspace(width)
};

// sums[j] = sum over rows of x[row][j], for `x` in BF16 or `wide` in FP32.
struct ColumnSums {
    int64_t tokens = 0, width = 0;
    const std::byte* x = nullptr;  // [tokens, width]
    const float* wide = nullptr;
    float* sums = nullptr;           // [width], written
    std::byte* workspace = nullptr;  // column_sums_workspace(width)
};

// The q, k and v that rope_append() computes, as rows with the same bits.
struct RopeRows {
    int64_t tokens = 0;
    int q_heads = 0, kv_heads = 0, dim = 0;  // dim: a multiple of 8, at most 256
    const std::byte* qkv = nullptr;          // [tokens, (q_heads + 2 kv_heads) * dim] BF16, the product's output
    const float* q_norm = nullptr;           // [dim]; null: no norm
    const float* k_norm = nullptr;
    float eps = 0;
    int rope_dims = 0;  // 0: no rotary embedding
    bool interleaved = false;
    const int32_t* positions = nullptr;
    const float* cos = nullptr;
    const float* sin = nullptr;
    std::byte* q = nullptr;  // [tokens, q_heads, dim]
    std::byte* k = nullptr;  // [tokens, kv_heads, dim]
    std::byte* v = nullptr;
};

// Causal attention within adjacent documents: row i sees rows max(first[i], i - window + 1) .. i.
struct AttentionBackward {
    int64_t tokens = 0;
    int q_heads = 0, kv_heads = 0, dim = 0;  // dim: 64, 96, 128, 192 or 256
    float scale = 0;
    int64_t window = 0;              // 0: unlimited
    const int32_t* first = nullptr;  // [tokens], ascending
    const std::byte* q = nullptr;    // [tokens, q_heads, dim] BF16
    const std::byte* k = nullptr;    // [tokens, kv_heads, dim]
    const std::byte* v = nullptr;
    const std::byte* o = nullptr;  // [tokens, q_heads, dim]
    const std::byte* d_o = nullptr;
    const float* log_sums = nullptr;  // [tokens, q_heads], written by attend() (kernels/attention_cuda.h)
    int64_t d_stride = 0;             // elements per row of dq, dk and dv
    std::byte* dq = nullptr;
    std::byte* dk = nullptr;
    std::byte* dv = nullptr;
    std::byte* workspace = nullptr;  // attention_backward_workspace()
};

// Largest supported vocabulary.
inline constexpr int64_t softmax_most_vocab = int64_t{104} << 12;

// log_probs[i] = log p(labels[i]), 0 if the label is -1, with the bits of the host's log_softmax except for the
// logarithm (see sampling_cuda.h). d_logits = slopes[i] * (onehot - p); may be null.
struct LabelLoss {
    int64_t rows = 0, vocab = 0;        // vocab: at most softmax_most_vocab
    const std::byte* logits = nullptr;  // [rows, vocab] BF16
    const int32_t* labels = nullptr;    // [rows]
    const float* slopes = nullptr;      // [rows]
    float* log_probs = nullptr;         // [rows]
    std::byte* d_logits = nullptr;      // [rows, vocab] BF16; may be `logits`
};

// losses[i] = (1 - c) KL(softmax of `teacher` || softmax of `logits`) - c log p(labels[i]), c = cross_entropy. d_logits
// is the gradient of the sum of weights[i] * losses[i]. Both are 0 for rows with label -1.
struct TeacherLoss {
    int64_t rows = 0, vocab = 0;         // as LabelLoss
    const std::byte* logits = nullptr;   // [rows, vocab] BF16
    const std::byte* teacher = nullptr;  // [rows, vocab] BF16
    const int32_t* labels = nullptr;     // [rows]
    const float* weights = nullptr;      // [rows]
    float cross_entropy = 0;
    float* losses = nullptr;        // [rows]
    std::byte* d_logits = nullptr;  // [rows, vocab] BF16; may be `logits`
};

// dw[ids[u]] += scale * sum of rows order[begin[u]] ... order[begin[u + 1] - 1] of dx, in this order.
struct EmbeddingBackward {
    int64_t unique = 0, width = 0;
    const int32_t* ids = nullptr;
    const int32_t* begin = nullptr;
    const int32_t* order = nullptr;
    const float* dx = nullptr;
    float scale = 1.0f;
    float* dw = nullptr;
};

// One update as defined in train/optimizer.h, each operation rounded. Nothing changes if *clip is NaN.
struct AdamW {
    int64_t count = 0;
    float* master = nullptr;
    float* m = nullptr;
    float* v = nullptr;
    const float* gradient = nullptr;
    std::byte* published = nullptr;  // BF16 copy of the masters
    const float* clip = nullptr;
    float beta2 = 0, rest1 = 0, rest2 = 0, epsilon = 0, rate = 0, root = 0;
    float keep = 1;  // factor of the master before the update, if `decay`
    bool decay = false;
};

// FP8 scales from the maxima of earlier steps (DelayedScale in train/train_products.h). A maximum in `seen` becomes the
// newest entry of the history, the scale follows from the largest entry, and `seen` is set to 0. The maximum is taken
// over all processes.
struct DelayedScales {
    bool stored = false;  // DelayedScale::stored
    bool hold = false;    // stores the maxima in `held` and changes nothing else
    int64_t count = 0, history = 0;
    float* scales = nullptr;        // [count]
    float* seen = nullptr;          // [count]
    float* held = nullptr;          // [count]: maxima of earlier held updates
    float* histories = nullptr;     // [count, history]
    float largest = 448;            // largest value of the format
    const float* others = nullptr;  // [sets, apart]: maxima of other processes; the first `count` of each
    int64_t sets = 0, apart = 0;
};

// Scales of codes in blocks of 128: the scale of row o (or of tile o of 128 rows) and group g along the reduction is at
// [o * outer + g * group].
struct CodeScales {
    float* at = nullptr;
    int64_t outer = 0, group = 0;
};

// The factor for the sums of a product, written together with an operand's values: product_scales() of the operand's
// scale and the other operand's.
struct CastFactor {
    const float* other = nullptr;  // null: no factor
    float constant = 1;
    float* out = nullptr;  // [count]
    int64_t count = 0;     // 1, or the number of rows
};

// a [n, pitch] BF16 = x P, with zeros after the rank; rest [n, cols] BF16 = x - a P^T, if not null. FP32 sums ascend:
// the bits of InputDirections::split() (train/train_rank.h).
inline constexpr int most_directions = 128;
struct SplitRows {
    const std::byte* x = nullptr;  // [n, cols] BF16
    int64_t n = 0, cols = 0;
    const float* p = nullptr;     // [cols, rank], values exact in BF16
    int64_t rank = 0, pitch = 0;  // pitch: rank rounded up to a multiple of 8
    std::byte* a = nullptr;
    std::byte* rest = nullptr;
};

}  // namespace nibble::cuda

// What the functions of kernels/train_cuda.h are told; kernels take these values as they are.
#pragma once

#include <cstddef>
#include <cstdint>

namespace nibble::cuda {

// Of y = rms_norm(x) * weight. dx is written, or with `add` added to; `rows` is the same rounded, beside it or alone.
struct NormBackward {
    int64_t tokens = 0, width = 0;  // width: at most 16384
    const std::byte* x = nullptr;   // [tokens, width] BF16
    const float* weight = nullptr;  // [width]
    const std::byte* dy = nullptr;  // [tokens, width] BF16
    float* dx = nullptr;            // [tokens, width]; null: not wanted
    bool add = false;
    std::byte* rows = nullptr;  // [tokens, width] BF16; null: not wanted; may be dy
    float* dweight = nullptr;   // [width], written; null: not wanted
    float eps = 0;
    std::byte* workspace = nullptr;  // norm_backward_workspace(width)
};

// sums[j] = the sum over rows of x[row][j]: `x` BF16, or `wide` FP32.
struct ColumnSums {
    int64_t tokens = 0, width = 0;
    const std::byte* x = nullptr;  // [tokens, width]
    const float* wide = nullptr;
    float* sums = nullptr;           // [width], written
    std::byte* workspace = nullptr;  // column_sums_workspace(width)
};

// What rope_append() makes of q, k and v, as rows: the same bits.
struct RopeRows {
    int64_t tokens = 0;
    int q_heads = 0, kv_heads = 0, dim = 0;  // dim: a multiple of 8, at most 256
    const std::byte* qkv = nullptr;          // [tokens, (q_heads + 2 kv_heads) * dim] BF16, as the product gave it
    const float* q_norm = nullptr;           // [dim]; null: none
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

// Causal, inside documents that lie one after the other: row i sees rows max(first[i], i - window + 1) .. i.
struct AttentionBackward {
    int64_t tokens = 0;
    int q_heads = 0, kv_heads = 0, dim = 0;  // dim: 64, 96, 128, 192 or 256
    float scale = 0;
    int64_t window = 0;              // 0: none
    const int32_t* first = nullptr;  // [tokens], ascending
    const std::byte* q = nullptr;    // [tokens, q_heads, dim] BF16
    const std::byte* k = nullptr;    // [tokens, kv_heads, dim]
    const std::byte* v = nullptr;
    const std::byte* o = nullptr;  // [tokens, q_heads, dim]
    const std::byte* d_o = nullptr;
    const float* log_sums = nullptr;  // [tokens, q_heads], which attend() wrote (kernels/attention_cuda.h)
    int64_t d_stride = 0;             // elements from row to row of dq, dk and dv
    std::byte* dq = nullptr;
    std::byte* dk = nullptr;
    std::byte* dv = nullptr;
    std::byte* workspace = nullptr;  // attention_backward_workspace()
};

// Of a vocabulary.
inline constexpr int64_t softmax_most_vocab = int64_t{104} << 12;

// log_probs[i] = log p(labels[i]), with the bits of the host's log_softmax (but for the logarithm, as sampling_cuda.h
// says), 0 where the label is -1; d_logits = slopes[i] * (onehot - p), null: not wanted.
struct LabelLoss {
    int64_t rows = 0, vocab = 0;        // vocab: at most softmax_most_vocab
    const std::byte* logits = nullptr;  // [rows, vocab] BF16
    const int32_t* labels = nullptr;    // [rows]
    const float* slopes = nullptr;      // [rows]
    float* log_probs = nullptr;         // [rows]
    std::byte* d_logits = nullptr;      // [rows, vocab] BF16; may be `logits`
};

// losses[i] = (1 - c) KL(softmax of `teacher` || softmax of `logits`) - c log p(labels[i]), c = cross_entropy; of its
// sum times weights[i] the gradient by the logits. Nothing of rows with label -1.
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

// dw[ids[u]] += scale * sum of dx's rows order[begin[u]] ... order[begin[u + 1] - 1], in this order.
struct EmbeddingBackward {
    int64_t unique = 0, width = 0;
    const int32_t* ids = nullptr;
    const int32_t* begin = nullptr;
    const int32_t* order = nullptr;
    const float* dx = nullptr;
    float scale = 1.0f;
    float* dw = nullptr;
};

// One update as train/optimizer.h states it, each operation rounded; nothing changes where *clip is NaN.
struct AdamW {
    int64_t count = 0;
    float* master = nullptr;
    float* m = nullptr;
    float* v = nullptr;
    const float* gradient = nullptr;
    std::byte* published = nullptr;  // BF16 of the masters
    const float* clip = nullptr;
    float beta2 = 0, rest1 = 0, rest2 = 0, epsilon = 0, rate = 0, root = 0;
    float keep = 1;  // master is multiplied with it first, where `decay`
    bool decay = false;
};

// Scales of fp8 that follow from the steps before, as DelayedScale (train/train_products.h) has them: where there is a
// number that was seen, it becomes the newest of the history, the scale follows from the largest of that, and 0 was
// seen. What counts is the largest number that any process saw.
struct DelayedScales {
    bool stored = false;  // DelayedScale::stored
    bool hold = false;    // what was seen goes to `held`, and nothing else changes
    int64_t count = 0, history = 0;
    float* scales = nullptr;        // [count]
    float* seen = nullptr;          // [count]
    float* held = nullptr;          // [count], of updates before that were held
    float* histories = nullptr;     // [count, history]
    float largest = 448;            // of the format
    const float* others = nullptr;  // [sets, apart]: what other processes saw; the first `count` of each
    int64_t sets = 0, apart = 0;
};

// Scales of codes in blocks of 128: of row o (or tile o of 128 rows) and group g along the reduction at
// [o * outer + g * group].
struct CodeScales {
    float* at = nullptr;
    int64_t outer = 0, group = 0;
};

// What multiplies the sums of a product, written with an operand's values: product_scales() of the operand's scale by
// another one's.
struct CastFactor {
    const float* other = nullptr;  // null: not wanted
    float constant = 1;
    float* out = nullptr;  // [count]
    int64_t count = 0;     // 1, or the rows
};

// a [n, pitch] BF16 = x P, zeros behind the rank; rest [n, cols] BF16 = x - a P^T, where it is wanted. Sums ascend in
// FP32: the bits of InputDirections::split() (train/train_rank.h).
inline constexpr int most_directions = 128;
struct SplitRows {
    const std::byte* x = nullptr;  // [n, cols] BF16
    int64_t n = 0, cols = 0;
    const float* p = nullptr;     // [cols, rank], BF16 numbers
    int64_t rank = 0, pitch = 0;  // pitch: rank, up to a multiple of 8
    std::byte* a = nullptr;
    std::byte* rest = nullptr;
};

}  // namespace nibble::cuda

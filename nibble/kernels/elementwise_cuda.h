// Operations between the products of a forward pass on a GPU: those of kernels/elementwise.h with `bf16` set and the
// bits of its `ref`. Some are fused, which saves a pass over memory.
//
// The residual stream and all inputs of products are BF16. Outputs of products are FP32 and rounded to BF16 first, as a
// BF16 linear layer does. Pointers are device pointers, 16-byte aligned. Functions queue work and return at once.
// `overlap`: see MatmulOptions.
#pragma once

#include "formats/format.h"
#include "kernels/attention_cuda.h"
#include "kernels/elementwise.h"

#include <array>

namespace nibble::cuda {

// Destination and encoding of rows of BF16:
//   row-major
//   tile_tokens  for W4A16 products of more than eight tokens, in the order of cuda::permute(): tile_tokens =
//                MatmulPlan::tiling.tokens (widths are then multiples of 256)
//   codes        fp8, fp8_token or fp8_group128, for products of codes: the output of quantize_inputs(), E4M3
//                [tokens, width] followed by its scales (widths are then multiples of 128)
struct RowsOut {
    std::byte* data = nullptr;
    int tile_tokens = 0;
    ActivationFormat codes = ActivationFormat::none;
    float input_scale = 1.0f;  // used by fp8

    bool row_major() const { return tile_tokens == 0 && codes == ActivationFormat::none; }
};
// Returns the scales that follow rows of codes.
inline float* scales_after(std::byte* codes, int64_t tokens, int64_t width) {
    return reinterpret_cast<float*>(codes + tokens * width);
}

// h[t] = table[tokens[t]], rows of `width` BF16; width is a multiple of 8. The caller must reject tokens outside the
// table. Also gathers rows of any other BF16 matrix.
Status embed(const std::byte* table, const int32_t* tokens, int64_t count, int64_t width, std::byte* h, bool overlap,
             const Stream& stream);

// h += update (if given; through post_norm if that is given), then out = norm(h). The norm is rms_norm, or with
// `centered` layer_norm. h = sum_scale * (h + update_scale * update), every operation rounded.
struct AddNorm {
    int64_t tokens = 0, width = 0;           // width: a multiple of 8, at most 32768
    std::byte* h = nullptr;                  // [tokens, width] BF16
    std::byte* sum = nullptr;                // destination of h + update; null: h
    const float* update = nullptr;           // [tokens, width]; or, already rounded:
    const std::byte* update_rows = nullptr;  // [tokens, width] BF16
    const float* post_norm = nullptr;        // [width]: the update becomes bf16(norm(bf16(update)))
    const float* post_bias = nullptr;        // [width], with `centered`; may be null
    const float* weight = nullptr;           // [width]; null: updates h only, writes no output
    const float* bias = nullptr;             // [width], with `centered`; may be null
    float eps = 0;
    float update_scale = 1.0f, sum_scale = 1.0f;
    bool centered = false;
    RowsOut out;
    // Set to the minimum of its value and the first row of h with a NaN or infinity after the sum. May be null.
    int32_t* nonfinite = nullptr;
    float* amax = nullptr;  // raised to the largest output magnitude, ignoring NaN; may be null
};
Status add_norm(const AddNorm& a, bool overlap, const Stream& stream);

// out[t, g] = rms_norm(bf16(in[t, g])) * weight, separately for `groups` parts of a row of width / groups columns.
struct NormRows {
    int64_t tokens = 0, width = 0;
    const float* in = nullptr;
    int64_t in_stride = 0;          // 0: width
    const float* weight = nullptr;  // [width]
    float eps = 0;
    std::byte* out = nullptr;  // [tokens, width] BF16; or, with the same values:
    float* wide = nullptr;     // [tokens, width] FP32
    int groups = 1;
};
Status norm_rows(const NormRows& n, bool overlap, const Stream& stream);

// out[t, j] = a(in[t, j]) * in[t, width + j]; without `gated` a(in); with a limit in `clamp`, which needs `gated`,
// clamped_glu(in[t, j], in[t, width + j]). Rows of `in` are in_stride apart (0: adjacent).
// Width is a multiple of 8. interleaved_gate: columns of `in` alternate, 16 of gate, 16 of up and so on
// (MatmulProblem::gated); width is then a multiple of 16. Codes: not fp8_token, whose scale needs a whole row.
Status activate(Activation activation, bool gated, const float* in, int64_t in_stride, int64_t tokens, int64_t width,
                const RowsOut& out, bool overlap, const Stream& stream, bool interleaved_gate = false,
                const ClampedGlu& clamp = {});

// The same for adjacent BF16 rows, an output of a product that was already rounded. The bits are the same except for
// payloads of NaN. No tile order. amax: see AddNorm.
Status activate(Activation activation, bool gated, const std::byte* in, int64_t tokens, int64_t width,
                const RowsOut& out, bool overlap, const Stream& stream, float* amax = nullptr,
                const ClampedGlu& clamp = {});

// out = bf16(in): converts the output of a product to the input of the next. FP32 rows of `in` are in_stride apart (0:
// adjacent). Width is a multiple of 8.
Status to_rows(const float* in, int64_t in_stride, int64_t tokens, int64_t width, const RowsOut& out, bool overlap,
               const Stream& stream);
// y = bf16(bf16(y) + bf16(x)) as FP32.
Status add_rows(float* y, const float* x, int64_t count, bool overlap, const Stream& stream);
// x = bf16(x) in place, for logits; then x = bf16(x * scale), and with a cap above 0 x = bf16(soft_cap(x, cap)).
struct LogitFactors {
    float scale = 1.0f, cap = 0.0f;
};
Status round_rows(float* x, int64_t count, bool overlap, const Stream& stream, const LogitFactors& factors = {});

// x[t, j] = bf16(bf16(x[t, j]) * by), in place, with the multiplier of the part that column j belongs to. Parts follow
// one another from column `first` on.
struct ScaleColumns {
    static constexpr int most_parts = 5;
    struct Part {
        int64_t columns = 0;
        float by = 1.0f;
    };
    int64_t tokens = 0;
    float* x = nullptr;  // rows `stride` floats apart
    int64_t stride = 0, first = 0;
    std::array<Part, most_parts> parts;
};
Status scale_columns(const ScaleColumns& s, bool overlap, const Stream& stream);
// y = bf16(x * by), `count` BF16 values; y may be x.
Status scale_rows(const std::byte* x, int64_t count, float by, std::byte* y, bool overlap, const Stream& stream);

// x[t, h, d] = bf16(x / (1 + exp(-g))) with the gate g of the element, or with `by_head` bf16(x * bf16(1 / (1 +
// exp(-g)))) with that of the head. A gate is at g[t * stride + h * pitch] (by_head) or g[t * stride + h * pitch + d].
struct GateHeads {
    int64_t tokens = 0;
    int heads = 0, dim = 0;
    std::byte* x = nullptr;                // [tokens, heads, dim] BF16
    const float* gates = nullptr;          // outputs of a product, rounded first; or, rounded:
    const std::byte* gate_rows = nullptr;  // the same, BF16
    int64_t stride = 0;
    int pitch = 1;
    bool by_head = false;
};
Status gate_heads(const GateHeads& g, bool overlap, const Stream& stream);

// The rows of per-layer embeddings (PerLayerInputConfig) between their products: out = gelu_tanh(gate) * P, with
// P = bf16(half * bf16(rms_norm(bf16(root * projected)) * norm + table[id])).
struct PerLayerRows {
    int64_t tokens = 0, width = 0;
    const float* projected = nullptr;  // [tokens, width]
    const std::byte* table = nullptr;  // [vocab, width] BF16
    const int32_t* ids = nullptr;      // [tokens]
    const float* norm = nullptr;       // [width]
    float eps = 0, root = 1.0f, half = 1.0f;
    const float* gate = nullptr;  // [tokens, width]
    std::byte* out = nullptr;     // [tokens, width] BF16
};
Status per_layer_rows(const PerLayerRows& p, bool overlap, const Stream& stream);

// Normalizes queries and keys per head, applies the rotary embedding to their first rope_dims dimensions, and writes
// keys and values to the cache. The input is a product with adjacent q, k and v columns.
struct RopeAppend {
    int64_t tokens = 0;
    int q_heads = 0;
    const float* qkv = nullptr;           // [tokens, q_heads * k_dim, kv_heads * k_dim, kv_heads * v_dim]; or, rounded:
    const std::byte* qkv_rows = nullptr;  // the same, BF16; stride: a multiple of 8
    int64_t qkv_stride = 0;               // 0: adjacent
    const int64_t* slots = nullptr;       // see append_kv
    const float* q_norm = nullptr;        // [k_dim]; null: none
    const float* k_norm = nullptr;
    float eps = 0;
    int rope_dims = 0;  // 0: no rotary embedding
    bool interleaved = false;
    const int32_t* positions = nullptr;  // [tokens]: row of cos and sin
    const float* cos = nullptr;          // [.., rope_dims / 2]
    const float* sin = nullptr;
    std::byte* q = nullptr;  // [tokens, q_heads, k_dim] BF16
    // Anything but the defaults uses a kernel of its own, as do heads of more than 256 dimensions.
    struct Options {
        // Norms after the rotary embedding, or over all heads together, whose weights are then [q_heads * k_dim] and
        // [kv_heads * k_dim]. joined_scales [tokens, 2]: memory for the latter; null: per head.
        bool late = false;
        float* joined_scales = nullptr;
        // The query at position p is multiplied by 1 + query_beta * ln(1 + floor((p + query_offset) / query_period)).
        float query_beta = 0.0f;
        int64_t query_period = 0, query_offset = 0;
        bool value_norm = false;  // RMSNorm without weights of every head of the values
        float value_scale = 1.0f;
        bool gated = false;           // a row has a gate of k_dim columns after each query
        bool keys_as_values = false;  // a row has no values; they are its keys before norm and rotary embedding
        bool queries_only = false;    // a row has queries only; nothing is written to the cache
        bool operator==(const Options&) const = default;
    } options;
};
Status rope_append(const RopeAppend& r, const KvCache& cache, bool overlap, const Stream& stream);

// The same for latent attention (model/cpu/latent_attention.h): q [heads][nope + rope] is rotated in its last
// dimensions. A key is the nope part of kv_b's [heads][nope + v], followed by the rotated part shared by all heads.
struct LatentAppend {
    int64_t tokens = 0;
    int heads = 0, nope_dim = 0, rope_dims = 0, v_dim = 0;  // k_dim = nope_dim + rope_dims
    const float* q_in = nullptr;
    int64_t q_stride = 0;           // floats from row to row
    const float* kv = nullptr;      // [tokens, heads * (nope + v)]
    const float* shared = nullptr;  // [tokens] rows of rope_dims, shared_stride apart
    int64_t shared_stride = 0;
    const int64_t* slots = nullptr;
    bool rotates = true;  // false: the rope_dims dimensions stay as they are
    bool interleaved = false;
    const int32_t* positions = nullptr;
    const float* cos = nullptr;
    const float* sin = nullptr;
    std::byte* q = nullptr;  // [tokens, heads, nope + rope] BF16
    // RopeAppend::Options has the formula. Both parts of a query, nope and rope, are multiplied.
    float query_beta = 0.0f;
    int64_t query_period = 0;
};
Status latent_append(const LatentAppend& r, const KvCache& cache, bool overlap, const Stream& stream);

// index[t] = position of the largest of `width` logits, the first of equal ones; NaN counts as largest.
Status argmax(const float* logits, int64_t tokens, int64_t width, int32_t* index, bool overlap, const Stream& stream);

}  // namespace nibble::cuda

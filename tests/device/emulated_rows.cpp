// The operations of kernels/elementwise_cuda.h between products of attention, gates, logits and per-layer embeddings,
// and weigh_inputs() of moe_cuda.h, on the emulated GPU.
#include "device/emulated_memory.h"
#include "formats/minifloat.h"
#include "kernels/elementwise.h"
#include "kernels/elementwise_cuda.h"
#include "kernels/exp.h"
#include "kernels/moe_cuda.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace nibble::cuda {
namespace {

using test::on_host;

float to_bf16(float x) { return bf16_to_float(bf16_from_float(x)); }
uint16_t* words_of(std::byte* p) { return reinterpret_cast<uint16_t*>(on_host(p)); }
const uint16_t* words_of(const std::byte* p) { return reinterpret_cast<const uint16_t*>(on_host(p)); }
const ElementwiseKernels& reference() { return **select_elementwise_kernels("ref"); }

// The RMSNorm of a head or of all heads, in place.
void norm_in_place(float* x, int64_t n, const float* weight, float eps) {
    const std::vector<float> ones(weight ? 0 : static_cast<size_t>(n), 1.0f);
    reference().rms_norm(x, weight ? weight : ones.data(), n, eps, true, x);
}

float factor_of(float beta, int64_t period, int64_t offset, int32_t position) {
    if (period == 0) return 1.0f;
    return static_cast<float>(1.0 + double{beta} * std::log1p(static_cast<double>((position + offset) / period)));
}

struct Angles {
    const float *cos, *sin;
    int dims;
    bool interleaved;

    void turn(float* head, int64_t dim) const {
        if (dims > 0) reference().rope(head, 1, dim, cos, sin, dims, interleaved, true);
    }
};

template <class Rope>
Angles angles_of(const Rope& r, int64_t t) {
    if (r.rope_dims == 0) return {nullptr, nullptr, 0, false};
    const int64_t at = int64_t{on_host(r.positions)[t]} * (r.rope_dims / 2);
    return {on_host(r.cos) + at, on_host(r.sin) + at, r.rope_dims, r.interleaved};
}

void store_words(std::vector<uint16_t>& to, size_t at, const float* x, int64_t n) {
    for (int64_t d = 0; d < n; ++d) to[at + static_cast<size_t>(d)] = bf16_from_float(x[d]);
}

}  // namespace

Status norm_rows(const NormRows& n, bool, const Stream&) {
    const int64_t width = n.width / n.groups;
    std::vector<float> row(static_cast<size_t>(width));
    for (int64_t t = 0; t < n.tokens; ++t)
        for (int64_t g = 0; g < n.groups; ++g) {
            const float* from = on_host(n.in) + t * (n.in_stride ? n.in_stride : n.width) + g * width;
            for (int64_t j = 0; j < width; ++j) row[size_t(j)] = to_bf16(from[j]);
            norm_in_place(row.data(), width, on_host(n.weight) + g * width, n.eps);
            for (int64_t j = 0; j < width; ++j) {
                const int64_t at = t * n.width + g * width + j;
                if (n.wide)
                    on_host(n.wide)[at] = row[size_t(j)];
                else
                    words_of(n.out)[at] = bf16_from_float(row[size_t(j)]);
            }
        }
    return Ok{};
}

Status round_rows(float* x, int64_t count, bool, const Stream&, const LogitFactors& factors) {
    for (float* at = on_host(x); at < on_host(x) + count; ++at) {
        *at = to_bf16(*at);
        if (factors.scale != 1.0f) *at = to_bf16(*at * factors.scale);
        if (factors.cap > 0) reference().soft_cap(at, 1, factors.cap, true);
    }
    return Ok{};
}

Status scale_columns(const ScaleColumns& s, bool, const Stream&) {
    for (int64_t t = 0; t < s.tokens; ++t) {
        float* x = on_host(s.x) + t * s.stride + s.first;
        for (const ScaleColumns::Part& part : s.parts)
            for (const float* end = x + part.columns; x < end; ++x) *x = to_bf16(to_bf16(*x) * part.by);
    }
    return Ok{};
}

Status scale_rows(const std::byte* x, int64_t count, float by, std::byte* y, bool, const Stream&) {
    for (int64_t i = 0; i < count; ++i) words_of(y)[i] = bf16_from_float(bf16_to_float(words_of(x)[i]) * by);
    return Ok{};
}

Status gate_heads(const GateHeads& g, bool, const Stream&) {
    for (int64_t t = 0; t < g.tokens; ++t)
        for (int64_t h = 0; h < g.heads; ++h)
            for (int64_t d = 0; d < g.dim; ++d) {
                const int64_t at = t * g.stride + h * g.pitch + (g.by_head ? 0 : d);
                const float gate = g.gates ? to_bf16(on_host(g.gates)[at]) : bf16_to_float(words_of(g.gate_rows)[at]);
                uint16_t& x = words_of(g.x)[(t * g.heads + h) * g.dim + d];
                const float below = 1.0f + exp_f32(-gate), value = bf16_to_float(x);
                x = bf16_from_float(g.by_head ? value * to_bf16(1.0f / below) : value / below);
            }
    return Ok{};
}

Status per_layer_rows(const PerLayerRows& p, bool, const Stream&) {
    std::vector<float> row(static_cast<size_t>(p.width));
    for (int64_t t = 0; t < p.tokens; ++t) {
        const uint16_t* table = words_of(p.table) + int64_t{on_host(p.ids)[t]} * p.width;
        for (int64_t j = 0; j < p.width; ++j)
            row[size_t(j)] = to_bf16(to_bf16(on_host(p.projected)[t * p.width + j]) * p.root);
        norm_in_place(row.data(), p.width, on_host(p.norm), p.eps);
        for (int64_t j = 0; j < p.width; ++j) {
            const float from_token = to_bf16(to_bf16(row[size_t(j)] + bf16_to_float(table[j])) * p.half);
            float gate = to_bf16(on_host(p.gate)[t * p.width + j]);
            reference().activate(Activation::gelu_tanh, &gate, &from_token, 1, true, &gate);
            words_of(p.out)[t * p.width + j] = bf16_from_float(gate);
        }
    }
    return Ok{};
}

Status rope_append(const RopeAppend& r, const KvCache& cache, bool, const Stream& stream) {
    const RopeAppend::Options& o = r.options;
    const KvShape& kv = cache.shape;
    const int64_t dim = kv.k_dim, q_pitch = o.gated ? 2 * dim : dim, q_width = r.q_heads * q_pitch;
    const int64_t k_width = o.queries_only ? 0 : kv.kv_heads * dim;
    const int64_t v_width = o.queries_only || o.keys_as_values ? 0 : int64_t{kv.kv_heads} * kv.v_dim;
    const int64_t stride = r.qkv_stride ? r.qkv_stride : q_width + k_width + v_width;
    std::vector<uint16_t> k(static_cast<size_t>(r.tokens * k_width)),
        v(static_cast<size_t>(r.tokens * kv.kv_heads * kv.v_dim));
    std::vector<float> q_row(static_cast<size_t>(r.q_heads * dim)), k_row(static_cast<size_t>(k_width)),
        v_row(static_cast<size_t>(kv.kv_heads * kv.v_dim));
    for (int64_t t = 0; t < r.tokens; ++t) {
        const auto input = [&](int64_t at) { return to_bf16(on_host(r.qkv)[t * stride + at]); };
        for (int64_t i = 0; i < r.q_heads * dim; ++i) q_row[size_t(i)] = input(i / dim * q_pitch + i % dim);
        for (int64_t i = 0; i < k_width; ++i) k_row[size_t(i)] = input(q_width + i);
        for (size_t i = 0; !o.queries_only && i < v_row.size(); ++i)
            v_row[i] = input(q_width + (o.keys_as_values ? 0 : k_width) + static_cast<int64_t>(i));
        const Angles angles = angles_of(r, t);
        const auto prepare = [&](std::vector<float>& row, const float* norm) {
            const int64_t heads = std::ssize(row) / dim;
            if (norm && o.joined_scales) norm_in_place(row.data(), std::ssize(row), on_host(norm), r.eps);
            for (int64_t h = 0; h < heads; ++h) {
                float* head = row.data() + h * dim;
                if (norm && !o.joined_scales && !o.late) norm_in_place(head, dim, on_host(norm), r.eps);
                angles.turn(head, dim);
                if (norm && o.late) norm_in_place(head, dim, on_host(norm), r.eps);
            }
        };
        prepare(q_row, r.q_norm);
        prepare(k_row, r.k_norm);
        const float factor =
            o.query_period > 0 ? factor_of(o.query_beta, o.query_period, o.query_offset, on_host(r.positions)[t]) : 1;
        for (size_t i = 0; i < q_row.size(); ++i)
            words_of(r.q)[t * r.q_heads * dim + static_cast<int64_t>(i)] = bf16_from_float(q_row[i] * factor);
        if (o.queries_only) continue;
        for (int64_t at = 0; o.value_norm && at < std::ssize(v_row); at += kv.v_dim)
            norm_in_place(v_row.data() + at, kv.v_dim, nullptr, r.eps);
        for (float& x : v_row) x *= o.value_scale;
        store_words(k, static_cast<size_t>(t * k_width), k_row.data(), k_width);
        store_words(v, static_cast<size_t>(t) * v_row.size(), v_row.data(), std::ssize(v_row));
    }
    if (o.queries_only) return Ok{};
    return append_kv(cache, test::on_device(reinterpret_cast<const std::byte*>(k.data())),
                     test::on_device(reinterpret_cast<const std::byte*>(v.data())), r.slots, r.tokens, stream);
}

Status latent_append(const LatentAppend& r, const KvCache& cache, bool, const Stream& stream) {
    const int64_t dim = r.nope_dim + r.rope_dims, both = r.nope_dim + r.v_dim;
    std::vector<uint16_t> k(static_cast<size_t>(r.tokens * r.heads * dim)),
        v(static_cast<size_t>(r.tokens * r.heads * r.v_dim));
    std::vector<float> head(static_cast<size_t>(std::max(dim, both)));
    for (int64_t t = 0; t < r.tokens; ++t) {
        const Angles angles = r.rotates ? angles_of(r, t) : Angles{nullptr, nullptr, 0, false};
        const float factor = factor_of(r.query_beta, r.query_period, 0, r.query_period ? on_host(r.positions)[t] : 0);
        for (int64_t h = 0; h < r.heads; ++h) {
            const float* q = on_host(r.q_in) + t * (r.q_stride ? r.q_stride : r.heads * dim) + h * dim;
            const float* kv = on_host(r.kv) + (t * r.heads + h) * both;
            const float* shared = on_host(r.shared) + t * (r.shared_stride ? r.shared_stride : r.rope_dims);
            const auto row = static_cast<size_t>(t * r.heads + h);
            for (int64_t d = 0; d < dim; ++d) head[size_t(d)] = to_bf16(q[d]);
            if (r.rotates) angles.turn(head.data() + r.nope_dim, r.rope_dims);
            for (int64_t d = 0; d < dim; ++d)
                words_of(r.q)[int64_t(row) * dim + d] = bf16_from_float(head[size_t(d)] * factor);
            for (int64_t d = 0; d < dim; ++d)
                head[size_t(d)] = to_bf16(d < r.nope_dim ? kv[d] : shared[d - r.nope_dim]);
            if (r.rotates) angles.turn(head.data() + r.nope_dim, r.rope_dims);
            store_words(k, row * size_t(dim), head.data(), dim);
            store_words(v, row * size_t(r.v_dim), kv + r.nope_dim, r.v_dim);
        }
    }
    return append_kv(cache, test::on_device(reinterpret_cast<const std::byte*>(k.data())),
                     test::on_device(reinterpret_cast<const std::byte*>(v.data())), r.slots, r.tokens, stream);
}

Status weigh_inputs(const std::byte* x, int64_t tokens, int64_t width, int top_k, const Routing& routing,
                    std::byte* out, bool, const Stream&) {
    for (int64_t slot = 0; slot < tokens * top_k; ++slot)
        for (int64_t j = 0; j < width; ++j)
            words_of(out)[on_host(routing.places)[slot] * width + j] =
                bf16_from_float(bf16_to_float(words_of(x)[slot / top_k * width + j]) * on_host(routing.weights)[slot]);
    return Ok{};
}

}  // namespace nibble::cuda

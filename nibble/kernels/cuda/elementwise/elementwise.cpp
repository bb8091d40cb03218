#include "kernels/elementwise_cuda.h"

#include "kernels/cuda/primitives/cache_args.h"
#include "kernels/cuda/primitives/launch_checks.h"

#include <initializer_list>

namespace nibble::cuda {
namespace {

constexpr int64_t most_tokens = 65535;  // the second dimension of a grid

bool has_codes(ActivationFormat f) {
    return f == ActivationFormat::fp8 || f == ActivationFormat::fp8_token || f == ActivationFormat::fp8_group128;
}

RowCodes row_codes(const RowsOut& out, int64_t tokens, int64_t width) {
    static_assert(static_cast<int>(ActivationFormat::none) == 0);
    if (out.codes == ActivationFormat::none) return {};
    return {static_cast<int>(out.codes), out.input_scale, scales_after(out.data, tokens, width)};
}

Status usable(std::string_view what, int64_t tokens, int64_t width, int64_t multiple, const RowsOut& out) {
    if (tokens < 1 || tokens > most_tokens)
        return fail("{}: {} tokens, 1 to {} are supported", what, tokens, most_tokens);
    if (width < multiple || width % multiple)
        return fail("{}: width {} is not a multiple of {}", what, width, multiple);
    if (out.tile_tokens && width % 256)
        return fail("{}: width {} is not a multiple of 256 (permute() pads rows)", what, width);
    if (out.codes == ActivationFormat::none) return Ok{};
    if (out.tile_tokens || width % 128 || !has_codes(out.codes))
        return fail("{}: rows of {} as codes of {}", what, width, activation_name(out.codes));
    return Ok{};
}

Status usable(std::string_view what, int dims, const int32_t* positions, const float* cos, const float* sin) {
    if (dims < 0 || dims % 2 || (dims > 0 && (!positions || !cos || !sin)))
        return fail("{}: {} rotary dimensions are not supported, or positions or angles are missing", what, dims);
    return Ok{};
}

}  // namespace

Result<CacheArgs> cache_args(const KvCache& cache) {
    const KvShape& s = cache.shape;
    if (s.kv_heads < 1) return fail("KV cache: {} heads", s.kv_heads);
    if (s.page_tokens < kv_tile_tokens || s.page_tokens % kv_tile_tokens)
        return fail("KV cache: pages of {} tokens, which is not a multiple of {}", s.page_tokens, kv_tile_tokens);
    if (s.k_dim < 8 || s.k_dim % 8 || s.v_dim < 8 || s.v_dim % 8 || s.dims().k == 0)
        return fail("KV cache: heads of {} and {} dimensions; multiples of 8 up to 512 are supported", s.k_dim,
                    s.v_dim);
    if (s.stride() % 16 || s.stride() < s.page_bytes())
        return fail("KV cache: pages of {} bytes have the stride {}", s.page_bytes(), s.stride());
    return CacheArgs{.pages = reinterpret_cast<uint8_t*>(cache.pages),
                     .k_scales = s.type == KvType::e4m3 ? cache.k_scales : nullptr,
                     .v_scales = s.type == KvType::e4m3 ? cache.v_scales : nullptr,
                     .page_stride = s.stride(),
                     .kv_heads = s.kv_heads,
                     .page_tokens = s.page_tokens,
                     .dims = {s.k_dim, s.v_dim},
                     .padded = s.dims(),
                     .type = s.type};
}

Status embed(const std::byte* table, const int32_t* tokens, int64_t count, int64_t width, std::byte* h, bool overlap,
             const Stream& stream) {
    if (count < 1 || count > INT32_MAX || width < 8 || width % 8)
        return fail("embed: {} rows of {}; the width must be a multiple of 8", count, width);
    return cuda_status(launch_embed({.table = reinterpret_cast<const uint4*>(table),
                                     .tokens = tokens,
                                     .h = reinterpret_cast<uint4*>(h),
                                     .count = count,
                                     .width = width,
                                     .overlap = overlap},
                                    queue_of(stream)),
                       "embed: kernel launch");
}

Status add_norm(const AddNorm& a, bool overlap, const Stream& stream) {
    NIBBLE_CHECK(usable("add_norm", a.tokens, a.width, 8, a.out));
    if (a.update && a.update_rows) return fail("add_norm: both update and update_rows are given");
    if (a.width > most_norm_width) return fail("add_norm: width {} is more than {}", a.width, most_norm_width);
    return cuda_status(launch_add_norm({.h = reinterpret_cast<uint16_t*>(a.h),
                                        .sum = reinterpret_cast<uint16_t*>(a.sum ? a.sum : a.h),
                                        .update = a.update,
                                        .update16 = reinterpret_cast<const uint16_t*>(a.update_rows),
                                        .post_norm = a.post_norm,
                                        .post_bias = a.post_bias,
                                        .weight = a.weight,
                                        .bias = a.bias,
                                        .out = reinterpret_cast<uint8_t*>(a.out.data),
                                        .nonfinite = a.nonfinite,
                                        .amax = a.amax,
                                        .tokens = a.tokens,
                                        .width = static_cast<int>(a.width),
                                        .tile_tokens = a.out.tile_tokens,
                                        .codes = row_codes(a.out, a.tokens, a.width),
                                        .eps = a.eps,
                                        .update_scale = a.update_scale,
                                        .sum_scale = a.sum_scale,
                                        .centered = a.centered,
                                        .overlap = overlap},
                                       queue_of(stream)),
                       "add_norm: kernel launch");
}

Status norm_rows(const NormRows& n, bool overlap, const Stream& stream) {
    NIBBLE_CHECK(usable("norm_rows", n.tokens, n.width, 1, {}));
    if (n.groups < 1 || n.width % n.groups || n.width / n.groups > most_norm_width)
        return fail("norm_rows: width {} in {} groups", n.width, n.groups);
    if (!n.out == !n.wide) return fail("norm_rows: give out or wide, not both");
    return cuda_status(launch_norm_rows({.in = n.in,
                                         .weight = n.weight,
                                         .out = reinterpret_cast<uint16_t*>(n.out),
                                         .wide = n.wide,
                                         .tokens = n.tokens,
                                         .in_stride = n.in_stride ? n.in_stride : n.width,
                                         .out_stride = n.width,
                                         .group_width = static_cast<int>(n.width / n.groups),
                                         .eps = n.eps,
                                         .overlap = overlap},
                                        n.groups, queue_of(stream)),
                       "norm_rows: kernel launch");
}

Status activate(Activation activation, bool gated, const float* in, int64_t in_stride, int64_t tokens, int64_t width,
                const RowsOut& out, bool overlap, const Stream& stream, bool interleaved_gate,
                const ClampedGlu& clamp) {
    NIBBLE_CHECK(usable("activate", tokens, width, interleaved_gate ? 16 : 8, out));
    if (clamp.limit > 0 && !gated) return fail("activate: a limit needs a gated unit");
    if (out.codes == ActivationFormat::fp8_token) return fail("activate: codes with a scale per row are not supported");
    const int64_t in_width = gated ? 2 * width : width;
    if (in_stride && (in_stride < in_width || in_stride % 2))
        return fail("activate: rows of {} have the stride {}", in_width, in_stride);
    return cuda_status(launch_activate({.in = in,
                                        .out = reinterpret_cast<uint8_t*>(out.data),
                                        .tokens = tokens,
                                        .in_stride = in_stride ? in_stride : in_width,
                                        .width = static_cast<int>(width),
                                        .tile_tokens = out.tile_tokens,
                                        .codes = row_codes(out, tokens, width),
                                        .activation = static_cast<int>(activation),
                                        .gated = gated,
                                        .interleaved_gate = interleaved_gate,
                                        .clamp = clamp,
                                        .overlap = overlap},
                                       queue_of(stream)),
                       "activate: kernel launch");
}

Status activate(Activation activation, bool gated, const std::byte* in, int64_t tokens, int64_t width,
                const RowsOut& out, bool overlap, const Stream& stream, float* amax, const ClampedGlu& clamp) {
    NIBBLE_CHECK(usable("activate", tokens, width, 8, out));
    if (clamp.limit > 0 && !gated) return fail("activate: a limit needs a gated unit");
    if (out.codes == ActivationFormat::fp8_token || out.tile_tokens)
        return fail("activate: BF16 rows have no kernel for codes with a scale per row or for tiles");
    for (const std::byte* p : {in, static_cast<const std::byte*>(out.data)})
        if (reinterpret_cast<uintptr_t>(p) % 16) return fail("activate: device pointers must be 16-byte aligned");
    return cuda_status(launch_activate_rows({.in = in,
                                             .out = out.data,
                                             .amax = amax,
                                             .tokens = tokens,
                                             .width = width,
                                             .codes = row_codes(out, tokens, width),
                                             .activation = static_cast<int>(activation),
                                             .gated = gated,
                                             .clamp = clamp,
                                             .overlap = overlap},
                                            queue_of(stream)),
                       "activate: kernel launch");
}

Status to_rows(const float* in, int64_t in_stride, int64_t tokens, int64_t width, const RowsOut& out, bool overlap,
               const Stream& stream) {
    NIBBLE_CHECK(usable("to_rows", tokens, width, 8, out));
    if (out.codes == ActivationFormat::fp8_token) return fail("to_rows: codes with a scale per row are not supported");
    if (in_stride && (in_stride < width || in_stride % 2))
        return fail("to_rows: rows of {} have the stride {}", width, in_stride);
    return cuda_status(launch_activate({.in = in,
                                        .out = reinterpret_cast<uint8_t*>(out.data),
                                        .tokens = tokens,
                                        .in_stride = in_stride ? in_stride : width,
                                        .width = static_cast<int>(width),
                                        .tile_tokens = out.tile_tokens,
                                        .codes = row_codes(out, tokens, width),
                                        .activation = -1,
                                        .overlap = overlap},
                                       queue_of(stream)),
                       "to_rows: kernel launch");
}

Status add_rows(float* y, const float* x, int64_t count, bool overlap, const Stream& stream) {
    if (count < 1) return fail("add_rows: {} values", count);
    return cuda_status(launch_add_rows({y, x, count, overlap}, queue_of(stream)), "add_rows: kernel launch");
}

Status round_rows(float* x, int64_t count, bool overlap, const Stream& stream, const LogitFactors& factors) {
    if (count < 1) return fail("round_rows: {} values", count);
    return cuda_status(launch_round({x, count, factors.scale, factors.cap, overlap}, queue_of(stream)),
                       "round_rows: kernel launch");
}

Status scale_columns(const ScaleColumns& s, bool overlap, const Stream& stream) {
    ScaleColumnsArgs args{
        .x = s.x, .tokens = s.tokens, .stride = s.stride, .first = static_cast<int>(s.first), .overlap = overlap};
    static_assert(ScaleColumnsArgs::most_parts == ScaleColumns::most_parts);
    int64_t columns = 0;
    for (size_t part = 0; part < s.parts.size(); ++part) {
        columns += s.parts[part].columns;
        args.end[part] = static_cast<int>(columns);
        args.by[part] = s.parts[part].by;
    }
    if (s.tokens < 1 || columns < 1 || s.first < 0 || s.first + columns > s.stride || s.stride > INT32_MAX)
        return fail("scale_columns: {} tokens, columns {} to {} of {}", s.tokens, s.first, s.first + columns, s.stride);
    args.columns = static_cast<int>(columns);
    return cuda_status(launch_scale_columns(args, queue_of(stream)), "scale_columns: kernel launch");
}

Status scale_rows(const std::byte* x, int64_t count, float by, std::byte* y, bool overlap, const Stream& stream) {
    if (count < 1) return fail("scale_rows: {} values", count);
    return cuda_status(
        launch_scale_rows({reinterpret_cast<const uint16_t*>(x), reinterpret_cast<uint16_t*>(y), count, by, overlap},
                          queue_of(stream)),
        "scale_rows: kernel launch");
}

Status gate_heads(const GateHeads& g, bool overlap, const Stream& stream) {
    if (g.tokens < 1 || g.heads < 1 || g.dim < 1 || !g.gates == !g.gate_rows)
        return fail("gate_heads: {} tokens, {} heads of {}, one kind of gates", g.tokens, g.heads, g.dim);
    return cuda_status(launch_gate_heads({.x = reinterpret_cast<uint16_t*>(g.x),
                                          .gates = g.gates,
                                          .gate_rows = reinterpret_cast<const uint16_t*>(g.gate_rows),
                                          .tokens = g.tokens,
                                          .stride = g.stride,
                                          .heads = g.heads,
                                          .dim = g.dim,
                                          .pitch = g.pitch,
                                          .by_head = g.by_head,
                                          .overlap = overlap},
                                         queue_of(stream)),
                       "gate_heads: kernel launch");
}

Status per_layer_rows(const PerLayerRows& p, bool overlap, const Stream& stream) {
    if (p.tokens < 1 || p.width < 1 || p.width > most_norm_width)
        return fail("per_layer_rows: {} tokens of {}", p.tokens, p.width);
    return cuda_status(launch_per_layer_rows({.projected = p.projected,
                                              .table = reinterpret_cast<const uint16_t*>(p.table),
                                              .ids = p.ids,
                                              .norm = p.norm,
                                              .gate = p.gate,
                                              .out = reinterpret_cast<uint16_t*>(p.out),
                                              .tokens = p.tokens,
                                              .width = static_cast<int>(p.width),
                                              .root = p.root,
                                              .half = p.half,
                                              .eps = p.eps,
                                              .overlap = overlap},
                                             queue_of(stream)),
                       "per_layer_rows: kernel launch");
}

Result<RopeArgs> rope_args(const RopeAppend& r, const KvCache& cache, bool overlap) {
    NIBBLE_TRY(const CacheArgs args, cache_args(cache));
    NIBBLE_CHECK(usable("rope_append", r.rope_dims, r.positions, r.cos, r.sin));
    const RopeAppend::Options& o = r.options;
    const int64_t q_width = int64_t{r.q_heads} * args.dims.k * (o.gated ? 2 : 1);
    const int64_t k_width = int64_t{args.kv_heads} * args.dims.k;
    const int64_t v_width = o.keys_as_values ? 0 : int64_t{args.kv_heads} * args.dims.v;
    const int64_t width = q_width + (o.queries_only ? 0 : k_width + v_width);
    if (o.keys_as_values && args.dims.k != args.dims.v)
        return fail("rope_append: values of {} columns from keys of {}", args.dims.v, args.dims.k);
    if (r.tokens < 1 || r.q_heads < 1 || r.rope_dims > args.dims.k || (r.qkv_stride && r.qkv_stride < width))
        return fail("rope_append: {} tokens, {} heads, {} rotary dimensions of {}, rows of {} with the stride {}",
                    r.tokens, r.q_heads, r.rope_dims, args.dims.k, width, r.qkv_stride);
    return RopeArgs{.cache = args,
                    .rotary = {r.positions, r.cos, r.sin, r.rope_dims, r.interleaved},
                    .qkv = r.qkv,
                    .slots = r.slots,
                    .q_norm = r.q_norm,
                    .k_norm = r.k_norm,
                    .q = reinterpret_cast<uint16_t*>(r.q),
                    .tokens = r.tokens,
                    .qkv_stride = r.qkv_stride ? r.qkv_stride : width,
                    .q_heads = r.q_heads,
                    .eps = r.eps,
                    .overlap = overlap};
}

namespace {

Status append_with_options(const RopeAppend& r, const RopeArgs& args, bool overlap, const Stream& stream) {
    const RopeAppend::Options& o = r.options;
    const int dim = args.cache.dims.k;
    const auto* qkv16 = reinterpret_cast<const uint16_t*>(r.qkv_rows);
    RopeOptionsArgs all{.rope = args,
                        .qkv16 = qkv16,
                        .joined_scales = o.joined_scales,
                        .query_beta = o.query_beta,
                        .query_period = o.query_period,
                        .query_offset = o.query_offset,
                        .value_scale = o.value_scale,
                        .q_pitch = o.gated ? 2 * dim : dim,
                        .kv_heads = o.queries_only ? 0 : args.cache.kv_heads,
                        .late = o.late,
                        .value_norm = o.value_norm,
                        .overlap = overlap};
    all.k_at = r.q_heads * all.q_pitch;
    all.v_at = o.keys_as_values ? all.k_at : all.k_at + args.cache.kv_heads * dim;
    if (o.query_period > 0 && !r.positions) return fail("rope_append: query_period needs positions");
    if (o.joined_scales) {
        const int q_width = r.q_heads * dim, k_width = args.cache.kv_heads * dim;
        if (o.late || o.gated || o.queries_only || q_width > most_norm_width || k_width > q_width || !r.q_norm ||
            !r.k_norm)
            return fail("rope_append: a norm of {} queries and {} keys together", q_width, k_width);
        NIBBLE_CHECK(cuda_status(launch_joined_scales({.qkv = r.qkv,
                                                       .qkv16 = qkv16,
                                                       .scales = o.joined_scales,
                                                       .tokens = r.tokens,
                                                       .stride = args.qkv_stride,
                                                       .q_width = q_width,
                                                       .k_width = k_width,
                                                       .k_at = all.k_at,
                                                       .eps = r.eps,
                                                       .overlap = overlap},
                                                      queue_of(stream)),
                                 "rope_append: norm kernel launch"));
    }
    return cuda_status(launch_rope_options(all, queue_of(stream)), "rope_append: kernel launch");
}

}  // namespace

Status rope_append(const RopeAppend& r, const KvCache& cache, bool overlap, const Stream& stream) {
    NIBBLE_TRY(const RopeArgs args, rope_args(r, cache, overlap));
    if (!r.qkv == !r.qkv_rows) return fail("rope_append: give qkv or qkv_rows, not both");
    if (r.options != RopeAppend::Options{} || cache.shape.k_dim > 256)
        return append_with_options(r, args, overlap, stream);
    if (r.qkv) return cuda_status(launch_rope(args, queue_of(stream)), "rope_append: kernel launch");
    for (const void* p : std::initializer_list<const void*>{r.qkv_rows, r.q, r.cos, r.sin})
        if (reinterpret_cast<uintptr_t>(p) % 16) return fail("rope_append: device pointers must be 16-byte aligned");
    if (args.qkv_stride % 8 || r.tokens * (r.q_heads + 2 * args.cache.kv_heads) > INT32_MAX)
        return fail("rope_append: {} rows of BF16 have the stride {}", r.tokens, args.qkv_stride);
    return cuda_status(
        launch_rope_rows({.rope = args, .qkv = reinterpret_cast<const uint16_t*>(r.qkv_rows), .overlap = overlap},
                         queue_of(stream)),
        "rope_append: kernel launch");
}

Status latent_append(const LatentAppend& r, const KvCache& cache, bool overlap, const Stream& stream) {
    NIBBLE_TRY(const CacheArgs args, cache_args(cache));
    const int turned = r.rotates ? r.rope_dims : 0;
    NIBBLE_CHECK(usable("latent_append", turned, r.positions, r.cos, r.sin));
    if (r.query_period > 0 && !r.positions) return fail("latent_append: query_period needs positions");
    if (r.tokens < 1 || r.heads != args.kv_heads || r.nope_dim + r.rope_dims != args.dims.k || r.v_dim != args.dims.v)
        return fail("latent_append: {} tokens, {} heads of {} + {} and {} into a cache of {} heads of {} and {}",
                    r.tokens, r.heads, r.nope_dim, r.rope_dims, r.v_dim, args.kv_heads, args.dims.k, args.dims.v);
    return cuda_status(launch_latent({.cache = args,
                                      .rotary = {r.positions, r.cos, r.sin, turned, r.interleaved},
                                      .q_in = r.q_in,
                                      .kv = r.kv,
                                      .shared = r.shared,
                                      .slots = r.slots,
                                      .q = reinterpret_cast<uint16_t*>(r.q),
                                      .tokens = r.tokens,
                                      .q_stride = r.q_stride ? r.q_stride : int64_t{r.heads} * args.dims.k,
                                      .shared_stride = r.shared_stride ? r.shared_stride : r.rope_dims,
                                      .nope = r.nope_dim,
                                      .query_beta = r.query_beta,
                                      .query_period = r.query_period,
                                      .overlap = overlap},
                                     queue_of(stream)),
                       "latent_append: kernel launch");
}

Status append_kv(const KvCache& cache, const std::byte* k, const std::byte* v, const int64_t* slots, int64_t tokens,
                 const Stream& stream) {
    NIBBLE_TRY(const CacheArgs args, cache_args(cache));
    return cuda_status(launch_append({.cache = args,
                                      .k = reinterpret_cast<const uint16_t*>(k),
                                      .v = reinterpret_cast<const uint16_t*>(v),
                                      .slots = slots,
                                      .tokens = tokens},
                                     queue_of(stream)),
                       "append_kv: kernel launch");
}

Status argmax(const float* logits, int64_t tokens, int64_t width, int32_t* index, bool overlap, const Stream& stream) {
    NIBBLE_CHECK(usable("argmax", tokens, width, 1, {}));
    return cuda_status(launch_argmax({logits, index, tokens, width, overlap}, queue_of(stream)),
                       "argmax: kernel launch");
}

}  // namespace nibble::cuda

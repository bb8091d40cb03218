#include "kernels/attention_cuda.h"

#include "kernels/cuda/attention_launch.h"
#include "tensor/cuda/call.h"

#include <algorithm>
#include <numbers>

namespace nibble::cuda {
namespace {

constexpr int most_merge_warps = 4, most_group = 8;
constexpr int64_t workspace_alignment = 256;

cudaStream_t raw(const Stream& stream) { return static_cast<cudaStream_t>(stream.handle()); }

bool aligned(const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; }

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

Status usable(const KvShape& shape) {
    if (shape.kv_heads < 1) return fail("attention: {} KV heads", shape.kv_heads);
    if (shape.page_tokens < kv_tile_tokens || shape.page_tokens % kv_tile_tokens)
        return fail("attention: pages of {} tokens, not of a multiple of {}", shape.page_tokens, kv_tile_tokens);
    return Ok{};
}

int heads_room(const AttentionProblem& p) { return p.q_heads / p.kv.kv_heads <= 4 ? 4 : 8; }

int64_t sums_bytes(const AttentionProblem& p) {
    return ceil_div(p.most_units * p.q_heads * kv_head_dim * 4, workspace_alignment) * workspace_alignment;
}

int64_t most_chains(const AttentionProblem& p) {
    return std::max<int64_t>(1, ceil_div(p.most_tokens, group_tokens * chain_groups));
}

}  // namespace

AttentionWork attention_work(std::span<const int32_t> lengths) {
    AttentionWork work;
    for (size_t s = 0; s < lengths.size(); ++s) {
        work.first_unit.push_back(static_cast<int32_t>(work.units.size()));
        for (int32_t first = 0; first < lengths[s]; first += group_tokens)
            work.units.push_back({static_cast<int32_t>(s), first, std::min(group_tokens, lengths[s] - first),
                                  first + group_tokens >= lengths[s]});
    }
    work.first_unit.push_back(static_cast<int32_t>(work.units.size()));
    return work;
}

Status append_kv(const KvCache& cache, const std::byte* k, const std::byte* v, const int64_t* slots, int64_t tokens,
                 const Stream& stream) {
    NIBBLE_CHECK(usable(cache.shape));
    return cuda_status(launch_append({.k = reinterpret_cast<const uint16_t*>(k),
                                      .v = reinterpret_cast<const uint16_t*>(v),
                                      .slots = slots,
                                      .pages = reinterpret_cast<uint8_t*>(cache.pages),
                                      .k_scales = cache.k_scales,
                                      .v_scales = cache.v_scales,
                                      .tokens = tokens,
                                      .page_bytes = cache.shape.page_bytes(),
                                      .kv_heads = cache.shape.kv_heads,
                                      .page_tokens = cache.shape.page_tokens},
                                     cache.shape.type, raw(stream)),
                       "append_kv: kernel launch");
}

Result<AttentionPlan> plan_attention(const AttentionProblem& p, const DeviceInfo& device) {
    NIBBLE_CHECK(usable(p.kv));
    if (p.q_heads < 1 || p.q_heads % p.kv.kv_heads || p.q_heads / p.kv.kv_heads > most_group)
        return fail("attention: {} query heads over {} KV heads, 1 to {} per KV head are supported", p.q_heads,
                    p.kv.kv_heads, most_group);
    if (p.sequences < 1 || p.most_units < 0 || p.most_units * p.q_heads > INT32_MAX)
        return fail("attention: {} sequences, {} units", p.sequences, p.most_units);
    const CurrentDevice current(device.index);
    NIBBLE_CHECK(current.status());
    int per_multiprocessor = 0;
    NIBBLE_CHECK(cuda_status(prepare_attention({p.kv.type, heads_room(p)}, &per_multiprocessor),
                             "attention: cudaFuncSetAttribute"));
    if (per_multiprocessor < 1) return fail("attention: the kernel does not fit a multiprocessor of {}", device.name);
    AttentionPlan plan{.problem = p};
    plan.blocks = static_cast<int>(
        std::clamp<int64_t>(p.most_units * p.kv.kv_heads, 1, int64_t{device.multiprocessors} * per_multiprocessor));
    plan.merge_warps = static_cast<int>(std::min<int64_t>(most_merge_warps, most_chains(p)));
    if (most_chains(p) * (32 * 16 + 8) > 48 * 1024)
        return fail("attention: {} tokens in a sequence are too many", p.most_tokens);
    plan.workspace_bytes = sums_bytes(p) + p.most_units * p.q_heads * 8;
    return plan;
}

Status decode_attention(const AttentionPlan& plan, const AttentionInput& in, const KvCache& cache, std::byte* out,
                        std::byte* workspace, bool overlap, const Stream& stream) {
    const AttentionProblem& p = plan.problem;
    if (cache.shape.type != p.kv.type || cache.shape.kv_heads != p.kv.kv_heads ||
        cache.shape.page_tokens != p.kv.page_tokens)
        return fail("attention: the cache has another shape than the plan");
    if (!aligned(in.q) || !aligned(in.units) || !aligned(cache.pages) || !aligned(out) || !aligned(workspace))
        return fail("attention: device pointers must be 16-byte aligned");
    const AttentionArgs args{.q = reinterpret_cast<const uint8_t*>(in.q),
                             .pages = reinterpret_cast<const uint8_t*>(cache.pages),
                             .table = in.table,
                             .units = in.units,
                             .first_unit = in.first_unit,
                             .k_scales = p.kv.type == KvType::e4m3 ? cache.k_scales : nullptr,
                             .v_scales = p.kv.type == KvType::e4m3 ? cache.v_scales : nullptr,
                             .sums = reinterpret_cast<float*>(workspace),
                             .tops = reinterpret_cast<float2*>(workspace + sums_bytes(p)),
                             .out = reinterpret_cast<uint8_t*>(out),
                             .sequences = p.sequences,
                             .kv_heads = p.kv.kv_heads,
                             .q_heads = p.q_heads,
                             .page_tokens = p.kv.page_tokens,
                             .table_pitch = p.table_pitch,
                             .page_bytes = p.kv.page_bytes(),
                             .scale_log2 = p.softmax_scale * std::numbers::log2e_v<float>,
                             .overlap = overlap};
    NIBBLE_CHECK(cuda_status(launch_attention(args, {p.kv.type, heads_room(p)}, plan.blocks, raw(stream)),
                             "attention: kernel launch"));
    return cuda_status(launch_merge(args, plan.merge_warps, most_chains(p), raw(stream)),
                       "attention: merge kernel launch");
}

}  // namespace nibble::cuda

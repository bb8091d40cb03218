#include "kernels/attention_cuda.h"

#include "kernels/cuda/attention/attention_launch.h"
#include "kernels/cuda/primitives/cache_args.h"
#include "kernels/cuda/primitives/launch_checks.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <numbers>

namespace nibble::cuda {
namespace {

static_assert(sizeof(AttentionUnit) == 4 * unit_words && sizeof(AttentionMerge) == 4 * merge_words &&
              sizeof(AttentionCounts) == 4 * counts_words && sizeof(AttentionGather) == 4 * gather_words &&
              sizeof(AttentionPrefill) == 4 * prefill_words);

constexpr int64_t workspace_alignment = 256;
constexpr int64_t most_partial_bytes = int64_t{96} << 20;  // partial sums of groups
constexpr int64_t blocks_worth = 8;  // work items per thread block, so that all blocks end at about the same time

bool aligned(const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; }
int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

int group_of(const AttentionProblem& p) { return p.q_heads / p.kv.kv_heads; }

// Uses units of sixteen columns if a launch has more than one token per segment.
AttentionKernelShape shape_of(const AttentionProblem& p) {
    const int64_t columns = p.most_rows > p.most_segments ? 2 * p.most_rows * group_of(p) : group_of(p);
    const int k = p.kv.dims().k;
    return {p.kv.type, p.kv.dims(), columns <= 4 && k <= 128 ? 4 : columns > 8 && k < 256 ? 16 : 8};
}

// Maximum over all segments together, for any distribution of rows.
int64_t most_blocks(const AttentionProblem& p) {
    return p.most_rows * group_of(p) / shape_of(p).columns + p.most_segments;
}
int64_t most_groups(const AttentionProblem& p) { return ceil_div(p.most_tokens, group_tokens) + 1; }

int page_shift(int tiles) {
    return std::has_single_bit(static_cast<unsigned>(tiles)) ? std::countr_zero(static_cast<unsigned>(tiles)) : -1;
}
int64_t rounded_up(int64_t bytes) { return ceil_div(bytes, workspace_alignment) * workspace_alignment; }
int64_t sums_bytes(const AttentionPlan& plan) {
    const AttentionKernelShape s = shape_of(plan.problem);
    return rounded_up(plan.partials * plan.problem.kv.kv_heads * s.columns * s.dims.v * 4);
}
int64_t tops_bytes(const AttentionPlan& plan) {
    return rounded_up(plan.partials * plan.problem.kv.kv_heads * shape_of(plan.problem).columns *
                      static_cast<int64_t>(sizeof(float2)));
}

// Returns the number of groups per piece that minimizes the total time. Thread blocks take items in order, the longest
// first, so each round lasts as long as its first item.
int32_t best_piece(const std::vector<AttentionUnit>& units, const AttentionPlan& plan) {
    constexpr int64_t group_cost = 4, item_cost = 1, merge_cost = 2;  // merge_cost: for a piece that is not whole
    int32_t longest = 1;
    for (const AttentionUnit& u : units) longest = std::max(longest, u.groups);
    int32_t best = longest;
    int64_t least = INT64_MAX;
    std::vector<int64_t> count(static_cast<size_t>(longest) + 1);  // items by length
    for (int32_t piece = longest; piece >= 1; piece = piece > 16 ? piece * 3 / 4 : piece - 1) {
        std::ranges::fill(count, 0);
        for (const AttentionUnit& u : units) {
            count[static_cast<size_t>(piece)] += u.groups / piece;
            if (u.groups % piece) ++count[static_cast<size_t>(u.groups % piece)];
        }
        const int64_t each = item_cost + (piece < longest ? merge_cost : 0);
        int64_t cost = 0, before = 0;
        for (int32_t groups = piece; groups >= 1; --groups) {
            const int64_t through = before + count[static_cast<size_t>(groups)] * plan.problem.kv.kv_heads;
            cost += (ceil_div(through, plan.blocks) - ceil_div(before, plan.blocks)) * (groups * group_cost + each);
            before = through;
        }
        if (cost < least) least = cost, best = piece;
    }
    return best;
}

// Returns true if the prefill kernel supports the problem; it processes many columns of a KV head.
bool has_prefill(const AttentionProblem& p) {
    return on_hopper() && p.kv.k_dim == p.kv.v_dim && (p.kv.k_dim == 64 || p.kv.k_dim == 128) &&
           p.most_rows * group_of(p) >= prefill_columns;
}
int64_t gathered_bytes(const AttentionProblem& p) { return int64_t{p.kv.kv_heads} * 2 * run_tokens * p.kv.k_dim * 2; }

}  // namespace

Result<AttentionPlan> plan_attention(const AttentionProblem& p, const DeviceInfo& device) {
    NIBBLE_CHECK(cache_args({.shape = p.kv}));
    if (p.q_heads < 1 || p.q_heads % p.kv.kv_heads)
        return fail("attention: {} query heads over {} KV heads", p.q_heads, p.kv.kv_heads);
    if (!(p.softmax_scale > 0)) return fail("attention: scores times {}", p.softmax_scale);
    if (p.chunk < 0 || p.chunk > INT32_MAX / 2 || !(p.soft_cap >= 0))
        return fail("attention: chunks of {}, soft cap {}", p.chunk, p.soft_cap);
    if (p.most_segments < 1 || p.most_rows < p.most_segments || p.most_tokens < 1 || p.window < 0 ||
        p.table_pitch * p.kv.page_tokens < p.most_tokens || p.most_rows * p.q_heads > INT32_MAX / 512)
        return fail("attention: {} segments, {} rows, {} tokens in {} pages, window {}", p.most_segments, p.most_rows,
                    p.most_tokens, p.table_pitch, p.window);
    const CurrentDevice current(device.index);
    NIBBLE_CHECK(current.status());
    const AttentionKernelShape shape = shape_of(p);
    int fit = 0;
    NIBBLE_CHECK(cuda_status(
        p.kv.type == KvType::bf16 ? prepare_attention_bf16(shape, &fit) : prepare_attention_e4m3(shape, &fit),
        "attention: cudaFuncSetAttribute"));
    if (fit < 1) return fail("attention: the kernel needs more memory than a multiprocessor of {} has", device.name);
    AttentionPlan plan{.problem = p, .multiprocessors = device.multiprocessors, .blocks = device.multiprocessors * fit};
    // Groups are split off a block of columns only while less than this remains to be done.
    plan.partials =
        std::min(most_blocks(p) * most_groups(p), 2 * blocks_worth * plan.blocks / p.kv.kv_heads + 2 * most_blocks(p));
    if (most_groups(p) <= 2) plan.partials = most_blocks(p) * most_groups(p);
    plan.partials = std::min<int64_t>(plan.partials, std::max<int64_t>(4096, 2 * p.most_segments));
    if (has_prefill(p)) {
        // Room for each segment's past, or four times the new positions; beyond that the other kernel is used.
        const int64_t longest = ceil_div(p.most_tokens, run_tokens) + 1;
        plan.gathered_runs = std::min(p.most_segments * longest,
                                      std::max(longest, 4 * ceil_div(p.most_rows, run_tokens) + 2 * p.most_segments));
        NIBBLE_CHECK(cuda_status(prepare_prefill(p.kv.type, p.kv.k_dim), "attention: cudaFuncSetAttribute"));
    }
    plan.work_words =
        counts_words + (most_blocks(p) + plan.partials) * (unit_words + merge_words + p.kv.kv_heads) +
        plan.gathered_runs * gather_words +
        (plan.gathered_runs ? (p.most_rows * group_of(p) / prefill_columns + p.most_segments) : 0) * prefill_words;
    plan.workspace_bytes = sums_bytes(plan) + tops_bytes(plan) + plan.gathered_runs * gathered_bytes(p);
    return plan;
}

KernelChoice describe(const AttentionPlan& plan) {
    const AttentionProblem& p = plan.problem;
    const AttentionKernelShape shape = shape_of(p);
    const bool bf16 = p.kv.type == KvType::bf16;
    KernelChoice out{.kernel = bf16 ? "attention_bf16" : "attention_e4m3",
                     .why = fmt::format("{} cache, {} query heads to a KV head: blocks of {} columns",
                                        bf16 ? "BF16" : "FP8", group_of(p), shape.columns)};
    if (plan.gathered_runs == 0) return out;
    out.kernel = "attention_gather + sm90_attention_prefill + " + out.kernel;
    out.why +=
        fmt::format("; {} columns of one sequence or more go to sm90_attention_prefill (wgmma)", prefill_columns);
    return out;
}

Result<AttentionWork> attention_work(const AttentionPlan& plan, std::span<const AttentionSegment> segments) {
    const AttentionProblem& p = plan.problem;
    const int group = group_of(p), columns = shape_of(p).columns;
    std::vector<AttentionUnit> units;
    std::vector<AttentionGather> gathers;
    std::vector<AttentionPrefill> prefills;
    int64_t rows = 0;
    // Returns the first run that rows of a segment see.
    const auto first_seen = [&](int64_t position) {
        const int64_t first = p.window ? std::max<int64_t>(0, position - p.window + 1) : 0;
        return p.chunk ? std::max(first, position / p.chunk * p.chunk) : first;
    };
    const auto prefill = [&](const AttentionSegment& s) {
        const int64_t seen = first_seen(s.position), last = s.position + s.rows - 1;
        const int64_t begin = seen / run_tokens, end = last / run_tokens + 1, base = std::ssize(gathers);
        if (s.rows * group < prefill_columns || base + end - begin > plan.gathered_runs) return false;
        for (int64_t run = begin; run < end; ++run)
            gathers.push_back({s.table, static_cast<int32_t>(run * run_tokens), static_cast<int32_t>(seen),
                               static_cast<int32_t>(last), static_cast<int32_t>(std::ssize(gathers))});
        for (int32_t column = 0; column < s.rows * group; column += prefill_columns) {
            const int32_t count = std::min(prefill_columns, s.rows * group - column);
            const int64_t first = first_seen(s.position + column / group) / run_tokens;
            const int64_t through = (s.position + (column + count - 1) / group) / run_tokens;
            prefills.push_back({s.row, s.position, column, count, static_cast<int32_t>(first),
                                static_cast<int32_t>(through - first + 1), static_cast<int32_t>(base + first - begin)});
        }
        return true;
    };
    for (const AttentionSegment& s : segments) {
        rows += s.rows;
        if (s.rows < 1 || s.position < 0 || int64_t{s.position} + s.rows > p.most_tokens)
            return fail("attention: {} rows at position {} of {}", s.rows, s.position, p.most_tokens);
        if (plan.gathered_runs && prefill(s)) continue;
        for (int32_t column = 0; column < s.rows * group; column += columns) {
            const int32_t count = std::min(columns, s.rows * group - column);
            const auto low = static_cast<int32_t>(s.position + column / group);
            const auto high = static_cast<int32_t>(s.position + (column + count - 1) / group);
            const auto seen = static_cast<int32_t>(first_seen(low));
            const int32_t begin = seen / group_tokens, end = high / group_tokens;
            units.push_back({.table = s.table,
                             .position = s.position,
                             .first_group = begin,
                             .groups = end - begin + 1,
                             .first_seen = seen,
                             .last_seen = high,
                             .lowest = low,
                             .partial = -1,
                             .row = s.row,
                             .column = column,
                             .columns = count,
                             .merge = -1});
        }
    }
    if (std::ssize(segments) > p.most_segments || rows > p.most_rows)
        return fail("attention: {} segments of {} rows under a plan for {} of {}", segments.size(), rows,
                    p.most_segments, p.most_rows);
    // Splits units of many groups if the work then ends sooner. Each group then leaves its own sums, so the order of
    // additions stays the same. Blocks of columns stay whole if their sums do not fit.
    const int32_t piece = best_piece(units, plan);
    std::vector<AttentionUnit> pieces;
    std::vector<AttentionMerge> merges;
    int32_t partial = 0;
    for (const AttentionUnit& u : units) {
        if (u.groups <= piece || partial + u.groups > plan.partials) {
            pieces.push_back(u);
            continue;
        }
        const auto merge = static_cast<int32_t>(std::ssize(merges));
        merges.push_back({u.row, u.column, u.columns, partial, u.groups});
        for (int32_t from = 0; from < u.groups; from += piece) {
            AttentionUnit part = u;
            part.first_group = u.first_group + from;
            part.groups = std::min(piece, u.groups - from);
            part.partial = partial + from;
            part.merge = merge;
            pieces.push_back(part);
        }
        partial += u.groups;
    }
    // The longest first: short ones fill the gaps at the end.
    std::ranges::stable_sort(pieces, std::greater<>{}, &AttentionUnit::groups);
    std::ranges::stable_sort(prefills, std::greater<>{}, &AttentionPrefill::runs);
    AttentionWork work;
    work.words.resize(counts_words);
    const auto append = [&](const auto& list) {
        const size_t at = work.words.size(), bytes = list.size() * sizeof(list[0]);
        work.words.resize(at + bytes / 4);
        if (bytes > 0) std::memcpy(work.words.data() + at, list.data(), bytes);
        return static_cast<int32_t>(at);
    };
    const auto size = [](const auto& list) { return static_cast<int32_t>(list.size()); };
    append(pieces);
    const std::vector<int32_t> left(merges.size() * static_cast<size_t>(p.kv.kv_heads));
    const AttentionCounts counts{.units = size(pieces),
                                 .left_at = append(left),
                                 .merges_at = append(merges),
                                 .gathers = size(gathers),
                                 .gathers_at = append(gathers),
                                 .prefills = size(prefills),
                                 .prefills_at = append(prefills),
                                 .unused = 0};
    std::memcpy(work.words.data(), &counts, sizeof(counts));
    return work;
}

Status attend(const AttentionPlan& plan, const AttentionInput& in, const KvCache& cache, std::byte* out,
              std::byte* workspace, bool overlap, const Stream& stream) {
    const AttentionProblem& p = plan.problem;
    if (cache.shape != p.kv) return fail("attention: the cache has another shape than the plan");
    if (!aligned(in.q) || !aligned(in.work) || !aligned(cache.pages) || !aligned(out) || !aligned(workspace))
        return fail("attention: device pointers must be 16-byte aligned");
    NIBBLE_TRY(const CacheArgs c, cache_args(cache));
    const AttentionKernelShape shape = shape_of(p);
    const AttentionArgs args{
        .q = reinterpret_cast<const uint8_t*>(in.q),
        .pages = c.pages,
        .table = in.table,
        .work = const_cast<int32_t*>(in.work),  // its counters are zero again after the launch
        .k_scales = c.k_scales,
        .v_scales = c.v_scales,
        .sums = reinterpret_cast<float*>(workspace),
        .tops = reinterpret_cast<float2*>(workspace + sums_bytes(plan)),
        .scratch = reinterpret_cast<uint8_t*>(workspace + sums_bytes(plan) + tops_bytes(plan)),
        .out = reinterpret_cast<uint8_t*>(out),
        .log_sums = in.log_sums,
        .sinks = in.sinks,
        .kv_heads = p.kv.kv_heads,
        .q_heads = p.q_heads,
        .page_tokens = p.kv.page_tokens,
        .k_dim = p.kv.k_dim,
        .v_dim = p.kv.v_dim,
        .window = static_cast<int>(std::min<int64_t>(p.window, INT32_MAX / 2)),
        .chunk = static_cast<int>(p.chunk),
        .page_shift = page_shift(p.kv.page_tokens / kv_tile_tokens),
        .table_pitch = p.table_pitch,
        .page_stride = c.page_stride,
        .scale_log2 = (p.soft_cap > 0 ? p.soft_cap : p.softmax_scale) * std::numbers::log2e_v<float>,
        .cap_scale = p.soft_cap > 0 ? p.softmax_scale / p.soft_cap : 0.0f,
        .overlap = overlap};
    if (plan.gathered_runs) {
        NIBBLE_CHECK(cuda_status(launch_gather(args, p.kv.type, p.kv.k_dim, 8 * plan.multiprocessors, queue_of(stream)),
                                 "attention: gather kernel launch"));
        NIBBLE_CHECK(cuda_status(launch_prefill(args, p.kv.type, p.kv.k_dim, plan.multiprocessors, queue_of(stream)),
                                 "attention: prefill kernel launch"));
    }
    return cuda_status(p.kv.type == KvType::bf16 ? launch_attention_bf16(args, shape, plan.blocks, queue_of(stream))
                                                 : launch_attention_e4m3(args, shape, plan.blocks, queue_of(stream)),
                       "attention: kernel launch");
}

}  // namespace nibble::cuda

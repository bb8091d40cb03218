#include "kernels/w4a16_matmul_cuda.h"

#include "kernels/cuda/matmul/bf16/operand_launch.h"
#include "kernels/cuda/matmul/w4a16/matmul_launch.h"
#include "kernels/cuda/primitives/launch_checks.h"
#include "kernels/w4a16_record.h"

#include <algorithm>
#include <limits>

namespace nibble::cuda {
namespace {

constexpr int64_t shared_limit = 227 * 1024;  // bytes of shared memory of a thread block on sm_90
// Two thread blocks on a multiprocessor are slower: with overlap the next kernel's blocks pile up on the few that
// are idle (16.2 instead of 10.7 us at 4096 x 14336).
constexpr int64_t one_per_multiprocessor = 120 * 1024;
// Beyond it half of x per thread block; below it a cluster costs more than it saves.
constexpr int64_t most_x_bytes = 140 * 1024;
constexpr int most_tokens = 8, most_warps = 32;

bool aligned(const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; }

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

bool has_records(Format f) { return f == Format::nvfp4 || f == Format::mxfp4; }

OutputFactors output_factors(const MatmulFactors& f, int64_t n) {
    return {f.tensor_scale, f.row_scales, f.bias, f.y_stride ? f.y_stride : n};
}

Status fits_groups(int64_t rows, int64_t cols, std::string_view what) {
    if (rows > 0 && cols > 0 && cols % 16 == 0) return Ok{};
    return fail("{}: [{}, {}], columns must be a multiple of 16", what, rows, cols);
}
// unpack() does not handle padding.
Status fits_records(int64_t rows, int64_t cols, std::string_view what) {
    if (rows > 0 && cols > 0 && rows % w4a16::record_rows == 0 && cols % w4a16::record_cols == 0) return Ok{};
    return fail("{}: [{}, {}] is not whole records of {} x {}", what, rows, cols, w4a16::record_rows,
                w4a16::record_cols);
}

}  // namespace

ScaleBits scale_bits(Format format) {
    if (format == Format::mxfp4) return {w4a16::mx_scale_and, w4a16::mx_scale_or};
    return {w4a16::scale_and, w4a16::scale_or};
}

int64_t packed_bytes(int64_t rows, int64_t cols) {
    return ceil_div(rows, w4a16::record_rows) * ceil_div(cols, w4a16::record_cols) * w4a16::record_bytes;
}

namespace {

constexpr int row_block = 64;
// Nodes are at the same address for all plans, so that plans may share a workspace: sums of one plan never overwrite
// nodes of another, which must be zero between kernels.
constexpr int64_t most_nodes = 16384, nodes_bytes = most_nodes * 4;

int64_t padded(int64_t tokens, int64_t tile) { return ceil_div(tokens, tile) * tile; }

struct WideGrid {
    WideShape shape;
    bool prefill;                                 // sm90_matmul_w4a16_m128.cu: clusters along the rows, not along K
    int64_t token_tiles, row_groups, warpgroups;  // warpgroups: per thread block
    int units, chunks, levels;
    int64_t whole;  // prefill: tiles of one cluster each, before those that are split along K
    int64_t nodes, slots_bytes, parks_bytes;

    WideGrid(const MatmulProblem& p, const MatmulTiling& t, int multiprocessors)
        : shape{t.tokens, t.row_blocks, t.k_parts, t.parts % 2 == 0 ? 2 : 1},
          prefill(t.prefill()),
          token_tiles(ceil_div(p.m, t.tokens)),
          row_groups(ceil_div(p.n, row_block * t.row_blocks * (prefill ? 2 : 1))),
          warpgroups(t.row_blocks * t.k_parts),
          units(t.parts * t.k_parts),
          chunks(units > 0 ? matmul_chunks / units : 0),
          levels(chunks >= 8   ? 3
                 : chunks >= 4 ? 2
                 : chunks >= 2 ? 1
                               : 0),
          parks_bytes(prefill ? 0 : multiprocessors * warpgroups * levels * (row_block * t.tokens * 4)) {
        const int64_t tiles = token_tiles * row_groups, clusters = multiprocessors / 2;
        whole = t.parts == 1 ? tiles : tiles / clusters * clusters;
        if (prefill) {
            nodes = t.parts > 1 ? (tiles - whole) * 4 : 0;
            slots_bytes = nodes * t.parts * (row_block * t.tokens * 4);
            return;
        }
        // Leaves of a tree of sums: thread blocks, or clusters of them, along K.
        const int64_t leaves = t.parts / shape.cluster, row_blocks = tiles * t.row_blocks;
        nodes = leaves > 1 ? row_blocks * leaves * t.k_parts * shape.cluster : 0;
        slots_bytes = leaves > 1 ? row_blocks * leaves * (row_block * t.tokens * 4) : 0;
    }
};

// Microseconds on an H200, fitted to times of every tiling at seven shapes and seven numbers of tokens (7
// % rms up to 32 tokens, 3 % beyond): only the order of tilings matters, and of those 49 it missed the fastest
// once, by 1 %. Tiles of 96: four shapes at five numbers of tokens, the fastest of those allowed each time.
struct TilingCost {
    MatmulTiling tiling;
    double launch, tile, thousand_columns, meeting;  // meeting: additional cost of a tile that is split along K

    double of(const MatmulProblem& p, int multiprocessors) const {
        const WideGrid grid(p, tiling, multiprocessors);
        // Parts are as long as the longest of them: chunks are whole records, so halves of 11 records are 8 and 3.
        const int64_t records = ceil_div(p.k, w4a16::record_cols),
                      longest = std::min(ceil_div(records, matmul_chunks) * grid.chunks, records);
        const double record = thousand_columns * w4a16::record_cols / 1024,
                     columns = static_cast<double>(records) * record, share = static_cast<double>(longest) * record;
        const int64_t tiles = grid.token_tiles * grid.row_groups;
        if (!grid.prefill) {
            const auto waves = static_cast<double>(ceil_div(tiles * tiling.parts, multiprocessors));
            return launch + waves * (tile + share + meeting * (tiling.parts > 2 ? tiling.parts / 4 : 0));
        }
        const int64_t clusters = multiprocessors / 2, cut = (tiles - grid.whole) * tiling.parts;
        const auto whole = static_cast<double>(ceil_div(grid.whole, clusters)),
                   parts = static_cast<double>(ceil_div(cut, clusters / tiling.parts * tiling.parts));
        return launch + whole * (tile + columns) + parts * (tile + meeting + share);
    }
};

MatmulTiling choose_tiling(const MatmulProblem& p, int multiprocessors) {
    static constexpr TilingCost costs[] = {
        {{16, 2, 2, 1}, 0.6, 3.2, 4.5, 3.0},     {{16, 4, 1, 1}, 2.0, 3.0, 4.5, 3.0},
        {{32, 2, 2, 1}, 1.3, 3.6, 5.7, 3.0},     {{32, 4, 1, 1}, 3.2, 4.3, 4.9, 3.0},
        {{64, 2, 1, 1}, 1.64, 3.15, 3.6, 1.0},   {{96, 2, 1, 1}, 1.5, 4.1, 4.1, 1.0},
        {{128, 2, 1, 1}, 1.44, 5.0, 4.95, 0.43},
    };
    const int64_t least = p.m <= 16 ? 16 : p.m <= 32 ? 32 : 64, most = p.m <= 64 ? least : 128;
    MatmulTiling best;
    double best_cost = std::numeric_limits<double>::infinity();
    for (TilingCost c : costs) {
        // x has room for tokens up to a multiple of 128.
        if (c.tiling.tokens < least || c.tiling.tokens > most || padded(p.m, c.tiling.tokens) > padded(p.m, 128))
            continue;
        for (; c.tiling.parts <= std::min(c.tiling.most_parts(), multiprocessors / 2); c.tiling.parts *= 2)
            if (const double cost = c.of(p, multiprocessors); cost < best_cost) best = c.tiling, best_cost = cost;
    }
    return best;
}

Result<MatmulPlan> plan_wide(const MatmulProblem& p, const DeviceInfo& device, const MatmulTiling& tiling) {
    MatmulPlan plan{.problem = p, .tiling = tiling.tokens ? tiling : choose_tiling(p, device.multiprocessors)};
    const MatmulTiling& t = plan.tiling;
    plan.kernel = t.prefill() ? MatmulKernel::prefill : MatmulKernel::wide;
    plan.multiprocessors = device.multiprocessors;
    if (t.tokens < 1 || t.row_blocks < 1 || t.k_parts < 1 || t.parts < 1)
        return fail("matmul: tiling {} x {} x {} x {}", t.tokens, t.row_blocks, t.k_parts, t.parts);
    const WideGrid grid(p, t, device.multiprocessors);
    if (grid.prefill && t.parts > std::min(device.multiprocessors / 2, t.most_parts()))
        return fail("matmul: {} parts on {} multiprocessors", t.parts, device.multiprocessors);
    if (matmul_chunks % grid.units) return fail("matmul: K cannot be cut between {} warpgroups", grid.units);
    if (grid.nodes > most_nodes)
        return fail("matmul: {} x {} x {} in {} parts need too many nodes", p.m, p.n, p.k, t.parts);
    NIBBLE_CHECK(
        cuda_status(grid.prefill ? prepare_sm90_matmul_w4a16_m128(t.tokens) : prepare_sm90_matmul_w4a16_m32(grid.shape),
                    fmt::format("matmul: tiling {} x {} x {}", t.tokens, t.row_blocks, t.k_parts)));
    plan.permuted_bytes = grid.token_tiles * t.tokens * ceil_div(p.k, w4a16::record_cols) * (2 * w4a16::record_cols);
    plan.workspace_bytes = nodes_bytes + grid.slots_bytes + grid.parks_bytes;
    return plan;
}

Status run_wide(const MatmulPlan& plan, const std::byte* x, const PackedMatrix& w, const MatmulFactors& factors,
                float* y, std::byte* workspace, const MatmulOptions& options, const Stream& stream) {
    const MatmulProblem& p = plan.problem;
    const MatmulTiling& t = plan.tiling;
    const WideGrid grid(p, t, plan.multiprocessors);
    const int records = static_cast<int>(ceil_div(p.k, w4a16::record_cols));
    const WideArgs args{.x = reinterpret_cast<const uint8_t*>(x),
                        .records = reinterpret_cast<const uint8_t*>(w.records),
                        .factors = output_factors(factors, p.n),
                        .y = y,
                        .nodes = reinterpret_cast<uint32_t*>(workspace),
                        .slots = reinterpret_cast<float*>(workspace + nodes_bytes),
                        .parks = reinterpret_cast<float*>(workspace + nodes_bytes + grid.slots_bytes),
                        .n = static_cast<int>(p.n),
                        .tokens = static_cast<int>(p.m),
                        .row_records = records,
                        .chunk_records = (records + matmul_chunks - 1) / matmul_chunks,
                        .row_tiles = static_cast<int>(ceil_div(p.n, w4a16::record_rows)),
                        .row_groups = static_cast<int>(grid.row_groups),
                        .token_tiles = static_cast<int>(grid.token_tiles),
                        .parts = t.parts,
                        .whole = static_cast<int>(grid.whole),
                        .chunks = grid.chunks,
                        .levels = grid.levels,
                        .scale_bits = scale_bits(w.format),
                        .overlap = options.overlap};
    return cuda_status(grid.prefill
                           ? launch_sm90_matmul_w4a16_m128(args, t.tokens, plan.multiprocessors, queue_of(stream))
                           : launch_sm90_matmul_w4a16_m32(args, grid.shape, queue_of(stream)),
                       "matmul: kernel launch");
}

// One token with work in units (matmul_w4a16_m1.cu), if the even pattern of matmul_w4a16_m8_kernel would leave warps
// without a chunk or much of the GPU without a thread block. In other cases it is slower.
struct TokenGrid {
    static constexpr int warps = 24, most_records = 64, most_slots = 4;
    int blocks, tiles, active, records;  // tiles: at most per thread block
    TokenShape shape{.warps = warps};
    bool wins;

    // `others`: number of thread blocks of a side product.
    TokenGrid(const MatmulProblem& p, int multiprocessors, int others)
        : records(static_cast<int>(ceil_div(p.k, w4a16::record_cols))) {
        const int turn = p.gated ? 2 : 1;
        const int row_tiles = static_cast<int>(ceil_div(p.n, w4a16::record_rows)) / turn;
        blocks = std::max(std::min(row_tiles, multiprocessors - others), 1);
        const int each = (row_tiles + blocks - 1) / blocks;
        tiles = each * turn;
        const int chunk_records = (records + matmul_chunks - 1) / matmul_chunks;
        active = (records + chunk_records - 1) / chunk_records;
        const int64_t rest = records * int64_t{w4a16::record_cols * 2} + x_row_padding + tiles * active * 64 +
                             norm_row_bytes(static_cast<int>(p.k));
        const int64_t of_warp = (tiles * active + warps - 1) / warps * chunk_records;
        shape.slots = static_cast<int>(std::clamp<int64_t>((shared_limit - rest) / token_ring_bytes(warps, 1), 0,
                                                           std::min<int64_t>(of_warp, most_slots)));
        shape.shared_bytes = std::max(rest + token_ring_bytes(warps, shape.slots), one_per_multiprocessor);
        const int even = (row_tiles + each - 1) / each;  // thread blocks with equal numbers of tiles
        wins = shape.slots > 0 && tiles * records <= most_records &&
               (active < matmul_chunks || 4 * even < 3 * multiprocessors);
    }
};

}  // namespace

int MatmulTiling::most_parts() const {
    int most = matmul_chunks / k_parts;
    while (prefill() && most > 1 && tokens % (8 * most)) most /= 2;
    return most;
}

Result<MatmulPlan> plan_matmul(const MatmulProblem& p, const DeviceInfo& device, const MatmulTiling& tiling) {
    if (!has_records(p.weights))
        return fail("matmul: weights in {}, W4A16 takes nvfp4 and mxfp4", format_name(p.weights));
    if (p.m < 1 || p.m > INT32_MAX / 2) return fail("matmul: {} tokens", p.m);
    NIBBLE_CHECK(fits_groups(p.n, p.k, "matmul"));
    if (p.gated && p.n % 32) return fail("matmul: {} interleaved rows of gate and up, not a multiple of 32", p.n);
    const CurrentDevice current(device.index);
    NIBBLE_CHECK(current.status());
    if ((p.m > most_tokens && on_hopper()) || tiling.tokens) return plan_wide(p, device, tiling);
    MatmulPlan plan{.problem = p, .multiprocessors = device.multiprocessors};
    if (const TokenGrid grid(p, device.multiprocessors, 0); p.m == 1 && grid.wins) {
        plan.kernel = MatmulKernel::token;
        plan.norms = p.k <= 2 * norm_pairs * 32 * grid.warps;
        plan.tokens_per_pass = 1;
        NIBBLE_CHECK(cuda_status(prepare_matmul_w4a16_m1(shared_limit), "matmul: cudaFuncSetAttribute"));
        return plan;
    }
    const int64_t m = std::min<int64_t>(p.m, most_tokens);  // per pass
    const int64_t records = ceil_div(p.k, w4a16::record_cols);
    const int64_t pitch_all = 2 * w4a16::record_cols * records + x_row_padding;
    plan.split = m * pitch_all > most_x_bytes ? 2 : 1;
    // Distributes one wave of clusters as evenly as whole tiles allow.
    const int64_t row_tiles = ceil_div(p.n, w4a16::record_rows),
                  clusters = std::max<int64_t>(device.multiprocessors / plan.split, 1), widest = 14 * plan.split;
    const int64_t waves = (row_tiles + clusters * widest - 1) / (clusters * widest);
    plan.tiles = static_cast<int>((row_tiles + clusters * waves - 1) / (clusters * waves));
    // Several waves: small thread blocks, two per multiprocessor, so that one computes while the other starts or ends.
    const bool many = waves > 1 && plan.split == 1 && m * pitch_all <= 64 * 1024;
    if (many) plan.tiles = 4;
    if (p.gated) plan.tiles += plan.tiles % 2;           // gate and up together
    const int tile_chunks = matmul_chunks / plan.split;  // per thread block
    plan.chunks_per_warp = 1;
    while (plan.tiles * (tile_chunks / plan.chunks_per_warp) > (many ? most_warps / 2 : most_warps))
        plan.chunks_per_warp *= 2;
    const int warps = plan.tiles * (tile_chunks / plan.chunks_per_warp);
    const int64_t chunk_records = (records + matmul_chunks - 1) / matmul_chunks;
    const int64_t pitch = std::min(tile_chunks * chunk_records, records) * w4a16::record_cols * 2 + x_row_padding;
    const auto slot_bytes = [&](int64_t slots) { return warps * slots * int64_t{w4a16::record_bytes + 8}; };
    if (!many && warps < most_warps && slot_bytes(2) + pitch * m <= shared_limit) plan.slots = 2;
    const int64_t slots = slot_bytes(plan.slots);
    plan.tokens_per_pass = static_cast<int>(std::min((shared_limit - slots) / pitch, m));
    if (plan.tokens_per_pass < 1) return fail("matmul: {} columns do not fit into shared memory", p.k);
    const int64_t passes = (p.m + plan.tokens_per_pass - 1) / plan.tokens_per_pass;
    plan.tokens_per_pass = static_cast<int>((p.m + passes - 1) / passes);
    plan.shared_bytes = std::max(plan.tokens_per_pass * pitch + slots, many ? 0 : one_per_multiprocessor);
    const int64_t norm_bytes = norm_row_bytes(static_cast<int>(p.k));
    plan.norms = p.m == 1 && plan.split == 1 && !many && p.k <= 2 * norm_pairs * 32 * warps &&
                 pitch + slots + norm_bytes <= shared_limit;
    if (plan.norms) plan.shared_bytes = std::max(plan.shared_bytes, pitch + slots + norm_bytes);
    NIBBLE_CHECK(cuda_status(allow_gemv_shared(shared_limit), "matmul: cudaFuncSetAttribute"));
    return plan;
}

KernelChoice describe(const MatmulPlan& plan) {
    const MatmulProblem& p = plan.problem;
    const MatmulTiling& t = plan.tiling;
    const std::string tokens = fmt::format("{} token{}", p.m, p.m == 1 ? "" : "s");
    const auto tiles = [&](std::string_view range) {
        return fmt::format("{} ({}): tiles of {} tokens x {} rows, K in {}: the least time of the fitted costs", tokens,
                           range, t.tokens, row_block * t.row_blocks * (t.prefill() ? 2 : 1),
                           t.k_parts * t.parts == 1 ? "one part" : fmt::format("{} parts", t.k_parts * t.parts));
    };
    switch (plan.kernel) {
        case MatmulKernel::token:
            return {"matmul_w4a16_m1", tokens +
                                           ": the even pattern of matmul_w4a16_m8 would leave warps or much of the GPU "
                                           "without work, so work is distributed chunk by chunk"};
        case MatmulKernel::wide:
            return {"sm90_matmul_w4a16_m32", tiles("9 to 32")};
        case MatmulKernel::prefill:
            return {"sm90_matmul_w4a16_m128", tiles("more than 32")};
        case MatmulKernel::gemv:
            break;
    }
    const int64_t passes = ceil_div(p.m, plan.tokens_per_pass);
    return {"matmul_w4a16_m8",
            fmt::format("{}{}: every warp streams its own rows of W{}", tokens, p.m <= most_tokens ? " (up to 8)" : "",
                        passes > 1 ? fmt::format(", in {} passes of the tokens that fit shared memory", passes) : "")};
}

Status prepack(const QuantView& w, int64_t first_row, const PackedSpan& out, uint32_t* refused, const Stream& stream,
               const RowInterleave& interleave) {
    if (!has_records(w.format) || w.format != out.format)
        return fail("prepack: weights in {} for records of {}", format_name(w.format), format_name(out.format));
    NIBBLE_CHECK(fits_groups(w.rows, w.cols, "prepack"));
    if (w.format == Format::mxfp4 && w.cols % 32) return fail("prepack: {} columns in mxfp4", w.cols);
    const int64_t run = interleave.run;
    if (run && (run < 0 || interleave.step < run || w.rows % run || first_row % run))
        return fail("prepack: {} rows from row {}, in runs of {} every {}", w.rows, first_row, run, interleave.step);
    const int64_t end = first_row + (run ? (w.rows / run - 1) * interleave.step + run : w.rows);
    if (first_row < 0 || end > out.rows || out.cols != w.cols)
        return fail("prepack: [{}, {}] into rows {} ... of [{}, {}]", w.rows, w.cols, first_row, out.rows, out.cols);
    if (!aligned(w.codes) || !aligned(out.records) || !refused)
        return fail("prepack: needs a counter and 16-byte aligned device pointers");
    const int64_t padded = ceil_div(end, w4a16::record_rows) * w4a16::record_rows;
    return cuda_status(launch_w4a16_prepack({.rows = w.rows,
                                             .cols = w.cols,
                                             .first_row = first_row,
                                             .padding = end == out.rows ? padded - end : 0,
                                             .mx = w.format == Format::mxfp4,
                                             .run = interleave.run,
                                             .step = interleave.step,
                                             .codes = const_cast<uint8_t*>(w.codes),
                                             .scales = const_cast<uint8_t*>(w.block_scales),
                                             .records = reinterpret_cast<uint8_t*>(out.records),
                                             .refused = refused},
                                            queue_of(stream)),
                       "prepack: kernel launch");
}

Status unpack(const PackedMatrix& w, const QuantSpan& out, const Stream& stream) {
    NIBBLE_CHECK(fits_records(w.rows, w.cols, "unpack"));
    if (!has_records(w.format) || out.format != w.format || out.rows != w.rows || out.cols != w.cols)
        return fail("unpack: [{}, {}] into {} of [{}, {}]", w.rows, w.cols, format_name(out.format), out.rows,
                    out.cols);
    if (!aligned(out.codes) || !aligned(w.records)) return fail("unpack: device pointers must be 16-byte aligned");
    return cuda_status(launch_w4a16_unpack({.rows = w.rows,
                                            .cols = w.cols,
                                            .mx = w.format == Format::mxfp4,
                                            .codes = out.codes,
                                            .scales = out.block_scales,
                                            .records = reinterpret_cast<uint8_t*>(const_cast<std::byte*>(w.records))},
                                           queue_of(stream)),
                       "unpack: kernel launch");
}

namespace {

// For thread blocks of a side product: columns that 256 threads normalize at once, and the number of iterations.
constexpr int64_t normed_width = 2 * norm_pairs * 256, most_tiles_alone = 4;

// Shared memory of a side product's thread blocks: x, the rows of W, a row to normalize.
int64_t side_bytes(int64_t k) {
    const int64_t x = ceil_div(k, w4a16::record_cols) * w4a16::record_cols * 2 + x_row_padding;
    return x + ceil_div(k, operand_tile) * operand_row_tile_bytes + norm_row_bytes(static_cast<int>(k));
}

GemvSide side_args(const Operand& w, float* y) {
    return {.tiles = reinterpret_cast<const uint8_t*>(w.tiles),
            .row_scales = w.row_scales,
            .bias = w.bias,
            .scale = w.scale,
            .y = y,
            .n = static_cast<int>(w.rows),
            .k_tiles = static_cast<int>(ceil_div(w.cols, operand_tile)),
            .row_tiles = static_cast<int>(ceil_div(w.rows, 16))};
}

GemvNorm norm_args(const MatmulOptions::Norm& norm) {
    return {reinterpret_cast<const uint16_t*>(norm.h),
            norm.update,
            norm.weight,
            norm.update ? reinterpret_cast<uint16_t*>(norm.h_out) : nullptr,
            reinterpret_cast<uint16_t*>(norm.x_out),
            norm.nonfinite,
            norm.eps};
}

}  // namespace

bool takes_side(const MatmulPlan& plan, const Operand& side) {
    return plan.norms && chunked_matmul(side) && side.cols == plan.problem.k && side_bytes(side.cols) <= shared_limit;
}

bool norms_few_rows(const Operand& w) {
    return chunked_matmul(w) && w.cols % 16 == 0 && w.cols <= most_tiles_alone * normed_width &&
           side_bytes(w.cols) <= shared_limit;
}

Status norm_matmul(const MatmulOptions::Norm& norm, const Operand& w, float* y, bool overlap, const Stream& stream) {
    if (!norms_few_rows(w) || !y || !norm.h || norm.h == norm.h_out || !norm.weight || (norm.update && !norm.h_out))
        return fail("norm_matmul: [{}, {}] has no kernel, or the norm's weight or output is null", w.rows, w.cols);
    if (!aligned(w.tiles)) return fail("norm_matmul: device pointers must be 16-byte aligned");
    const int records = static_cast<int>(ceil_div(w.cols, w4a16::record_cols));
    const GemvArgs args{.norm = norm_args(norm),
                        .tokens = 1,
                        .row_records = records,
                        .tiles = static_cast<int>(ceil_div(w.cols, normed_width)),
                        .x_bytes = static_cast<uint32_t>(w.cols * 2),
                        .x_pitch = static_cast<uint32_t>(records * (w4a16::record_cols * 2) + x_row_padding),
                        .side = side_args(w, y),
                        .overlap = overlap};
    NIBBLE_CHECK(cuda_status(allow_gemv_shared(shared_limit), "norm_matmul: cudaFuncSetAttribute"));
    return cuda_status(launch_matmul_w4a16_m8(args, {1, 1, 1, side_bytes(w.cols)}, queue_of(stream)),
                       "norm_matmul: kernel launch");
}

Status permute(const MatmulPlan& plan, const std::byte* x, std::byte* out, const MatmulOptions& options,
               const Stream& stream) {
    const MatmulProblem& p = plan.problem;
    if (plan.permuted_bytes == 0) return fail("permute: this plan reads x in row order");
    if (!aligned(x) || !aligned(out)) return fail("permute: device pointers must be 16-byte aligned");
    return cuda_status(
        launch_w4a16_permute({.x = reinterpret_cast<const uint8_t*>(x),
                              .out = reinterpret_cast<uint8_t*>(out),
                              .tokens = static_cast<int>(p.m),
                              .blocks = static_cast<int>(ceil_div(p.k, w4a16::record_cols) * (w4a16::record_cols / 64)),
                              .cols = static_cast<int>(p.k),
                              .overlap = options.overlap},
                             plan.tiling.tokens, queue_of(stream)),
        "permute: kernel launch");
}

Status matmul(const MatmulPlan& plan, const std::byte* x, const PackedMatrix& w, const MatmulFactors& factors, float* y,
              std::byte* workspace, const MatmulOptions& options, const Stream& stream) {
    const MatmulProblem& p = plan.problem;
    if (w.rows != p.n || w.cols != p.k || !has_records(w.format))
        return fail("matmul: weight [{}, {}] in {} under a plan for [{}, {}]", w.rows, w.cols, format_name(w.format),
                    p.n, p.k);
    const MatmulOptions::Norm& norm = options.norm;
    if (norm.h && (!plan.norms || norm.h == norm.h_out || !norm.weight || (norm.update && !norm.h_out)))
        return fail("matmul: this plan has no norm, or its weight or its output is null");
    if (!aligned(x) || !aligned(w.records) || !aligned(y) || !aligned(workspace))
        return fail("matmul: device pointers must be 16-byte aligned");
    if (plan.workspace_bytes && !workspace)
        return fail("matmul: the plan needs a workspace of {} bytes", plan.workspace_bytes);
    if (factors.activated && (!plan.activates() || !aligned(factors.activated)))
        return fail("matmul: this plan has no activation, or the place of its results is not 16-byte aligned");
    const MatmulOptions::Side& side = options.side;
    if (side.w && (!norm.h || !side.y || !takes_side(plan, *side.w)))
        return fail("matmul: this plan has no joint product");
    if (plan.kernel == MatmulKernel::wide || plan.kernel == MatmulKernel::prefill)
        return run_wide(plan, x, w, factors, y, workspace, options, stream);
    const int records = static_cast<int>(ceil_div(p.k, w4a16::record_cols));
    const int chunk_records = (records + matmul_chunks - 1) / matmul_chunks;
    const int side_tiles = side.w ? static_cast<int>(ceil_div(side.w->rows, 16)) : 0;
    const TokenGrid grid(p, plan.multiprocessors, side_tiles);
    const bool units = plan.kernel == MatmulKernel::token;
    for (int first = 0; first < p.m; first += plan.tokens_per_pass) {
        const GemvArgs args{
            .x = reinterpret_cast<const uint8_t*>(x) + first * p.k * 2,
            .norm = norm_args(norm),
            .records = reinterpret_cast<const uint8_t*>(w.records),
            .factors = output_factors(factors, p.n),
            .y = factors.activated ? nullptr : y + first * output_factors(factors, p.n).y_stride,
            .n = static_cast<int>(p.n),
            .tokens = static_cast<int>(std::min<int64_t>(plan.tokens_per_pass, p.m - first)),
            .row_records = records,
            .chunk_records = chunk_records,
            .active = grid.active,
            .tiles = units ? grid.tiles : plan.tiles,
            .row_tiles = static_cast<int>(ceil_div(p.n, w4a16::record_rows)),
            .x_bytes = static_cast<uint32_t>(p.k * 2),
            .x_pitch = static_cast<uint32_t>(std::min(chunk_records * (matmul_chunks / plan.split), records) *
                                                 (w4a16::record_cols * 2) +
                                             x_row_padding),
            .scale_bits = scale_bits(w.format),
            .gated = factors.activated
                         ? reinterpret_cast<uint16_t*>(factors.activated) + first * (p.gated ? p.n / 2 : p.n)
                         : nullptr,
            .paired = p.gated,
            .side = side.w ? side_args(*side.w, side.y) : GemvSide{},
            .blocks = units ? grid.blocks : 0,
            .activation = static_cast<int>(factors.activation),
            .overlap = options.overlap};
        if (units) {
            TokenShape shape = grid.shape;
            if (side.w) shape.shared_bytes = std::max(shape.shared_bytes, side_bytes(p.k));
            return cuda_status(launch_matmul_w4a16_m1(args, shape, queue_of(stream)), "matmul: kernel launch");
        }
        NIBBLE_CHECK(cuda_status(
            launch_matmul_w4a16_m8(args,
                                   {plan.chunks_per_warp, plan.split, plan.slots,
                                    side.w ? std::max(plan.shared_bytes, side_bytes(p.k)) : plan.shared_bytes},
                                   queue_of(stream)),
            "matmul: kernel launch"));
    }
    return Ok{};
}

}  // namespace nibble::cuda

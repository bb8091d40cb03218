#include "kernels/operand_matmul_cuda.h"

#include "kernels/cuda/matmul/bf16/operand_launch.h"
#include "kernels/cuda/primitives/launch_checks.h"
#include "kernels/quantize_activations.h"

#include <algorithm>
#include <climits>
#include <string_view>

namespace nibble::cuda {
namespace {

constexpr int most_warps = 15, most_narrow_tokens = 64;
// Any number is correct; this one fills an H200 in one wave.
constexpr int64_t multiprocessors = 132;

bool aligned(const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; }
int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

Status fits(int64_t rows, int64_t cols, int64_t first_row, int64_t count, const std::byte* tiles) {
    if (rows < 1 || cols < 8 || cols % 8 || rows > INT_MAX / 2 || cols > INT_MAX / 2)
        return fail("make_operand: [{}, {}], columns must be a multiple of 8", rows, cols);
    if (first_row < 0 || first_row + count > rows)
        return fail("make_operand: rows {} to {} of {}", first_row, first_row + count, rows);
    if (!aligned(tiles)) return fail("make_operand: device pointers must be 16-byte aligned");
    return Ok{};
}

int tile_tokens_for(int64_t tokens) { return tokens <= 8 ? 8 : tokens <= 16 ? 16 : tokens <= 32 ? 32 : 64; }

// Few experts should have more rows than a tile. Tiles of 64 at 24 rows per expert: 0.93 to 1.02 of the time of tiles
// of 32.
int expert_tile_tokens(int64_t average) {
    return average <= 4 ? 8 : average <= 10 ? 16 : average <= 20 ? 32 : average <= 48 ? 64 : 128;
}

Result<ProductArgs> arguments(const ProductInput& in, const Operand& w, float* y, int64_t y_stride, bool overlap) {
    const int64_t stride = in.stride ? in.stride : w.cols;
    if (in.tokens < 1 || in.tokens > INT_MAX / 2 || w.rows < 1 || w.cols < 8 || w.cols % 8 || stride % 8 ||
        stride < w.cols || (y_stride && y_stride < w.rows))
        return fail("matmul: {} tokens by [{}, {}], strides {} and {}", in.tokens, w.rows, w.cols, stride, y_stride);
    if (in.codes != w.codes || (w.codes && in.stride))
        return fail("matmul: inputs and weight must both be codes, or neither; rows of codes are codes_pitch() apart");
    if (!aligned(in.x) || !aligned(w.tiles) || !aligned(y))
        return fail("matmul: device pointers must be 16-byte aligned");
    if (in.group_scales && !w.tile_scales) return fail("matmul: inputs scaled per 128 need a weight with tile scales");
    if (w.codes && w.tile_scales && !in.group_scales)
        return fail("matmul: codes with tile scales need inputs scaled per 128");
    if (w.tile_rows != 128 && (w.tile_rows != 1 || w.codes))
        return fail("matmul: scales of {} rows x 128", w.tile_rows);
    if (w.tile_scales && in.token_scales) return fail("matmul: a weight with tile scales takes no scale per token");
    return ProductArgs{.x = reinterpret_cast<const uint8_t*>(in.x),
                       .rows = in.rows,
                       .tiles = reinterpret_cast<const uint8_t*>(w.tiles),
                       .row_scales = w.row_scales,
                       .tile_scales = w.tile_scales,
                       .tile_shift = w.tile_rows == 1 ? 0 : 7,
                       .bias = w.bias,
                       .token_scales = in.token_scales,
                       .group_scales = in.group_scales,
                       .scale = w.scale,
                       .input_scale = in.scale,
                       .y = y,
                       .x_stride = w.codes ? codes_pitch(w.cols) : 2 * stride,
                       .y_stride = y_stride ? y_stride : w.rows,
                       .tokens = static_cast<int>(in.tokens),
                       .n = static_cast<int>(w.rows),
                       .k = static_cast<int>(w.cols),
                       .k_tiles = static_cast<int>(ceil_div(w.cols, operand_tile)),
                       .row_tiles = static_cast<int>(ceil_div(w.rows, 16)),
                       .overlap = overlap};
}

// Blocks of 128 rows and 256 tokens if they fill the GPU; otherwise smaller ones, the smallest if even these are only
// one wave.
WideProductTile wide_tile(const Operand& w, int64_t tokens) {
    if (w.tile_scales) return {128, 2};
    if (tokens <= most_narrow_tokens) return {tile_tokens_for(tokens), 1};
    if (tokens <= 128 || ceil_div(w.rows, 64) * ceil_div(tokens, 128) <= multiprocessors) return {128, 1};
    return {2 * ceil_div(w.rows, 256) * ceil_div(tokens, 256) >= multiprocessors ? 256 : 128, 2};
}

enum class ProductKernel : uint8_t { codes, chunked, wide, few_rows, narrow };

// The launch of a product, as far as it depends on sizes.
struct ProductChoice {
    ProductKernel kernel = ProductKernel::narrow;
    Fp8Choice codes;       // used by codes
    WideProductTile wide;  // used by wide
    int tile_tokens = 0;   // used by narrow
};

Result<ProductChoice> choose_product(const ProductArgs& args, const Operand& w) {
    if (w.codes) {
        if (!on_hopper()) return fail("matmul: codes have no kernel on this GPU");
        if (args.rows) return fail("matmul: codes are gathered for experts only");
        return ProductChoice{.kernel = ProductKernel::codes, .codes = choose_fp8(args, multiprocessors)};
    }
    if (chunked_matmul(w)) return ProductChoice{.kernel = ProductKernel::chunked};
    const bool wide = args.tokens > most_narrow_tokens || (args.tokens > 8 && !w.tile_scales);
    if (wide && !args.rows && on_hopper())
        return ProductChoice{.kernel = ProductKernel::wide, .wide = wide_tile(w, args.tokens)};
    if (fits_matmul_bf16_m8(args)) return ProductChoice{.kernel = ProductKernel::few_rows};
    return ProductChoice{.kernel = ProductKernel::narrow, .tile_tokens = tile_tokens_for(args.tokens)};
}

// Returns the tokens per tile of an expert, for `tokens` rows of all experts.
int expert_tile(const Experts& w, int64_t tokens) {
    const int64_t average = ceil_div(tokens, w.count);
    return w.first.codes ? expert_tile_tokens(average) : tile_tokens_for(average);
}

// A stand-in input for a description; its data is never read.
ProductInput nowhere(const Operand& w, int64_t tokens) {
    return {.codes = w.codes, .tokens = tokens, .group_scales = w.codes ? w.tile_scales : nullptr};
}

Status run_narrow(ProductArgs args, int64_t token_tiles, int tile_tokens, const Stream& stream) {
    // Distributes one wave of thread blocks as evenly as whole row tiles allow.
    const int64_t waves = ceil_div(args.row_tiles * token_tiles, multiprocessors * most_warps);
    args.warps = static_cast<int>(
        std::clamp<int64_t>(ceil_div(args.row_tiles * token_tiles, multiprocessors * waves), 1, most_warps));
    if (token_tiles > 65535) return fail("matmul: {} tiles of tokens", token_tiles);
    return cuda_status(launch_matmul_bf16_m64(args, static_cast<int>(token_tiles), tile_tokens, queue_of(stream)),
                       "matmul: kernel launch");
}

}  // namespace

Status prepare_matmul(const DeviceInfo& device) {
    const CurrentDevice current(device.index);
    NIBBLE_CHECK(current.status());
    NIBBLE_CHECK(cuda_status(prepare_matmul_bf16_m64(), "matmul: cudaFuncSetAttribute"));
    NIBBLE_CHECK(cuda_status(prepare_matmul_bf16_m8(), "matmul: cudaFuncSetAttribute"));
    NIBBLE_CHECK(cuda_status(prepare_sm90_matmul_fp8(), "matmul: cudaFuncSetAttribute"));
    NIBBLE_CHECK(cuda_status(prepare_sm90_experts_fp8(), "matmul: cudaFuncSetAttribute"));
    return cuda_status(prepare_sm90_matmul_bf16(), "matmul: cudaFuncSetAttribute, cuTensorMapEncodeTiled");
}

int64_t operand_bytes(int64_t rows, int64_t cols) {
    return ceil_div(rows, operand_tile) * ceil_div(cols, operand_tile) * operand_tile_bytes;
}

Status make_operand(const MatrixView& w, int64_t rows, int64_t first_row, std::byte* tiles, const Stream& stream) {
    NIBBLE_CHECK(fits(rows, w.cols, first_row, w.rows, tiles));
    if (w.dtype != DType::bf16 && w.dtype != DType::f16 && w.dtype != DType::f32)
        return fail("make_operand: weights in {}", dtype_name(w.dtype));
    return cuda_status(launch_make_bf16_operand({.from = reinterpret_cast<const uint8_t*>(w.data),
                                                 .rows = w.rows,
                                                 .cols = w.cols,
                                                 .first_row = first_row,
                                                 .tiles = reinterpret_cast<uint8_t*>(tiles),
                                                 .kind = w.dtype == DType::bf16  ? 0
                                                         : w.dtype == DType::f16 ? 1
                                                                                 : 2},
                                                queue_of(stream)),
                       "make_operand: kernel launch");
}

Status make_operand(const QuantView& w, int64_t rows, int64_t first_row, std::byte* tiles, const Stream& stream) {
    NIBBLE_CHECK(fits(rows, w.cols, first_row, w.rows, tiles));
    if (w.format == Format::none) return fail("make_operand: a quantized matrix without a format");
    const FormatLayout layout = format_layout(w.format);
    return cuda_status(launch_make_bf16_operand({.from = w.codes,
                                                 .block_scales = layout.block ? w.block_scales : nullptr,
                                                 .rows = w.rows,
                                                 .cols = w.cols,
                                                 .first_row = first_row,
                                                 .tiles = reinterpret_cast<uint8_t*>(tiles),
                                                 .kind = layout.code_bits == 8 ? 3 : 4,
                                                 .block = layout.block,
                                                 .e8m0 = layout.e8m0_scales},
                                                queue_of(stream)),
                       "make_operand: kernel launch");
}

bool multiplies_codes() { return on_hopper(); }
int64_t codes_bytes(int64_t rows, int64_t cols) { return ceil_div(rows, 8) * ceil_div(cols, 128) * fp8_tile_bytes; }

Status make_codes(const QuantView& w, int64_t rows, int64_t first_row, std::byte* tiles, const Stream& stream) {
    NIBBLE_CHECK(fits(rows, w.cols, first_row, w.rows, tiles));
    if (w.format != Format::fp8 && w.format != Format::fp8_row && w.format != Format::fp8_block128)
        return fail("make_codes: weights in {}", format_name(w.format));
    return cuda_status(launch_make_fp8_operand({.from = w.codes,
                                                .rows = w.rows,
                                                .cols = w.cols,
                                                .first_row = first_row,
                                                .tiles = reinterpret_cast<uint8_t*>(tiles)},
                                               queue_of(stream)),
                       "make_codes: kernel launch");
}

Status matmul(const ProductInput& in, const Operand& w, float* y, int64_t y_stride, bool overlap,
              const Stream& stream) {
    NIBBLE_TRY(ProductArgs args, arguments(in, w, y, y_stride, overlap));
    NIBBLE_TRY(const ProductChoice choice, choose_product(args, w));
    constexpr std::string_view what = "matmul: kernel launch";
    switch (choice.kernel) {
        case ProductKernel::codes:
            return cuda_status(launch_sm90_matmul_fp8(args, choice.codes, multiprocessors, queue_of(stream)), what);
        case ProductKernel::chunked:
            if (ceil_div(in.tokens, 8) > 65535) return fail("matmul: {} tokens", in.tokens);
            return cuda_status(launch_matmul_bf16_splitk(args, queue_of(stream)), what);
        case ProductKernel::wide:
            args.warps = 8;
            return cuda_status(launch_sm90_matmul_bf16(args, choice.wide, queue_of(stream)), what);
        case ProductKernel::few_rows:
            return cuda_status(launch_matmul_bf16_m8(args, queue_of(stream)), what);
        case ProductKernel::narrow:
            break;
    }
    return run_narrow(args, ceil_div(in.tokens, choice.tile_tokens), choice.tile_tokens, stream);
}

bool has_rounded_matmul(const Operand& w, int64_t tokens) {
    const auto args = arguments(nowhere(w, tokens), w, nullptr, 0, false);
    if (!args.ok()) return false;
    const auto choice = choose_product(*args, w);
    return choice.ok() && (choice->kernel == ProductKernel::wide || choice->kernel == ProductKernel::codes);
}

Status rounded_matmul(const ProductInput& in, const Operand& w, std::byte* y, int64_t y_stride, bool overlap,
                      const Stream& stream) {
    NIBBLE_TRY(ProductArgs args, arguments(in, w, reinterpret_cast<float*>(y), y_stride, overlap));
    NIBBLE_TRY(const ProductChoice choice, choose_product(args, w));
    args.y = nullptr;
    args.y16 = reinterpret_cast<uint16_t*>(y);
    if (choice.kernel == ProductKernel::codes)
        return cuda_status(launch_sm90_matmul_fp8(args, choice.codes, multiprocessors, queue_of(stream)),
                           "matmul: kernel launch");
    if (choice.kernel != ProductKernel::wide) return fail("matmul: {} tokens have no kernel that rounds", in.tokens);
    args.warps = 8;
    return cuda_status(launch_sm90_matmul_bf16(args, choice.wide, queue_of(stream)), "matmul: kernel launch");
}

Result<KernelChoice> describe_matmul(const Operand& w, int64_t tokens) {
    NIBBLE_TRY(const ProductArgs args, arguments(nowhere(w, tokens), w, nullptr, 0, false));
    NIBBLE_TRY(const ProductChoice choice, choose_product(args, w));
    const std::string n = fmt::format("{} token{}", tokens, tokens == 1 ? "" : "s");
    switch (choice.kernel) {
        case ProductKernel::codes: {
            const Fp8Choice& c = choice.codes;
            const std::string codes = "E4M3 codes by E4M3 codes; ";
            if (c.kernel == Fp8Kernel::narrow)
                return KernelChoice{"sm90_matmul_fp8 (narrow)",
                                    codes + fmt::format("{} (up to {}): {} rows of W to a thread block", n,
                                                        fp8_most_narrow_tokens, c.rows)};
            if (c.kernel == Fp8Kernel::medium)
                return KernelChoice{
                    "sm90_matmul_fp8 (medium)",
                    codes + fmt::format("{}: one wave of thread blocks with {} rows of W each", n, c.rows)};
            if (c.kernel == Fp8Kernel::wide)
                return KernelChoice{
                    "sm90_matmul_fp8_m256",
                    codes + n + ": tiles of 256 tokens x 256 rows take fewer waves than 1.8 times those of 128 x 256"};
            return KernelChoice{"sm90_matmul_fp8 (square)", codes + n + ": tiles of 128 tokens x 256 rows"};
        }
        case ProductKernel::chunked:
            return KernelChoice{"matmul_bf16_splitk",
                                fmt::format("few rows of W ({}, up to 256): K in eight chunks fills the GPU", w.rows)};
        case ProductKernel::wide:
            return KernelChoice{"sm90_matmul_bf16", fmt::format("{}: wgmma in tiles of {} tokens x {} rows", n,
                                                                choice.wide.tokens, 64 * choice.wide.row_groups)};
        case ProductKernel::few_rows:
            return KernelChoice{"matmul_bf16_m8",
                                fmt::format("{} (up to 8) and few rows of W a multiprocessor ({} rows)", n, w.rows)};
        case ProductKernel::narrow:
            break;
    }
    return KernelChoice{"matmul_bf16_m64",
                        fmt::format("{}: mma.sync in tiles of {} tokens, W streamed once", n, choice.tile_tokens)};
}

Status grouped_matmul(const ProductInput& in, const Experts& w, float* y, int64_t y_stride, bool overlap,
                      const Stream& stream) {
    NIBBLE_TRY(ProductArgs args, arguments(in, w.first, y, y_stride, overlap));
    if (w.count < 1 || !w.begin) return fail("grouped_matmul: {} experts", w.count);
    if (w.first.tile_rows != 128) return fail("grouped_matmul: scales of {} rows x 128", w.first.tile_rows);
    args.experts = w.count;
    args.begin = w.begin;
    args.expert_scales = w.scales;
    if (w.first.codes) {
        if (!on_hopper()) return fail("grouped_matmul: codes have no kernel on this GPU");
        args.expert_bytes = codes_bytes(w.first.rows, w.first.cols);
        return cuda_status(launch_sm90_experts_fp8(args, expert_tile(w, in.tokens), multiprocessors, queue_of(stream)),
                           "grouped_matmul: kernel launch");
    }
    args.expert_bytes = operand_bytes(w.first.rows, w.first.cols);
    // Uses the average number of tokens per expert, and the maximum number of tiles; tiles that do not exist end at
    // once.
    const int tile = expert_tile(w, in.tokens);
    return run_narrow(args, std::min<int64_t>(in.tokens, in.tokens / tile + w.count), tile, stream);
}

Result<KernelChoice> describe_grouped_matmul(const Experts& w, int64_t tokens) {
    NIBBLE_CHECK(arguments(nowhere(w.first, tokens), w.first, nullptr, 0, false));
    if (w.count < 1) return fail("grouped_matmul: {} experts; at least 1 is required", w.count);
    if (w.first.codes && !on_hopper()) return fail("grouped_matmul: codes have no kernel on this GPU");
    const std::string each = fmt::format("{:.3g} tokens an expert on average: tiles of {}",
                                         static_cast<double>(tokens) / w.count, expert_tile(w, tokens));
    if (w.first.codes) return KernelChoice{"sm90_experts_fp8", "E4M3 codes by E4M3 codes; " + each};
    return KernelChoice{"matmul_bf16_m64 (grouped)", each};
}

Status quantize_inputs(const QuantizeInputs& q, bool overlap, const Stream& stream) {
    const int64_t stride = q.stride ? q.stride : q.cols;
    if (q.tokens < 1 || q.cols < 8 || q.cols % 8 || stride % 8 || stride < q.cols)
        return fail("quantize_inputs: {} tokens of {} columns, with the stride {}", q.tokens, q.cols, stride);
    if (q.format == ActivationFormat::none) return fail("quantize_inputs: no format");
    if (!activation_fits(q.format, q.cols))
        return fail("quantize_inputs: {} columns are not whole blocks of {}", q.cols, activation_name(q.format));
    if (activation_float_scales(q.format, q.cols) > 0 && !q.scales)
        return fail("quantize_inputs: the output for scales is null");
    if (q.codes && q.format != ActivationFormat::fp8 && q.format != ActivationFormat::fp8_token &&
        q.format != ActivationFormat::fp8_group128)
        return fail("quantize_inputs: {} has no codes of eight bits", activation_name(q.format));
    if (q.expert_scales && (q.experts < 1 || !q.begin)) return fail("quantize_inputs: {} experts", q.experts);
    if (!aligned(q.x) || !aligned(q.out)) return fail("quantize_inputs: device pointers must be 16-byte aligned");
    return cuda_status(launch_quantize_inputs({.x = reinterpret_cast<const uint16_t*>(q.x),
                                               .out = reinterpret_cast<uint16_t*>(q.out),
                                               .scales = q.scales,
                                               .tokens = q.tokens,
                                               .cols = q.cols,
                                               .stride = stride,
                                               .input_scale = q.input_scale,
                                               .format = static_cast<int>(q.format),
                                               .codes = q.codes,
                                               .out_pitch = codes_pitch(q.cols),
                                               .experts = q.expert_scales ? q.experts : 0,
                                               .begin = q.begin,
                                               .expert_scales = q.expert_scales,
                                               .overlap = overlap},
                                              queue_of(stream)),
                       "quantize_inputs: kernel launch");
}

}  // namespace nibble::cuda

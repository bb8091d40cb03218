#include "kernels/cuda/matmul/w4a16/matmul_launch.h"
#include "kernels/w4a16_matmul_cuda.h"
#include "kernels/w4a16_record.h"
#include "tensor/cuda/call.h"

#include <algorithm>
#include <climits>
#include <string_view>

namespace nibble::cuda {
namespace {

// Any number is correct; this one is an H200's.
constexpr int multiprocessors = 132;

bool aligned(const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; }

// Chooses tiles of tokens by the average number per expert, and four warps per row tile if there are few row tiles per
// thread block. On Hopper wgmma was never slower from five tokens per expert on; tiles of 64 were slower than tiles of
// 48, because an expert's tokens fill them less.
ExpertsLaunchShape choose_shape(int64_t slots, const ExpertsArgs& args) {
    const double each = static_cast<double>(slots) / args.experts;
    ExpertsLaunchShape shape{.blocks = multiprocessors};
    if (each > 4 && on_hopper()) {
        shape.kernel = ExpertsKernel::many;
        shape.tokens = each <= 9 ? 16 : each <= 26 ? 32 : 48;
        return shape;
    }
    shape.tokens = each <= 4 ? 8 : each <= 16 ? 16 : 64;
    if (shape.tokens > 8) return shape;
    if (fits_experts_w4a16_m8(args.row_records, args.experts)) shape.kernel = ExpertsKernel::few;
    if (std::min<int64_t>(slots, args.experts) * args.row_tiles <= 12 * multiprocessors) shape.parts = 4;
    return shape;
}

ExpertsArgs weight_args(const PackedExperts& w) {
    const int64_t n = w.first.rows, k = w.first.cols;
    const int records = static_cast<int>((k + w4a16::record_cols - 1) / w4a16::record_cols);
    return {.records = reinterpret_cast<const uint8_t*>(w.first.records),
            .row_scales = w.row_scales,
            .bias = w.bias,
            .expert_bytes = packed_bytes(n, k),
            .experts = w.count,
            .n = static_cast<int>(n),
            .k = static_cast<int>(k),
            .row_records = records,
            .chunk_records = (records + matmul_chunks - 1) / matmul_chunks,
            .row_tiles = static_cast<int>((n + w4a16::record_rows - 1) / w4a16::record_rows),
            .scale_bits = scale_bits(w.first.format)};
}

// `first`: the first product of a mixture; the second one makes the same choice but does not store it.
OneTokenArgs one_token(const ExpertChoice& c, bool first) {
    const RouterConfig& r = c.config;
    return {.route = {.logits = c.logits,
                      .bias = c.bias,
                      .experts = c.routing.experts,
                      .weights = c.routing.weights,
                      .tokens = 1,
                      .count = r.experts,
                      .top_k = r.top_k,
                      .groups = r.groups,
                      .kept_groups = r.kept_groups,
                      .scaling = r.scaling,
                      .smallest_sum = r.smallest_sum,
                      .sigmoid = r.sigmoid,
                      .round = r.round,
                      .normalize = r.normalize},
            .sort = {.begin = first ? c.routing.begin : nullptr,
                     .rows = c.routing.rows,
                     .places = c.routing.places,
                     .slots = r.top_k,
                     .top_k = r.top_k,
                     .count = r.experts},
            .choose = c.logits != nullptr};
}

OneTokenArgs::Dense dense_args(const PackedMatrix& w) {
    const int records = static_cast<int>((w.cols + w4a16::record_cols - 1) / w4a16::record_cols);
    return {.records = reinterpret_cast<const uint8_t*>(w.records),
            .n = static_cast<int>(w.rows),
            .k = static_cast<int>(w.cols),
            .row_records = records,
            .chunk_records = (records + matmul_chunks - 1) / matmul_chunks,
            .row_tiles = static_cast<int>((w.rows + w4a16::record_rows - 1) / w4a16::record_rows),
            .scale_bits = scale_bits(w.format)};
}

}  // namespace

bool takes_one_token(const RouterConfig& config, const PackedExperts& w) {
    const bool valid = config.top_k > 0 && config.top_k <= most_top_k && config.experts == w.count;
    if (!valid) return false;
    ExpertsArgs args = weight_args(w);  // with an x row per expert, which needs more memory
    return fits_experts_w4a16_m1(args, one_token({.config = config}, false), multiprocessors);
}

bool takes_dense(const RouterConfig& config, const PackedExperts& w, const PackedMatrix& dense) {
    if (!takes_one_token(config, w)) return false;
    ExpertsArgs args = weight_args(w);
    OneTokenArgs one = one_token({.config = config}, false);
    one.dense = dense_args(dense);
    return fits_experts_w4a16_m1(args, one, multiprocessors);
}

bool takes_combine(const RouterConfig& config, const PackedExperts& w) {
    if (!takes_one_token(config, w)) return false;
    OneTokenArgs one = one_token({.config = config}, false);
    float sum;
    one.combine.sum = &sum;
    return fits_experts_w4a16_m1_units(weight_args(w), one, multiprocessors);
}

Status prepare_grouped_matmul(const DeviceInfo& device) {
    const CurrentDevice current(device.index);
    NIBBLE_CHECK(current.status());
    return cuda_status(prepare_experts_w4a16_m64(), "grouped_matmul: cudaFuncSetAttribute");
}

namespace {

enum class GroupedKernel : uint8_t { token_experts, one_token, experts };

// A launch with checked arguments.
struct GroupedLaunch {
    GroupedKernel kernel = GroupedKernel::experts;
    ExpertsArgs args;
    OneTokenArgs one;          // for token_experts and one_token
    ExpertsLaunchShape shape;  // for experts
};

Result<GroupedLaunch> choose_grouped(const ExpertsInput& in, const PackedExperts& w, const ExpertsOutput& out,
                                     bool overlap) {
    const int64_t n = w.first.rows, k = w.first.cols, x_stride = in.stride ? in.stride : k;
    const int64_t width = out.out && out.gated ? n / 2 : n, y_stride = out.y_stride ? out.y_stride : width;
    if (w.first.format != Format::nvfp4 && w.first.format != Format::mxfp4)
        return fail("grouped_matmul: weights in {}, W4A16 takes nvfp4 and mxfp4", format_name(w.first.format));
    if (w.count < 1 || w.count > most_experts || !w.begin || !w.row_scales)
        return fail("grouped_matmul: {} experts; 1 to {} with scales are supported", w.count, most_experts);
    if (n < 1 || k < 16 || k % 16 || n > INT_MAX / 2 || k > INT_MAX / 2 || in.slots < 1 || in.slots > INT_MAX / 64 ||
        x_stride < k || x_stride % 8 || y_stride < width)
        return fail("grouped_matmul: {} rows by [{}, {}], strides {} and {}", in.slots, n, k, x_stride, y_stride);
    const ExpertsOutput::Combine& combine = out.combine;
    if ((out.y ? 1 : 0) + (out.out ? 1 : 0) + (combine.sum ? 1 : 0) != 1 || (out.gated && (!out.out || n % 16)))
        return fail("grouped_matmul: give y or out, not both; gated rows are a multiple of 16, not {}", n);
    if (!aligned(in.x) || !aligned(w.first.records))
        return fail("grouped_matmul: device pointers must be 16-byte aligned");
    GroupedLaunch launch{.args = weight_args(w)};
    ExpertsArgs& args = launch.args;
    args.x = reinterpret_cast<const uint8_t*>(in.x), args.rows = in.rows, args.begin = w.begin;
    args.y = out.y, args.out = reinterpret_cast<uint16_t*>(out.out);
    args.x_stride = 2 * x_stride, args.y_stride = y_stride;
    args.activation = static_cast<int>(out.activation), args.gated = out.gated;
    args.overlap = overlap;
    args.early = in.routed && !in.rows;
    if (in.choice) {
        if (in.slots != in.choice->config.top_k || !takes_one_token(in.choice->config, w) ||
            (in.choice->logits && in.choice->config.groups > 1))
            return fail("grouped_matmul: {} slots of one token, {} of {} experts in {} groups", in.slots,
                        in.choice->config.top_k, in.choice->config.experts, in.choice->config.groups);
        OneTokenArgs& one = launch.one;
        one = one_token(*in.choice, in.rows != nullptr);
        if (in.dense.w.rows > 0) {
            const MatmulFactors& f = in.dense.factors;
            if (!takes_dense(in.choice->config, w, in.dense.w) || !in.dense.y || f.activated || args.early ||
                !aligned(in.dense.x) || !aligned(in.dense.w.records))
                return fail("grouped_matmul: [{}, {}] does not fit in the launch of experts of [{}, {}]",
                            in.dense.w.rows, in.dense.w.cols, n, k);
            one.dense = dense_args(in.dense.w);
            one.dense.x = reinterpret_cast<const uint8_t*>(in.dense.x);
            one.dense.factors = {f.tensor_scale, f.row_scales, f.bias};
            one.dense.y = in.dense.y;
        }
        if (combine.sum) {
            if (!takes_combine(in.choice->config, w) || in.rows || in.dense.w.rows > 0 || !combine.weights)
                return fail("grouped_matmul: experts of [{}, {}] cannot be combined here", n, k);
            one.combine = {combine.weights, combine.shared, combine.sum};
        }
        launch.kernel = fits_experts_w4a16_m1_units(args, one, multiprocessors) ? GroupedKernel::token_experts
                                                                                : GroupedKernel::one_token;
        return launch;
    }
    if (combine.sum) return fail("grouped_matmul: only one token's choice is combined");
    launch.shape = choose_shape(in.slots, args);
    return launch;
}

}  // namespace

Status grouped_matmul(const ExpertsInput& in, const PackedExperts& w, const ExpertsOutput& out, bool overlap,
                      const Stream& stream) {
    NIBBLE_TRY(const GroupedLaunch launch, choose_grouped(in, w, out, overlap));
    const auto queue = static_cast<cudaStream_t>(stream.handle());
    constexpr std::string_view what = "grouped_matmul: kernel launch";
    switch (launch.kernel) {
        case GroupedKernel::token_experts:
            return cuda_status(launch_experts_w4a16_m1_units(launch.args, launch.one, multiprocessors, queue), what);
        case GroupedKernel::one_token:
            return cuda_status(launch_experts_w4a16_m1(launch.args, launch.one, multiprocessors, queue), what);
        case GroupedKernel::experts:
            break;
    }
    return cuda_status(launch_experts_w4a16_m64(launch.args, launch.shape, queue), what);
}

Result<KernelChoice> describe_grouped_matmul(const ExpertsInput& in, const PackedExperts& w, const ExpertsOutput& out) {
    NIBBLE_TRY(const GroupedLaunch launch, choose_grouped(in, w, out, false));
    const std::string ends = out.combine.sum ? ", weighted sum inside" : "";
    if (launch.kernel == GroupedKernel::token_experts)
        return KernelChoice{"experts_w4a16_m1_units", "1 token: work distributed in chunks of the " +
                                                          std::to_string(in.slots) + " experts" + ends};
    if (launch.kernel == GroupedKernel::one_token)
        return KernelChoice{"experts_w4a16_m1",
                            fmt::format("1 token, {} experts{}{}", in.slots,
                                        launch.one.dense.n ? ", with the shared expert's product" : "", ends)};
    const ExpertsLaunchShape& shape = launch.shape;
    const std::string each = fmt::format("{:.3g} tokens an expert on average: tiles of {}",
                                         static_cast<double>(in.slots) / w.count, shape.tokens);
    if (shape.kernel == ExpertsKernel::many) return KernelChoice{"sm90_experts_w4a16", each + ", wgmma"};
    if (shape.kernel == ExpertsKernel::few)
        return KernelChoice{"experts_w4a16_m8",
                            fmt::format("{}, {} warp{} to 16 rows", each, shape.parts, shape.parts == 1 ? "" : "s")};
    return KernelChoice{"experts_w4a16_m64", each};
}

}  // namespace nibble::cuda

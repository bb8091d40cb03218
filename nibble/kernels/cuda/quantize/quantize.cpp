#include "kernels/quantize_cuda.h"

#include "formats/swizzle.h"
#include "kernels/cuda/primitives/launch_checks.h"
#include "kernels/cuda/quantize/quantize_launch.h"

#include <algorithm>

namespace nibble::cuda {
namespace {

bool aligned(const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; }

Result<Input> input(const MatrixView& m, std::string_view what) {
    if (m.dtype != DType::bf16 && m.dtype != DType::f32)
        return fail("{}: weights on the GPU are BF16 or F32, found {}", what, dtype_name(m.dtype));
    if (!aligned(m.data)) return fail("{}: device pointers must be 16-byte aligned", what);
    return Input{reinterpret_cast<const uint8_t*>(m.data), m.rows, m.cols, m.dtype == DType::f32};
}

// Kernels write scales but not the padding of the swizzled layout.
Status clear_padding(const MatrixView& x, int64_t block, const ActivationOutput& out, const Stream& stream) {
    const int64_t across = x.cols / block;
    if (!out.swizzled || (x.rows % 128 == 0 && across % 4 == 0)) return Ok{};
    return fill_device(reinterpret_cast<std::byte*>(out.block_scales), 0, swizzled_scale_bytes(x.rows, across), stream);
}

static_assert(Multipliers::most == most_multipliers);

Result<Multipliers> kernel_multipliers(std::span<const float> values) {
    if (values.size() > Multipliers::most)
        return fail("a search on the GPU takes at most {} multipliers, found {}", Multipliers::most, values.size());
    Multipliers m{.count = static_cast<int>(values.size())};
    std::copy(values.begin(), values.end(), m.value);
    return m;
}

}  // namespace

Status reset_scan(DeviceScan* scan, const Stream& stream) {
    return cuda_status(launch_reset_scan(scan, queue_of(stream)), "reset_scan: launch");
}

Status scan(const MatrixView& panel, int64_t first_element, DeviceScan* scan, const Stream& stream) {
    NIBBLE_TRY(const Input in, input(panel, "scan"));
    return cuda_status(launch_scan(in, first_element, scan, queue_of(stream)), "scan: launch");
}

Status quantize(const MatrixView& panel, const WeightSpec& spec, const DeviceAmax& amax, const QuantSpan& out,
                const QuantizeOutputs& outputs, const Stream& stream) {
    const std::string_view name = format_name(spec.format);
    NIBBLE_CHECK(check(spec));
    NIBBLE_TRY(Input in, input(panel, name));
    in.kept = in.f32 && spec.weights != DType::bf16;
    if (!in.f32 && spec.weights != DType::bf16)
        return fail("quantize: BF16 data for weights in {}: widen it to FP32", dtype_name(spec.weights));
    if (out.rows != panel.rows || out.cols != panel.cols || out.format != spec.format)
        return fail("quantize: {} output [{}, {}] for {} of [{}, {}]", format_name(out.format), out.rows, out.cols,
                    name, panel.rows, panel.cols);
    if (!format_fits(spec.format, panel.cols))
        return fail("quantize: {} columns are not whole blocks of {}", panel.cols, name);
    if (!aligned(out.codes)) return fail("quantize: device pointers must be 16-byte aligned");
    const bool tensor_wide = format_layout(spec.format).tensor_scale;
    if (tensor_wide && !amax.store) return fail("quantize: {} needs the tensor's maximum", name);
    const bool block_search = spec.search.kind != Search::Kind::max && spec.static_scales;
    if (block_search && !amax.search) return fail("quantize: a search for {} needs the tensor's own maximum", name);
    Multipliers multipliers;
    if (spec.search.kind == Search::Kind::multipliers && (block_search || !tensor_wide)) {
        NIBBLE_TRY(multipliers, kernel_multipliers(search_multipliers(spec.search)));
    }

    const cudaStream_t s = queue_of(stream);
    auto* raised = reinterpret_cast<unsigned long long*>(outputs.raised_blocks);
    const Nvfp4Args nvfp4{.codes = out.codes,
                          .target = {out.block_scales, false},
                          .search_amax = amax.search,
                          .store_amax = amax.store,
                          .tensor_scale = outputs.tensor_scale,
                          .raised = raised,
                          .normalization = spec.normalization,
                          .arithmetic = spec.arithmetic,
                          .kept = in.kept};
    const Fp8QuantizeArgs fp8{.codes = out.codes,
                              .scales = out.float_scales,
                              .store_amax = spec.format == Format::fp8_row ? nullptr : amax.store,
                              .tensor_scale = outputs.tensor_scale,
                              .raised = raised,
                              .arithmetic = spec.arithmetic,
                              .weights = spec.weights};
    cudaError_t code = cudaSuccess;
    switch (spec.format) {
        case Format::none:
            break;
        case Format::fp8:
            code = launch_fp8_tensor(in, fp8, s);
            break;
        case Format::fp8_row:
            code = launch_fp8_rows(in, fp8, multipliers, s);
            break;
        case Format::fp8_block128:
            code = launch_fp8_tiles(in, fp8, multipliers, s);
            break;
        case Format::mxfp8:
        case Format::mxfp4:
            code = launch_mx(in, spec.format == Format::mxfp4 ? MxRule::mxfp4 : MxRule::mxfp8, out.codes,
                             {out.block_scales, false}, s);
            break;
        case Format::int4:
            return fail("quantize: int4 has no kernel on a GPU");
        case Format::nvfp4_bs32:
            code = launch_nvfp4_dynamic(in, nvfp4, 32, s);
            break;
        case Format::nvfp4:
            if (!spec.static_scales)
                code = launch_nvfp4_dynamic(in, nvfp4, 16, s);
            else if (spec.search.kind == Search::Kind::max)
                code = launch_nvfp4_static(in, nvfp4, s);
            else if (spec.search.kind == Search::Kind::sweep)
                code = launch_nvfp4_sweep(in, nvfp4, s);
            else
                code = launch_nvfp4_multipliers(in, nvfp4, multipliers, s);
            break;
    }
    return cuda_status(code, "quantize: kernel launch");
}

int64_t tensor_losses_scratch(int64_t rows, int64_t multipliers) {
    return rows * std::min<int64_t>(multipliers, Multipliers::most);
}

Status tensor_losses(const MatrixView& panel, const WeightSpec& spec, const float* search,
                     std::span<const float> multipliers, double* losses, double* scratch, const Stream& stream) {
    const bool fp8 = spec.format == Format::fp8;
    if (!fp8 && (spec.format != Format::nvfp4 || spec.static_scales))
        return fail("tensor_losses: {} has no search per tensor", to_string(spec));
    NIBBLE_TRY(const Input in, input(panel, "tensor_losses"));
    if (!format_fits(spec.format, panel.cols))
        return fail("tensor_losses: {} columns are not whole blocks", panel.cols);
    for (size_t at = 0; at < multipliers.size(); at += Multipliers::most) {
        const auto part = multipliers.subspan(at, std::min<size_t>(Multipliers::most, multipliers.size() - at));
        NIBBLE_TRY(const Multipliers m, kernel_multipliers(part));
        NIBBLE_CHECK(cuda_status(
            launch_tensor_losses(in, fp8, search, m, spec.arithmetic, scratch, losses + at, queue_of(stream)),
            "tensor_losses: kernel launch"));
    }
    return Ok{};
}

Status measure(const MatrixView& weights, const QuantView& panel, DeviceStats* stats, RowSums* rows,
               const Stream& stream) {
    NIBBLE_TRY(const Input in, input(weights, "measure"));
    if (panel.rows != weights.rows || panel.cols != weights.cols)
        return fail("measure: codes of [{}, {}] for weights of [{}, {}]", panel.rows, panel.cols, weights.rows,
                    weights.cols);
    if (in.elements() >> 32) return fail("measure: {} elements are more than a panel may have", in.elements());
    const FormatLayout layout = format_layout(panel.format);
    const MeasureArgs args{.codes = panel.codes,
                           .block_scales = panel.block_scales,
                           .float_scales = panel.float_scales,
                           .tensor_scale = panel.tensor_scale,
                           .rows = panel.rows,
                           .cols = panel.cols,
                           .code_bits = layout.code_bits,
                           .block = layout.block,
                           .e8m0 = layout.e8m0_scales,
                           .per_row = panel.format == Format::fp8_row,
                           .per_tile = panel.format == Format::fp8_block128};
    return cuda_status(launch_measure(in, args, stats, rows, queue_of(stream)), "measure: kernel launch");
}

Status quantize_activations(const MatrixView& x, Activations kind, const float* input_scale,
                            const ActivationOutput& out, const Stream& stream) {
    NIBBLE_TRY(const Input in, input(x, "quantize_activations"));
    if (!aligned(out.codes)) return fail("quantize_activations: device pointers must be 16-byte aligned");
    const bool nvfp4 = kind == Activations::nvfp4, mx = kind == Activations::mxfp4 || kind == Activations::mxfp8;
    const int64_t block = nvfp4 ? 16 : mx ? 32 : kind == Activations::fp8_group128 ? 128 : 1;
    if (x.cols % block) return fail("quantize_activations: {} columns are not whole blocks of {}", x.cols, block);
    if (nvfp4 && !input_scale) return fail("quantize_activations: nvfp4 needs an input scale");
    const cudaStream_t s = queue_of(stream);
    if (nvfp4 || mx) NIBBLE_CHECK(clear_padding(x, block, out, stream));
    const ScaleTarget target{out.block_scales, out.swizzled};
    const Fp8QuantizeArgs fp8{.codes = out.codes, .scales = out.float_scales, .arithmetic = Arithmetic::true_division};
    cudaError_t code = cudaSuccess;
    switch (kind) {
        case Activations::nvfp4:
            code = launch_nvfp4_dynamic(in, {.codes = out.codes, .target = target, .given_scale = input_scale}, 16, s);
            break;
        case Activations::mxfp4:
        case Activations::mxfp8:
            code =
                launch_mx(in, kind == Activations::mxfp4 ? MxRule::mxfp4_inputs : MxRule::mxfp8, out.codes, target, s);
            break;
        case Activations::fp8_token:
            code = launch_fp8_rows(in, fp8, {}, s);
            break;
        case Activations::fp8_group128:
            code = launch_fp8_groups(in, fp8, s);
            break;
    }
    return cuda_status(code, "quantize_activations: kernel launch");
}

Status quantize_training(const MatrixView& x, const float* tensor_scale, const TrainingRounding& rounding,
                         const ActivationOutput& out, const Stream& stream) {
    NIBBLE_TRY(const Input in, input(x, "quantize_training"));
    if (!aligned(out.codes)) return fail("quantize_training: device pointers must be 16-byte aligned");
    if (x.cols % 16) return fail("quantize_training: {} columns are not whole blocks of 16", x.cols);
    if (!tensor_scale) return fail("quantize_training: needs a tensor scale");
    NIBBLE_CHECK(clear_padding(x, 16, out, stream));
    const Nvfp4Args args{.codes = out.codes, .target = {out.block_scales, out.swizzled}, .given_scale = tensor_scale};
    const Training training{rounding.rotate, rounding.stochastic, rounding.signs, rounding.stream};
    return cuda_status(launch_nvfp4_training(in, args, training, queue_of(stream)), "quantize_training: kernel launch");
}

Status decode(const QuantView& panel, const float* tensor_scale, DType out_dtype, std::byte* out,
              const Stream& stream) {
    if (out_dtype != DType::bf16 && out_dtype != DType::f32)
        return fail("decode: to BF16 or F32, not {}", dtype_name(out_dtype));
    if (!aligned(panel.codes) || !aligned(out)) return fail("decode: device pointers must be 16-byte aligned");
    const FormatLayout layout = format_layout(panel.format);
    const DecodeArgs args{.codes = panel.codes,
                          .block_scales = panel.block_scales,
                          .float_scales = panel.float_scales,
                          .tensor_scale = tensor_scale,
                          .rows = panel.rows,
                          .cols = panel.cols,
                          .code_bits = layout.code_bits,
                          .block = layout.block,
                          .e8m0 = layout.e8m0_scales,
                          .per_row = panel.format == Format::fp8_row,
                          .per_tile = panel.format == Format::fp8_block128};
    return cuda_status(launch_decode(args, out_dtype == DType::f32, out, queue_of(stream)), "decode: kernel launch");
}

Status swizzle(const uint8_t* scales, int64_t rows, int64_t cols, uint8_t* out, const Stream& stream) {
    if (!aligned(out)) return fail("swizzle: device pointers must be 16-byte aligned");
    return cuda_status(launch_swizzle(scales, rows, cols, out, queue_of(stream)), "swizzle: kernel launch");
}

}  // namespace nibble::cuda

#include "kernels/fused_decode_cuda.h"

#include "kernels/cuda/matmul/fused_decode/fused_decode_launch.h"
#include "kernels/cuda/primitives/cache_args.h"
#include "kernels/w4a16_record.h"
#include "tensor/cuda/call.h"

#include <algorithm>
#include <climits>

namespace nibble::cuda {
namespace {

static_assert(most_fused_products == fused_decode_steps);

bool has_records(const FusedProduct& p) { return p.packed.rows > 0; }
int64_t rows_of(const FusedProduct& p) { return has_records(p) ? p.packed.rows : p.w.rows; }
int64_t cols_of(const FusedProduct& p) { return has_records(p) ? p.packed.cols : p.w.cols; }

// Size of the output for the next product: FP32, or activated codes or BF16; whole lines of memory.
int64_t handed_bytes(const FusedProduct& p) {
    const int64_t bytes = !p.activated ? 4 * rows_of(p) : rows_of(p) / (p.gated ? 2 : 1) * (has_records(p) ? 2 : 1);
    return (bytes + 127) / 128 * 128;
}

bool fits(const FusedProduct& p, bool takes_codes) {
    const int64_t rows = rows_of(p), cols = cols_of(p);
    const int least = has_records(p) ? w4a16::record_rows : 8;
    if (rows < least || rows % least || rows > INT_MAX / 2 || cols > INT_MAX / 2) return false;
    if (has_records(p) ? cols < 256 || cols % 256 : !p.w.codes || p.w.tile_scales || cols < 128 || cols % 128)
        return false;
    if (p.gated && (!p.activated || rows % (2 * least))) return false;
    return (p.x != nullptr) + (p.norm != nullptr) + takes_codes == 1;
}

// Returns whether the last product's outputs can be rotated where they are computed, two halves of a head at a time.
bool ropes_inside(const RopeArgs& rope) {
    const int dim = rope.cache.dims.k;
    return !rope.q_norm && !rope.k_norm && !rope.rotary.interleaved && rope.rotary.dims == dim && dim % 32 == 0 &&
           rope.cache.dims.v == dim && rope.cache.padded == rope.cache.dims;
}

bool fill(const FusedDecode& decode, FusedDecodeArgs& args) {
    if (decode.products.empty() || decode.products.size() > most_fused_products) return false;
    const FusedProduct* before = nullptr;
    for (const FusedProduct& p : decode.products) {
        const bool takes_codes = before && before->activated;
        if (!fits(p, takes_codes)) return false;
        if (has_records(p) != has_records(decode.products[0])) return false;
        if (takes_codes && rows_of(*before) / (before->gated ? 2 : 1) != cols_of(p)) return false;
        if (p.norm) {
            if (args.width && args.width != cols_of(p)) return false;
            if (before && rows_of(*before) != cols_of(p)) return false;
            args.width = static_cast<int>(cols_of(p));
        }
        if (takes_codes) args.step[args.steps - 1].code_scale = p.input_scale;
        ProductStep& step = args.step[args.steps++];
        step = {.rows = reinterpret_cast<const uint16_t*>(p.x),
                .norm = p.norm,
                .nonfinite = p.nonfinite,
                .y = p.y,
                .n = static_cast<int>(rows_of(p)),
                .k = static_cast<int>(cols_of(p)),
                .activated = p.activated,
                .gated = p.gated};
        if (has_records(p)) {
            step.tiles = reinterpret_cast<const uint8_t*>(p.packed.records);
            step.row_scales = p.factors.row_scales, step.tensor_scale = p.factors.tensor_scale;
            step.bias = p.factors.bias;
            step.row_records = step.k / w4a16::record_cols;
            step.chunk_records = (step.row_records + matmul_chunks - 1) / matmul_chunks;
            step.span = p.gated ? 1 : 0;
            if (p.packed.format != decode.products[0].packed.format) return false;
            args.scale_bits = scale_bits(p.packed.format);
        } else {
            step.tiles = reinterpret_cast<const uint8_t*>(p.w.tiles);
            step.row_scales = p.w.row_scales, step.bias = p.w.bias;
            step.scale = p.w.scale, step.input_scale = p.input_scale;
            step.groups = step.k / 128;
        }
        before = &p;
    }
    if (before->activated) return false;  // the codes would have no reader
    args.h = reinterpret_cast<const uint16_t*>(decode.h);
    args.update = decode.update;
    args.h_out = reinterpret_cast<uint16_t*>(decode.h_out);
    args.meet = reinterpret_cast<unsigned long long*>(decode.meet);
    args.activation = static_cast<int>(decode.activation);
    args.eps = decode.eps;
    return true;
}

bool shape(const FusedDecode& decode, int multiprocessors, FusedDecodeArgs& args) {
    return has_records(decode.products[0]) ? shape_record_decode(args, multiprocessors)
                                           : shape_code_decode(args, multiprocessors);
}
bool supported(const FusedDecode& decode, const DeviceInfo& device) {
    return !decode.products.empty() && device.major == 9;
}

}  // namespace

bool takes_fused_decode(const FusedDecode& decode, const DeviceInfo& device) {
    FusedDecodeArgs args;
    return supported(decode, device) && fill(decode, args) && shape(decode, device.multiprocessors, args);
}

int64_t fused_decode_bytes(const FusedDecode& decode) {
    int64_t bytes = 0;
    for (const FusedProduct& p : decode.products) bytes += handed_bytes(p);
    return bytes;
}

Status run_fused_decode(const FusedDecode& decode, bool overlap, const DeviceInfo& device, const Stream& stream) {
    FusedDecodeArgs args;
    if (!supported(decode, device) || !fill(decode, args))
        return fail("run_fused_decode: no kernel for these {} products", decode.products.size());
    if (!decode.meet || (args.width && !decode.h) || !decode.between || decode.between == decode.used)
        return fail("run_fused_decode: h, between or meet is null, or between is used");
    auto* handed = reinterpret_cast<uint8_t*>(decode.between);
    for (int i = 0; i + 1 < args.steps; ++i) {
        args.step[i].handed = handed;
        handed += handed_bytes(decode.products[static_cast<size_t>(i)]);
    }
    if (!args.step[args.steps - 1].y) return fail("run_fused_decode: the last product has no output");
    args.used = reinterpret_cast<uint4*>(decode.used);
    args.used_words = decode.used ? static_cast<int>(decode.used_bytes / 16) : 0;
    const bool records = has_records(decode.products[0]);
    if (decode.rope) {
        if (!decode.cache || decode.rope->tokens != 1 || decode.rope->qkv != decode.products.back().y)
            return fail("run_fused_decode: rope needs a cache, one token and the output of the last product");
        if (decode.rope->options != RopeAppend::Options{})
            return fail("run_fused_decode: a rotary embedding with options");
        NIBBLE_TRY(args.rope, rope_args(*decode.rope, *decode.cache, overlap));
        args.ropes = true;
        args.ropes_inside = records && ropes_inside(args.rope);
        int& span = args.step[args.steps - 1].span;
        if (args.ropes_inside) span = args.rope.cache.dims.k / 2 / w4a16::record_rows;
        if (args.ropes_inside && !shape(decode, device.multiprocessors, args)) args.ropes_inside = false, span = 0;
    }
    if (!shape(decode, device.multiprocessors, args))
        return fail("run_fused_decode: no kernel for these {} products", decode.products.size());
    args.overlap = overlap;
    const auto raw = static_cast<cudaStream_t>(stream.handle());
    return cuda_status(records ? launch_fused_decode_w4a16_m1(args, device.multiprocessors, raw)
                               : launch_sm90_fused_decode_fp8_m1(args, device.multiprocessors, raw),
                       "run_fused_decode: kernel launch");
}

}  // namespace nibble::cuda

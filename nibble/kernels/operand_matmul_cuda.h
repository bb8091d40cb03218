// y = x W^T on a GPU with operands that are exact in BF16: BF16 weights, and all formats of up to eight significant
// bits whose scales do not fold into the operand (FP8, MXFP8, MXFP4, NVFP4 codes times their block scale). Inputs are
// BF16 rows or the output of quantize_inputs(): codes as BF16, and scales.
//
// One order of sums for any number of tokens: an FP32 chain of mma.sync.m16n8k16 or wgmma.m64nNk16 (the same bits) from
// zero over k-steps of 16 columns, ascending. Then y = sum * (input scale * weight scale) + bias, each operation
// rounded. fp8_block128: a chain per 128 columns; acc = fma(chain, group scale * tile scale, acc), ascending from zero;
// then * input scale. W with few rows (chunked_matmul(): routers): K in eight chunks of ceil(ceil(k / 64) / 8) blocks
// of 64 columns, each a chain from zero, summed pairwise. Operands of codes (W8A8 on the FP8 tensor cores): a chain of
// four wgmma.m64nNk32 per 128 columns from zero, whose sums keep about 14 bits; then acc = acc + chain in FP32, or the
// fma above, ascending. A token's result thus depends on its own row of x and on W only.
//
// Pointers are device pointers, 16-byte aligned (vectors of floats: 4). Functions queue work and return at once; they
// neither allocate nor wait. `overlap`: starts while the previous kernel still runs and waits for it before reading x;
// that kernel must not write W.
#pragma once

#include "formats/format.h"
#include "kernels/kernel_choice.h"
#include "tensor/device.h"
#include "tensor/matrix.h"
#include "tensor/quant_matrix.h"

namespace nibble::cuda {

// Call once per device before the first product.
Status prepare_matmul(const DeviceInfo& device);

// W [rows, cols] in the layout of matmul(): tiles of 64 x 64, padded with zeros.
struct Operand {
    int64_t rows = 0, cols = 0;
    const std::byte* tiles = nullptr;    // operand_bytes(rows, cols), or codes_bytes(rows, cols)
    bool codes = false;                  // E4M3 codes, for inputs that are also codes
    float scale = 1.0f;                  // for every output, unless
    const float* row_scales = nullptr;   // [rows]
    const float* tile_scales = nullptr;  // fp8_block128: [ceil(rows / 128), ceil(cols / 128)], instead of both above
    int tile_rows = 128;                 // rows per tile scale: 128, or 1 (blocks of 1 x 128; not for codes or experts)
    const float* bias = nullptr;         // [rows]
};
int64_t operand_bytes(int64_t rows, int64_t cols);
// Returns true if products with this operand use the order for few rows.
inline bool chunked_matmul(const Operand& w) { return w.rows <= 256 && w.cols >= 1024 && !w.codes && !w.tile_scales; }

// Writes W to rows [first_row, first_row + w.rows) of an operand with `rows` rows; parts of a stack are written one
// after the other. Zero the tiles first (fill_device). Plain: BF16 unchanged, F16 and F32 rounded. Quantized: codes
// times block scales, if the format has them. The caller sets float_scales and tensor_scale in Operand.
Status make_operand(const MatrixView& w, int64_t rows, int64_t first_row, std::byte* tiles, const Stream& stream);
Status make_operand(const QuantView& w, int64_t rows, int64_t first_row, std::byte* tiles, const Stream& stream);

// The same for operands of codes. w is fp8, fp8_row or fp8_block128.
bool multiplies_codes();  // returns true if the current device supports them
int64_t codes_bytes(int64_t rows, int64_t cols);
Status make_codes(const QuantView& w, int64_t rows, int64_t first_row, std::byte* tiles, const Stream& stream);
// Bytes per row of inputs that are codes: whole groups of 128 columns.
constexpr int64_t codes_pitch(int64_t cols) { return (cols + 127) / 128 * 128; }

struct ProductInput {
    const std::byte* x = nullptr;  // [tokens, cols of W] BF16, or [tokens, codes_pitch(cols)] E4M3
    bool codes =
        false;  // x holds codes from quantize_inputs(). W must be codes, `stride` 0 and `rows` those of experts
    int64_t tokens = 0;
    const int32_t* rows = nullptr;        // [tokens]: row of x and of the scales for each row of y; null: the same row
    int64_t stride = 0;                   // elements per row, a multiple of 8; 0: cols
    float scale = 1.0f;                   // for every token, unless
    const float* token_scales = nullptr;  // [tokens]
    const float* group_scales = nullptr;  // fp8_group128: [tokens, ceil(cols / 128)]; needs tile_scales, and codes
                                          // with tile_scales need it
};
// Computes y [tokens, rows of W] FP32, y_stride floats per row (0: rows). Columns of W are a multiple of 8.
Status matmul(const ProductInput& in, const Operand& w, float* y, int64_t y_stride, bool overlap, const Stream& stream);
// The same rounded to BF16: y [tokens, rows of W], y_stride elements per row. Error: has_rounded_matmul() is false.
Status rounded_matmul(const ProductInput& in, const Operand& w, std::byte* y, int64_t y_stride, bool overlap,
                      const Stream& stream);
// Returns true if a rounding kernel exists for this number of tokens. Reads no device memory.
bool has_rounded_matmul(const Operand& w, int64_t tokens);
// Describes the launch of matmul() with null `rows`. Reads no device memory.
Result<KernelChoice> describe_matmul(const Operand& w, int64_t tokens);

// One launch for all experts. Rows of x and y are sorted by expert: those of expert e are [begin[e], begin[e + 1]) (on
// the device). `first` is expert 0; tiles, row_scales, tile_scales and bias of the others follow without gaps. `scales`
// [experts], if given, replaces first.scale. in.tokens = begin[experts]. Codes: up to 1024 experts.
struct Experts {
    int count = 0;
    Operand first;
    const float* scales = nullptr;
    const int32_t* begin = nullptr;
};
Status grouped_matmul(const ProductInput& in, const Experts& w, float* y, int64_t y_stride, bool overlap,
                      const Stream& stream);
Result<KernelChoice> describe_grouped_matmul(const Experts& w, int64_t tokens);

// Quantizes inputs of a linear like an engine (kernels/quantize_activations.h, the same bits), as exact operands:
//   nvfp4         code * E4M3 block scale; input scale = input_scale
//   fp8           code; input scale = input_scale
//   fp8_token     code; scales [tokens]
//   fp8_group128  code; scales [tokens, ceil(cols / 128)]
//   mxfp8, mxfp4  code * 2^e; input scale 1
// x, out [tokens, cols] BF16, `stride` elements per row (0: cols); out may be x. fp8 formats with `codes`: out is
// [tokens, codes_pitch(cols)] E4M3 instead and must not be x.
struct QuantizeInputs {
    ActivationFormat format = ActivationFormat::none;
    const std::byte* x = nullptr;
    int64_t tokens = 0, cols = 0, stride = 0;
    float input_scale = 1.0f;
    std::byte* out = nullptr;
    float* scales = nullptr;
    bool codes = false;
    // Rows sorted by expert (Experts::begin), with an input scale per expert [experts] instead of input_scale.
    int experts = 0;
    const int32_t* begin = nullptr;
    const float* expert_scales = nullptr;
};
Status quantize_inputs(const QuantizeInputs& q, bool overlap, const Stream& stream);

}  // namespace nibble::cuda

// The kernels of a forward pass and of its observers on the emulated GPU: plain loops over the operations that
// kernels/elementwise_cuda.h, operand_matmul_cuda.h, moe_cuda.h, attention_cuda.h and observe_cuda.h define. Sums are
// taken in double, so values differ from the CPU's as a GPU's do: in the last bit before a rounding to BF16.
// emulated_rows.cpp has the operations between the products of attention and of gates. Mamba-2, W4A16 records and FP8
// codes but those with stored scales are not emulated: they are errors.
#include "device/emulated_memory.h"
#include "formats/fp8.h"
#include "formats/minifloat.h"
#include "kernels/elementwise.h"
#include "kernels/exp.h"
#include "kernels/matmul.h"
#include "kernels/moe_cuda.h"
#include "kernels/observe_cuda.h"
#include "kernels/operand_matmul_cuda.h"
#include "kernels/w4a16_matmul_cuda.h"
#include "model/cpu/router.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

namespace nibble::cuda {
namespace {

using test::on_host;

Error missing(std::string_view what) { return fail("the emulated GPU has no {}", what); }

float rounded(float x) { return bf16_to_float(bf16_from_float(x)); }
const uint16_t* codes(const std::byte* p) { return reinterpret_cast<const uint16_t*>(on_host(p)); }
uint16_t* codes(std::byte* p) { return reinterpret_cast<uint16_t*>(on_host(p)); }
const ElementwiseKernels& elementwise() { return **select_elementwise_kernels("ref"); }

// Returns values in device memory as floats.
std::vector<float> floats(const float* device, int64_t n) {
    return device ? std::vector<float>(on_host(device), on_host(device) + n) : std::vector<float>();
}

}  // namespace

// ---- elementwise_cuda.h --------------------------------------------------------------------------------------------

Status embed(const std::byte* table, const int32_t* tokens, int64_t count, int64_t width, std::byte* h, bool,
             const Stream&) {
    const int32_t* from = on_host(tokens);
    for (int64_t i = 0; i < count; ++i)
        std::memcpy(codes(h) + i * width, codes(table) + from[i] * width, static_cast<size_t>(2 * width));
    return Ok{};
}

namespace {

// Writes a row: BF16, or E4M3 codes with a stored scale.
void put_row(const RowsOut& out, int64_t token, const std::vector<float>& row) {
    const auto width = std::ssize(row);
    for (int64_t j = 0; j < width; ++j) {
        const uint16_t bits = bf16_from_float(row[size_t(j)]);
        if (out.codes == ActivationFormat::none)
            codes(out.data)[token * width + j] = bits;
        else
            on_host(reinterpret_cast<uint8_t*>(out.data))[token * width + j] =
                fp8_code(bf16_to_float(bits), out.input_scale);
    }
}

bool puts(const RowsOut& out) {
    return out.tile_tokens == 0 && (out.codes == ActivationFormat::none || out.codes == ActivationFormat::fp8);
}

}  // namespace

Status add_norm(const AddNorm& a, bool, const Stream&) {
    if (!puts(a.out)) return missing("tiled rows, or codes with dynamic scales");
    const std::vector<float> weight = floats(a.weight, a.width), post = floats(a.post_norm, a.width);
    const std::vector<float> bias = floats(a.bias, a.width), post_bias = floats(a.post_bias, a.width);
    std::vector<float> row(static_cast<size_t>(a.width)), update(row.size()), out(row.size());
    const auto norm = [&](const std::vector<float>& w, const std::vector<float>& b, const float* x, float* y) {
        if (a.centered)
            elementwise().layer_norm(x, w.data(), b.empty() ? nullptr : b.data(), a.width, a.eps, true, y);
        else
            elementwise().rms_norm(x, w.data(), a.width, a.eps, true, y);
    };
    for (int64_t t = 0; t < a.tokens; ++t) {
        uint16_t* h = codes(a.h) + t * a.width;
        if (a.update)
            for (size_t j = 0; j < row.size(); ++j) update[j] = rounded(on_host(a.update)[t * a.width + int64_t(j)]);
        if (a.update && a.post_norm) norm(post, post_bias, update.data(), update.data());
        bool finite = true;
        for (size_t j = 0; j < row.size(); ++j) {
            row[j] = bf16_to_float(h[j]);
            if (a.update) row[j] = rounded(rounded(row[j] + rounded(update[j] * a.update_scale)) * a.sum_scale);
            h[j] = bf16_from_float(row[j]);
            finite = finite && std::isfinite(row[j]);
        }
        if (!finite && a.nonfinite) *on_host(a.nonfinite) = std::min(*on_host(a.nonfinite), static_cast<int32_t>(t));
        if (!a.weight) continue;
        norm(weight, bias, row.data(), out.data());
        put_row(a.out, t, out);
    }
    return Ok{};
}

Status activate(Activation, bool, const std::byte*, int64_t, int64_t, const RowsOut&, bool, const Stream&, float*,
                const ClampedGlu&) {
    return fail("activate: rows of BF16, not emulated");
}
Status activate(Activation activation, bool gated, const float* in, int64_t in_stride, int64_t tokens, int64_t width,
                const RowsOut& out, bool, const Stream&, bool interleaved_gate, const ClampedGlu& clamp) {
    if (!puts(out) || interleaved_gate) return missing("tiled rows, or codes with dynamic scales");
    std::vector<float> x(static_cast<size_t>(width)), up(x.size());
    for (int64_t t = 0; t < tokens; ++t) {
        const float* row = on_host(in) + t * (in_stride ? in_stride : width);
        for (int64_t j = 0; j < width; ++j) {
            x[size_t(j)] = rounded(row[j]);
            if (gated) up[size_t(j)] = rounded(row[width + j]);
        }
        if (clamp.limit > 0)
            elementwise().clamped_glu(clamp, x.data(), up.data(), width, true, x.data());
        else
            elementwise().activate(activation, x.data(), gated ? up.data() : nullptr, width, true, x.data());
        put_row(out, t, x);
    }
    return Ok{};
}

Status to_rows(const float* in, int64_t in_stride, int64_t tokens, int64_t width, const RowsOut& out, bool,
               const Stream&) {
    if (!out.row_major()) return missing("rows in another order");
    for (int64_t t = 0; t < tokens; ++t)
        for (int64_t j = 0; j < width; ++j)
            codes(out.data)[t * width + j] = bf16_from_float(on_host(in)[t * (in_stride ? in_stride : width) + j]);
    return Ok{};
}

Status add_rows(float* y, const float* x, int64_t count, bool, const Stream&) {
    for (int64_t i = 0; i < count; ++i) on_host(y)[i] = rounded(rounded(on_host(y)[i]) + rounded(on_host(x)[i]));
    return Ok{};
}

Status argmax(const float*, int64_t, int64_t, int32_t*, bool, const Stream&) { return missing("argmax"); }

// ---- attention_cuda.h: the same layout of the cache, attention in double -------------------------------------------

namespace {

// Returns dimension d of K or V at a slot.
uint16_t* element(const KvCache& cache, int head, int64_t slot, int d, bool value) {
    const KvShape& s = cache.shape;
    const auto in_page = static_cast<int>(slot % s.page_tokens), t = in_page % kv_tile_tokens;
    std::byte* tile =
        on_host(cache.pages) + slot / s.page_tokens * s.stride() +
        int64_t{head * (s.page_tokens / kv_tile_tokens) + in_page / kv_tile_tokens} * kv_tile_bytes(s.type, s.dims());
    return reinterpret_cast<uint16_t*>(value ? tile + k_tile_bytes(s.type, s.dims()) + v_offset(s.type, t, d)
                                             : tile + k_offset(s.type, t, d));
}

}  // namespace

Status append_kv(const KvCache& cache, const std::byte* k, const std::byte* v, const int64_t* slots, int64_t tokens,
                 const Stream&) {
    const KvShape& s = cache.shape;
    if (s.type != KvType::bf16) return missing("FP8 cache");
    for (int64_t t = 0; t < tokens; ++t)
        for (int h = 0; h < s.kv_heads; ++h) {
            for (int d = 0; d < s.k_dim; ++d)
                *element(cache, h, on_host(slots)[t], d, false) = codes(k)[(t * s.kv_heads + h) * s.k_dim + d];
            for (int d = 0; d < s.v_dim; ++d)
                *element(cache, h, on_host(slots)[t], d, true) = codes(v)[(t * s.kv_heads + h) * s.v_dim + d];
        }
    return Ok{};
}

Result<AttentionPlan> plan_attention(const AttentionProblem& problem, const DeviceInfo&) {
    return AttentionPlan{
        .problem = problem, .work_words = 1 + 4 * problem.most_segments, .workspace_bytes = DeviceArena::alignment};
}

KernelChoice describe(const AttentionPlan& plan) {
    return {"emulated attention", std::to_string(plan.problem.q_heads) + " heads"};
}

Result<AttentionWork> attention_work(const AttentionPlan&, std::span<const AttentionSegment> segments) {
    AttentionWork work{{static_cast<int32_t>(segments.size())}};
    for (const AttentionSegment& s : segments)
        work.words.insert(work.words.end(), {s.row, s.rows, s.position, s.table});
    return work;
}

Status attend(const AttentionPlan& plan, const AttentionInput& in, const KvCache& cache, std::byte* out, std::byte*,
              bool, const Stream&) {
    const AttentionProblem& p = plan.problem;
    const KvShape& kv = cache.shape;
    const int32_t* work = on_host(in.work);
    for (int32_t s = 0; s < work[0]; ++s) {
        const int32_t *segment = work + 1 + 4 * s, *table = on_host(in.table) + segment[3] * p.table_pitch;
        for (int32_t i = 0; i < segment[1]; ++i)
            for (int h = 0; h < p.q_heads; ++h) {
                const int64_t row = segment[0] + i, last = segment[2] + i;
                int64_t first = p.window > 0 ? std::max<int64_t>(0, last - p.window + 1) : 0;
                if (p.chunk > 0) first = std::max(first, last / p.chunk * p.chunk);
                const int kv_head = h / (p.q_heads / kv.kv_heads);
                const uint16_t* q = codes(in.q) + (row * p.q_heads + h) * kv.k_dim;
                const auto slot = [&](int64_t at) {
                    return int64_t{table[at / kv.page_tokens]} * kv.page_tokens + at % kv.page_tokens;
                };
                std::vector<double> weights;
                double most = -INFINITY, total = 0;
                for (int64_t at = first; at <= last; ++at) {
                    double dot = 0;
                    for (int d = 0; d < kv.k_dim; ++d)
                        dot +=
                            double(bf16_to_float(q[d])) * bf16_to_float(*element(cache, kv_head, slot(at), d, false));
                    dot *= p.softmax_scale;
                    weights.push_back(p.soft_cap > 0 ? p.soft_cap * std::tanh(dot / p.soft_cap) : dot);
                    most = std::max(most, weights.back());
                }
                if (in.sinks) {
                    most = std::max<double>(most, on_host(in.sinks)[h]);
                    total = std::exp(on_host(in.sinks)[h] - most);
                }
                for (double& w : weights) total += w = std::exp(w - most);
                for (int d = 0; d < kv.v_dim; ++d) {
                    double sum = 0;
                    for (int64_t at = first; at <= last; ++at)
                        sum += weights[size_t(at - first)] * bf16_to_float(*element(cache, kv_head, slot(at), d, true));
                    codes(out)[(row * p.q_heads + h) * kv.v_dim + d] = bf16_from_float(static_cast<float>(sum / total));
                }
            }
    }
    return Ok{};
}

// ---- operand_matmul_cuda.h: operands are row-major, BF16 or codes ---------------------------------------------------

Status prepare_matmul(const DeviceInfo&) { return Ok{}; }
int64_t operand_bytes(int64_t rows, int64_t cols) { return (rows + 63) / 64 * 64 * ((cols + 63) / 64 * 64) * 2; }

bool multiplies_codes() { return true; }
int64_t codes_bytes(int64_t rows, int64_t cols) { return rows * codes_pitch(cols); }

Status make_codes(const QuantView& w, int64_t, int64_t first_row, std::byte* tiles, const Stream&) {
    for (int64_t r = 0; r < w.rows; ++r)
        std::memcpy(on_host(tiles) + (first_row + r) * codes_pitch(w.cols), on_host(w.codes) + r * w.cols,
                    static_cast<size_t>(w.cols));
    return Ok{};
}

Status make_operand(const MatrixView& w, int64_t, int64_t first_row, std::byte* tiles, const Stream&) {
    if (w.dtype != DType::bf16) return missing("weights other than BF16");
    std::memcpy(codes(tiles) + first_row * w.cols, on_host(w.data), static_cast<size_t>(w.bytes()));
    return Ok{};
}

Status make_operand(const QuantView& w, int64_t, int64_t first_row, std::byte* tiles, const Stream&) {
    const FormatLayout layout = format_layout(w.format);
    for (int64_t i = 0; i < w.rows * w.cols; ++i) {
        float value = 0;
        if (layout.code_bits == 4) {
            const uint8_t pair = on_host(w.codes)[i / 2];
            value = e2m1_to_float(static_cast<uint8_t>(i % 2 ? pair >> 4 : pair & 15));
        } else {
            value = e4m3_to_float(on_host(w.codes)[i]);
        }
        if (layout.block) {
            const uint8_t scale = on_host(w.block_scales)[i / layout.block];
            value *= layout.e8m0_scales ? e8m0_to_float(scale) : e4m3_to_float(scale);
        }
        codes(tiles)[first_row * w.cols + i] = bf16_from_float(value);
    }
    return Ok{};
}

namespace {

Status multiply(const ProductInput& in, const Operand& w, int64_t first, int64_t last, const std::byte* tiles,
                int64_t row_offset, float scale, float* y, int64_t y_stride) {
    if (w.tile_scales || in.token_scales || in.group_scales) return missing("scales of tokens or tiles");
    if (w.codes != in.codes) return fail("product: codes by BF16");
    const int64_t stride = w.codes ? codes_pitch(w.cols) : in.stride ? in.stride : w.cols;
    const auto value = [&](const std::byte* p, int64_t i) {
        return double(w.codes ? e4m3_to_float(uint8_t(on_host(p)[i])) : bf16_to_float(codes(p)[i]));
    };
    const int64_t w_stride = w.codes ? codes_pitch(w.cols) : w.cols;
    for (int64_t t = first; t < last; ++t)
        for (int64_t r = 0; r < w.rows; ++r) {
            const int64_t from = in.rows ? on_host(in.rows)[t] : t;
            double sum = 0;
            for (int64_t k = 0; k < w.cols; ++k) sum += value(in.x, from * stride + k) * value(tiles, r * w_stride + k);
            const float weight = w.row_scales ? on_host(w.row_scales)[row_offset + r] : scale;
            float out = static_cast<float>(sum) * (in.scale * weight);
            if (w.bias) out += on_host(w.bias)[row_offset + r];
            on_host(y)[t * (y_stride ? y_stride : w.rows) + r] = out;
        }
    return Ok{};
}

}  // namespace

Status matmul(const ProductInput& in, const Operand& w, float* y, int64_t y_stride, bool, const Stream&) {
    return multiply(in, w, 0, in.tokens, w.tiles, 0, w.scale, y, y_stride);
}

Status rounded_matmul(const ProductInput&, const Operand&, std::byte*, int64_t, bool, const Stream&) {
    return fail("rounded_matmul: training's, not emulated");
}
bool has_rounded_matmul(const Operand&, int64_t) { return false; }

Status grouped_matmul(const ProductInput& in, const Experts& w, float* y, int64_t y_stride, bool, const Stream&) {
    const int64_t bytes = operand_bytes(w.first.rows, w.first.cols);
    for (int e = 0; e < w.count; ++e)
        NIBBLE_CHECK(multiply(in, w.first, on_host(w.begin)[e], on_host(w.begin)[e + 1], w.first.tiles + e * bytes,
                              e * w.first.rows, w.scales ? on_host(w.scales)[e] : w.first.scale, y, y_stride));
    return Ok{};
}

Result<KernelChoice> describe_matmul(const Operand& w, int64_t tokens) {
    return KernelChoice{w.codes ? "emulated codes" : "emulated", std::to_string(tokens) + " rows"};
}
Result<KernelChoice> describe_grouped_matmul(const Experts& w, int64_t tokens) {
    return KernelChoice{"emulated grouped",
                        std::to_string(tokens) + " rows of " + std::to_string(w.count) + " experts"};
}

Status quantize_inputs(const QuantizeInputs& q, bool, const Stream&) {
    if (q.format != ActivationFormat::nvfp4 && q.format != ActivationFormat::fp8) return missing("such inputs");
    const MatmulKernels& kernels = **select_matmul_kernels("ref");
    std::vector<float> row(static_cast<size_t>(q.cols));
    std::vector<uint8_t> found(row.size()), scales(row.size() / 16 + 1);
    for (int64_t t = 0; t < q.tokens; ++t) {
        float scale = q.input_scale;
        for (int e = 0; q.expert_scales && e < q.experts; ++e)
            if (t >= on_host(q.begin)[e] && t < on_host(q.begin)[e + 1]) scale = on_host(q.expert_scales)[e];
        const int64_t at = t * (q.stride ? q.stride : q.cols);
        for (int64_t k = 0; k < q.cols; ++k) row[size_t(k)] = bf16_to_float(codes(q.x)[at + k]);
        kernels.quantize_row(row.data(), q.cols, q.format, scale,
                             {.codes = found.data(), .block_scales = scales.data()});
        if (q.codes) {
            if (q.format != ActivationFormat::fp8) return missing("codes with dynamic scales");
            std::byte* out = on_host(q.out) + t * codes_pitch(q.cols);
            std::memset(out, 0, static_cast<size_t>(codes_pitch(q.cols)));
            std::memcpy(out, found.data(), found.size());
            continue;
        }
        for (int64_t k = 0; k < q.cols; ++k) {
            const uint8_t pair = found[size_t(k / 2)];
            const float value = q.format == ActivationFormat::fp8
                                    ? e4m3_to_float(found[size_t(k)])
                                    : e2m1_to_float(static_cast<uint8_t>(k % 2 ? pair >> 4 : pair & 15)) *
                                          e4m3_to_float(scales[size_t(k / 16)]);
            codes(q.out)[at + k] = bf16_from_float(value);
        }
    }
    return Ok{};
}

// ---- moe_cuda.h ----------------------------------------------------------------------------------------------------

Status route(const RouterConfig& c, const float* logits, const float* bias, int64_t tokens, const Routing& out, bool,
             const Stream&) {
    MoeConfig config;
    config.experts = c.experts, config.top_k = c.top_k, config.groups = c.groups, config.kept_groups = c.kept_groups;
    config.router = c.sigmoid        ? MoeConfig::Router::sigmoid
                    : c.sparse_mixer ? MoeConfig::Router::sparse_mixer
                                     : MoeConfig::Router::softmax;
    config.jitter = c.jitter;
    config.normalize = c.normalize, config.smallest_sum = c.smallest_sum, config.routed_scaling = c.scaling;
    const std::vector<float> shift = floats(bias, c.experts);
    const auto k = static_cast<size_t>(c.top_k);
    for (int64_t t = 0; t < tokens; ++t) {
        std::vector<float> row = floats(logits + t * c.experts, c.experts);
        if (c.round)
            for (float& x : row) x = rounded(x);
        nibble::route(config, row, shift, {on_host(out.experts) + t * c.top_k, k},
                      {on_host(out.weights) + t * c.top_k, k});
        for (int64_t slot = t * c.top_k; c.expert_scales && slot < (t + 1) * c.top_k; ++slot)
            on_host(out.weights)[slot] *= on_host(c.expert_scales)[on_host(out.experts)[slot]];
    }
    int32_t place = 0;
    for (int e = 0; e < c.experts; ++e) {
        on_host(out.begin)[e] = place;
        for (int64_t slot = 0; slot < tokens * c.top_k; ++slot)
            if (on_host(out.experts)[slot] == e) {
                on_host(out.rows)[place] = static_cast<int32_t>(slot / c.top_k);
                on_host(out.places)[slot] = place++;
            }
    }
    on_host(out.begin)[c.experts] = place;
    return Ok{};
}

Status combine_experts(const CombineExperts& c, const Routing& routing, bool, const Stream&) {
    for (int64_t t = 0; t < c.tokens; ++t)
        for (int64_t j = 0; j < c.width; ++j) {
            float sum = 0;
            for (int64_t slot = t * c.top_k; slot < (t + 1) * c.top_k; ++slot)
                sum += (c.weighed ? on_host(routing.weights)[slot] : 1.0f) *
                       rounded(on_host(c.y)[on_host(routing.places)[slot] * (c.y_stride ? c.y_stride : c.width) + j]);
            sum = rounded(sum);
            if (c.shared) {
                float shared = rounded(on_host(c.shared)[t * c.width + j]);
                if (c.shared_gate)
                    shared = rounded(shared * (1.0f / (1.0f + exp_f32(-rounded(on_host(c.shared_gate)[t])))));
                sum = rounded(sum + shared);
            }
            if (c.sum) on_host(c.sum)[t * c.width + j] = sum;
            if (c.rows) codes(c.rows)[t * c.width + j] = bf16_from_float(sum);
        }
    return Ok{};
}

// ---- observe_cuda.h ------------------------------------------------------------------------------------------------

Status observe_ranges(const ObservedRows& o, RangeSums* sums, uint64_t* counts, const Stream&) {
    for (int e = 0; e < o.experts; ++e) {
        const int64_t first = o.begin ? on_host(o.begin)[e] : 0, last = o.begin ? on_host(o.begin)[e + 1] : o.rows;
        RangeSums& to = on_host(sums)[e];
        to.rows += static_cast<uint64_t>(last - first);
        for (int64_t i = first * o.cols; i < last * o.cols; ++i) {
            const uint32_t code = codes(o.x)[i] & 0x7FFFu;
            to.largest = std::bit_cast<float>(std::max(std::bit_cast<uint32_t>(to.largest), code << 16));
            if (counts) ++on_host(counts)[e * range_buckets + code];
        }
    }
    return Ok{};
}

Status read_kv(const KvCache& cache, const int64_t* slots, int64_t tokens, std::byte* k, std::byte* v, const Stream&) {
    const KvShape& s = cache.shape;
    for (int64_t t = 0; t < tokens; ++t)
        for (int h = 0; h < s.kv_heads; ++h) {
            for (int d = 0; d < s.k_dim; ++d)
                codes(k)[(t * s.kv_heads + h) * s.k_dim + d] = *element(cache, h, on_host(slots)[t], d, false);
            for (int d = 0; d < s.v_dim; ++d)
                codes(v)[(t * s.kv_heads + h) * s.v_dim + d] = *element(cache, h, on_host(slots)[t], d, true);
        }
    return Ok{};
}

int64_t moments_scratch_bytes(int64_t) { return DeviceArena::alignment; }
Status add_moments(const std::byte* x, int64_t rows, int64_t n, double* sums, std::byte*, const Stream&) {
    for (int64_t t = 0; t < rows; ++t)
        for (int64_t i = 0; i < n; ++i)
            for (int64_t j = 0; j < n; ++j)
                on_host(sums)[i * n + j] +=
                    double(bf16_to_float(codes(x)[t * n + i])) * bf16_to_float(codes(x)[t * n + j]);
    return Ok{};
}
Status add_local_moments(const std::byte* x, int64_t rows, int64_t n, double* sums, const Stream&) {
    for (int64_t t = 0; t < rows; ++t)
        for (int64_t i = 0; i < n * 16; ++i)
            on_host(sums)[i] += double(bf16_to_float(codes(x)[t * n + i / 256 * 16 + i / 16 % 16])) *
                                bf16_to_float(codes(x)[t * n + i / 256 * 16 + i % 16]);
    return Ok{};
}

Status divergences(const float* p, const float* q, int64_t rows, int64_t vocab, double* out, const Stream&) {
    const auto shift = [&](const float* x) {
        double sum = 0, most = -INFINITY;
        for (int64_t i = 0; i < vocab; ++i) most = std::max(most, double(x[i]));
        for (int64_t i = 0; i < vocab; ++i) sum += std::exp(x[i] - most);
        return most + std::log(sum);
    };
    for (int64_t r = 0; r < rows; ++r) {
        const float *a = on_host(p) + r * vocab, *b = on_host(q) + r * vocab;
        const double of_a = shift(a), of_b = shift(b);
        double sum = 0;
        for (int64_t i = 0; i < vocab; ++i) sum += std::exp(a[i] - of_a) * ((a[i] - of_a) - (b[i] - of_b));
        on_host(out)[r] = sum;
    }
    return Ok{};
}

}  // namespace nibble::cuda

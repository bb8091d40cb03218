// Mamba-2 and short convolutions on the emulated GPU: the CPU's kernels on memory of the device.
#include "device/emulated_memory.h"
#include "formats/minifloat.h"
#include "kernels/elementwise.h"
#include "kernels/short_conv_cuda.h"
#include "kernels/ssm.h"
#include "kernels/ssm_cuda.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace nibble::cuda {
namespace {

using test::on_host;
using Floats = std::vector<float>;

const ElementwiseKernels& elements() { return **select_elementwise_kernels("ref"); }
const SsmKernels& kernels() { return **select_ssm_kernels("ref"); }
const float* host_or_null(const float* p) { return p ? on_host(p) : nullptr; }

Floats rounded_rows(const float* from, int64_t count) {
    Floats rows(on_host(from), on_host(from) + count);
    elements().round_bf16(rows.data(), count);
    return rows;
}

// Convolves rows of a segment; reads and replaces the taps - 1 rows at `history`, which may be null.
Floats convolved(const Floats& rows, int64_t channels, int taps, const float* weight, const float* bias,
                 float* history) {
    const int64_t before = taps - 1, count = std::ssize(rows) / channels;
    const Floats zeros(static_cast<size_t>(channels));
    Floats past(static_cast<size_t>(before * channels)), out(rows.size());
    if (history) past.assign(history, history + before * channels);
    past.insert(past.end(), rows.begin(), rows.end());
    for (int64_t t = 0; t < count; ++t) {
        const float* inputs[16];
        for (int64_t j = 0; j <= before; ++j) inputs[j] = past.data() + (t + j) * channels;
        kernels().convolve(inputs, taps, weight, bias ? bias : zeros.data(), channels, out.data() + t * channels);
    }
    if (history) std::copy(past.end() - before * channels, past.end(), history);
    return out;
}

void store(const Floats& rows, std::byte* out, int64_t at) {
    auto* to = reinterpret_cast<uint16_t*>(on_host(out)) + at;
    for (const float x : rows) *to++ = bf16_from_float(x);
}

// Gates and normalizes y [rows, inner]; z: `stride` floats from row to row.
void gate_rows(const MambaStep& m, const float* z, int64_t stride, Floats& y) {
    const int64_t inner = m.shape.inner(), group = inner / m.shape.groups;
    const auto norm = [&](float* row) {
        for (int64_t at = 0; at < inner; at += group)
            elements().rms_norm(row + at, on_host(m.norm) + at, group, m.eps, true, row + at);
    };
    for (int64_t t = 0; t * inner < std::ssize(y); ++t) {
        float* row = y.data() + t * inner;
        if (m.order == SsmNorm::before_gate) norm(row);
        elements().activate(Activation::silu, z + t * stride, row, inner, m.order != SsmNorm::after_gate, row);
        if (m.order == SsmNorm::after_gate) norm(row);
    }
}

void run_mamba(const MambaStep& m, const StateSegment& segment) {
    const MambaShape& s = m.shape;
    const int64_t channels = s.channels(), inner = s.inner(), stride = inner + channels + s.heads, rows = segment.rows;
    const Floats projected = rounded_rows(m.projected + segment.row * stride, rows * stride);
    float* const kept = segment.state ? on_host(segment.state) : nullptr;
    Floats inputs, dt, decay;
    for (int64_t t = 0; t < rows; ++t) {
        const float* row = projected.data() + t * stride + inner;
        inputs.insert(inputs.end(), row, row + channels);
        for (int h = 0; h < s.heads; ++h) {
            const double x = row[channels + h] + on_host(m.dt_bias)[h];
            const auto wide = static_cast<float>(x > 0 ? x + std::log1p(std::exp(-x)) : std::log1p(std::exp(x)));
            dt.push_back(std::max(wide, m.dt_min));
            decay.push_back(static_cast<float>(std::exp(double{dt.back()} * on_host(m.a)[h])));
        }
    }
    Floats xbc = convolved(inputs, channels, s.conv, on_host(m.conv_weight), host_or_null(m.conv_bias), kept);
    elements().activate(Activation::silu, xbc.data(), nullptr, std::ssize(xbc), true, xbc.data());
    // The CPU's state of a head has rows of round_up(head_dim, 16), the device's has rows of head_dim.
    const int64_t pitch = (s.head_dim + 15) / 16 * 16;
    Floats state(static_cast<size_t>(ssm_state_elements(s.heads, s.head_dim, s.state))),
        y(static_cast<size_t>(rows * inner));
    const auto each = [&](auto&& use) {
        for (int64_t i = 0; kept && i < int64_t{s.heads} * s.state; ++i)
            for (int64_t p = 0; p < s.head_dim; ++p)
                use(kept[(s.conv - 1) * channels + i * s.head_dim + p], state[static_cast<size_t>(i * pitch + p)]);
    };
    each([](float& stored, float& plain) { plain = stored; });
    ThreadPool pool(1);
    ssm_scan(kernels(),
             {.heads = s.heads,
              .head_dim = s.head_dim,
              .groups = s.groups,
              .state_size = s.state,
              .x = xbc.data(),
              .b = xbc.data() + inner,
              .c = xbc.data() + inner + int64_t{s.groups} * s.state,
              .stride = channels,
              .decay = decay.data(),
              .dt = dt.data(),
              .d = on_host(m.d),
              .y = y.data(),
              .tokens = rows},
             reinterpret_cast<std::byte*>(state.data()), pool);
    each([](float& stored, float& plain) { stored = plain; });
    gate_rows(m, projected.data(), stride, y);
    store(y, m.out, segment.row * inner);
}

void run_short_conv(const ShortConvStep& s, const StateSegment& segment) {
    const int64_t width = s.width, rows = segment.rows;
    const Floats projected = rounded_rows(s.projected + segment.row * 3 * width, rows * 3 * width);
    Floats products;
    for (int64_t t = 0; t < rows; ++t)
        for (int64_t j = t * 3 * width; j < (t * 3 + 1) * width; ++j)
            products.push_back(projected[static_cast<size_t>(j)] * projected[static_cast<size_t>(j + 2 * width)]);
    elements().round_bf16(products.data(), std::ssize(products));
    Floats out = convolved(products, width, s.taps, on_host(s.weight), host_or_null(s.bias),
                           segment.state ? on_host(segment.state) : nullptr);
    elements().round_bf16(out.data(), std::ssize(out));
    for (int64_t i = 0; i < std::ssize(out); ++i)
        out[static_cast<size_t>(i)] *= projected[static_cast<size_t>((i / width * 3 + 1) * width + i % width)];
    store(out, s.out, segment.row * width);
}

}  // namespace

int64_t mamba_workspace_bytes(const MambaShape&, int64_t) { return 256; }

Status mamba_step(const MambaStep& m, bool, const Stream&) {
    if (m.shape.format != SsmStateFormat::f32) return fail("the emulated GPU has FP32 states of Mamba-2 only");
    for (int i = 0; i < m.segments; ++i) run_mamba(m, on_host(m.list)[i]);
    return Ok{};
}

Status short_conv_step(const ShortConvStep& s, bool, const Stream&) {
    for (int i = 0; i < s.segments; ++i) run_short_conv(s, on_host(s.list)[i]);
    return Ok{};
}

}  // namespace nibble::cuda

#include "kernels/delta_rule_cuda.h"

#include "kernels/cuda/delta/delta_launch.h"
#include "kernels/cuda/primitives/launch_checks.h"

namespace nibble::cuda {
namespace {

constexpr int64_t most_tokens = 65535;
constexpr int most_dim = 256;

int64_t padded(int64_t bytes) { return (bytes + 255) / 256 * 256; }

// Sizes of the parts of the workspace in bytes.
struct Parts {
    int64_t keys, decays, steps, values;
    Parts(const DeltaShape& s, int64_t tokens)
        : keys(padded(tokens * s.key_heads * s.padded_key_dim() * 4)),
          decays(s.by_channel ? keys : 0),
          steps(padded(tokens * s.value_heads * 8)),
          values(padded(tokens * s.inner() * 2)) {}
};

}  // namespace

int64_t delta_workspace_bytes(const DeltaShape& shape, int64_t tokens) {
    const Parts parts(shape, tokens);
    return 2 * parts.keys + parts.decays + parts.steps + 2 * parts.values;
}

Status delta_step(const DeltaStep& d, bool overlap, const Stream& stream) {
    const DeltaShape& s = d.shape;
    if (s.key_heads < 1 || s.value_heads < 1 || s.value_heads % s.key_heads || s.key_dim < 1 || s.key_dim > most_dim ||
        s.value_dim < 8 || s.value_dim > most_dim || s.value_dim % 8 || s.conv < 1 || s.conv > 16)
        return fail(
            "gated delta net: {} key heads of {}, {} value heads of {}, convolution of {}; heads up to {} are "
            "supported, those of values in multiples of 8",
            s.key_heads, s.key_dim, s.value_heads, s.value_dim, s.conv, most_dim);
    if (d.tokens < 1 || d.tokens > most_tokens || d.segments < 1 || d.segments > most_tokens || d.longest < 1)
        return fail("gated delta net: {} tokens in {} segments", d.tokens, d.segments);
    if (s.by_channel && (s.by_key_head || s.key_heads != s.value_heads || !d.z || !d.channel_gates ||
                         d.stride < s.channels() + s.value_heads))
        return fail("gated delta net: decays by channel of {} key and {} value heads, rows {} floats apart",
                    s.key_heads, s.value_heads, d.stride);
    const Parts parts(s, d.tokens);
    std::byte* const q = d.workspace;
    std::byte* const k = q + parts.keys;
    std::byte* const decays = k + parts.keys;
    std::byte* const steps = decays + parts.decays;
    std::byte* const v = steps + parts.steps;
    std::byte* const y = v + parts.values;
    const DeltaArgs args{.key_heads = s.key_heads,
                         .value_heads = s.value_heads,
                         .key_dim = s.key_dim,
                         .value_dim = s.value_dim,
                         .conv = s.conv,
                         .per_key = s.values_per_key(),
                         .padded_key = s.padded_key_dim(),
                         .keys = static_cast<int>(s.keys()),
                         .inner = static_cast<int>(s.inner()),
                         .channels = static_cast<int>(s.channels()),
                         .history = s.history_floats(),
                         .by_key_head = s.by_key_head,
                         .by_channel = s.by_channel,
                         .segments = d.segments,
                         .tokens = d.tokens,
                         .longest = d.longest,
                         .list = d.list,
                         .projected = d.projected,
                         .gates = d.gates,
                         .conv_weight = d.conv_weight,
                         .a = d.a,
                         .dt_bias = d.dt_bias,
                         .norm = d.norm,
                         .stride = s.by_channel ? d.stride : s.channels() + s.inner(),
                         .gates_stride = s.by_channel ? d.stride : 2 * int64_t{s.value_heads},
                         .z = d.z,
                         .channel_gates = d.channel_gates,
                         .unit_eps = d.unit_eps,
                         .q_scale = d.q_scale,
                         .k_scale = d.k_scale,
                         .eps = d.eps,
                         .out = reinterpret_cast<uint16_t*>(d.out),
                         .q = reinterpret_cast<float*>(q),
                         .k = reinterpret_cast<float*>(k),
                         .steps = reinterpret_cast<float2*>(steps),
                         .decays = reinterpret_cast<float*>(decays),
                         .v = reinterpret_cast<uint16_t*>(v),
                         .y = reinterpret_cast<uint16_t*>(y),
                         .overlap = overlap};
    if (on_hopper() && delta_decodes(args))
        return cuda_status(launch_delta_decode(args, queue_of(stream)), "gated delta net: one token");
    NIBBLE_CHECK(cuda_status(launch_delta_inputs(args, queue_of(stream)), "gated delta net: convolution"));
    NIBBLE_CHECK(cuda_status(launch_delta_rule(args, queue_of(stream)), "gated delta net: rule"));
    return cuda_status(launch_delta_gate(args, queue_of(stream)), "gated delta net: gated norm");
}

}  // namespace nibble::cuda

#include "kernels/ssm_cuda.h"

#include "kernels/cuda/primitives/launch_checks.h"
#include "kernels/cuda/ssm/ssm_launch.h"

namespace nibble::cuda {
namespace {

constexpr int64_t most_tokens = 65535, most_state = 128, most_group = 40000;

int64_t padded(int64_t bytes) { return (bytes + 255) / 256 * 256; }

}  // namespace

int64_t mamba_workspace_bytes(const MambaShape& s, int64_t tokens) {
    return padded(tokens * s.channels() * 2) + 2 * padded(tokens * s.heads * 4) + padded(tokens * s.inner() * 4);
}

Status mamba_step(const MambaStep& m, bool overlap, const Stream& stream) {
    const MambaShape& s = m.shape;
    if (s.heads < 1 || s.groups < 1 || s.heads % s.groups || s.head_dim < 1 || s.head_dim > 256 || s.state < 1 ||
        s.state > most_state || s.conv < 1 || s.conv > 16 || s.inner() / s.groups > most_group)
        return fail(
            "mamba: {} heads of {} in {} groups, state {}, convolution of {}; heads up to 256 and states up to "
            "{} are supported",
            s.heads, s.head_dim, s.groups, s.state, s.conv, most_state);
    if (m.tokens < 1 || m.tokens > most_tokens || m.segments < 1 || m.segments > most_tokens || m.longest < 1)
        return fail("mamba: {} tokens in {} segments", m.tokens, m.segments);
    std::byte* xbc = m.workspace;
    std::byte* dt = xbc + padded(m.tokens * s.channels() * 2);
    std::byte* decay = dt + padded(m.tokens * s.heads * 4);
    std::byte* y = decay + padded(m.tokens * s.heads * 4);
    const SsmArgs args{.heads = s.heads,
                       .head_dim = s.head_dim,
                       .groups = s.groups,
                       .state = s.state,
                       .conv = s.conv,
                       .inner = static_cast<int>(s.inner()),
                       .channels = static_cast<int>(s.channels()),
                       .segments = m.segments,
                       .tokens = m.tokens,
                       .longest = m.longest,
                       .stride = s.inner() + s.channels() + s.heads,
                       .list = m.list,
                       .projected = m.projected,
                       .conv_weight = m.conv_weight,
                       .conv_bias = m.conv_bias,
                       .a = m.a,
                       .d = m.d,
                       .dt_bias = m.dt_bias,
                       .norm = m.norm,
                       .order = m.order,
                       .dt_min = m.dt_min,
                       .eps = m.eps,
                       .out = reinterpret_cast<uint16_t*>(m.out),
                       .xbc = reinterpret_cast<uint16_t*>(xbc),
                       .dt = reinterpret_cast<float*>(dt),
                       .decay = reinterpret_cast<float*>(decay),
                       .y = reinterpret_cast<float*>(y),
                       .format = s.format,
                       .stream = m.stream,
                       .overlap = overlap};
    if (on_hopper() && ssm_decodes(args))
        return cuda_status(launch_ssm_decode(args, queue_of(stream)), "mamba: one token");
    NIBBLE_CHECK(cuda_status(launch_convolve(args, queue_of(stream)), "mamba: convolution"));
    SsmArgs plain = args;
    plain.overlap = false;  // the history is overwritten: previous kernels must have finished reading it
    NIBBLE_CHECK(cuda_status(launch_steps(plain, queue_of(stream)), "mamba: steps"));
    NIBBLE_CHECK(cuda_status(launch_ssm_scan(args, queue_of(stream)), "mamba: scan"));
    return cuda_status(launch_gate(args, queue_of(stream)), "mamba: gated norm");
}

}  // namespace nibble::cuda

#include "kernels/ssm_backward_cuda.h"

#include "base/checked.h"
#include "kernels/cuda/ssm/ssm_backward_launch.h"
#include "kernels/elementwise_backward_cuda.h"
#include "tensor/cuda/call.h"

#include <algorithm>

namespace nibble::cuda {
namespace {

constexpr int64_t most_mamba_tokens = 65535;  // the second dimension of a grid
constexpr int64_t most_group = 12000;         // floats of a group in shared memory

cudaStream_t mamba_queue(const Stream& stream) { return static_cast<cudaStream_t>(stream.handle()); }

// Allocates parts of the workspace, or counts their bytes if there is none.
class Pieces {
public:
    explicit Pieces(std::byte* base) : base_(base) {}
    template <class T = float>
    T* take(int64_t count) {
        T* piece = base_ ? reinterpret_cast<T*>(base_ + used_) : nullptr;
        used_ += round_up(count * int64_t{sizeof(T)}, int64_t{256});
        return piece;
    }
    int64_t used() const { return used_; }

private:
    std::byte* base_;
    int64_t used_ = 0;
};

std::byte* place_pieces(MambaBackArgs& a, std::byte* workspace, int64_t& bytes) {
    Pieces pieces(workspace);
    const int64_t n = a.tokens, steps = n * a.heads, rows = n * a.inner, all = n * a.channels;
    a.raw = pieces.take(all), a.d_xbc = pieces.take(all), a.xbc = pieces.take<uint16_t>(all);
    a.dt = pieces.take(steps), a.decay = pieces.take(steps);
    a.y = pieces.take(rows), a.dy = pieces.take(rows), a.du = pieces.take(rows);
    a.part = pieces.take(std::max(rows, steps * a.state));
    a.read = pieces.take(steps), a.written = pieces.take(steps);
    a.to_dt_bias = pieces.take(steps), a.to_a_log = pieces.take(steps), a.to_d = pieces.take(steps);
    a.conv_sums = pieces.take(int64_t{conv_parts} * a.channels * a.conv);
    std::byte* sums = pieces.take<std::byte>(column_sums_workspace(std::max(a.channels, a.inner)));
    bytes = pieces.used();
    return sums;
}

MambaBackArgs sizes_of(const MambaShape& s, int64_t tokens) {
    MambaBackArgs a{};
    a.heads = s.heads, a.head_dim = s.head_dim, a.groups = s.groups, a.state = s.state, a.conv = s.conv;
    a.inner = static_cast<int>(s.inner()), a.channels = static_cast<int>(s.channels());
    a.tokens = tokens, a.stride = s.inner() + s.channels() + s.heads;
    return a;
}

}  // namespace

bool has_mamba_backward(const MambaShape& s) {
    return s.heads >= 1 && s.groups >= 1 && s.heads % s.groups == 0 && s.head_dim >= 1 && s.head_dim <= 128 &&
           s.state >= 1 && s.state <= 128 && s.conv >= 1 && s.conv <= 16 && s.inner() / s.groups <= most_group &&
           s.format == SsmStateFormat::f32;
}

int64_t mamba_backward_workspace(const MambaShape& shape, int64_t tokens) {
    MambaBackArgs a = sizes_of(shape, tokens);
    int64_t bytes = 0;
    place_pieces(a, nullptr, bytes);
    return bytes;
}

Status mamba_backward(const MambaBackward& b, const Stream& stream) {
    const MambaShape& s = b.shape;
    if (!has_mamba_backward(s) || b.tokens < 1 || b.tokens > most_mamba_tokens || b.segments < 1 ||
        b.segments > most_mamba_tokens)
        return fail(
            "mamba_backward: {} tokens in {} segments, {} heads of {} in {} groups, state {}, convolution of {}",
            b.tokens, b.segments, s.heads, s.head_dim, s.groups, s.state, s.conv);
    MambaBackArgs a = sizes_of(s, b.tokens);
    a.segments = b.segments, a.first = b.first;
    a.list = b.list;
    a.projected = reinterpret_cast<const uint16_t*>(b.projected);
    a.conv_weight = b.conv_weight, a.conv_bias = b.conv_bias, a.a = b.a, a.d = b.d, a.dt_bias = b.dt_bias;
    a.norm = b.norm, a.dt_min = b.dt_min, a.eps = b.eps;
    a.d_mixed = reinterpret_cast<const uint16_t*>(b.d_mixed);
    a.d_projected = reinterpret_cast<uint16_t*>(b.d_projected);
    int64_t bytes = 0;
    std::byte* const sums = place_pieces(a, b.workspace, bytes);
    const cudaStream_t queue = mamba_queue(stream);
    const auto column_sums_of = [&](const float* x, int64_t width, float* to) -> Status {
        if (!to) return Ok{};
        return column_sums({.tokens = b.tokens, .width = width, .wide = x, .sums = to, .workspace = sums}, stream);
    };
    NIBBLE_CHECK(cuda_status(launch_mamba_inputs(a, queue), "mamba_backward: inputs"));
    NIBBLE_CHECK(cuda_status(launch_mamba_scan(a, ScanRows::outputs, a.y, queue), "mamba_backward: outputs"));
    NIBBLE_CHECK(cuda_status(launch_mamba_gate_back(a, queue), "mamba_backward: gate"));
    NIBBLE_CHECK(column_sums_of(a.part, a.inner, b.d_norm));
    for (const bool of_c : {true, false}) {
        const ScanRows rows = of_c ? ScanRows::d_read : ScanRows::d_written;
        NIBBLE_CHECK(cuda_status(launch_mamba_scan(a, rows, a.part, queue), "mamba_backward: scan"));
        NIBBLE_CHECK(cuda_status(launch_mamba_group_sums(a, of_c, queue), "mamba_backward: groups"));
    }
    NIBBLE_CHECK(cuda_status(launch_mamba_scan(a, ScanRows::d_inputs, a.du, queue), "mamba_backward: scan"));
    NIBBLE_CHECK(cuda_status(launch_mamba_decays(a, queue), "mamba_backward: decays"));
    NIBBLE_CHECK(cuda_status(launch_mamba_steps_back(a, queue), "mamba_backward: steps"));
    NIBBLE_CHECK(column_sums_of(a.to_dt_bias, a.heads, b.d_dt_bias));
    NIBBLE_CHECK(column_sums_of(a.to_a_log, a.heads, b.d_a_log));
    NIBBLE_CHECK(column_sums_of(a.to_d, a.heads, b.d_d));
    NIBBLE_CHECK(cuda_status(launch_mamba_conv_back(a, b.d_conv_weight, queue), "mamba_backward: convolution"));
    return column_sums_of(a.d_xbc, a.channels, b.d_conv_bias);
}

Status mamba_parameters(const MambaShape& s, const float* conv, const float* a_log, float* conv_weight, float* a,
                        const Stream& stream) {
    return cuda_status(launch_mamba_parameters(static_cast<int>(s.channels()), s.conv, s.heads, conv, a_log,
                                               conv_weight, a, mamba_queue(stream)),
                       "mamba_parameters: kernel launch");
}

}  // namespace nibble::cuda

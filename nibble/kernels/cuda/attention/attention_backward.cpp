#include "kernels/attention_backward_cuda.h"

#include "base/checked.h"
#include "kernels/cuda/attention/attention_backward_launch.h"
#include "kernels/cuda/primitives/launch_checks.h"

namespace nibble::cuda {

bool has_attention_backward(int dim) { return dim == 64 || dim == 96 || dim == 128 || dim == 192 || dim == 256; }

// Per-query terms of AttentionBackArgs.
int64_t attention_backward_workspace(int64_t tokens, int q_heads) {
    return 4 * round_up<int64_t>(tokens, 64) * (2 * q_heads + 1);
}

Status attention_backward(const AttentionBackward& a, const Stream& stream) {
    if (!has_attention_backward(a.dim))
        return fail("attention_backward: heads of {} dimensions have no kernel (64, 96, 128, 192, 256)", a.dim);
    if (a.tokens < 1 || a.kv_heads < 1 || a.q_heads < a.kv_heads || a.q_heads % a.kv_heads || a.q_heads > 65535)
        return fail("attention_backward: {} tokens, {} heads on {}", a.tokens, a.q_heads, a.kv_heads);
    if (!a.log_sums) return fail("attention_backward: log_sums is null");
    if (a.d_stride % 8) return fail("attention_backward: the stride of rows is {}, not a multiple of 8", a.d_stride);
    NIBBLE_CHECK(check_aligned("attention_backward", {a.q, a.k, a.v, a.o, a.d_o, a.dq, a.dk, a.dv, a.workspace}));
    return cuda_status(launch_attention_backward(a, on_hopper(), queue_of(stream)),
                       "attention_backward: kernel launch");
}

}  // namespace nibble::cuda

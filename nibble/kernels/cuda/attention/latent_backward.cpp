#include "kernels/attention_backward_cuda.h"

#include "kernels/cuda/attention/latent_backward_launch.h"
#include "tensor/cuda/call.h"

namespace nibble::cuda {
namespace {

cudaStream_t latent_queue(const Stream& stream) { return static_cast<cudaStream_t>(stream.handle()); }

Status check_latent(std::string_view what, const LatentShape& s) {
    if (s.tokens < 1 || s.tokens > INT32_MAX || s.heads < 1 || s.nope_dim < 2 || s.rope_dims < 2 || s.v_dim < 2 ||
        s.nope_dim % 2 || s.rope_dims % 2 || s.v_dim % 2 || s.v_dim > s.dim())
        return fail("{}: {} tokens, {} heads of {} + {} and {} dimensions", what, s.tokens, s.heads, s.nope_dim,
                    s.rope_dims, s.v_dim);
    return Ok{};
}

}  // namespace

Status latent_rows(const LatentShape& shape, const LatentRows& r, const Stream& stream) {
    NIBBLE_CHECK(check_latent("latent_rows", shape));
    return cuda_status(launch_latent_rows(shape, r, latent_queue(stream)), "latent_rows: kernel launch");
}

Status latent_backward(const LatentShape& shape, const LatentBackward& b, const Stream& stream) {
    NIBBLE_CHECK(check_latent("latent_backward", shape));
    return cuda_status(launch_latent_backward(shape, b, latent_queue(stream)), "latent_backward: kernel launch");
}

Status latent_join(const LatentJoin& j, const Stream& stream) {
    if (j.tokens < 1 || j.q_width < 2 || j.c_width < 2 || j.shared_width < 2 || j.q_width % 2 || j.c_width % 2 ||
        j.shared_width % 2 || !j.q == !j.q_rows)
        return fail("latent_join: {} rows of {}, {} and {}", j.tokens, j.q_width, j.c_width, j.shared_width);
    return cuda_status(launch_latent_join(j, latent_queue(stream)), "latent_join: kernel launch");
}

}  // namespace nibble::cuda

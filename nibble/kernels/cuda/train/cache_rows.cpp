#include "kernels/cuda/train/cache_rows_launch.h"

#include "kernels/cache_rows_cuda.h"
#include "tensor/cuda/call.h"

#include <initializer_list>

namespace nibble::cuda {
namespace {

cudaStream_t cache_queue(const Stream& stream) { return static_cast<cudaStream_t>(stream.handle()); }

Status check_sides(std::string_view what, int64_t tokens, const CacheSide& k, const CacheSide& v) {
    if (tokens < 1) return fail("{}: {} tokens", what, tokens);
    for (const CacheSide& side : {k, v})
        if (side.width < 8 || side.width % 8 || !side.x || reinterpret_cast<uintptr_t>(side.x) % 16)
            return fail("{}: rows of {}; 16-byte aligned, in multiples of 8", what, side.width);
    return Ok{};
}

}  // namespace

Status round_cache(const RoundCache& r, const Stream& stream) {
    NIBBLE_CHECK(check_sides("round_cache", r.tokens, r.k, r.v));
    if (!r.k.scale || !r.v.scale || !r.k_out || !r.v_out) return fail("round_cache: no scales, or nowhere to write");
    return cuda_status(launch_round_cache(r, cache_queue(stream)), "round_cache: kernel launch");
}

Status clear_clipped(const ClearClipped& c, const Stream& stream) {
    NIBBLE_CHECK(check_sides("clear_clipped", c.tokens, c.k, c.v));
    if (!c.k.scale || !c.v.scale || c.stride % 8) return fail("clear_clipped: no scales, or rows {} apart", c.stride);
    return cuda_status(launch_clear_clipped(c, cache_queue(stream)), "clear_clipped: kernel launch");
}

Status see_cache(const SeeCache& s, const Stream& stream) {
    NIBBLE_CHECK(check_sides("see_cache", s.rows * s.row_tokens, s.k, s.v));
    if (s.rows > 65535 || s.apart < 2 || !s.maxima || ((s.k.scale || s.v.scale) && !s.clipped))
        return fail("see_cache: {} rows, maxima {} apart", s.rows, s.apart);
    return cuda_status(launch_see_cache(s, cache_queue(stream)), "see_cache: kernel launch");
}

}  // namespace nibble::cuda

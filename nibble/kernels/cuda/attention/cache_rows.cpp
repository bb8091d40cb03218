#include "kernels/cuda/attention/cache_rows_launch.h"

#include "kernels/cache_rows_cuda.h"
#include "tensor/cuda/call.h"

#include <algorithm>
#include <span>

namespace nibble::cuda {
namespace {

cudaStream_t cache_queue(const Stream& stream) { return static_cast<cudaStream_t>(stream.handle()); }

Status check_sides(std::string_view what, int64_t tokens, int count, const CacheSide (&sides)[most_cache_sides]) {
    if (tokens < 1 || count < 1 || count > most_cache_sides)
        return fail("{}: {} tokens, {} sides", what, tokens, count);
    for (const CacheSide& side : std::span(sides, static_cast<size_t>(count)))
        if (side.width < 8 || side.width % 8 || !side.x || reinterpret_cast<uintptr_t>(side.x) % 16)
            return fail("{}: rows of {}; the width must be a multiple of 8 and rows 16-byte aligned", what, side.width);
    return Ok{};
}

Status check_written(std::string_view what, int count, const CacheSide (&sides)[most_cache_sides],
                     std::byte* const (&out)[most_cache_sides]) {
    for (int i = 0; i < count; ++i)
        if (!sides[i].scale || !out[i]) return fail("{}: side {} has no scale or no output", what, i);
    return Ok{};
}

}  // namespace

Status round_cache(const RoundCache& r, const Stream& stream) {
    NIBBLE_CHECK(check_sides("round_cache", r.tokens, r.count, r.sides));
    NIBBLE_CHECK(check_written("round_cache", r.count, r.sides, r.out));
    return cuda_status(launch_round_cache(r, cache_queue(stream)), "round_cache: kernel launch");
}

Status clear_clipped(const ClearClipped& c, const Stream& stream) {
    NIBBLE_CHECK(check_sides("clear_clipped", c.tokens, c.count, c.sides));
    NIBBLE_CHECK(check_written("clear_clipped", c.count, c.sides, c.d));
    if (c.stride % 8) return fail("clear_clipped: the stride {} is not a multiple of 8", c.stride);
    return cuda_status(launch_clear_clipped(c, cache_queue(stream)), "clear_clipped: kernel launch");
}

Status see_cache(const SeeCache& s, const Stream& stream) {
    NIBBLE_CHECK(check_sides("see_cache", s.rows * s.row_tokens, s.count, s.sides));
    const bool scaled = std::ranges::any_of(s.sides, [](const CacheSide& side) { return side.scale != nullptr; });
    if (s.rows > 65535 || s.apart < s.count || !s.maxima || (scaled && !s.clipped))
        return fail("see_cache: {} rows, maxima {} apart", s.rows, s.apart);
    return cuda_status(launch_see_cache(s, cache_queue(stream)), "see_cache: kernel launch");
}

}  // namespace nibble::cuda

#include "kernels/observe_cuda.h"

#include "kernels/cuda/observe/observe_launch.h"
#include "kernels/cuda/primitives/cache_args.h"
#include "kernels/cuda/primitives/launch_checks.h"
#include "kernels/operand_matmul_cuda.h"

#include <algorithm>

namespace nibble::cuda {
namespace {

bool aligned(const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; }

Status usable(std::string_view what, const std::byte* x, int64_t rows, int64_t cols, int64_t multiple) {
    if (rows < 0 || rows > INT32_MAX || cols < multiple || cols % multiple || cols > INT32_MAX / 2)
        return fail("{}: {} rows of {} columns, a multiple of {}", what, rows, cols, multiple);
    if (!aligned(x)) return fail("{}: device pointers must be 16-byte aligned", what);
    return Ok{};
}

// Scratch of add_moments(): the transposed chunk, the chunk as an operand, the chunk's sums.
struct MomentScratch {
    int64_t operand, sums, bytes;

    explicit MomentScratch(int64_t n) {
        const auto up = [](int64_t at) {
            return (at + DeviceArena::alignment - 1) / DeviceArena::alignment * DeviceArena::alignment;
        };
        operand = up(n * moment_chunk * 2);
        sums = operand + up(operand_bytes(n, moment_chunk));
        bytes = sums + up(n * n * 4);
    }
};

}  // namespace

Status observe_ranges(const ObservedRows& o, RangeSums* sums, uint64_t* counts, const Stream& stream) {
    NIBBLE_CHECK(usable("observe_ranges", o.x, o.rows, o.cols, 8));
    if (o.experts < 1 || o.experts > 65535 || (o.experts > 1 && !o.begin))
        return fail("observe_ranges: {} experts", o.experts);
    if (o.rows == 0) return Ok{};
    const RangeArgs args{.x = reinterpret_cast<const uint4*>(o.x),
                         .rows = o.rows,
                         .chunks = o.cols / 8,
                         .experts = o.experts,
                         .begin = o.begin,
                         .sums = sums,
                         .counts = counts};
    NIBBLE_CHECK(cuda_status(launch_ranges(args, queue_of(stream)), "observe_ranges: kernel launch"));
    if (!counts) return Ok{};
    return cuda_status(launch_range_counts(args, queue_of(stream)), "observe_ranges: kernel launch, counts");
}

Status read_kv(const KvCache& cache, const int64_t* slots, int64_t tokens, std::byte* k, std::byte* v,
               const Stream& stream) {
    NIBBLE_TRY(const CacheArgs args, cache_args(cache));
    if (cache.shape.type != KvType::bf16) return fail("read_kv: reads BF16 caches only");
    if (tokens < 1 || tokens > INT32_MAX) return fail("read_kv: {} tokens", tokens);
    return cuda_status(launch_read_kv({.cache = args,
                                       .slots = slots,
                                       .k = reinterpret_cast<uint16_t*>(k),
                                       .v = reinterpret_cast<uint16_t*>(v),
                                       .tokens = tokens},
                                      queue_of(stream)),
                       "read_kv: kernel launch");
}

int64_t moments_scratch_bytes(int64_t n) { return MomentScratch(n).bytes; }

Status add_moments(const std::byte* x, int64_t rows, int64_t n, double* sums, std::byte* scratch,
                   const Stream& stream) {
    NIBBLE_CHECK(usable("add_moments", x, rows, n, 8));
    if (!aligned(sums) || !aligned(scratch)) return fail("add_moments: device pointers must be 16-byte aligned");
    const MomentScratch parts(n);
    auto* part = reinterpret_cast<float*>(scratch + parts.sums);
    for (int64_t at = 0; at < rows; at += moment_chunk) {
        const int64_t count = std::min(moment_chunk, rows - at), padded = (count + 7) / 8 * 8;
        NIBBLE_CHECK(cuda_status(launch_transpose(reinterpret_cast<const uint16_t*>(x) + at * n, count, n,
                                                  reinterpret_cast<uint16_t*>(scratch), padded, queue_of(stream)),
                                 "add_moments: kernel launch, transpose"));
        std::byte* tiles = scratch + parts.operand;
        NIBBLE_CHECK(fill_device(tiles, 0, operand_bytes(n, padded), stream));
        NIBBLE_CHECK(make_operand(MatrixView{DType::bf16, n, padded, scratch}, n, 0, tiles, stream));
        NIBBLE_CHECK(
            matmul({.x = scratch, .tokens = n}, {.rows = n, .cols = padded, .tiles = tiles}, part, n, false, stream));
        NIBBLE_CHECK(
            cuda_status(launch_add_sums(part, n * n, sums, queue_of(stream)), "add_moments: kernel launch, sums"));
    }
    return Ok{};
}

Status add_local_moments(const std::byte* x, int64_t rows, int64_t n, double* sums, const Stream& stream) {
    NIBBLE_CHECK(usable("add_local_moments", x, rows, n, 16));
    if (rows == 0) return Ok{};
    return cuda_status(launch_local_moments(reinterpret_cast<const uint16_t*>(x), rows, n, sums, queue_of(stream)),
                       "add_local_moments: kernel launch");
}

Status divergences(const float* p, const float* q, int64_t rows, int64_t vocab, double* out, const Stream& stream) {
    if (rows < 1 || rows > INT32_MAX || vocab < 1) return fail("divergences: {} rows of {}", rows, vocab);
    return cuda_status(launch_divergences(p, q, rows, vocab, out, queue_of(stream)), "divergences: kernel launch");
}

}  // namespace nibble::cuda

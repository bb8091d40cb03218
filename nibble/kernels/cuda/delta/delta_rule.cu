// The gated delta rule in the order of kernels/delta_rule.h.
//
// A thread block has 32 columns of a head's state. Four threads share a column: thread j holds the rows i with i % 4 ==
// j in registers, and its sums are the parts a[j] and b[j] of the definition. The sum b of a token and the sum a of the
// next one are computed in one pass over the state, so that two chains of key_dim / 4 operations overlap. q, k and v of
// the next tokens are copied to shared memory meanwhile.
#include "kernels/cuda/delta/delta_columns.cuh"

namespace nibble::cuda {
namespace {

constexpr int parts = 4, columns = 32, threads = parts * columns;
constexpr int ring_chunks = 3;

template <int Key>
struct __align__(16) Operands {
    float k[Key], q[Key];  // in the order of key_place()
    uint16_t v[columns];
    float2 step;  // decay, beta
    float2 unused;
};

// Key: key_dim, rounded up to a size with a kernel. Tokens: of a chunk of copies.
template <int Key, int Tokens>
__global__ void __launch_bounds__(threads) delta_rule_kernel(const __grid_constant__ DeltaArgs args) {
    constexpr int own = Key / parts, quads = Key / 16, ring_tokens = ring_chunks * Tokens;
    __shared__ Operands<Key> ring[ring_tokens];
    if (args.overlap) overlap_next();
    const int thread = static_cast<int>(threadIdx.x), part = thread % parts;
    const int blocks = (args.value_dim + columns - 1) / columns;  // of a head
    const int head = static_cast<int>(blockIdx.x) / blocks, first = static_cast<int>(blockIdx.x) % blocks * columns;
    const int column = first + thread / parts;
    const bool present = column < args.value_dim;
    const StateSegment s = args.list[blockIdx.y];
    float4* const kept =
        s.state && present ? reinterpret_cast<float4*>(s.state + args.history +
                                                       int64_t{head} * args.padded_key * args.value_dim + column * 16) +
                                 part
                           : nullptr;
    const auto is_kept = [&](int quad) { return kept && quad * 16 < args.padded_key; };
    float state[own];
#pragma unroll
    for (int m = 0; m < quads; ++m) {
        const float4 four = is_kept(m) ? kept[int64_t{m} * args.value_dim * 4] : float4{};
        state[4 * m] = four.x, state[4 * m + 1] = four.y, state[4 * m + 2] = four.z, state[4 * m + 3] = four.w;
    }
    if (args.overlap) wait_for_previous();  // states were written by an earlier step

    const auto copy_chunk = [&](int chunk) {
        constexpr int of_key = Key / 4, of_value = columns / 8, of_token = 2 * of_key + of_value + 1;
        const int tokens = min(Tokens, s.rows - chunk * Tokens);
        for (int i = thread; i < tokens * of_token; i += threads) {
            const int t = i / of_token, j = i % of_token;
            const int64_t token = int64_t{s.row} + chunk * Tokens + t;
            Operands<Key>& to = ring[(chunk % ring_chunks) * Tokens + t];
            if (j < 2 * of_key) {
                const int of_q = j >= of_key, at = (j - of_q * of_key) * 4;
                const float* from =
                    (of_q ? args.q : args.k) + (token * args.key_heads + head / args.per_key) * args.padded_key;
                const bool here = at < args.padded_key;
                copy16_or_zero(shared_address((of_q ? to.q : to.k) + at), from + (here ? at : 0), here);
            } else if (j < 2 * of_key + of_value) {
                const int at = (j - 2 * of_key) * 8;
                const bool here = first + at < args.value_dim;
                const uint16_t* from = args.v + token * args.inner + head * args.value_dim + first;
                copy16_or_zero(shared_address(to.v + at), from + (here ? at : 0), here);
            } else {
                copy8(shared_address(&to.step), args.steps + token * args.value_heads + head);
            }
        }
    };
    const int chunks = (s.rows + Tokens - 1) / Tokens;
    copy_chunk(0);
    if (chunks > 1) copy_chunk(1);
    float read = 0.0f;  // S^T k of the next token, whose decay the state already has
    int place = 0;      // in the ring
    uint16_t* y = args.y + int64_t{s.row} * args.inner + head * args.value_dim + column;
#pragma unroll 1
    for (int chunk = 0; chunk < chunks; ++chunk) {
        wait_for_copies();
        __syncthreads();  // chunk and chunk + 1 have arrived, and no thread reads chunk - 1 any more
        if (chunk + 2 < chunks) copy_chunk(chunk + 2);
        if (chunk == 0) {
            const Operands<Key>& now = ring[0];
            float a = 0.0f;
#pragma unroll
            for (int m = 0; m < quads; ++m) {
                const float4 k = reinterpret_cast<const float4*>(now.k)[m * parts + part];
                const float of_k[4] = {k.x, k.y, k.z, k.w};
#pragma unroll
                for (int e = 0; e < 4; ++e) {
                    float& x = state[4 * m + e];
                    x = now.step.x * x;
                    a = fmaf(of_k[e], x, a);
                }
            }
            read = over_parts(a);
        }
        const int tokens = min(Tokens, s.rows - chunk * Tokens);
#pragma unroll 1
        for (int i = 0; i < tokens; ++i) {
            const bool last = i + 1 == tokens && chunk + 1 == chunks;
            const int after = place + 1 < ring_tokens ? place + 1 : 0;
            const Operands<Key>&now = ring[place], &next = ring[last ? place : after];
            place = after;
            // The last token multiplies the state by one, which changes no bit.
            const float decay = last ? 1.0f : next.step.x;
            const float u = now.step.y * (bf16_to_float(now.v[thread / parts]) - read);
            float a = 0.0f, b = 0.0f;
#pragma unroll
            for (int m = 0; m < quads; ++m) {
                const float4 k = reinterpret_cast<const float4*>(now.k)[m * parts + part];
                const float4 q = reinterpret_cast<const float4*>(now.q)[m * parts + part];
                const float4 n = reinterpret_cast<const float4*>(next.k)[m * parts + part];
                const float of_k[4] = {k.x, k.y, k.z, k.w}, of_q[4] = {q.x, q.y, q.z, q.w},
                            of_next[4] = {n.x, n.y, n.z, n.w};
#pragma unroll
                for (int e = 0; e < 4; ++e) {
                    float& x = state[4 * m + e];
                    x = fmaf(of_k[e], u, x);
                    b = fmaf(of_q[e], x, b);
                    x = decay * x;
                    a = fmaf(of_next[e], x, a);
                }
            }
            read = over_parts(a);
            const float out = over_parts(b);
            if (part == 0 && present) *y = bf16_from_float(out);
            y += args.inner;
        }
    }
#pragma unroll
    for (int m = 0; m < quads; ++m)
        if (is_kept(m))
            kept[int64_t{m} * args.value_dim * 4] = {state[4 * m], state[4 * m + 1], state[4 * m + 2],
                                                     state[4 * m + 3]};
    // The convolution of this step is done.
    const Convolution convolution = convolution_of(args);
    for (int c = static_cast<int>(blockIdx.x) * threads + thread; c < args.channels;
         c += static_cast<int>(gridDim.x) * threads)
        convolution.keep(s, c, channel_column(args, c));
}

template <int Key>
cudaError_t launch(const DeltaArgs& args, cudaStream_t stream) {
    constexpr int chunk = Key <= 128 ? 8 : 4;
    const auto kernel = args.longest == 1 ? delta_rule_kernel<Key, 1> : delta_rule_kernel<Key, chunk>;
    const dim3 blocks(static_cast<unsigned>(args.value_heads * ((args.value_dim + columns - 1) / columns)),
                      static_cast<unsigned>(args.segments));
    return launch_kernel(kernel, blocks, threads, 0, args, stream);
}

}  // namespace

cudaError_t launch_delta_rule(const DeltaArgs& args, cudaStream_t stream) {
    if (args.key_dim <= 16) return launch<16>(args, stream);
    if (args.key_dim <= 64) return launch<64>(args, stream);
    if (args.key_dim <= 128) return launch<128>(args, stream);
    return launch<256>(args, stream);
}

}  // namespace nibble::cuda

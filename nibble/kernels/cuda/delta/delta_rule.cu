// The gated delta rule in the order of kernels/delta_rule.h.
//
// A thread block has 32 columns of a head's state. Four threads share a column: thread j holds the rows i with i % 4 ==
// j in registers, and its sums are the parts a[j] and b[j] of the definition. The sum b of a token and the sum a of the
// next one are computed in one pass over the state, so that their chains of key_dim / 4 operations overlap. q, k and v
// of the next tokens are copied to shared memory meanwhile.
//
// Every thread reads key_dim / 4 elements of q and of k from shared memory for each token, which took longer than the
// arithmetic when there are many thread blocks. With `Each` = 2 columns it does so for two columns at once, and it
// keeps k of the next token in registers.
#include "kernels/cuda/delta/delta_columns.cuh"

namespace nibble::cuda {
namespace {

constexpr int parts = 4, columns = 32;
constexpr int ring_chunks = 3;
constexpr int few_blocks = 264;  // two for each multiprocessor of an H200

template <int Key, bool ByChannel>
struct Decays {};
template <int Key>
struct __align__(16) Decays<Key, true> {
    float d[Key];  // in the order of key_place()
};

template <int Key, bool ByChannel>
struct __align__(16) Operands : Decays<Key, ByChannel> {
    float k[Key], q[Key];  // in the order of key_place()
    uint16_t v[columns];
    float2 step;  // decay (not by channel), beta
    float2 unused;
};

// A thread's part of q or k of a token, in the order of its states.
template <int Key>
struct Part {
    float x[Key / parts];

    Part() = default;
    __device__ Part(const float (&row)[Key], int part) {
#pragma unroll
        for (int m = 0; m < Key / 16; ++m) {
            const float4 four = reinterpret_cast<const float4*>(row)[m * parts + part];
            x[4 * m] = four.x, x[4 * m + 1] = four.y, x[4 * m + 2] = four.z, x[4 * m + 3] = four.w;
        }
    }
};

// The factors of a thread's states for a token.
template <int Key, bool ByChannel>
struct Decay {
    float all;

    __device__ Decay(const Operands<Key, ByChannel>& of, int) : all(of.step.x) {}
    __device__ void set_one() { all = 1.0f; }
    __device__ float operator[](int) const { return all; }
};
template <int Key>
struct Decay<Key, true> {
    Part<Key> each;

    __device__ Decay(const Operands<Key, true>& of, int part) : each(of.d, part) {}
    __device__ void set_one() {
#pragma unroll
        for (float& x : each.x) x = 1.0f;
    }
    __device__ float operator[](int i) const { return each.x[i]; }
};

// With one token, or two columns per thread, a multiprocessor holds as many thread blocks as shared memory allows.
template <int Key, int Tokens, int Each>
constexpr int least_blocks = Key > 128     ? 1
                             : Tokens == 1 ? 5
                             : Each == 2   ? 6
                                           : 1;

// Key: key_dim, rounded up to a size with a kernel. Tokens: of a chunk of copies. Each: columns of a thread.
template <int Key, int Tokens, int Each, bool ByChannel>
__global__ void __launch_bounds__(parts* columns / Each, least_blocks<Key, Tokens, Each>)
    delta_rule_kernel(const __grid_constant__ DeltaArgs args) {
    constexpr int threads = parts * columns / Each, own = Key / parts, quads = Key / 16;
    constexpr int ring_tokens = ring_chunks * Tokens;
    __shared__ Operands<Key, ByChannel> ring[ring_tokens];
    constexpr bool one = Tokens == 1;  // every segment has one token
    if (args.overlap) overlap_next();
    if (args.overlap && !one) wait_for_previous();
    const int thread = static_cast<int>(threadIdx.x), part = thread % parts;
    const int blocks = (args.value_dim + columns - 1) / columns;  // thread blocks of a head
    const int head = static_cast<int>(blockIdx.x) / blocks, first = static_cast<int>(blockIdx.x) % blocks * columns;
    const StateSegment s = args.list[blockIdx.y];
    // The thread's columns are `between` apart, so that a warp reads adjacent ones.
    constexpr int between = columns / Each;
    const auto column_of = [&](int c) { return first + thread / parts + c * between; };
    const auto kept = [&](int c, int quad) {
        float* of_head = s.state + args.history + int64_t{head} * args.padded_key * args.value_dim;
        return reinterpret_cast<float4*>(of_head) + (int64_t{quad} * args.value_dim + column_of(c)) * 4 + part;
    };
    const auto is_kept = [&](int c, int quad) {
        return s.state && column_of(c) < args.value_dim && quad * 16 < args.padded_key;
    };
    float state[Each][own];
#pragma unroll
    for (int c = 0; c < Each; ++c)
#pragma unroll
        for (int m = 0; m < quads; ++m) {
            const float4 four = is_kept(c, m) ? *kept(c, m) : float4{};
            float* to = &state[c][4 * m];
            to[0] = four.x, to[1] = four.y, to[2] = four.z, to[3] = four.w;
        }
    if (args.overlap && one) wait_for_previous();  // states were written by an earlier step

    // A thread copies the same elements of q and k, `at_once` tokens apart, so that its addresses advance by constants.
    constexpr int of_key = Key / 4, of_keys = (ByChannel ? 3 : 2) * of_key, of_value = columns / 8;
    constexpr int lanes = of_keys < threads ? of_keys : threads, at_once = threads / lanes;
    const auto copy_chunk = [&](int chunk) {
        const int tokens = min(Tokens, s.rows - chunk * Tokens);
        const int64_t token = int64_t{s.row} + chunk * Tokens;
        Operands<Key, ByChannel>* const to = ring + chunk % ring_chunks * Tokens;
#pragma unroll
        for (int j = thread % lanes; j < of_keys; j += lanes) {
            const int which = j / of_key, at = j % of_key * 4;
            const float* from = which == 0 ? args.k : which == 1 ? args.q : args.decays;
            float* row = which == 0 ? to->k : to->q;
            if constexpr (ByChannel)
                if (which == 2) row = to->d;
            const bool here = at < args.padded_key;
            from += (token * args.key_heads + head / args.per_key) * args.padded_key + (here ? at : 0);
            const uint32_t place = shared_address(row + at);
#pragma unroll
            for (int t = 0; t < Tokens; t += at_once)
                if (const int own_t = t + thread / lanes; own_t < tokens)
                    copy16_or_zero(place + own_t * static_cast<int>(sizeof *to),
                                   from + int64_t{own_t} * args.key_heads * args.padded_key, here);
        }
        if (thread < of_value * tokens) {
            const int t = thread / of_value, at = thread % of_value * 8;
            const bool here = first + at < args.value_dim;
            const uint16_t* from = args.v + (token + t) * args.inner + head * args.value_dim + first;
            copy16_or_zero(shared_address(to[t].v + at), from + (here ? at : 0), here);
        }
        if (const int t = threads - 1 - thread; t < tokens)
            copy8(shared_address(&to[t].step), args.steps + (token + t) * args.value_heads + head);
    };
    const int chunks = (s.rows + Tokens - 1) / Tokens;
    copy_chunk(0);
    if (chunks > 1) copy_chunk(1);
    float read[Each];  // S^T k of the next token, whose decay the state already has
    Part<Key> k;       // key of the next token
    int place = 0;     // in the ring
    uint16_t* y = args.y + int64_t{s.row} * args.inner + head * args.value_dim;
#pragma unroll 1
    for (int chunk = 0; chunk < chunks; ++chunk) {
        wait_for_copies();
        __syncthreads();  // chunk and chunk + 1 have arrived, and no thread reads chunk - 1 any more
        if (chunk + 2 < chunks) copy_chunk(chunk + 2);
        if (chunk == 0) {
            k = Part<Key>(ring[0].k, part);
            const Decay<Key, ByChannel> decay(ring[0], part);
#pragma unroll
            for (int c = 0; c < Each; ++c) {
                float a = 0.0f;
#pragma unroll
                for (int i = 0; i < own; ++i) {
                    state[c][i] = decay[i] * state[c][i];
                    a = fmaf(k.x[i], state[c][i], a);
                }
                read[c] = over_parts(a);
            }
        }
        const int tokens = min(Tokens, s.rows - chunk * Tokens);
#pragma unroll 1
        for (int t = 0; t < tokens; ++t) {
            const bool last = one || (t + 1 == tokens && chunk + 1 == chunks);
            const int after = place + 1 < ring_tokens ? place + 1 : 0;
            const Operands<Key, ByChannel>&now = ring[place], &next = ring[last ? place : after];
            place = after;
            const Part<Key> q(now.q, part);
            Part<Key> next_k;
            if constexpr (!one) next_k = Part<Key>(next.k, part);
            // The last token multiplies the state by one, which changes no bit.
            Decay<Key, ByChannel> decay(next, part);
            if (last) decay.set_one();
            float u[Each], a[Each] = {}, b[Each] = {};
#pragma unroll
            for (int c = 0; c < Each; ++c)
                u[c] = now.step.y * (bf16_to_float(now.v[thread / parts + c * between]) - read[c]);
#pragma unroll
            for (int i = 0; i < own; ++i)
#pragma unroll
                for (int c = 0; c < Each; ++c) {
                    float& x = state[c][i];
                    x = fmaf(k.x[i], u[c], x);
                    b[c] = fmaf(q.x[i], x, b[c]);
                    if constexpr (one) continue;
                    x = decay[i] * x;
                    a[c] = fmaf(next_k.x[i], x, a[c]);
                }
            if constexpr (!one) k = next_k;
#pragma unroll
            for (int c = 0; c < Each; ++c) {
                read[c] = over_parts(a[c]);
                const float out = over_parts(b[c]);
                if (part == 0 && column_of(c) < args.value_dim) y[column_of(c)] = bf16_from_float(out);
            }
            y += args.inner;
        }
    }
#pragma unroll
    for (int c = 0; c < Each; ++c)
#pragma unroll
        for (int m = 0; m < quads; ++m)
            if (is_kept(c, m)) {
                const float* from = &state[c][4 * m];
                *kept(c, m) = {from[0], from[1], from[2], from[3]};
            }
    // The convolution of this step is done.
    const Convolution convolution = convolution_of(args);
    for (int c = static_cast<int>(blockIdx.x) * threads + thread; c < args.channels;
         c += static_cast<int>(gridDim.x) * threads)
        convolution.keep(s, c, channel_column(args, c));
}

template <int Key, int Tokens, int Each, bool ByChannel>
cudaError_t launch(const DeltaArgs& args, dim3 blocks, cudaStream_t stream) {
    return launch_kernel(delta_rule_kernel<Key, Tokens, Each, ByChannel>, blocks, parts * columns / Each, 0, args,
                         stream);
}

template <int Key>
cudaError_t launch(const DeltaArgs& args, cudaStream_t stream) {
    const int heads = args.value_heads * ((args.value_dim + columns - 1) / columns);
    const dim3 blocks(static_cast<unsigned>(heads), static_cast<unsigned>(args.segments));
    constexpr int chunk = Key <= 128 ? 8 : 4, each = Key <= 128 ? 2 : 1;
    // One token is limited by the memory of the states: more threads, with fewer registers.
    if (args.longest == 1)
        return (args.by_channel ? launch<Key, 1, 1, true> : launch<Key, 1, 1, false>)(args, blocks, stream);
    // By channel, two columns would need more registers than a thread has.
    if (args.by_channel) return launch<Key, chunk, 1, true>(args, blocks, stream);
    // A token of few thread blocks is limited by the length of its chains, and one of many by instructions. 4096 tokens
    // of one sequence with 32 heads of 128 took 1.19 ms with one column per thread and 1.84 ms with two; of four
    // sequences 3.42 and 2.60 ms.
    if (int64_t{heads} * args.segments <= few_blocks) return launch<Key, chunk, 1, false>(args, blocks, stream);
    return launch<Key, chunk, each, false>(args, blocks, stream);
}

}  // namespace

cudaError_t launch_delta_rule(const DeltaArgs& args, cudaStream_t stream) {
    if (args.key_dim <= 16) return launch<16>(args, stream);
    if (args.key_dim <= 64) return launch<64>(args, stream);
    if (args.key_dim <= 128) return launch<128>(args, stream);
    return launch<256>(args, stream);
}

}  // namespace nibble::cuda

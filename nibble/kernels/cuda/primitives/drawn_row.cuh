// The sampled distribution of a row of logits, computed by a thread block: TokenFilter::restrict() of
// kernels/token_filter.h and the log_softmax after it, with the same bits except for the logarithm.
//
// The filters keep a prefix of the tokens in the order of key_of(), so one key defines them. It is found by counting
// tokens and weights in bins: of 1/32 below the largest logit, then by 11, 11 and 10 bits of the value's order, finally
// by index among equal values.
#pragma once

#include "kernels/cuda/primitives/elementwise.cuh"
#include "kernels/sampling_row.h"

#include <climits>

namespace nibble::cuda {

// Logit: float, which is first rounded to BF16, or uint16_t, which is BF16.
template <int Threads, class Logit = float>
class DrawnRow {
public:
    static constexpr int run = 4096, runs_at_once = 4;
    static constexpr int run_pitch = run + 16;  // lanes of adjacent runs use different banks
    static constexpr int most_runs = 256;       // for a vocabulary of 2^20
    static constexpr int bins = 2048;
    struct Shared {
        union {
            float exponentials[runs_at_once * run_pitch];
            struct {
                unsigned long long weights[bins];
                uint32_t counts[bins];
            };
        };
        float totals[most_runs];
        unsigned long long weight_of_warp[Threads / 32], weight_before;
        uint32_t count_of_warp[Threads / 32], count_before;
        float largest_of_warp[Threads / 32];
        double sum;
        int found;
    };

    // Called by all threads, like all functions below.
    __device__ DrawnRow(const Logit* x, int width, const Drawn& drawn, Shared& shared)
        : x_(x), width_(width), drawn_(drawn), s_(shared), thread_(static_cast<int>(threadIdx.x)) {
        float largest = -INFINITY;
        bool bad = false;
        for (int i = thread_; i < width_; i += Threads) {
            const float logit = logit_of(x_[i]);
            bad = bad || !is_finite(logit);
            largest = fmaxf(largest, logit / drawn_.temperature);
        }
#pragma unroll
        for (int step = 16; step > 0; step /= 2) largest = fmaxf(largest, __shfl_xor_sync(0xFFFFFFFFu, largest, step));
        if (thread_ % 32 == 0) s_.largest_of_warp[thread_ / 32] = largest;
        bad = __syncthreads_or(bad);
        for (const float v : s_.largest_of_warp) largest = fmaxf(largest, v);
        largest_ = bad ? NAN : largest;
        if (!bad && drawn_.filters()) filter();
    }

    __device__ float value(int i) const { return logit_of(x_[i]) / drawn_.temperature; }
    // Returns the largest value; NaN if a logit is not finite.
    __device__ float largest() const { return largest_; }
    __device__ bool keeps(int i) const { return key_of(value(i), static_cast<uint32_t>(i)) >= least_; }
    // Returns exp(value - largest); 0 for a filtered token.
    __device__ float share(int i) const {
        const float v = value(i);
        return key_of(v, static_cast<uint32_t>(i)) >= least_ ? exp_of(v - largest_) : 0.0f;
    }

    // Returns the sum of all shares in the order of log_softmax: runs of 4096, lane l of 16 adds elements l, l + 16
    // ..., a halving tree, run totals in FP64.
    __device__ double sum() {
        const int runs = (width_ + run - 1) / run;
        for (int first = 0; first < runs; first += runs_at_once) {
            const int begin = first * run, count = min(runs_at_once * run, width_ - begin);
            __syncthreads();
            for (int i = thread_; i < count; i += Threads)
                s_.exponentials[i / run * run_pitch + i % run] = share(begin + i);
            __syncthreads();
            if (thread_ >= runs_at_once * sum_lanes) continue;
            const int which = thread_ / sum_lanes, lane = thread_ % sum_lanes;
            const int here = min(run, max(0, count - which * run));
            const float* from = s_.exponentials + which * run_pitch;
            float total = 0.0f;
#pragma unroll 16
            for (int j = lane; j < here; j += sum_lanes) total += from[j];
#pragma unroll
            for (int half = sum_lanes / 2; half > 0; half /= 2) total += __shfl_xor_sync(0xFFFFFFFFu, total, half);
            if (lane == 0) s_.totals[first + which] = total;
        }
        __syncthreads();
        if (thread_ == 0) {
            double total = 0.0;
            for (int r = 0; r < runs; ++r) total += static_cast<double>(s_.totals[r]);
            s_.sum = total;
        }
        __syncthreads();
        return s_.sum;
    }
    // Returns log p of a token; -inf if it is filtered, NaN if largest() is NaN.
    __device__ float log_prob(int i, double sum) const {
        if (!keeps(i)) return -INFINITY;
        // largest_ may be 0 where the host's maximum over kept tokens is -0, and -0 - 0 is -0.
        const float v = value(i), below = v == largest_ ? 0.0f : v - largest_;
        return below - static_cast<float>(log(sum));
    }

private:
    using u64 = unsigned long long;
    struct Before {  // totals of tokens likelier than those of a bin
        uint32_t count = 0;
        u64 weight = 0;
    };

    __device__ static float logit_of(float x) { return rounded(x); }
    __device__ static float logit_of(uint16_t x) { return bf16_to_float(x); }
    __device__ u64 weight_of(float v) const {
        const float share = exp_of(v - largest_) * sampling_unit;
        return share > 0.0f ? static_cast<u64>(share) : 0;
    }
    __device__ static uint32_t order_of(float v) { return static_cast<uint32_t>(key_of(v, 0) >> 32); }
    __device__ int distance_bin(float v) const {
        const float below = (largest_ - v) * 32.0f;
        return below < static_cast<float>(bins - 1) ? static_cast<int>(below) : bins - 1;
    }

    // Applies min-p, then top-k, then top-p.
    __device__ void filter() {
        least_ = key_of(largest_ + drawn_.lowest, UINT32_MAX);
        Before all;
        if (drawn_.top_k > 0) {
            const auto enough = [&](uint32_t count, u64) { return count >= static_cast<uint32_t>(drawn_.top_k); };
            least_ = cut(enough);
        }
        if (drawn_.top_p < 1.0f) {
            count_bins([&](float v) { return distance_bin(v); }, [](float) { return true; });
            first_bin([](uint32_t, u64) { return false; }, all);
            const double mass = top_p_mass(drawn_.top_p, all.weight);
            const auto enough = [&](uint32_t, u64 weight) { return static_cast<double>(weight) >= mass; };
            least_ = cut(enough);
        }
    }

    // Counts tokens from least_ on for which matches(value) holds, by bin_of(value).
    template <class Bin, class Matches>
    __device__ void count_bins(Bin bin_of, Matches matches) {
        __syncthreads();
        for (int b = thread_; b < bins; b += Threads) s_.counts[b] = 0, s_.weights[b] = 0;
        __syncthreads();
        for (int i = thread_; i < width_; i += Threads) {
            const float v = value(i);
            if (key_of(v, static_cast<uint32_t>(i)) < least_ || !matches(v)) continue;
            const int bin = bin_of(v);
            atomicAdd(&s_.counts[bin], 1u);
            if (const u64 weight = weight_of(v); weight > 0) atomicAdd(&s_.weights[bin], weight);
        }
        __syncthreads();
    }

    // Returns the first bin with enough(tokens, weight), both inclusive; sets `before` to the totals before it. Returns
    // `bins` if there is none; `before` then holds all.
    template <class Enough>
    __device__ int first_bin(Enough enough, Before& before) {
        constexpr int each = bins / Threads;
        const int lane = thread_ % 32, warp = thread_ / 32;
        uint32_t count = 0;
        u64 weight = 0;
        for (int k = 0; k < each; ++k) count += s_.counts[each * thread_ + k], weight += s_.weights[each * thread_ + k];
        uint32_t counts = count;
        u64 weights = weight;
#pragma unroll
        for (int step = 1; step < 32; step *= 2) {
            const uint32_t c = __shfl_up_sync(0xFFFFFFFFu, counts, step);
            const u64 w = __shfl_up_sync(0xFFFFFFFFu, weights, step);
            if (lane >= step) counts += c, weights += w;
        }
        if (lane == 31) s_.count_of_warp[warp] = counts, s_.weight_of_warp[warp] = weights;
        if (thread_ == 0) s_.found = bins;
        __syncthreads();
        Before at = before;
        for (int w = 0; w < warp; ++w) at.count += s_.count_of_warp[w], at.weight += s_.weight_of_warp[w];
        at.count += counts - count, at.weight += weights - weight;
        const Before own = at;
        int hit = bins;
        for (int k = 0; k < each; ++k) {
            at.count += s_.counts[each * thread_ + k], at.weight += s_.weights[each * thread_ + k];
            if (hit == bins && enough(at.count, at.weight)) hit = each * thread_ + k;
        }
        if (hit < bins) atomicMin(&s_.found, hit);
        __syncthreads();
        const int found = s_.found;
        if (found == bins ? thread_ == Threads - 1 : thread_ == found / each) {
            Before begin = found == bins ? at : own;
            for (int k = each * thread_; found < bins && k < found; ++k)
                begin.count += s_.counts[k], begin.weight += s_.weights[k];
            s_.count_before = begin.count, s_.weight_before = begin.weight;
        }
        __syncthreads();
        before = {s_.count_before, s_.weight_before};
        return found;
    }

    // Returns the key of the last of the fewest likeliest tokens with enough(tokens, weight); least_ if there never is
    // enough.
    template <class Enough>
    __device__ u64 cut(Enough enough) {
        Before before;
        count_bins([&](float v) { return distance_bin(v); }, [](float) { return true; });
        const int bin = first_bin(enough, before);
        if (bin == bins) return least_;
        uint32_t order = 0;
        int equal = 0;
        for (int shift = 21; shift >= 0; shift = shift > 10 ? shift - 11 : shift - 10) {  // 21, 10, 0
            const int size = shift == 0 ? 10 : 11;
            const auto digit = [&](float v) { return static_cast<int>(~order_of(v) >> shift) & ((1 << size) - 1); };
            const auto matches = [&](float v) {
                return distance_bin(v) == bin && (shift == 21 || (~order_of(v) ^ order) >> (shift + size) == 0);
            };
            count_bins(digit, matches);
            const int found = first_bin(enough, before);
            order |= static_cast<uint32_t>(found) << shift;
            equal = static_cast<int>(s_.counts[found]);
        }
        order = ~order;
        const u64 weight = weight_of(value_of(order));
        int low = 1, high = equal;
        while (low < high) {
            const int middle = (low + high) / 2;
            if (enough(before.count + static_cast<uint32_t>(middle), before.weight + static_cast<u64>(middle) * weight))
                high = middle;
            else
                low = middle + 1;
        }
        // Only equal values from least_ on were counted.
        const u64 last = static_cast<u64>(order) << 32 | (low == equal ? 0u : ~index_of(order, low));
        return last > least_ ? last : least_;
    }
    __device__ static float value_of(uint32_t order) {
        return __uint_as_float(order & 0x80000000u ? order ^ 0x80000000u : ~order);
    }

    // Returns the index of the number-th token (from 1) with this value.
    __device__ uint32_t index_of(uint32_t order, int number) {
        const int lane = thread_ % 32, warp = thread_ / 32;
        int seen = 0;
        for (int base = 0;; base += Threads) {
            const int i = base + thread_;
            const bool hit = i < width_ && order_of(value(i)) == order;
            const uint32_t hits = __ballot_sync(0xFFFFFFFFu, hit);
            __syncthreads();
            if (lane == 0) s_.count_of_warp[warp] = static_cast<uint32_t>(__popc(hits));
            __syncthreads();
            int before = seen;
            for (int w = 0; w < Threads / 32; ++w) {
                if (w == warp) before = seen;
                seen += static_cast<int>(s_.count_of_warp[w]);
            }
            before += __popc(hits & ((1u << lane) - 1));
            if (hit && before + 1 == number) s_.found = i;
            if (seen >= number) break;
        }
        __syncthreads();
        return static_cast<uint32_t>(s_.found);
    }

    const Logit* x_;
    const int width_;
    const Drawn drawn_;
    Shared& s_;
    const int thread_;
    float largest_ = 0;
    u64 least_ = 0;  // the key of the last kept token
};

}  // namespace nibble::cuda

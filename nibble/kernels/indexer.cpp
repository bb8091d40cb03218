#include "kernels/indexer.h"

#include "kernels/cpu/features.h"
#include "kernels/cpu/index_cpu.h"
#include "kernels/ref/index_ref.h"
#include "kernels/select.h"

#include <algorithm>
#include <bit>
#include <functional>

namespace nibble {
namespace {

// Returns integers in the order of the numbers; -0 equals +0, and NaN has a place too.
uint32_t rank_of(float x) {
    const auto bits = std::bit_cast<uint32_t>(x + 0.0f);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

#if defined(__x86_64__)
template <const cpu::AttentionTiles& tiles>
void choose(const IndexShape& shape, std::span<const IndexJob> jobs, ThreadPool& pool) {
    cpu::choose(tiles, shape, jobs, pool);
}
#endif

constexpr IndexKernels entries[] = {
#if defined(__x86_64__)
    {"avx512", cpu::has_avx512, choose<cpu::attention_avx512>},
    {"avx2", cpu::has_avx2, choose<cpu::attention_avx2>},
#endif
    {"ref", cpu::always, ref::choose},
};

}  // namespace

void set_bits(uint64_t* words, int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) words[i / 64] |= uint64_t{1} << (i % 64);
}

void choose_keys(const IndexShape& shape, std::span<const float> scores, std::vector<uint32_t>& scratch,
                 uint64_t* chosen) {
    const auto visible = static_cast<int64_t>(scores.size());
    const int64_t runs = (visible + shape.block - 1) / shape.block;
    const auto choose_run = [&](int64_t run) {
        set_bits(chosen, run * shape.block, std::min((run + 1) * shape.block, visible));
    };
    if (shape.all(visible)) return set_bits(chosen, 0, visible);
    // [ranks of the runs, a copy that is partly sorted]
    scratch.assign(static_cast<size_t>(2 * runs), 0);
    for (int64_t i = 0; i < visible; ++i) {
        uint32_t& best = scratch[static_cast<size_t>(i / shape.block)];
        best = std::max(best, rank_of(scores[static_cast<size_t>(i)]));
    }
    for (int64_t run = std::max<int64_t>(runs - shape.local, 0); run < runs; ++run)
        scratch[static_cast<size_t>(run)] = UINT32_MAX;
    const auto copy = scratch.begin() + runs;
    std::copy_n(scratch.begin(), runs, copy);
    std::nth_element(copy, copy + shape.top - 1, copy + runs, std::greater<>());
    const uint32_t last = *(copy + shape.top - 1);
    int64_t equal = shape.top - std::count_if(copy, copy + shape.top, [&](uint32_t rank) { return rank > last; });
    for (int64_t run = 0; run < runs; ++run) {
        const uint32_t rank = scratch[static_cast<size_t>(run)];
        if (rank > last || (rank == last && equal-- > 0)) choose_run(run);
    }
}

void index_store(const IndexShape& shape, std::byte* const* pages, int64_t position, int64_t rows, const float* k,
                 int64_t k_stride) {
    kv_store(shape.keys(), pages, position, rows, k, k_stride, k, k_stride);
}

std::span<const IndexKernels> index_kernels() { return entries; }

Result<const IndexKernels*> select_index_kernels(std::string_view force) {
    return select_entry(index_kernels(), "indexer", force);
}

}  // namespace nibble

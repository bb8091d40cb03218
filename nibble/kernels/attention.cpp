#include "kernels/attention.h"

#include "kernels/attention_control.h"
#include "kernels/cpu/attention_cpu.h"
#include "kernels/cpu/features.h"
#include "kernels/ref/attention_ref.h"
#include "kernels/select.h"

namespace nibble {
namespace {

#if defined(__x86_64__)
template <const cpu::AttentionTiles& tiles>
void attend(const AttentionShape& shape, std::span<const AttentionJob> jobs, ThreadPool& pool) {
    cpu::attend(tiles, shape, jobs, pool);
}
#endif

constexpr AttentionKernels entries[] = {
#if defined(__x86_64__)
    {"avx512", cpu::has_avx512, attend<cpu::attention_avx512>},
    {"avx2", cpu::has_avx2, attend<cpu::attention_avx2>},
#endif
    {"ref", cpu::always, ref::attend},
};

}  // namespace

const AttentionKernels& attention_in_half_splits() {
    static constexpr AttentionKernels entry{
        "half splits", cpu::always,
        [](const AttentionShape& shape, std::span<const AttentionJob> jobs, ThreadPool& pool) {
            ref::attend_in_splits(shape, jobs, pool, kv_page_tokens / 2);
        }};
    return entry;
}

std::span<const AttentionKernels> attention_kernels() { return entries; }

Result<const AttentionKernels*> select_attention_kernels(std::string_view force) {
    return select_entry(attention_kernels(), "attention", force);
}

}  // namespace nibble

#include "kernels/attention.h"

#include "kernels/cpu/features.h"
#include "kernels/ref/attention_ref.h"
#include "kernels/select.h"

namespace nibble {
namespace {

constexpr AttentionKernels entries[] = {
    {"ref", cpu::always, ref::attend},
};

}  // namespace

std::span<const AttentionKernels> attention_kernels() { return entries; }

Result<const AttentionKernels*> select_attention_kernels(std::string_view force) {
    return select_entry(attention_kernels(), "attention", force);
}

}  // namespace nibble

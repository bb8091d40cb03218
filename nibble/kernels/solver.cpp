#include "kernels/solver.h"

#include "kernels/cpu/solver_cpu.h"
#include "kernels/quantize.h"
#include "kernels/ref/solver_ref.h"

namespace nibble {
namespace {

#if defined(__x86_64__)
// What the flags of cmake/folders.cmake let a compiler use: those of kernels/quantize.h.
bool quantize_kernels_support(std::string_view name) {
    for (const QuantizeKernels& k : quantize_kernels())
        if (k.name == name) return k.supported();
    return false;
}
bool has_avx512() { return quantize_kernels_support("avx512"); }
bool has_avx2() { return quantize_kernels_support("avx2"); }
#endif

constexpr SolverKernels entries[] = {
#if defined(__x86_64__)
    {"avx512", has_avx512, avx512::rank_update, avx512::rank_update_f64, avx512::search_block, avx512::block_losses},
    {"avx2", has_avx2, avx2::rank_update, avx2::rank_update_f64, avx2::search_block, avx2::block_losses},
#endif
    {"ref", [] { return true; }, ref::rank_update, ref::rank_update_f64, ref::search_block, ref::block_losses},
};

}  // namespace

std::span<const SolverKernels> solver_kernels() { return entries; }

Result<const SolverKernels*> select_solver_kernels(std::string_view force) {
    std::string choices;
    for (const SolverKernels& k : entries) {
        const bool supported = k.supported();
        if (supported && (force.empty() || force == k.name)) return &k;
        if (supported) choices += fmt::format("{}{}", choices.empty() ? "" : ", ", k.name);
    }
    return fail("solver kernels '{}': unknown or not supported by this CPU, choose one of: {}", force, choices);
}

}  // namespace nibble

#include "kernels/solver.h"

#include "kernels/cpu/features.h"
#include "kernels/cpu/solver_cpu.h"
#include "kernels/ref/solver_ref.h"

namespace nibble {
namespace {

constexpr SolverKernels entries[] = {
#if defined(__x86_64__)
    {"avx512", cpu::has_avx512, avx512::rank_update, avx512::rank_update_f64, avx512::search_block, avx512::descend_row,
     avx512::block_losses},
    {"avx2", cpu::has_avx2, avx2::rank_update, avx2::rank_update_f64, avx2::search_block, avx2::descend_row,
     avx2::block_losses},
#endif
    {"ref", cpu::always, ref::rank_update, ref::rank_update_f64, ref::search_block, ref::descend_row,
     ref::block_losses},
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

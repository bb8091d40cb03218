#include "kernels/matmul.h"

#include "kernels/cpu/features.h"
#include "kernels/cpu/matmul_cpu.h"
#include "kernels/panels.h"
#include "kernels/ref/matmul_ref.h"

#include <string>

namespace nibble {

PackedMatrix::PackedMatrix() : panels_(std::make_unique<Panels>()) {}
PackedMatrix::PackedMatrix(std::unique_ptr<Panels> panels) : panels_(std::move(panels)) {}
PackedMatrix::PackedMatrix(PackedMatrix&&) noexcept = default;
PackedMatrix& PackedMatrix::operator=(PackedMatrix&&) noexcept = default;
PackedMatrix::~PackedMatrix() = default;

int64_t PackedMatrix::rows() const { return panels_->rows; }
int64_t PackedMatrix::cols() const { return panels_->cols; }
Format PackedMatrix::format() const { return panels_->format; }
DType PackedMatrix::dtype() const { return panels_->dtype; }
int64_t PackedMatrix::bytes() const {
    return panels_->data.size() + panels_->block_scales.size() + 4 * panels_->tile_scales.size() +
           4 * panels_->row_scales.size();
}

namespace {

constexpr MatmulKernels entries[] = {
#if defined(__x86_64__)
    cpu::matmul_entry<cpu::matmul_avx512, cpu::rows_avx512>("avx512", cpu::has_avx512),
    cpu::matmul_entry<cpu::matmul_avx2, cpu::rows_avx2>("avx2", cpu::has_avx2),
#endif
    {"ref", [] { return true; }, ref::matmul, ref::quantize_row},
};

}  // namespace

std::span<const MatmulKernels> matmul_kernels() { return entries; }

Result<const MatmulKernels*> select_matmul_kernels(std::string_view force) {
    std::string choices;
    for (const MatmulKernels& k : entries) {
        const bool supported = k.supported();
        if (supported && (force.empty() || force == k.name)) return &k;
        if (supported) choices += fmt::format("{}{}", choices.empty() ? "" : ", ", k.name);
    }
    return fail("matmul kernels '{}': unknown or not supported by this CPU, choose one of: {}", force, choices);
}

}  // namespace nibble

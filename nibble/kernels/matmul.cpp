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

constexpr MatmulKernels lane_entries[] = {
#if defined(__x86_64__)
    cpu::matmul_entry<cpu::matmul_avx512, cpu::rows_avx512>("avx512", cpu::has_avx512),
    cpu::matmul_entry<cpu::matmul_avx2, cpu::rows_avx2>("avx2", cpu::has_avx2),
#endif
    {"ref", cpu::always, ref::matmul, ref::quantize_row},
};

constexpr MatmulKernels tile_entries[] = {
#if defined(__x86_64__)
    {"amx", cpu::has_amx, cpu::matmul_amx, lane_entries[0].quantize_row},
#endif
    {"ref", cpu::always, ref::matmul_in_tiles, ref::quantize_row},
};

}  // namespace

bool sums_in_tiles(const PackedMatrix& w) { return w.panels().code != WeightCode::f32; }

std::span<const MatmulKernels> matmul_kernels(SumOrder order) {
    if (order == SumOrder::tiles) return tile_entries;
    return lane_entries;
}

Result<const MatmulKernels*> select_matmul_kernels(std::string_view force, SumOrder order) {
    std::string choices;
    const auto entries = matmul_kernels(order);
    for (const MatmulKernels& k : entries) {
        const bool supported = k.supported(), slow = order == SumOrder::tiles && &k == &entries.back();
        if (supported && (force == k.name || (force.empty() && !slow))) return &k;
        if (supported) choices += fmt::format("{}{}", choices.empty() ? "" : ", ", k.name);
    }
    if (force.empty())
        return fail(
            "sums in tiles: this CPU has no AMX; kernels 'ref' compute them by plain loops, or take sums in lanes");
    return fail("matmul kernels '{}': unknown or not supported by this CPU, choose one of: {}", force, choices);
}

}  // namespace nibble

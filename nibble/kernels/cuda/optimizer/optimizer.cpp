#include "kernels/optimizer_cuda.h"

#include "kernels/cuda/optimizer/optimizer_launch.h"
#include "kernels/cuda/primitives/launch_checks.h"

namespace nibble::cuda {
namespace {

constexpr int64_t most_muon_rows = int64_t{65535} * 32;  // the second dimension of a grid

Status aligned_for_optimizer(std::string_view what, std::initializer_list<const void*> pointers) {
    for (const void* p : pointers)
        if (reinterpret_cast<uintptr_t>(p) % 8) return fail("{}: device pointers must be 8-byte aligned", what);
    return Ok{};
}

}  // namespace

Status add_gradient(float* to, const float* from, int64_t count, const Stream& stream) {
    NIBBLE_CHECK(check_rows("add_gradient", 1, count));
    NIBBLE_CHECK(check_aligned("add_gradient", {to, from}));
    return cuda_status(launch_add_gradient(to, from, count, queue_of(stream)), "add_gradient: kernel launch");
}

Status sum_gradients(float* to, const float* a, const float* b, int64_t count, const Stream& stream) {
    NIBBLE_CHECK(check_rows("sum_gradients", 1, count));
    NIBBLE_CHECK(check_aligned("sum_gradients", {to, a, b}));
    return cuda_status(launch_sum_gradients(to, a, b, count, queue_of(stream)), "sum_gradients: kernel launch");
}

Status section_squares(const float* x, int64_t count, int first, int sections, double* parts, const Stream& stream) {
    if (sections == 0) return Ok{};
    if (count != 0) NIBBLE_CHECK(check_rows("section_squares", 1, count));
    NIBBLE_CHECK(check_aligned("section_squares", {x}));
    if (first < 0 || sections < 0 || first + sections > square_sections)
        return fail("section_squares: sections {} to {} of {}", first, first + sections, square_sections);
    return cuda_status(
        launch_section_squares(x, count, section_elements(count), first, sections, parts, queue_of(stream)),
        "section_squares: kernel launch");
}

Status sum_sections(const double* parts, int count, double* sum, const Stream& stream) {
    return cuda_status(launch_sum_sections(parts, count, sum, queue_of(stream)), "sum_sections: kernel launch");
}

Status clip_factor(const double* squares, double limit, float* clip, const Stream& stream) {
    return cuda_status(launch_clip_factor(squares, limit, clip, queue_of(stream)), "clip_factor: kernel launch");
}

Status adamw_update(const AdamW& a, const Stream& stream) {
    NIBBLE_CHECK(check_rows("adamw_update", 1, a.count));
    NIBBLE_CHECK(check_aligned("adamw_update", {a.master, a.m, a.v, a.gradient, a.published}));
    return cuda_status(launch_adamw(a, queue_of(stream)), "adamw_update: kernel launch");
}

Status adamw_update(const NarrowAdamW& a, const Stream& stream) {
    const AdamW& p = a.plain;
    if (p.count < 4 || p.count % 4 || a.first % 4)
        return fail("adamw_update: {} elements from {}; both are multiples of 4", p.count, a.first);
    if (a.owners.count < 1) return fail("adamw_update: the elements have no owner");
    NIBBLE_CHECK(aligned_for_optimizer("adamw_update", {p.master, a.m, a.v, p.gradient, p.published}));
    for (const void* four : {static_cast<const void*>(p.master), static_cast<const void*>(p.gradient)})
        if (reinterpret_cast<uintptr_t>(four) % 16) return fail("adamw_update: masters must be 16-byte aligned");
    return cuda_status(launch_narrow_adamw(a, queue_of(stream)), "adamw_update: kernel launch");
}

int64_t muon_workspace(int64_t rows, int64_t cols) { return 4 * MuonWorkspace(rows, cols).elements; }

Status muon_update(const Muon& u, const Stream& stream) {
    if (u.rows < 1 || u.cols < 8 || u.cols % 8 || u.rows > most_muon_rows || u.cols > most_muon_rows)
        return fail("muon_update: a matrix of {} x {}; columns are multiples of 8", u.rows, u.cols);
    if (!u.m == !u.narrow_m) return fail("muon_update: give m or narrow_m, not both");
    NIBBLE_CHECK(aligned_for_optimizer("muon_update", {u.master, u.gradient, u.published, u.workspace}));
    cudaStream_t queue = queue_of(stream);
    NIBBLE_CHECK(cuda_status(launch_muon_direction(u, queue), "muon_update: kernel launch"));
    NIBBLE_CHECK(cuda_status(launch_muon_rounds(u, queue), "muon_update: kernel launch"));
    return cuda_status(launch_muon_apply(u, queue), "muon_update: kernel launch");
}

}  // namespace nibble::cuda

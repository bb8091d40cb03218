#include "kernels/train_optimizer_cuda.h"

#include "kernels/cuda/train/optimizer_launch.h"
#include "tensor/cuda/call.h"

#include <initializer_list>

namespace nibble::cuda {
namespace {

constexpr int64_t most_muon_rows = int64_t{65535} * 32;  // the second dimension of a grid

Status aligned_for_optimizer(std::string_view what, std::initializer_list<const void*> pointers) {
    for (const void* p : pointers)
        if (reinterpret_cast<uintptr_t>(p) % 8) return fail("{}: device pointers must be 8-byte aligned", what);
    return Ok{};
}

cudaStream_t optimizer_queue(const Stream& stream) { return static_cast<cudaStream_t>(stream.handle()); }

}  // namespace

Status adamw_update(const NarrowAdamW& a, const Stream& stream) {
    const AdamW& p = a.plain;
    if (p.count < 4 || p.count % 4 || a.first % 4)
        return fail("adamw_update: {} elements from {}; both are multiples of 4", p.count, a.first);
    if (a.owners.count < 1) return fail("adamw_update: nobody owns the elements");
    NIBBLE_CHECK(aligned_for_optimizer("adamw_update", {p.master, a.m, a.v, p.gradient, p.published}));
    for (const void* four : {static_cast<const void*>(p.master), static_cast<const void*>(p.gradient)})
        if (reinterpret_cast<uintptr_t>(four) % 16) return fail("adamw_update: masters must be 16-byte aligned");
    return cuda_status(launch_narrow_adamw(a, optimizer_queue(stream)), "adamw_update: kernel launch");
}

int64_t muon_workspace(int64_t rows, int64_t cols) { return 4 * MuonWorkspace(rows, cols).elements; }

Status muon_update(const Muon& u, const Stream& stream) {
    if (u.rows < 1 || u.cols < 8 || u.cols % 8 || u.rows > most_muon_rows || u.cols > most_muon_rows)
        return fail("muon_update: a matrix of {} x {}; columns are multiples of 8", u.rows, u.cols);
    if (!u.m == !u.narrow_m) return fail("muon_update: one state, FP32 or BF16");
    NIBBLE_CHECK(aligned_for_optimizer("muon_update", {u.master, u.gradient, u.published, u.workspace}));
    cudaStream_t queue = optimizer_queue(stream);
    NIBBLE_CHECK(cuda_status(launch_muon_direction(u, queue), "muon_update: kernel launch"));
    NIBBLE_CHECK(cuda_status(launch_muon_rounds(u, queue), "muon_update: kernel launch"));
    return cuda_status(launch_muon_apply(u, queue), "muon_update: kernel launch");
}

}  // namespace nibble::cuda

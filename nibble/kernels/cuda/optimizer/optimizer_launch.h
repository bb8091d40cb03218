// The kernels of optimizer steps and of sums of gradients. The host side checks arguments before it calls these.
#pragma once

#include "kernels/optimizer_args.h"

#include <cuda_runtime_api.h>

namespace nibble::cuda {

cudaError_t launch_add_gradient(float* to, const float* from, int64_t count, cudaStream_t stream);
cudaError_t launch_sum_gradients(float* to, const float* a, const float* b, int64_t count, cudaStream_t stream);
// each: elements per section, a multiple of 4.
cudaError_t launch_section_squares(const float* x, int64_t count, int64_t each, int first, int sections, double* parts,
                                   cudaStream_t stream);
cudaError_t launch_sum_sections(const double* parts, int count, double* sum, cudaStream_t stream);
cudaError_t launch_clip_factor(const double* squares, double limit, float* clip, cudaStream_t stream);
cudaError_t launch_adamw(const AdamW& a, cudaStream_t stream);
cudaError_t launch_narrow_adamw(const NarrowAdamW& a, cudaStream_t stream);

// Offsets in the workspace of an orthogonalization, in floats. r is the shorter side, c the longer one.
struct MuonWorkspace {
    int64_t r, c;
    int64_t direction = 0, next, square, polynomial, squares, elements;

    MuonWorkspace(int64_t rows, int64_t cols) : r(rows < cols ? rows : cols), c(rows < cols ? cols : rows) {
        const auto whole = [](int64_t n) { return (n + 63) / 64 * 64; };
        next = whole(r * c);
        square = 2 * next;
        polynomial = square + whole(r * r);
        squares = polynomial + whole(r * r);
        elements = squares + 2 * muon_sections + 64;
    }
    static constexpr int64_t muon_sections = 512;  // FP64 sums of the norm, then the scale
};

// Runs a whole update: writes the first `direction` to the workspace and updates m; then X = scale * direction, r x c;
// five iterations; the update.
cudaError_t launch_muon_direction(const Muon& u, cudaStream_t stream);
cudaError_t launch_muon_rounds(const Muon& u, cudaStream_t stream);
cudaError_t launch_muon_apply(const Muon& u, cudaStream_t stream);

}  // namespace nibble::cuda

// The definitions of kernels/solver.h as plain loops.
#pragma once

#include "kernels/solver_args.h"

namespace nibble::ref {

void rank_update(const RankUpdate<float>& update);
void rank_update_f64(const RankUpdate<double>& update);
void search_block(const float* x, const BlockFactor& factor, const float* scale, const float* inverse,
                  BlockChoice& choice);
int64_t descend_row(const RowDescent& row);
void block_losses(const float* x, const float* h, const float* scale, float* loss);

}  // namespace nibble::ref

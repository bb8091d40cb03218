// Hyper-connections (DeepSeek-V4; arXiv 2512.24880): the residual stream is C copies s_c of the hidden state. A block
// reads a weighted sum of them and adds its output to each:
//   u = the C copies as one vector, over their root mean square;  f = fn u
//   pre = sigmoid(f[0, C) scale_0 + base) + eps;  post = 2 sigmoid(f[C, 2C) scale_1 + base)
//   M = softmax of the rows of (f[2C, ...) scale_2 + base) as [C, C], + eps; divided by column sums, then
//       iterations - 1 times by row sums and by column sums (each + eps)
//   y = block(sum over c of pre_c s_c);  s_j = post_j y + sum over i of M_ij s_i
// At the end x = sum over c of (sigmoid(fn u scale + base) + eps)_c s_c. All of it in FP32, sums in ascending order.
#pragma once

#include "architecture/model_config.h"
#include "kernels/matmul.h"
#include "model/cpu/workspace.h"

#include <array>
#include <string>
#include <vector>

namespace nibble {

class WeightSource;

class HyperConnection {
public:
    // Loads NAME_fn, NAME_base and NAME_scale.
    static Result<HyperConnection> load(const ModelConfig& model, const std::string& name, WeightSource& weights);
    // Loads the weighted sum before the last norm.
    static Result<HyperConnection> load_head(const ModelConfig& model, WeightSource& weights);

    bool empty() const { return streams_ == 0; }
    int64_t width() const { return streams_ * hidden_; }
    // Returns post and M of every row, [rows, C + C * C], and writes the block's input y [rows, hidden] from the
    // streams x [rows, C * hidden]. The head has no post and M. Memory of the arena.
    float* collapse(const float* x, int64_t rows, float* y, Workspace& work) const;
    // Replaces the streams x by post_j y + sum of M_ij s_i. mix: the result of collapse().
    void expand(const float* mix, const float* y, int64_t rows, float* x, Workspace& work) const;

private:
    Status load(const ModelConfig& model, const std::array<std::string, 3>& names, int64_t outputs,
                WeightSource& weights);
    int64_t mixed() const { return streams_ + streams_ * streams_; }
    void weights_of(const float* f, float* pre, float* mix) const;

    int64_t streams_ = 0, hidden_ = 0, outputs_ = 0;
    int iterations_ = 0;
    float norm_eps_ = 0, eps_ = 0;
    PackedMatrix fn_;  // [outputs, C * hidden]
    std::vector<float> base_, scale_, ones_;
};

}  // namespace nibble

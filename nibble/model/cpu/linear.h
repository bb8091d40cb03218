// One linear layer: a packed weight, the quantization of its inputs, a bias. Calibration observes linears.
#pragma once

#include "kernels/matmul.h"
#include "model/cpu/rank_share.h"
#include "model/cpu/workspace.h"

#include <memory>
#include <span>
#include <string>
#include <vector>

namespace nibble {

class Observer;

struct Linear {
    std::string name;            // name of the weight without ".weight": "model.layers.3.self_attn.q_proj"
    int64_t rows = 0, cols = 0;  // outputs, inputs
    int64_t first_row = 0;       // the stored matrix's row of the first output
    bool alternating = false;    // the stored rows are those of outputs 0, rows / 2, 1, rows / 2 + 1 and so on
    PackedMatrix weight;         // empty inside a LinearStack that runs as one product
    std::vector<float> bias;     // empty or [rows]
    Format format = Format::none;
    ActivationFormat activation = ActivationFormat::none;
    float input_scale = 1.0f;
    // Set if ranks divide the outputs: `weight` and `bias` have those of this rank, and forward() gathers all.
    RankColumnsPtr divided;

    // Computes y [n, rows] = x [n, cols] W^T + bias, rounded with Compute::bf16. Rows of x and y are adjacent.
    // `batch_rows`: see Observer; empty when row i of x is row i of the batch.
    Status forward(const float* x, int64_t n, float* y, Workspace& work, Observer* observer,
                   std::span<const int32_t> batch_rows = {}) const;
};

// Computes linear.forward() of the rows x whose columns the ranks have in parts. `columns` null: x has all columns.
Status forward_gathered(const Linear& linear, const RankColumns* columns, const float* x, int64_t n, float* y,
                        Workspace& work, Observer* observer, std::span<const int32_t> batch_rows = {});

// Linears that read the same rows (q/k/v, gate/up). They run as one product if dtype, format and input quantization
// agree, otherwise one after the other. The observer sees the parts by name in both cases.
struct LinearStack {
    std::vector<Linear> parts;
    PackedMatrix weight;      // all parts stacked; unused when `one` is false
    std::vector<float> bias;  // biases of all parts; empty when no part has one
    bool one = false;
    RankColumnsPtr divided;  // as in Linear::divided, for all parts

    int64_t rows() const;
    // Writes y [n, rows()]: the parts' outputs one after the other in each row.
    Status forward(const float* x, int64_t n, float* y, Workspace& work, Observer* observer,
                   std::span<const int32_t> batch_rows = {}) const;
    // Computes y [n, rows() / 2] = activation(first part) * second part, rounded. Requires can_gate().
    bool can_gate() const {
        return one && parts.size() == 2 && parts[0].rows == parts[1].rows && nibble::can_gate(rows());
    }
    Status forward_gated(Activation activation, const float* x, int64_t n, float* y, Workspace& work,
                         Observer* observer, std::span<const int32_t> batch_rows = {}) const;

private:
    Status forward_divided(const float* x, int64_t n, float* y, Workspace& work) const;
};

}  // namespace nibble

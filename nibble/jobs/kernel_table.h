// The kernel of every product with the reason for its choice: the table of `nibble inspect MODEL --device cuda
// --kernels`, and the part of it that `nibble serve` reports.
#pragma once

#include "base/json.h"
#include "checkpoint/checkpoint.h"
#include "model/kernel_use.h"

#include <string>
#include <vector>

namespace nibble {

// Returns the table as text. Layers with equal rows form one section: "layers 0-31  model.layers.*.self_attn".
std::string kernels_text(const KernelTable& table);
// Returns every layer separately.
Json kernels_json(const KernelTable& table);

// Returns the matrices by layer for a model on a CPU, which uses one set of kernels ("avx512") for all formats.
// `inputs`: format of inputs that the checkpoint does not quantize. `weights_only`: ignore the checkpoint's input
// quantization.
KernelTable cpu_kernel_table(const Checkpoint& checkpoint, const std::string& kernels, const std::string& inputs,
                             bool weights_only);
// Returns layers with equal rows as one entry: [{"layers": "0-31", "module": "mlp up_proj", "weights", "inputs",
// "kernel"}].
Json folded_kernels_json(const KernelTable& table);
// Returns the same as lines for a terminal; modules with the same layers, formats and kernel share a line.
std::vector<std::string> folded_kernels_lines(const Json& folded);

}  // namespace nibble

// Which kernel runs every product, and why: the table of `nibble inspect MODEL --device cuda --kernels`, and the part
// of it that `nibble serve` reports.
#pragma once

#include "base/json.h"
#include "checkpoint/checkpoint.h"
#include "model/kernel_use.h"

#include <string>
#include <vector>

namespace nibble {

// Layers whose rows are all equal are one section: "layers 0-31  model.layers.*.self_attn".
std::string kernels_text(const KernelTable& table);
// Every layer by itself.
Json kernels_json(const KernelTable& table);

// Of a model on a CPU, whose kernels are one set ("avx512") for all formats: its matrices by layer. `inputs`: of those
// that the checkpoint does not quantize; `weights_only`: its own quantization of inputs does not count.
KernelTable cpu_kernel_table(const Checkpoint& checkpoint, const std::string& kernels, const std::string& inputs,
                             bool weights_only);
// Layers whose rows are all equal as one: [{"layers": "0-31", "module": "mlp up_proj", "weights", "inputs", "kernel"}].
Json folded_kernels_json(const KernelTable& table);
// The same as lines for a terminal; modules of the same layers, formats and kernel are one line.
std::vector<std::string> folded_kernels_lines(const Json& folded);

}  // namespace nibble

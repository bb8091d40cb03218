// `nibble rl --mismatch`: the lab of rl/mismatch_lab.h over recipes, with its negative controls.
#pragma once

#include "cli/command.h"

#include <string>
#include <vector>

namespace nibble {

struct MismatchFlags {
    std::string model, shape, device = "cpu", kernels;
    std::vector<std::string> recipes;  // empty: all that promise equal bits
    std::string kv;                    // bf16, fp8, fp8_q; empty: the first two
    double temperature = 1, top_p = 1;
    int64_t top_k = 0;
    int64_t layers = 0, prompts = 72;
    int threads = 0, ranks = 0;  // ranks: several are compared with one, too; 0: those that mpirun or srun started
    bool json = false, quiet = false;
};

// Findings: a recipe that promises equal bits has others, or a control does not show.
Result<Outcome> run_mismatch(const MismatchFlags& flags);

}  // namespace nibble

// `nibble rl --mismatch`: runs the comparison of rl/mismatch_lab.h for several recipes, with its negative controls.
#pragma once

#include "cli/command.h"

#include <string>
#include <vector>

namespace nibble {

struct MismatchFlags {
    std::string model, shape, device = "cpu", kernels;
    std::vector<std::string> recipes;  // empty: all recipes that guarantee equal bits
    std::string kv;                    // bf16, fp8, fp8_q; empty: bf16 and fp8
    double temperature = 1, top_p = 1;
    int64_t top_k = 0;
    int64_t layers = 0, prompts = 72;
    int threads = 0, ranks = 0;  // ranks: also compares several processes with one; 0: those that mpirun or srun
                                 // started
    bool json = false, quiet = false;
};

// Runs the comparison. Findings: a recipe that guarantees equal bits has different ones, or a negative control was not
// detected.
Result<Outcome> run_mismatch(const MismatchFlags& flags);

}  // namespace nibble

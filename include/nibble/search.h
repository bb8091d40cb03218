// The job of `nibble search`: which linears of a model deserve more bits, as a mixed-precision recipe.
#pragma once

#include "nibble/calibration_text.h"
#include "nibble/error.h"
#include "nibble/hooks.h"
#include "nibble/report.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace nibble {

struct SearchOptions {
    std::string source;  // folder or .gguf file
    std::string out;     // the recipe to write, ending in .yaml; .json (scores) and .html (report) of the same name
    double bits = 4.8;   // most effective bits per weight of the linears
    std::vector<std::string> formats = {"nvfp4", "fp8"};  // candidates besides none
    std::vector<std::string> keep;                        // "PATTERN=FORMAT": linears that are not searched
    std::string cost_model = "weights";                   // or active_moe: experts cost by how often they run
    std::string score = "fisher";                         // or modelopt (gradients), kl (a forward pass per choice)
    std::string scores;                                   // the .json of an earlier search, instead of a text
    CalibrationText calib{.tokens = 4096, .sequence = 512};
    double sweep_low = 4.5, sweep_high = 8, sweep_step = 0.25;  // targets of the report's table
    std::string measure;  // a text on which the KL divergence of every target is measured; empty: none
    int64_t measure_tokens = 4096;
    std::string algorithm = "max";  // of the recipe; or nibble_best
    std::string device = "cpu";     // cpu, cuda, cuda:N: where text goes forward
    int threads = 0;                // 0: one per core
    std::string command;            // as typed, for the report
};

struct SearchedRecipe : JobReport {
    double bits = 0;           // effective bits per weight of the recipe
    double score = 0;          // of the chosen formats, summed over the groups
    std::optional<double> kl;  // measured on options.measure, nats per token
    std::string page;          // path of the report
};

// Errors of kind usage: unknown words, a sweep without end, no text and no scores.
Status check_options(const SearchOptions& options);

// Scores every group of linears with every candidate, chooses within options.bits and writes the recipe and its
// report. A stop keeps the scores in OUT.unfinished, where the same options continue.
//
// Errors by kind: usage (options); recipe (a target that the candidates cannot reach); checkpoint; file; device;
// cancelled.
Result<SearchedRecipe> search(const SearchOptions& options, const JobHooks& hooks);

}  // namespace nibble

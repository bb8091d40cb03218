// The job of `nibble search`: finds a mixed-precision recipe, in which sensitive linears of a model get more bits.
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

// `source`, `out`, and either a text (`calib`) or `scores` are required.
struct SearchOptions {
    std::string source;  // folder or .gguf file
    std::string out;     // the recipe to write, ending in .yaml; .json (scores) and .html (report) get the same name
    double bits = 4.8;   // upper limit of the effective bits per weight, averaged over the linears
    std::vector<std::string> formats = {"nvfp4", "fp8"};  // candidates in addition to none
    std::vector<std::string> keep;                        // "PATTERN=FORMAT": linears with a fixed format
    std::string cost_model = "weights";  // weights; or active_moe: experts are weighted by how often they run
    std::string score = "fisher";        // fisher or modelopt (gradients), or kl (a forward pass per choice)
    std::string scores;                  // the .json file of an earlier search, replaces the text
    CalibrationText calib{.tokens = 4096, .sequence = 512};
    double sweep_low = 4.5, sweep_high = 8, sweep_step = 0.25;  // targets of the table in the report
    std::string measure;  // text on which the KL divergence of every target is measured; empty: not measured
    int64_t measure_tokens = 4096;
    std::string algorithm = "max";  // algorithm of the recipe: max or nibble_best
    std::string device = "cpu";     // device of forward passes: cpu, cuda, cuda:N
    int threads = 0;                // 0: one per core
    std::string command;            // the command as typed, for the report
};

// The chosen recipe; text() and json() are the report.
struct SearchedRecipe : JobReport {
    double bits = 0;           // effective bits per weight of the recipe
    double score = 0;          // sum of the scores of the chosen formats over the groups
    std::optional<double> kl;  // measured on options.measure, in nats per token
    std::string page;          // path of the HTML report
};

// Errors of kind usage: unknown words, an infinite sweep, neither text nor scores.
Status check_options(const SearchOptions& options);

// Scores every group of linears with every candidate, chooses formats within options.bits, and writes the recipe and
// its report. A stop keeps the scores in OUT.unfinished; a call with the same options continues.
//
// Errors by kind: usage (options); recipe (a target that the candidates cannot reach); checkpoint; file; device;
// cancelled.
Result<SearchedRecipe> search(const SearchOptions& options, const JobHooks& hooks);

}  // namespace nibble

// The job of `nibble quantize`: converts a checkpoint in BF16 (or decoded to BF16) to a verified low-precision
// checkpoint.
//
// const auto report = quantize({.source = "Qwen3-8B", .out = "Qwen3-8B-NVFP4", .recipe = "w4a16_nvfp4"}, hooks);
#pragma once

#include "nibble/calibration_text.h"
#include "nibble/command_text.h"
#include "nibble/error.h"
#include "nibble/hooks.h"
#include "nibble/report.h"

#include <string>
#include <vector>

namespace nibble {

// `source`, `out` and `recipe` are required.
struct QuantizeOptions {
    std::string source;               // Hugging Face folder or .gguf file
    std::string out;                  // folder (or .gguf file) to write; must not exist
    std::string recipe;               // name of a preset, or a recipe file
    std::string format;               // modelopt, compressed-tensors, gguf; empty: gguf for a .gguf output,
                                      // otherwise modelopt
    std::string kv;                   // KV cache preset that is applied after the recipe; empty: the recipe's own
    std::vector<std::string> ignore;  // modules to leave unquantized, with all modules below them (fnmatch, or
                                      // "re:" and a regular expression of Python)
    std::vector<std::string> linear;  // matrices that are linear layers although their names are not known
    bool weights_only = false;        // drop the recipe's activation quantizers
    std::string input_scales;         // scales of activations: a JSON file, another export, or one number for all;
                                      // empty: none
    CalibrationText calib;            // calibration text; calib.file empty: no calibration
    std::string embeddings = "none";  // format of the input embeddings
    std::string arithmetic = "reciprocal";  // arithmetic of scales: reciprocal, as Model Optimizer on a GPU; true, as
                                            // on a CPU
    std::string compat = "modelopt-0.47";   // share scales as this version does; or none
    std::string max_shard_size = "5GB";     // largest size of a safetensors file
    std::string kernels;            // CPU kernels: avx512, avx2, ref; empty: the fastest. Does not change any byte
    std::string device = "cpu";     // cpu, cuda, cuda:N; changes bytes only with calibration, whose sums have another
                                    // order
    int threads = 0;                // 0: one per core, two per core with a GPU
    bool partial = false;           // accept a source that lacks weights which its config.json requires
    bool requantize = false;        // accept a source that is already quantized
    bool dry_run = false;           // return the plan and write nothing
    bool strict = false;            // treat warnings of the plan as errors
    bool resume = false;            // continue an interrupted job; the bytes are the same
    int rank_timeout_seconds = 60;  // with several ranks: limit for a rank that does not start or renew its work
    CommandText command;            // with `resume`, a finished output of the same command is not made again
};

// The result of a job. text() and json() are the error report, or the plan.
struct QuantizeReport : JobReport {
    // How the job ended.
    enum class Outcome : uint8_t {
        written,          // `out` is complete and verified
        planned,          // dry_run: text() and json() contain the plan
        made_before,      // resume: `out` existed already; the other members are empty
        by_another_rank,  // `out` is complete; another rank of this job has its report
    } outcome = Outcome::written;
    int64_t tensors = 0, quantized_tensors = 0;
    int64_t stored_bytes = 0;              // bytes of all tensors
    double bits_per_quantized_weight = 0;  // average, scales included
    double sqnr_db = 0;                    // SQNR of all quantized weights together; infinity if there is no error
    std::vector<std::string> warnings;     // warnings of the plan
};

// Quantizes a checkpoint. First checks everything that follows from names, shapes and formats. Then calibrates,
// quantizes tensor by tensor, reads the result back, compares it, and gives it its final name. A stop keeps the
// finished tensors and the calibration next to `out`; a call with the same options and `resume` continues.
//
// Several processes that a launcher starts (docs/guides/several-ranks.md) divide the files of one output, with the
// bytes of one process; unfinished work is then always continued.
//
// Errors by kind: usage (options); recipe (the recipe, or it does not fit the model or lacks activations); checkpoint
// (the source, a weight that is not finite, a failed verification); file; device; cancelled.
Result<QuantizeReport> quantize(const QuantizeOptions& options, const JobHooks& hooks);

}  // namespace nibble

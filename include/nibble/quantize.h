// The job of `nibble quantize`: a checkpoint in BF16 (or decoded to it) becomes a verified low-precision checkpoint.
//
//   const auto report = quantize({.source = "Qwen3-8B", .out = "Qwen3-8B-NVFP4", .recipe = "w4a16_nvfp4"}, hooks);
#pragma once

#include "nibble/calibration_text.h"
#include "nibble/command_text.h"
#include "nibble/error.h"
#include "nibble/hooks.h"
#include "nibble/report.h"

#include <string>
#include <vector>

namespace nibble {

struct QuantizeOptions {
    std::string source;                     // Hugging Face folder or .gguf file
    std::string out;                        // folder (or .gguf file) to write; must not exist
    std::string recipe;                     // name of a preset, or a recipe file
    std::string format;                     // modelopt, compressed-tensors, gguf; empty: gguf for a .gguf output,
                                            // otherwise modelopt
    std::string kv;                         // KV cache preset added after the recipe; empty: the recipe's own
    std::vector<std::string> ignore;        // modules that stay as they are, with all below them (fnmatch)
    bool weights_only = false;              // drop the recipe's activation quantizers
    std::string input_scales;               // scales of activations: a JSON file or another export; empty: none
    CalibrationText calib;                  // text to calibrate on; calib.file empty: none
    std::string embeddings = "none";        // format of the input embeddings
    std::string arithmetic = "reciprocal";  // of scales: as Model Optimizer on a GPU; true: as on a CPU
    std::string compat = "modelopt-0.47";   // share scales as that version's bytes do; none
    std::string max_shard_size = "5GB";     // of the safetensors files
    std::string kernels;                    // CPU kernels: avx512, avx2, ref; empty: the fastest. The same bytes
    std::string device = "cpu";             // cpu, cuda, cuda:N; the same bytes except for calibration, whose sums
                                            // have another order
    int threads = 0;                        // 0: one per core, two per core with a GPU
    bool requantize = false;                // accept a source that is quantized already
    bool dry_run = false;                   // return the plan and write nothing
    bool strict = false;                    // warnings of the plan are errors
    bool resume = false;                    // continue an interrupted job to the same bytes
    CommandText command;                    // a finished output with the same command and `resume` is not made again
};

struct QuantizeReport : JobReport {
    enum class Outcome : uint8_t {
        written,      // `out` is complete and verified
        planned,      // dry_run: text() and json() are the plan
        made_before,  // resume: `out` was there already; everything else is empty
    } outcome = Outcome::written;
    int64_t tensors = 0, quantized_tensors = 0;
    int64_t stored_bytes = 0;              // of all tensors
    double bits_per_quantized_weight = 0;  // scales included
    double sqnr_db = 0;                    // of all quantized weights together; infinity when nothing was lost
    std::vector<std::string> warnings;     // of the plan
};

// Checks everything that follows from names, shapes and formats first; then calibrates, quantizes tensor by tensor,
// reads the result back and compares it, and only then gives it its name. A stop keeps the finished tensors and the
// calibration next to `out`; the same options with `resume` continue there.
//
// Errors by kind: usage (options); recipe (the recipe, or it does not fit the model or lacks activations); checkpoint
// (the source, a weight that is not finite, a failed verification); file; device; cancelled.
Result<QuantizeReport> quantize(const QuantizeOptions& options, const JobHooks& hooks);

}  // namespace nibble

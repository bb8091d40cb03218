// The result of a quantization for every tensor, and its cost. Written as JSON with the export, rendered as an HTML
// page, compared between runs. Everything outside `timing` is the same for the same source, plan and settings, whatever
// the number of threads, the kernels, or the number of interruptions.
#pragma once

#include "base/json.h"
#include "formats/format.h"
#include "kernels/quantize.h"
#include "quant/calibration_gaps.h"
#include "quant/output_error.h"
#include "quant/weight_solver.h"

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace nibble {

// Counts per byte value without leading and trailing zeros: counts[i] belongs to code first + i.
struct Histogram {
    int first = 0;
    std::vector<int64_t> counts;

    Histogram() = default;
    explicit Histogram(std::span<const int64_t, 256> all);
    int64_t at(int code) const;
    int64_t total() const;
    bool operator==(const Histogram&) const = default;
};

// One tensor of the export. For unchanged tensors (format == none, or a source that was quantized already) losses are
// zero and histograms empty.
struct TensorReport {
    std::string name;            // "model.layers.0.mlp.up_proj.weight"
    std::vector<int64_t> shape;  // shape after decoding, [out, in]
    DType dtype = DType::bf16;   // dtype in the source
    Format format = Format::none;
    std::string method;  // "nvfp4 static/256 x{1,1.5}"; empty: the tensor is unchanged
    ActivationFormat activation = ActivationFormat::none;
    std::string scale_group;  // tensors with the same key share tensor_scale and input_scale
    std::string reason;       // the rule that decided
    int64_t source_bytes = 0;
    int64_t stored_bytes = 0;  // codes and all scales of the weight (4 bytes per FP32 scalar)

    int64_t elements = 0, blocks = 0;
    double squared_error = 0, squared_weight = 0;
    float max_error = 0;    // largest |decoded - weight|
    int64_t zeros = 0;      // nonzero weights that became zero
    int64_t saturated = 0;  // weights beyond the range of their scale
    int64_t sign_flips = 0;
    int64_t raised_blocks = 0;  // blocks for which the search chose a multiplier above 1
    Histogram codes, scales;    // histograms of codes and of block scale bytes

    float amax = 0;               // largest |weight| of this tensor
    float search_multiplier = 1;  // multiplier chosen by a search over the whole tensor
    bool blind_search = false;    // all candidates of that search had equal losses, because the squares of the weights
                                  // underflow in FP32
    SolveGaps gaps;               // weights for which the solver had no usable data
    float tensor_scale = 1;       // stored value
    uint64_t content_hash = 0;    // hash of codes and scales (quant/content_hash.h)
    std::optional<float> input_scale;  // stored value

    bool quantized() const { return !method.empty(); }
    double bits_per_element() const;
    double mse() const;                 // squared_error / elements
    double sqnr_db() const;             // 10 log10(squared_weight / squared_error); infinity if there is no error
    double raised_share() const;        // raised_blocks / blocks
    void add(const QuantStats& stats);  // copies the losses
    bool operator==(const TensorReport&) const = default;
};

// True if the SQNR of a tensor is below the limit; false for weights that are all zero.
inline constexpr double most_lost_db = 5;
bool loses_most(const TensorReport& tensor, double limit_db = most_lost_db);

// Sums over tensors. bits_per_element includes all stored bytes.
struct ReportTotals {
    int64_t tensors = 0, quantized_tensors = 0;
    int64_t elements = 0, quantized_elements = 0;
    int64_t source_bytes = 0, stored_bytes = 0;
    double bits_per_element = 0;                   // over all tensors
    double quantized_bits_per_element = 0;         // over the quantized ones
    double squared_error = 0, squared_weight = 0;  // summed in the order of the tensors
    double sqnr_db = 0;                            // over all quantized weights together
    int64_t zeros = 0, saturated = 0, sign_flips = 0;
};

// Time and resources of this run; the only part that differs between equal runs.
struct ReportTiming {
    double seconds = 0;              // quantization only
    double whole_seconds = 0;        // the whole job: reading, calibration, quantization, verification; 0: unknown
    double calibration_seconds = 0;  // part of it: passes over text and solvers; 0 without --calib
    int64_t bytes_read = 0, bytes_written = 0;  // by this run; without the work of earlier, resumed runs
    double gigabytes_per_second = 0;            // source bytes / seconds / 1e9
    int threads = 0;
    std::string kernels;               // "avx512"
    int64_t peak_anonymous_bytes = 0;  // memory outside the page cache (RssAnon), sampled
    int64_t peak_resident_bytes = 0;   // VmHWM; includes mapped pages of the page cache
    int64_t resumed_tensors = 0;       // tensors that were finished and intact in the journal
    std::string finished_at;           // "2026-01-31T09:05:00Z"
    std::string command;               // command as typed
    std::string output;                // path of the output
    std::string verified;              // result of verifying the finished export; empty: it was not verified
};

struct QuantReport {
    std::string source;              // path of the checkpoint
    std::string recipe;              // name and description
    std::string plan;                // the whole plan as text
    Json settings = Json::object();  // options that change bytes: dialect, shard size ...
    Json versions = Json::object();  // versions that change bytes: "nibble": "0.1.0"
    KvFormat kv = KvFormat::none;
    std::vector<std::pair<std::string, float>> kv_scales;  // "...k_proj.k_scale" and its stored value
    bool weights_only = false;                             // the user requested to drop activation quantizers
    std::vector<std::string> warnings;
    std::vector<CalibrationGap> gaps;   // gaps of calibration and of searches, one per kind
    std::vector<TensorReport> tensors;  // in the order of the source
    // Linears that calibration solved in this run, by module. A resumed run has only those that it solved itself.
    std::vector<LayerOutputError> output_errors;
    ReportTiming timing;

    ReportTotals totals() const;
};

// Writes keys in a fixed order and the shortest numbers that read back exactly; an infinite SQNR is null. Derived
// values (mse, sqnr_db, totals ...) are written for other programs and not read back.
Json to_json(const TensorReport& tensor);
Json to_json(const QuantReport& report);
Json to_json_without_tensors(const QuantReport& report);
// to_json_text() writes the same document with one line per tensor, without building all of it in memory first (a model
// with 100,000 experts would need gigabytes). Errors of the readers: a missing key or a wrong type, with the key.
std::string to_json_text(const QuantReport& report);
Result<TensorReport> tensor_report_from_json(const Json& json);
Result<QuantReport> quant_report_from_json(const Json& json);

}  // namespace nibble

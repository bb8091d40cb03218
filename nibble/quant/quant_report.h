// What a quantization did to every tensor, and what it cost. A value: written as JSON beside the export, rendered as an
// HTML page, compared between runs. Everything outside `timing` is the same for the same source, plan and settings,
// whatever the thread count, the kernel entry, or the number of interruptions.
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

// Counts of byte-valued things; the empty ends are cut off: counts[i] belongs to code first + i.
struct Histogram {
    int first = 0;
    std::vector<int64_t> counts;

    Histogram() = default;
    explicit Histogram(std::span<const int64_t, 256> all);
    int64_t at(int code) const;
    int64_t total() const;
    bool operator==(const Histogram&) const = default;
};

// One tensor of the export. Losses are zero and histograms empty when it was carried as it is (format == none, or a
// source that was quantized already).
struct TensorReport {
    std::string name;            // "model.layers.0.mlp.up_proj.weight"
    std::vector<int64_t> shape;  // of the decoded tensor, [out, in]
    DType dtype = DType::bf16;   // of the source
    Format format = Format::none;
    std::string method;  // "nvfp4 static/256 x{1,1.5}"; empty when carried
    ActivationFormat activation = ActivationFormat::none;
    std::string scale_group;  // shares tensor_scale and input_scale with the tensors of the same key
    std::string reason;       // the rule that decided
    int64_t source_bytes = 0;
    int64_t stored_bytes = 0;  // codes and all scales of the weight (4 per FP32 scalar)

    int64_t elements = 0, blocks = 0;
    double squared_error = 0, squared_weight = 0;
    float max_error = 0;    // largest |decoded - weight|
    int64_t zeros = 0;      // nonzero weights that became zero
    int64_t saturated = 0;  // weights beyond what their scale can express
    int64_t sign_flips = 0;
    int64_t raised_blocks = 0;  // blocks whose search chose a multiplier above 1
    Histogram codes, scales;    // of codes and of block scale bytes

    float amax = 0;                    // largest |weight| of this tensor
    float search_multiplier = 1;       // chosen by a search over the whole tensor
    bool blind_search = false;         // its candidates all lose alike: squares of the weights vanish in FP32
    SolveGaps gaps;                    // what its solver had nothing to go by for
    float tensor_scale = 1;            // as stored
    uint64_t content_hash = 0;         // of codes and scales (quant/content_hash.h)
    std::optional<float> input_scale;  // as stored

    bool quantized() const { return !method.empty(); }
    double bits_per_element() const;
    double mse() const;                 // squared_error / elements
    double sqnr_db() const;             // 10 log10(squared_weight / squared_error); infinity when nothing was lost
    double raised_share() const;        // raised_blocks / blocks
    void add(const QuantStats& stats);  // copies the losses in
    bool operator==(const TensorReport&) const = default;
};

// Whether less is left of the weights than this SQNR; not for weights that are all zero.
inline constexpr double most_lost_db = 5;
bool loses_most(const TensorReport& tensor, double limit_db = most_lost_db);

// Sums over tensors. bits_per_element counts all stored bytes.
struct ReportTotals {
    int64_t tensors = 0, quantized_tensors = 0;
    int64_t elements = 0, quantized_elements = 0;
    int64_t source_bytes = 0, stored_bytes = 0;
    double bits_per_element = 0;                   // over all tensors
    double quantized_bits_per_element = 0;         // over the quantized ones
    double squared_error = 0, squared_weight = 0;  // in the tensors' order
    double sqnr_db = 0;                            // of all quantized weights together
    int64_t zeros = 0, saturated = 0, sign_flips = 0;
};

// How it went this time; the only part that differs between equal runs.
struct ReportTiming {
    double seconds = 0;                         // of quantizing alone
    double whole_seconds = 0;                   // of the job: reading, calibration, quantizing, checking; 0: not known
    double calibration_seconds = 0;             // of it: passes over text and solvers; 0 without --calib
    int64_t bytes_read = 0, bytes_written = 0;  // by this run; a resumed run counts what it did itself
    double gigabytes_per_second = 0;            // source bytes / seconds / 1e9
    int threads = 0;
    std::string kernels;               // "avx512"
    int64_t peak_anonymous_bytes = 0;  // memory that is not page cache (RssAnon), sampled
    int64_t peak_resident_bytes = 0;   // VmHWM; includes mapped pages of the page cache
    int64_t resumed_tensors = 0;       // found finished and intact in the journal
    std::string finished_at;           // "2026-01-31T09:05:00Z"
    std::string command;               // as typed
    std::string output;                // path of what was written
    std::string verified;              // what the check of the finished export found; empty: it was not checked
};

struct QuantReport {
    std::string source;              // path of the checkpoint
    std::string recipe;              // name and description
    std::string plan;                // the whole plan as text
    Json settings = Json::object();  // options that change bytes: dialect, shard size ...
    Json versions = Json::object();  // "nibble": "0.1.0"
    KvFormat kv = KvFormat::none;
    std::vector<std::pair<std::string, float>> kv_scales;  // "...k_proj.k_scale", as stored
    bool weights_only = false;                             // activation quantizers were dropped on purpose
    std::vector<std::string> warnings;
    std::vector<CalibrationGap> gaps;   // of calibration and of searches, a kind each
    std::vector<TensorReport> tensors;  // in the source's order
    // Of the linears that calibration solved in this run, by module (a resumed run has those that it solved itself).
    std::vector<LayerOutputError> output_errors;
    ReportTiming timing;

    ReportTotals totals() const;
};

// Keys in a fixed order, shortest numbers that read back exactly; infinite SQNR is null. Derived values (mse, sqnr_db,
// totals ...) are written for readers and not read back.
Json to_json(const TensorReport& tensor);
Json to_json(const QuantReport& report);
// Errors name the key that is missing or has the wrong type.
// The same document as text, one line per tensor, without building all of it in memory first (a model of 100,000
// experts would take gigabytes).
std::string to_json_text(const QuantReport& report);
Result<TensorReport> tensor_report_from_json(const Json& json);
Result<QuantReport> quant_report_from_json(const Json& json);

}  // namespace nibble

#include "measure/quantize.h"

#include "base/thread_pool.h"
#include "formats/minifloat.h"
#include "gpu_bench/quantize.h"
#include "kernels/quantize.h"
#include "measure/median.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <numeric>
#include <optional>
#include <random>

namespace nibble {
namespace {

constexpr int64_t rows_a_panel = 128;
constexpr double most_seconds = 1.5;  // per case, after the first repetition

enum class Operation { scan, quantize, decode, measure, losses };

struct Case {
    std::string name;
    Operation operation;
    WeightSpec spec;
    double goal;  // fraction of memcpy to reach, for vector kernels; 0: no goal
};

std::vector<Case> cases() {
    using enum Operation;
    const Search four_over_six{Search::Kind::multipliers, 1.0f, 1.5f, 0.5f}, sweep{Search::Kind::sweep};
    return {
        {"scan", scan, {Format::nvfp4}, 1.0},
        {"nvfp4 max", quantize, {Format::nvfp4}, 1.0 / 3},
        {"nvfp4 four-over-six", quantize, {Format::nvfp4, true, 256, four_over_six}, 1.0 / 6},
        {"nvfp4 sweep", quantize, {Format::nvfp4, true, 448, sweep}, 1.0 / 60},
        {"nvfp4_bs32 max", quantize, {Format::nvfp4_bs32}, 0},
        {"mxfp4", quantize, {Format::mxfp4}, 0},
        {"mxfp8", quantize, {Format::mxfp8}, 0},
        {"fp8 max", quantize, {Format::fp8}, 1 / 2.5},
        {"fp8_row max", quantize, {Format::fp8_row}, 0},
        {"fp8_block128 max", quantize, {Format::fp8_block128}, 0},
        {"fp8 losses of 2 maxima", losses, {Format::fp8, false, 448, four_over_six}, 0},
        {"decode nvfp4", decode, {Format::nvfp4}, 1 / 2.5},
        {"decode fp8", decode, {Format::fp8}, 1 / 2.5},
        {"measure nvfp4", measure, {Format::nvfp4}, 1.0 / 4},
        {"measure fp8", measure, {Format::fp8}, 1.0 / 4},
    };
}

// Returns bell-shaped weights with heavier tails; they repeat after 4 Mi elements.
Matrix make_weights(int64_t rows, int64_t cols) {
    Matrix m(DType::bf16, rows, cols);
    auto* codes = reinterpret_cast<uint16_t*>(m.data.data());
    const int64_t n = rows * cols, distinct = std::min<int64_t>(n, int64_t{1} << 22);
    std::mt19937 random(1);
    std::normal_distribution<float> bell;
    for (int64_t i = 0; i < distinct; ++i) {
        const float x = bell(random);
        codes[i] = bf16_from_float(0.02f * x * (1.0f + 0.1f * x * x));
    }
    for (int64_t i = distinct; i < n; i += distinct)
        std::memcpy(codes + i, codes, static_cast<size_t>(std::min(distinct, n - i)) * sizeof(uint16_t));
    return m;
}

// Inputs and outputs of one case, processed panel by panel.
struct Job {
    const QuantizeKernels& kernels;
    const Case& what;
    MatrixView weights;
    TensorAmax amax;
    QuantMatrix& q;
    float* decoded;

    int64_t panels() const { return (weights.rows + rows_a_panel - 1) / rows_a_panel; }
    void run(int64_t panel, QuantStats& stats, std::span<double> losses) const {
        const int64_t begin = panel * rows_a_panel, count = std::min(rows_a_panel, weights.rows - begin);
        const MatrixView w = weights.panel(begin, count);
        const QuantSpan out = q.span().panel(begin, count);
        switch (what.operation) {
            case Operation::scan:
                stats.max_error = std::max(stats.max_error, kernels.scan(w).amax);
                return;
            case Operation::quantize:
                return kernels.quantize(w, what.spec, amax, out, stats);
            case Operation::decode:
                return kernels.decode(out, decoded + begin * weights.cols);
            case Operation::measure:
                return kernels.measure(w, out, stats);
            case Operation::losses:
                return kernels.tensor_losses(w, what.spec, amax, search_multipliers(what.spec.search), losses);
        }
    }
};

bool same_bits(const void* a, const void* b, size_t bytes) { return bytes == 0 || std::memcmp(a, b, bytes) == 0; }

Status check_against_ref(const QuantizeKernels& kernels, const Case& what, const MatrixView& sample,
                         const TensorAmax& amax) {
    const QuantizeKernels& ref = quantize_kernels().back();
    QuantMatrix mine(what.spec.format, sample.rows, sample.cols), truth = mine;
    mine.tensor_scale = truth.tensor_scale = tensor_scale(what.spec, amax);
    QuantStats my_stats, true_stats;
    kernels.quantize(sample, what.spec, amax, mine.span(), my_stats);
    ref.quantize(sample, what.spec, amax, truth.span(), true_stats);
    const auto differs = [&](std::string_view in) {
        return fail("kernel {}: {} of {} differ from ref: not timed", kernels.name, in, to_string(what.spec));
    };
    if (mine.codes != truth.codes || mine.block_scales != truth.block_scales || mine.float_scales != truth.float_scales)
        return differs("bytes");
    kernels.measure(sample, mine.view(), my_stats);
    ref.measure(sample, truth.view(), true_stats);
    if (!(my_stats == true_stats)) return differs("statistics");
    std::vector<float> my_values(size_t(sample.rows * sample.cols)), true_values = my_values;
    kernels.decode(mine.view(), my_values.data());
    ref.decode(truth.view(), true_values.data());
    if (!same_bits(my_values.data(), true_values.data(), my_values.size() * sizeof(float)))
        return differs("decoded values");
    if (what.operation == Operation::losses) {
        const auto multipliers = search_multipliers(what.spec.search);
        std::vector<double> my_losses(multipliers.size()), true_losses = my_losses;
        kernels.tensor_losses(sample, what.spec, amax, multipliers, my_losses);
        ref.tensor_losses(sample, what.spec, amax, multipliers, true_losses);
        if (my_losses != true_losses) return differs("losses");
    }
    return Ok{};
}

template <class Work>
double seconds(Work work) {
    const auto start = std::chrono::steady_clock::now();
    work();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

struct JobRate {
    std::string name, kernel;
    int threads = 0;
    double rate = 0, low = 0, high = 0;  // bytes per second
    double copy = 0, fraction = 0, goal = 0;
    int repetitions = 0;
};

// Times a job and, before each repetition, a memcpy of the same bytes.
JobRate time_job(const Job& job, ThreadPool& pool, int repetitions, std::byte* copy) {
    const int64_t panels = job.panels();
    std::vector<QuantStats> stats(static_cast<size_t>(panels));
    std::vector<std::array<double, 2>> losses(static_cast<size_t>(panels));
    // A slow kernel gets only as many panels as fit in the time limit, but at least one per thread.
    int64_t used = panels;
    const double one = seconds([&] { job.run(0, stats[0], losses[0]); });
    const double whole = one * static_cast<double>(panels) / pool.threads();
    if (whole > most_seconds)
        used = std::clamp<int64_t>(int64_t(most_seconds / one) * pool.threads(), pool.threads(), panels);
    const int64_t rows = std::min(used * rows_a_panel, job.weights.rows);
    const double bytes = static_cast<double>(rows * job.weights.row_bytes());

    std::vector<double> rates, copies, fractions;
    double spent = 0;
    for (int r = 0; r < repetitions && (r == 0 || spent < most_seconds * 4); ++r) {
        const double copying = seconds([&] {
            pool.parallel_for(panels, [&](int64_t p) {
                const MatrixView w =
                    job.weights.panel(p * rows_a_panel, std::min(rows_a_panel, job.weights.rows - p * rows_a_panel));
                std::memcpy(copy + p * rows_a_panel * w.row_bytes(), w.data, static_cast<size_t>(w.bytes()));
            });
        });
        const double working = seconds(
            [&] { pool.parallel_for(used, [&](int64_t p) { job.run(p, stats[size_t(p)], losses[size_t(p)]); }); });
        copies.push_back(static_cast<double>(job.weights.bytes()) / copying);
        rates.push_back(bytes / working);
        fractions.push_back(rates.back() / copies.back());
        spent += working;
    }
    return {job.what.name,
            std::string(job.kernels.name),
            pool.threads(),
            median(rates),
            *std::min_element(rates.begin(), rates.end()),
            *std::max_element(rates.begin(), rates.end()),
            median(copies),
            median(fractions),
            &job.kernels == &quantize_kernels().back() ? 0 : job.what.goal,
            static_cast<int>(rates.size())};
}

void print_table(const std::vector<JobRate>& lines, const BenchQuantizeOptions& o, std::FILE* out) {
    fmt::print(out, "{} x {} BF16 ({:.0f} MiB); GB/s of BF16 weights, median (min-max); every kernel equals ref\n",
               o.rows, o.cols, static_cast<double>(o.rows * o.cols) / (1 << 19));
    fmt::print(out, "{:<24}{:<8}{:>8}{:>8}{:>16}{:>9}{:>10}{:>8}{:>6}\n", "operation", "kernel", "threads", "GB/s",
               "spread", "memcpy", "fraction", "goal", "reps");
    for (const JobRate& l : lines)
        fmt::print(out, "{:<24}{:<8}{:>8}{:>8.3f}{:>16}{:>9.2f}{:>10.3f}{:>8}{:>6}\n", l.name, l.kernel, l.threads,
                   l.rate / 1e9, fmt::format("{:.2f}-{:.2f}", l.low / 1e9, l.high / 1e9), l.copy / 1e9, l.fraction,
                   l.goal > 0 ? fmt::format("{:.3f}{}", l.goal, l.fraction >= l.goal ? "" : "!") : "", l.repetitions);
}

void print_json(const std::vector<JobRate>& lines, const BenchQuantizeOptions& o, std::FILE* out) {
    auto results = nlohmann::ordered_json::array();
    for (const JobRate& l : lines)
        results.push_back({{"operation", l.name},
                           {"kernel", l.kernel},
                           {"threads", l.threads},
                           {"bytes_per_second", l.rate},
                           {"least", l.low},
                           {"most", l.high},
                           {"memcpy_bytes_per_second", l.copy},
                           {"fraction_of_memcpy", l.fraction},
                           {"goal", l.goal},
                           {"repetitions", l.repetitions}});
    const nlohmann::ordered_json all{{"rows", o.rows}, {"cols", o.cols}, {"results", results}};
    fmt::print(out, "{}\n", all.dump(2));
}

Status bench_on_device(const BenchQuantizeOptions& options, std::FILE* out) {
    if (!options.kernel.empty()) return fail("--kernels {} names a kernel of the CPU, not of a GPU", options.kernel);
    bench::DeviceBench bench{.device = options.device};
    bench.timing.repeats = options.repetitions;
    Json report;
    NIBBLE_TRY(const bool good, bench::run_device_bench(bench, options.json ? nullptr : out, report));
    if (options.json) fmt::print(out, "{}\n", report.dump(2));
    if (!good) return fail("kernels of the GPU differ from ref");
    return Ok{};
}

}  // namespace

Status bench_quantize(const BenchQuantizeOptions& options, std::FILE* out) {
    if (options.device != "cpu") return bench_on_device(options, out);
    if (options.rows < 1 || options.cols < 32 || options.cols % 32 != 0 ||
        options.rows > (int64_t{1} << 40) / options.cols)
        return fail("bench quantize: {} x {}: needs at least one row, and columns must be a multiple of 32",
                    options.rows, options.cols);
    if (options.repetitions < 1) return fail("bench quantize: {} repetitions: needs at least 1", options.repetitions);
    NIBBLE_TRY(const QuantizeKernels* forced, select_quantize_kernels(options.kernel));

    const Matrix weights = make_weights(options.rows, options.cols);
    const Scan scanned = forced->scan(weights.view());
    const auto amax_for = [&](const Case& c) {  // tiles have no fusion partners
        return TensorAmax{scanned.amax, c.spec.format == Format::fp8_block128 ? 0.0f : scanned.amax};
    };
    const MatrixView sample = weights.view().panel(0, std::min<int64_t>(options.rows, 130));
    std::vector<const QuantizeKernels*> chosen;
    for (const QuantizeKernels& k : quantize_kernels())
        if (options.kernel.empty() ? k.supported() : &k == forced) chosen.push_back(&k);
    for (const QuantizeKernels* k : chosen)
        for (const Case& c : cases()) NIBBLE_CHECK(check_against_ref(*k, c, sample, amax_for(c)));

    std::vector<std::byte> copy(weights.data.size());
    std::vector<float> decoded(size_t(options.rows * options.cols));
    const int all = options.threads > 0 ? options.threads : usable_cores();
    std::vector<JobRate> lines;
    for (const Case& c : cases()) {
        QuantMatrix q(c.spec.format, options.rows, options.cols);
        const TensorAmax amax = amax_for(c);
        q.tensor_scale = tensor_scale(c.spec, amax);
        QuantStats stats;
        // makes the inputs of decode and measure; also touches every page
        for (int64_t i = 0; i < options.rows; i += rows_a_panel) {
            const int64_t n = std::min(rows_a_panel, options.rows - i);
            WeightSpec plain{c.spec.format};
            forced->quantize(weights.view().panel(i, n), plain, amax, q.span().panel(i, n), stats);
        }
        for (int threads : all > 1 ? std::vector{1, all} : std::vector{1}) {
            ThreadPool pool(threads);
            for (const QuantizeKernels* k : chosen)
                lines.push_back(
                    time_job({*k, c, weights.view(), amax, q, decoded.data()}, pool, options.repetitions, copy.data()));
        }
    }
    if (options.json)
        print_json(lines, options, out);
    else
        print_table(lines, options, out);
    return Ok{};
}

}  // namespace nibble

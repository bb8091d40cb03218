#include "measure/matmul.h"

#include "base/thread_pool.h"
#include "formats/minifloat.h"
#include "jobs/words.h"
#include "kernels/machine_limits.h"
#include "kernels/matmul.h"
#include "kernels/packed_memory.h"
#include "kernels/quantize.h"
#include "measure/median.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <time.h>

#include <algorithm>
#include <cstring>
#include <random>

namespace nibble {
namespace {

struct Kind {
    std::string_view name;
    Format format;
    ActivationFormat inputs;
};

constexpr Kind kinds[] = {
    {"bf16", Format::none, ActivationFormat::none},
    {"fp8", Format::fp8, ActivationFormat::none},
    {"fp8+fp8", Format::fp8, ActivationFormat::fp8},
    {"fp8_row+fp8_token", Format::fp8_row, ActivationFormat::fp8_token},
    {"fp8_block128+fp8_group128", Format::fp8_block128, ActivationFormat::fp8_group128},
    {"mxfp8+mxfp8", Format::mxfp8, ActivationFormat::mxfp8},
    {"mxfp4", Format::mxfp4, ActivationFormat::none},
    {"nvfp4", Format::nvfp4, ActivationFormat::none},
    {"nvfp4+nvfp4", Format::nvfp4, ActivationFormat::nvfp4},
};

struct Shape {
    std::string_view set, name;
    int64_t n, k;
};

constexpr Shape all_shapes[] = {
    {"smollm2", "q/k/v", 960, 576},    {"smollm2", "o", 576, 576},     {"smollm2", "gate/up", 3072, 576},
    {"smollm2", "down", 576, 1536},    {"llama", "q/k/v", 6144, 4096}, {"llama", "o", 4096, 4096},
    {"llama", "gate/up", 28672, 4096}, {"llama", "down", 4096, 14336},
};

constexpr float largest_input = 6.0f;

float input_scale(ActivationFormat f) {
    return f == ActivationFormat::nvfp4 ? largest_input / 2688 : f == ActivationFormat::fp8 ? largest_input / 448 : 1;
}

std::vector<float> bell(int64_t n, float width, uint32_t seed) {
    std::mt19937 random(seed);
    std::normal_distribution<float> distribution(0, width);
    const int64_t distinct = std::min<int64_t>(n, int64_t{1} << 20);
    std::vector<float> x(static_cast<size_t>(n));
    for (int64_t i = 0; i < n; ++i)
        x[size_t(i)] = i < distinct ? round_to_bf16(distribution(random)) : x[size_t(i - distinct)];
    return x;
}

// One weight matrix in a format: BF16 or quantized, before packing.
struct Weight {
    Matrix plain;
    QuantMatrix quantized;

    Weight(Format format, int64_t n, int64_t k) : plain(DType::bf16, n, k) {
        const std::vector<float> values = bell(n * k, 0.02f, 1);
        auto* codes = reinterpret_cast<uint16_t*>(plain.data.data());
        for (size_t i = 0; i < values.size(); ++i) codes[i] = bf16_from_float(values[i]);
        if (format == Format::none) return;
        const QuantizeKernels& q = **select_quantize_kernels();
        const float amax = q.scan(plain.view()).amax;
        const TensorAmax maxima{amax, format == Format::fp8_block128 ? 0.0f : amax};
        quantized = QuantMatrix(format, n, k);
        quantized.tensor_scale = tensor_scale({format}, maxima);
        QuantStats stats;
        q.quantize(plain.view(), {format}, maxima, quantized.span(), stats);
    }
    Result<PackedMatrix> pack(ThreadPool& pool) const {
        return quantized.format == Format::none ? prepack(plain.view(), pool) : prepack(quantized.view(), pool);
    }
    Result<PackedMatrix> pack(ThreadPool& pool, SharedPages& memory) const {  // packs the weight as a model does
        const MatrixView p = plain.view();
        const QuantView q = quantized.view();
        return quantized.format == Format::none ? prepack_stacked({&p, 1}, pool, memory)
                                                : prepack_stacked({&q, 1}, pool, memory);
    }
};

Status check_against_ref(const MatmulKernels& kernels, SumOrder order, const Kind& kind, ThreadPool& pool) {
    constexpr int64_t n = 200, k = 1152, most = 40;
    NIBBLE_TRY(const PackedMatrix w, Weight(kind.format, n, k).pack(pool));
    const std::vector<float> x = bell(most * k, 1.0f, 2);
    for (const int64_t m : {int64_t{1}, int64_t{5}, int64_t{13}, most}) {
        std::vector<float> mine(size_t(m * n)), truth = mine;
        const MatmulInput in{x.data(), m, k, kind.inputs, input_scale(kind.inputs)};
        kernels.matmul(w, in, {mine.data(), n}, pool);
        matmul_kernels(order).back().matmul(w, in, {truth.data(), n}, pool);
        if (std::memcmp(mine.data(), truth.data(), mine.size() * sizeof(float)) != 0)
            return fail("kernel {}: {} with {} rows differs from ref: not timed", kernels.name, kind.name, m);
    }
    return Ok{};
}

// Returns the time in seconds: CPU time with one thread, which other processes affect less; wall time with several.
double now(const ThreadPool& pool) {
    timespec t{};
    ::clock_gettime(pool.threads() == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &t);
    return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

template <class Work>
double seconds(const ThreadPool& pool, Work work) {
    const double start = now(pool);
    work();
    return now(pool) - start;
}

// Returns the operations per second of all threads together.
double multiply_add_rate(const MachineLimits& limits, ThreadPool& pool) {
    constexpr int64_t rounds = 20000;
    std::vector<int64_t> done(static_cast<size_t>(pool.threads()));
    const double time = seconds(pool, [&] {
        pool.parallel_for(pool.threads(), [&](int64_t t) { done[size_t(t)] = limits.multiply_add(rounds); });
    });
    int64_t all = 0;
    for (const int64_t d : done) all += d;
    return static_cast<double>(all) / time;
}

// Returns the bytes per second of reading `memory` once.
double read_rate(const MachineLimits& limits, const std::byte* memory, int64_t bytes, ThreadPool& pool) {
    constexpr int64_t piece = int64_t{1} << 16;
    const int64_t pieces = bytes / piece;
    std::vector<uint64_t> sums(static_cast<size_t>(pieces));
    const double time = seconds(pool, [&] {
        pool.parallel_for(pieces, [&](int64_t i) { sums[size_t(i)] = limits.read(memory + i * piece, piece); });
    });
    return static_cast<double>(pieces * piece) / time;
}

struct ProductRate {
    std::string_view format, shape, kernel;
    int64_t n = 0, k = 0, rows = 0;
    double seconds = 0;          // per product
    double rate = 0, limit = 0;  // bytes (one row) or operations per second
    double fraction = 0;
};

// Multiplies with as many equal weights as a decoding step reads, so that they come from memory as in a model.
Result<ProductRate> time_decode(const Kind& kind, const Shape& shape, const Weight& weight,
                                const MatmulKernels& kernels, const MachineLimits& limits, const BenchMatmulOptions& o,
                                ThreadPool& pool) {
    std::vector<PackedMatrix> copies;
    SharedPages pages;
    int64_t bytes = 0;
    while (bytes < o.megabytes << 20) {
        NIBBLE_TRY(copies.emplace_back(), weight.pack(pool, pages));
        bytes += copies.back().bytes();
    }
    const std::shared_ptr<std::byte> memory = pages.take(bytes);
    std::fill_n(memory.get(), bytes, std::byte{1});
    const std::vector<float> x = bell(shape.k, 1.0f, 3);
    std::vector<float> y(size_t(shape.n));
    const MatmulInput in{x.data(), 1, shape.k, kind.inputs, input_scale(kind.inputs)};
    std::vector<double> times, limit, fractions;
    for (int r = 0; r <= o.repetitions; ++r) {
        const double reading = read_rate(limits, memory.get(), bytes, pool);
        const double time = seconds(pool, [&] {
            for (const PackedMatrix& w : copies) kernels.matmul(w, in, {y.data(), shape.n}, pool);
        });
        if (r == 0) continue;  // the first round only touches the memory
        times.push_back(time / static_cast<double>(copies.size()));
        limit.push_back(reading);
        fractions.push_back(static_cast<double>(bytes) / time / reading);
    }
    const double time = median(times);
    return ProductRate{kind.name,     shape.name,
                       kernels.name,  shape.n,
                       shape.k,       1,
                       time,          static_cast<double>(copies[0].bytes()) / time,
                       median(limit), median(fractions)};
}

Result<ProductRate> time_prefill(const Kind& kind, const Shape& shape, const Weight& weight,
                                 const MatmulKernels& kernels, const MachineLimits& limits, const BenchMatmulOptions& o,
                                 ThreadPool& pool) {
    NIBBLE_TRY(const PackedMatrix w, weight.pack(pool));
    const std::vector<float> x = bell(o.rows * shape.k, 1.0f, 4);
    std::vector<float> y(size_t(o.rows * shape.n));
    const MatmulInput in{x.data(), o.rows, shape.k, kind.inputs, input_scale(kind.inputs)};
    const double operations = 2.0 * static_cast<double>(o.rows) * static_cast<double>(shape.n * shape.k);
    std::vector<double> times, limit, fractions;
    for (int r = 0; r <= o.repetitions; ++r) {
        const double before = multiply_add_rate(limits, pool);
        const double time = seconds(pool, [&] { kernels.matmul(w, in, {y.data(), shape.n}, pool); });
        const double peak = (before + multiply_add_rate(limits, pool)) / 2;
        if (r == 0) continue;
        times.push_back(time);
        limit.push_back(peak);
        fractions.push_back(operations / time / peak);
    }
    const double time = median(times);
    return ProductRate{kind.name, shape.name, kernels.name,      shape.n,       shape.k,
                       o.rows,    time,       operations / time, median(limit), median(fractions)};
}

void print_table(const std::vector<ProductRate>& lines, const BenchMatmulOptions& o, int threads, std::FILE* out) {
    fmt::print(out,
               "{} thread{}; medians of {}; every kernel equals ref. 1 row: GB/s of weights (share of the memory read "
               "rate); more rows: GFLOP/s (share of multiply-adds in registers)\n",
               threads, threads == 1 ? ", CPU time" : "s", o.repetitions);
    fmt::print(out, "{:<27}{:<9}{:<13}{:<8}{:>5}{:>11}{:>9}{:>9}{:>10}\n", "weights+inputs", "shape", "", "kernel",
               "rows", "us", "rate", "limit", "fraction");
    for (const ProductRate& l : lines)
        fmt::print(out, "{:<27}{:<9}{:<13}{:<8}{:>5}{:>11.1f}{:>9.1f}{:>9.1f}{:>10.3f}\n", l.format, l.shape,
                   fmt::format("{} x {}", l.n, l.k), l.kernel, l.rows, l.seconds * 1e6, l.rate / 1e9, l.limit / 1e9,
                   l.fraction);
}

void print_json(const std::vector<ProductRate>& lines, const BenchMatmulOptions& o, int threads, std::FILE* out) {
    auto results = nlohmann::ordered_json::array();
    for (const ProductRate& l : lines)
        results.push_back({{"format", l.format},
                           {"shape", l.shape},
                           {"outputs", l.n},
                           {"inputs", l.k},
                           {"kernel", l.kernel},
                           {"rows", l.rows},
                           {"seconds", l.seconds},
                           {l.rows == 1 ? "bytes_per_second" : "operations_per_second", l.rate},
                           {"limit", l.limit},
                           {"fraction", l.fraction}});
    const nlohmann::ordered_json all{{"threads", threads}, {"repetitions", o.repetitions}, {"results", results}};
    fmt::print(out, "{}\n", all.dump(2));
}

Result<std::vector<Kind>> chosen_kinds(const std::string& name) {
    std::vector<Kind> chosen;
    std::string choices;
    for (const Kind& k : kinds) {
        if (name.empty() || name == k.name) chosen.push_back(k);
        choices += fmt::format("{}{}", choices.empty() ? "" : ", ", k.name);
    }
    if (chosen.empty()) return fail("bench matmul: format '{}': choose one of: {}", name, choices);
    return chosen;
}

}  // namespace

Status bench_matmul(const BenchMatmulOptions& o, std::FILE* out) {
    if (o.rows < 2 || o.repetitions < 1 || o.megabytes < 1 || o.megabytes > 1 << 16)
        return fail("bench matmul: needs at least 2 rows, 1 repetition and 1 to 65536 megabytes, not {}, {}, {}",
                    o.rows, o.repetitions, o.megabytes);
    if (o.shapes != "smollm2" && o.shapes != "llama" && o.shapes != "all")
        return fail("bench matmul: shapes '{}': choose one of: smollm2, llama, all", o.shapes);
    NIBBLE_TRY(const std::vector<Kind> formats, chosen_kinds(o.format));
    NIBBLE_TRY(const SumOrder order, parse_sum_order(o.sums));
    NIBBLE_TRY(const MatmulKernels* forced, select_matmul_kernels(o.kernel, order));
    std::vector<const MatmulKernels*> chosen;
    for (const MatmulKernels& k : matmul_kernels(order))
        if (&k == forced || (o.kernel.empty() && k.supported() && k.name != "ref")) chosen.push_back(&k);

    ThreadPool pool(o.threads);
    for (const MatmulKernels* k : chosen)
        for (const Kind& kind : formats) NIBBLE_CHECK(check_against_ref(*k, order, kind, pool));
    std::vector<ProductRate> lines;
    for (const Shape& shape : all_shapes) {
        if (o.shapes != "all" && o.shapes != shape.set) continue;
        for (const Kind& kind : formats) {
            const Weight weight(kind.format, shape.n, shape.k);
            for (const MatmulKernels* k : chosen) {
                NIBBLE_TRY(const MachineLimits* limits, select_machine_limits(k->name));
                NIBBLE_TRY(ProductRate decode, time_decode(kind, shape, weight, *k, *limits, o, pool));
                NIBBLE_TRY(ProductRate prefill, time_prefill(kind, shape, weight, *k, *limits, o, pool));
                lines.push_back(decode);
                lines.push_back(prefill);
            }
        }
    }
    if (o.json)
        print_json(lines, o, pool.threads(), out);
    else
        print_table(lines, o, pool.threads(), out);
    return Ok{};
}

}  // namespace nibble

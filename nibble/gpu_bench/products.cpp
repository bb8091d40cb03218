#include "gpu_bench/products.h"

#include <cmath>
#include <map>
#include <set>

namespace nibble::bench {
namespace {

// A model's step has hundreds of launches. So the timed graph has many launches, and its fixed cost (about ten
// microseconds) does not count.
GraphTiming timing_for(const ProductKernel& kernel, int repeats) { return {kernel.m() >= 2048 ? 4 : 96, repeats}; }

// Names of --format and their kernels: weights, and inputs unless they are BF16.
struct Way {
    std::string_view format, kernel;
};
constexpr Way ways[] = {{"nvfp4", "W4A16 NVFP4"},
                        {"nvfp4", "W4A16 NVFP4 + permute"},
                        {"bf16", "BF16"},
                        {"fp8+fp8", "FP8 tensor"},
                        {"fp8_block128+fp8_group128", "FP8 128x128"}};

}  // namespace

std::vector<ProductShape> target_products() {
    return {{8192, 8192, {1, 16, 64, 128, 256, 8192}},
            {4096, 4096, {1}},
            {6144, 4096, {1}},
            {28672, 4096, {1}},
            {28672, 8192, {1}},
            {7168, 16384, {64}}};
}

std::vector<std::string_view> product_formats() {
    std::vector<std::string_view> names;
    for (const Way& w : ways)
        if (names.empty() || names.back() != w.format) names.push_back(w.format);
    return names;
}

Result<Check> check_sample(Kit& kit, const ProductKernel& kernel) {
    Check check;
    const int64_t n = kernel.n(), k = kernel.k(), m = kernel.m();
    std::set<int64_t> rows{0, n - 1};
    while (std::ssize(rows) < std::min<int64_t>(64, n)) rows.insert(static_cast<int64_t>(kit.random() % uint64_t(n)));
    std::vector<std::vector<double>> weights;
    for (const int64_t row : rows) {
        weights.emplace_back(static_cast<size_t>(k));
        kernel.weights(row, weights.back().data());
    }
    std::vector<double> x(static_cast<size_t>(k));
    for (const int64_t token : std::set<int64_t>{0, m / 2, m - 1}) {
        kernel.inputs(token, x.data());
        NIBBLE_TRY(const auto y, kit.download<float>(kernel.y() + token * n, n));
        for (int64_t row = 0; row < n; ++row)
            if (!std::isfinite(y[size_t(row)])) check.note(fmt::format("token {} row {} is not a number", token, row));
        auto w = weights.begin();
        for (const int64_t row : rows) {
            double sum = 0, terms = 0;
            for (size_t j = 0; j < x.size(); ++j) {
                const double term = x[j] * (*w)[j];
                sum += term, terms += std::abs(term);
            }
            ++w, ++check.compared;
            const double error = std::abs(y[size_t(row)] - sum) / terms;
            if (!(error <= kernel.bound()))
                check.note(fmt::format("token {} row {}: {} instead of {}", token, row, y[size_t(row)], sum));
            check.worst = std::max(check.worst, error);
        }
    }
    return check;
}

Status bench_products(Kit& kit, const Vendor& vendor, const std::vector<ProductShape>& shapes, std::string_view format,
                      int repeats, KernelTable& table) {
    NIBBLE_TRY(const ProductNoise noise, ProductNoise::create(kit));
    std::vector<std::string_view> names;
    if (vendor.library) names = {"cuBLASLt BF16", "cuBLASLt FP8"};
    for (const Way& w : ways)
        if (format.empty() || format == w.format) names.push_back(w.kernel);
    for (const ProductShape& shape : shapes) {
        std::map<int64_t, double> baseline;  // by tokens
        for (const std::string_view name : names) {
            const DeviceArena::Mark mark = kit.arena.mark();
            const auto kernel = make_product_kernel(name, kit, noise, vendor);
            if (!kernel->takes(shape.n, shape.k))
                return fail("--shape {}x{}: N must be a multiple of 16, K of 256", shape.n, shape.k);
            NIBBLE_CHECK(kernel->load(shape.n, shape.k));
            for (const int64_t m : shape.tokens) {
                const DeviceArena::Mark inner = kit.arena.mark();
                NIBBLE_TRY(const bool works, kernel->start(m));
                if (works) {
                    KernelRow row{std::string(name), fmt::format("{}x{}", shape.n, shape.k), m};
                    NIBBLE_CHECK(kernel->queue(0));
                    NIBBLE_TRY(row.check, check_sample(kit, *kernel));
                    if (row.check.wrong == 0) {
                        NIBBLE_TRY(row.time, time_graph(kit.stream, timing_for(*kernel, repeats),
                                                        [&](int i) { return kernel->queue(i); }));
                    }
                    if (name == product_baseline) baseline[m] = row.time.us;
                    row.bytes = kernel->bytes(), row.fp8 = kernel->fp8(), row.baseline_us = baseline[m];
                    row.operations = 2.0 * static_cast<double>(m) * static_cast<double>(shape.n * shape.k);
                    table.add(row);
                }
                kit.arena.release(inner);
            }
            kit.arena.release(mark);
        }
    }
    return Ok{};
}

}  // namespace nibble::bench

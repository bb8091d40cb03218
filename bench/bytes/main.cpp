// bench_bytes [ROWS]: products in 8-bit integers (kernels/byte_product.h) and in FP32 at the shapes of
// SmolLM2-135M, in processor time of one thread. Checked first: every entry against `ref` bit for bit.
#include "kernels/byte_product.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <ctime>
#include <random>
#include <string>

using namespace nibble;

namespace {

template <class Run>
double median_seconds(Run run) {
    std::vector<double> seconds;
    for (int i = 0; i < 7; ++i) {
        const std::clock_t begin = std::clock();
        run();
        seconds.push_back(static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC);
    }
    std::ranges::nth_element(seconds, seconds.begin() + 3);
    return seconds[3];
}

std::vector<float> draw(int64_t n, uint32_t seed) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    std::vector<float> x(static_cast<size_t>(n));
    for (float& v : x) v = normal(random);
    return x;
}

bool equals_ref(const ByteKernels& k, const std::vector<float>& x, const PackedMatrix& weight, ThreadPool& pool) {
    const int64_t rows = 16, cols = weight.cols(), outputs = weight.rows();
    std::vector<float> y(static_cast<size_t>(rows * outputs)), want = y;
    const auto product = [&](const ByteKernels& entry, std::vector<float>& out) {
        ByteMatrix a, b;
        byte_rows(entry, x.data(), rows, cols, cols, pool, a);
        byte_weight(entry, weight, pool, b);
        byte_product(entry, a, b, {out.data(), outputs}, pool);
    };
    product(k, y);
    product(byte_kernels().back(), want);
    return std::memcmp(y.data(), want.data(), y.size() * sizeof(float)) == 0;
}

}  // namespace

int main(int argc, char** argv) {
    const int64_t rows = argc > 1 ? std::stoll(argv[1]) : 2048;
    ThreadPool pool(1);
    const auto floats = select_matmul_kernels();
    struct Shape {
        int64_t outputs, cols;
    };
    fmt::print("GFLOP/s of {} rows, one thread; bytes include packing inputs\n", rows);
    for (const Shape& shape : {Shape{3072, 576}, Shape{576, 1536}, Shape{960, 576}}) {
        const int64_t outputs = shape.outputs, cols = shape.cols;
        const auto x = draw(rows * cols, 1), w = draw(outputs * cols, 2);
        const auto weight = prepack({DType::f32, outputs, cols, reinterpret_cast<const std::byte*>(w.data())}, pool);
        std::vector<float> y(static_cast<size_t>(rows * outputs));
        const double work = 2e-9 * static_cast<double>(rows * outputs * cols);
        const double f32 = median_seconds([&] {
            (*floats)->matmul(*weight, {.x = x.data(), .rows = rows, .stride = cols}, {y.data(), outputs}, pool);
        });
        fmt::print("{} x {}: FP32 {} {:.0f}", outputs, cols, (*floats)->name, work / f32);
        for (const ByteKernels& k : byte_kernels().first(byte_kernels().size() - 1)) {
            if (!k.supported()) continue;
            if (!equals_ref(k, x, *weight, pool)) {
                fmt::print("\n{} differs from ref\n", k.name);
                return 1;
            }
            ByteMatrix a, b;
            const double input = median_seconds([&] { byte_rows(k, x.data(), rows, cols, cols, pool, a); });
            const double weights = median_seconds([&] { byte_weight(k, *weight, pool, b); });
            const double product = median_seconds([&] { byte_product(k, a, b, {y.data(), outputs}, pool); });
            fmt::print(", bytes {} {:.0f} ({:.2f} times; inputs {:.2f} ms, weights {:.2f}, product {:.2f})", k.name,
                       work / (product + input), f32 / (product + input), 1e3 * input, 1e3 * weights, 1e3 * product);
            ByteMatrix turned;
            const double columns = median_seconds([&] { byte_columns(k, x.data(), rows, cols, cols, pool, turned); });
            std::vector<double> sums(static_cast<size_t>(cols * cols));
            const double gram = median_seconds([&] { add_byte_gram(k, turned, sums.data(), pool); });
            fmt::print("\n    moments of {}: {:.0f}, rows to codes {:.2f} ms, product {:.2f}", cols,
                       1e-9 * static_cast<double>(rows * cols * cols) / gram, 1e3 * columns, 1e3 * gram);
        }
        fmt::print("\n");
    }
}

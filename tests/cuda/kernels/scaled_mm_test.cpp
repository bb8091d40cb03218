// Compares scaled_mm with swizzled scales with product() on the decoded operands, bit for bit, and with double
// precision.
#include "cuda/device.h"
#include "formats/swizzle.h"
#include "kernels/operand_matmul_cuda.h"
#include "kernels/scaled_mm_cuda.h"

#include <cmath>

namespace nibble::bench {
namespace {

struct Operand4 {
    QuantMatrix canonical;
    std::vector<uint8_t> swizzled;
    std::vector<float> values;  // code * block scale
};

Operand4 random_operand(int64_t rows, int64_t cols, std::mt19937_64& random) {
    Operand4 o{.canonical = QuantMatrix(Format::nvfp4, rows, cols)};
    for (uint8_t& c : o.canonical.codes) c = static_cast<uint8_t>(random());
    for (uint8_t& s : o.canonical.block_scales) s = static_cast<uint8_t>(random() % 127);
    o.swizzled.resize(static_cast<size_t>(swizzled_scale_bytes(rows, cols / 16)));
    swizzle_scales(o.canonical.block_scales.data(), rows, cols / 16, o.swizzled.data());
    o.values.resize(static_cast<size_t>(rows * cols));
    for (size_t i = 0; i < o.values.size(); ++i)
        o.values[i] = e2m1_to_float(o.canonical.codes[i / 2] >> (i % 2 * 4) & 15) *
                      e4m3_to_float(o.canonical.block_scales[i / 16]);
    return o;
}

Result<Check> check_case(const Kit& given, int64_t m, int64_t n, int64_t k) {
    Kit kit = given;
    Check check{fmt::format("scaled_mm {} x {} x {}", m, n, k)};
    const DeviceArena::Mark mark = kit.arena.mark();
    const Operand4 a = random_operand(m, k, kit.random), b = random_operand(n, k, kit.random);
    const float alpha = 0.0037f;
    cuda::ScaledMatrix device_a{m, k}, device_b{n, k};
    NIBBLE_TRY(device_a.codes, kit.upload(a.canonical.codes));
    NIBBLE_TRY(device_a.scales, kit.upload(a.swizzled));
    NIBBLE_TRY(device_b.codes, kit.upload(b.canonical.codes));
    NIBBLE_TRY(device_b.scales, kit.upload(b.swizzled));
    NIBBLE_TRY(const cuda::ScaledMmPlan plan, cuda::plan_scaled_mm(m, n, k, kit.device));
    NIBBLE_TRY(std::byte * workspace, kit.poisoned(plan.workspace_bytes));
    NIBBLE_TRY(std::byte * d, kit.poisoned(m * n * 4));
    NIBBLE_CHECK(cuda::scaled_mm(plan, device_a, device_b, alpha, reinterpret_cast<float*>(d), workspace, kit.stream));
    NIBBLE_TRY(const auto got, kit.download<float>(d, m * n));

    std::vector<uint16_t> rows(a.values.size());
    for (size_t i = 0; i < rows.size(); ++i) rows[i] = bf16_from_float(a.values[i]);
    NIBBLE_TRY(const std::byte* device_rows, kit.upload_bytes(rows));
    NIBBLE_TRY(std::byte * tiles, kit.arena.allocate(cuda::operand_bytes(n, k)));
    NIBBLE_CHECK(fill_device(tiles, 0, cuda::operand_bytes(n, k), kit.stream));
    QuantView view = b.canonical.view();
    view.codes = const_cast<uint8_t*>(device_b.codes);
    NIBBLE_TRY(view.block_scales, kit.upload(b.canonical.block_scales));
    NIBBLE_CHECK(cuda::make_operand(view, n, 0, tiles, kit.stream));
    NIBBLE_TRY(std::byte * y, kit.poisoned(m * n * 4));
    NIBBLE_CHECK(cuda::matmul({.x = device_rows, .tokens = m, .scale = alpha}, {.rows = n, .cols = k, .tiles = tiles},
                              reinterpret_cast<float*>(y), 0, false, kit.stream));
    NIBBLE_TRY(const auto want, kit.download<float>(y, m * n));
    for (int64_t i = 0; i < m * n; ++i, ++check.compared) {
        double sum = 0, magnitude = 0;
        if (i % 97 == 0 || m * n < 20000) {
            for (int64_t c = 0; c < k; ++c) {
                const double term = double(a.values[size_t(i / n * k + c)]) * double(b.values[size_t(i % n * k + c)]);
                sum += term, magnitude += std::fabs(term);
            }
            const double error = std::fabs(got[size_t(i)] - sum * double(alpha)) / (magnitude * double(alpha) + 1e-30);
            check.worst = std::max(check.worst, error);
            if (!(error < 4e-6)) check.note(fmt::format("element {}: {} instead of {}", i, got[size_t(i)], sum));
        }
        if (plan.backend == cuda::ScaledBackend::emulated && float_bits(got[size_t(i)]) != float_bits(want[size_t(i)]))
            check.note(fmt::format("element {}: {} where product() gives {}", i, got[size_t(i)], want[size_t(i)]));
    }
    kit.arena.release(mark);
    return check;
}

Result<std::vector<Check>> check_scaled_mm(const Kit& kit) {
    std::vector<Check> checks;
    NIBBLE_CHECK(cuda::prepare_matmul(kit.device));
    for (const auto& [m, n, k] : {std::tuple<int64_t, int64_t, int64_t>{1, 128, 64},
                                  {5, 200, 32},
                                  {130, 72, 544},
                                  {64, 512, 4096},
                                  {300, 1024, 2048}}) {
        NIBBLE_TRY(Check c, check_case(kit, m, n, k));
        checks.push_back(std::move(c));
    }
    return checks;
}

}  // namespace

TEST(CudaKernels, ScaledProducts) { expect_all(check_scaled_mm(kit())); }

}  // namespace nibble::bench

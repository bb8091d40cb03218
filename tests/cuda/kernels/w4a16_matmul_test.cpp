#include "cuda/device.h"

#include "base/thread_pool.h"
#include "formats/minifloat.h"
#include "kernels/elementwise_cuda.h"
#include "kernels/operand_matmul_cuda.h"
#include "kernels/w4a16_matmul_cuda.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>

namespace nibble::bench {
namespace {

// Tolerance of a product, relative to the sum of the magnitudes of its terms.
constexpr double matmul_bound = 4e-6;

// Returns every compiled shape of thread block, with one part.
std::vector<cuda::MatmulTiling> matmul_tilings() {
    return {{16, 4, 1, 1}, {16, 2, 2, 1}, {32, 4, 1, 1}, {32, 2, 2, 1}, {64, 2, 1, 1}, {96, 2, 1, 1}, {128, 2, 1, 1}};
}

constexpr uint8_t poison = 0xA5;

class Checker {
public:
    Checker(const Stream& stream, const DeviceInfo& device, DeviceArena& arena, uint64_t seed)
        : stream_(stream), device_(device), arena_(arena), random_(seed) {}

    Result<Check> every_code_and_scale();
    Result<Check> round_trip(int64_t n, int64_t k);
    Result<Check> refusals();
    Result<std::vector<Check>> products(int64_t n, int64_t k);
    Result<Check> wide(int64_t n, int64_t k, const std::vector<int64_t>& batches, bool tilings, bool by_row);
    Result<Check> gated(int64_t half, int64_t k);
    Result<Check> normed(int64_t n, int64_t k);

private:
    template <class T>
    Result<T*> upload(const std::vector<T>& host) {
        NIBBLE_TRY(T * p, arena_.allocate_array<T>(static_cast<int64_t>(host.size())));
        NIBBLE_CHECK(copy_to_device(reinterpret_cast<std::byte*>(p), reinterpret_cast<const std::byte*>(host.data()),
                                    static_cast<int64_t>(host.size() * sizeof(T)), stream_));
        return p;
    }
    template <class T>
    Status download(std::vector<T>& host, const void* device) {
        NIBBLE_CHECK(copy_to_host(reinterpret_cast<std::byte*>(host.data()), static_cast<const std::byte*>(device),
                                  static_cast<int64_t>(host.size() * sizeof(T)), stream_));
        return stream_.synchronize();
    }
    QuantMatrix random_matrix(int64_t n, int64_t k) {
        QuantMatrix w(Format::nvfp4, n, k);
        for (uint8_t& c : w.codes) c = static_cast<uint8_t>(random_());
        for (uint8_t& s : w.block_scales) s = static_cast<uint8_t>(1 + random_() % 126);
        return w;
    }
    struct OnDevice {
        QuantView canonical;
        cuda::PackedSpan packed;
        uint32_t refused = 0;
        cuda::PackedMatrix view() const { return {packed.rows, packed.cols, packed.records}; }
    };
    Result<OnDevice> pack(const QuantMatrix& w) {
        OnDevice d{.canonical = {Format::nvfp4, w.rows, w.cols}, .packed = {w.rows, w.cols}};
        NIBBLE_TRY(d.canonical.codes, upload(w.codes));
        NIBBLE_TRY(d.canonical.block_scales, upload(w.block_scales));
        NIBBLE_TRY(d.packed.records, arena_.allocate(cuda::packed_bytes(w.rows, w.cols)));
        NIBBLE_CHECK(fill_device(d.packed.records, poison, cuda::packed_bytes(w.rows, w.cols), stream_));
        std::vector<uint32_t> counter{0};
        NIBBLE_TRY(uint32_t * refused, upload(counter));
        NIBBLE_CHECK(cuda::prepack(d.canonical, 0, d.packed, refused, stream_));
        NIBBLE_CHECK(download(counter, refused));
        d.refused = counter[0];
        return d;
    }
    // Computes y [m, n], followed by 64 words that must not change.
    Result<std::vector<float>> run(int64_t m, const OnDevice& w, const uint16_t* x, const float* scale, bool overlap,
                                   const cuda::MatmulTiling& tiling = {}, cuda::MatmulFactors factors = {}) {
        if (!factors.row_scales) factors.tensor_scale = scale;
        const int64_t n = w.packed.rows;
        NIBBLE_TRY(const cuda::MatmulPlan plan,
                   cuda::plan_matmul({.m = m, .n = n, .k = w.packed.cols}, device_, tiling));
        const DeviceArena::Mark mark = arena_.mark();
        std::vector<float> host(static_cast<size_t>(m * n + 64));
        NIBBLE_TRY(float* y, arena_.allocate_array<float>(m * n + 64));
        NIBBLE_CHECK(fill_device(reinterpret_cast<std::byte*>(y), poison, (m * n + 64) * 4, stream_));
        const auto* tokens = reinterpret_cast<const std::byte*>(x);
        NIBBLE_TRY(std::byte * workspace, arena_.allocate(plan.workspace_bytes));
        NIBBLE_CHECK(fill_device(workspace, 0, plan.workspace_bytes, stream_));
        if (plan.permuted_bytes) {
            NIBBLE_TRY(std::byte * permuted, arena_.allocate(plan.permuted_bytes));
            NIBBLE_CHECK(cuda::permute(plan, tokens, permuted, {overlap}, stream_));
            tokens = permuted;
        }
        // Twice, because counters must be reset after each launch.
        for (int round = 0; round < (plan.workspace_bytes ? 2 : 1); ++round)
            NIBBLE_CHECK(cuda::matmul(plan, tokens, w.view(), factors, y, plan.workspace_bytes ? workspace : nullptr,
                                      {overlap}, stream_));
        NIBBLE_CHECK(download(host, y));
        arena_.release(mark);
        for (size_t i = static_cast<size_t>(m * n); i < host.size(); ++i)
            if (float_bits(host[i]) != 0xA5A5A5A5u) return fail("matmul wrote past its output");
        host.resize(static_cast<size_t>(m * n));
        return host;
    }

    const Stream& stream_;
    const DeviceInfo& device_;
    DeviceArena& arena_;
    std::mt19937_64 random_;
    ThreadPool pool_;
};

void note(Check& check, std::string where) {
    if (check.wrong++ == 0) check.first = std::move(where);
}

uint8_t code_at(const QuantMatrix& w, int64_t row, int64_t col) {
    return w.codes[static_cast<size_t>((row * w.cols + col) / 2)] >> (col % 2 * 4) & 15;
}
float value_at(const QuantMatrix& w, int64_t row, int64_t col) {
    return e2m1_to_float(code_at(w, row, col)) *
           e4m3_to_float(w.block_scales[static_cast<size_t>((row * w.cols + col) / 16)]);
}

// Tests every code with every scale at every position of a record: one-hot tokens read the matrix column by column.
Result<Check> Checker::every_code_and_scale() {
    Check check{"every code and block scale"};
    QuantMatrix w(Format::nvfp4, 32, 2048);
    for (int64_t r = 0; r < w.rows; ++r) {
        for (int64_t c = 0; c < w.cols; c += 2)
            w.codes[static_cast<size_t>((r * w.cols + c) / 2)] =
                static_cast<uint8_t>((r + c) % 16 | (r + c + 1) % 16 << 4);
        for (int64_t g = 0; g < w.cols / 16; ++g)
            w.block_scales[static_cast<size_t>(r * (w.cols / 16) + g)] =
                static_cast<uint8_t>(1 + (g + r / 16 * 63) % 126);
    }
    const DeviceArena::Mark mark = arena_.mark();
    NIBBLE_TRY(const OnDevice d, pack(w));
    std::vector<uint16_t> x(static_cast<size_t>(8 * w.cols));
    for (int64_t first = 0; first < w.cols; first += 8) {
        std::fill(x.begin(), x.end(), uint16_t{0});
        for (int64_t t = 0; t < 8; ++t) x[static_cast<size_t>(t * w.cols + first + t)] = 0x3F80;
        const DeviceArena::Mark inner = arena_.mark();
        NIBBLE_TRY(const uint16_t* device_x, upload(x));
        NIBBLE_TRY(const auto y, run(8, d, device_x, nullptr, false));
        arena_.release(inner);
        for (int64_t t = 0; t < 8; ++t)
            for (int64_t r = 0; r < w.rows; ++r, ++check.compared)
                if (const float want = value_at(w, r, first + t), got = y[static_cast<size_t>(t * w.rows + r)];
                    want != got)
                    note(check, fmt::format("row {} column {}: {} instead of {}", r, first + t, got, want));
    }
    arena_.release(mark);
    return check;
}

Result<Check> Checker::round_trip(int64_t n, int64_t k) {
    Check check{fmt::format("prepack, unpack {}x{}", n, k)};
    const DeviceArena::Mark mark = arena_.mark();
    const QuantMatrix w = random_matrix(n, k);
    NIBBLE_TRY(const OnDevice d, pack(w));
    if (d.refused) note(check, fmt::format("{} scales refused", d.refused));
    QuantMatrix back(Format::nvfp4, n, k);
    QuantSpan out{Format::nvfp4, n, k};
    NIBBLE_TRY(out.codes, upload(back.codes));
    NIBBLE_TRY(out.block_scales, upload(back.block_scales));
    NIBBLE_CHECK(cuda::unpack(d.view(), out, stream_));
    NIBBLE_CHECK(download(back.codes, out.codes));
    NIBBLE_CHECK(download(back.block_scales, out.block_scales));
    for (size_t i = 0; i < w.codes.size(); ++i)
        if (w.codes[i] != back.codes[i]) note(check, fmt::format("code byte {}", i));
    for (size_t i = 0; i < w.block_scales.size(); ++i)
        if (w.block_scales[i] != back.block_scales[i]) note(check, fmt::format("scale {}", i));
    check.compared = static_cast<int64_t>(w.codes.size() + w.block_scales.size());
    arena_.release(mark);
    return check;
}

// Gate and up with alternating rows, activated inside the product or after it, against the separate products.
Result<Check> Checker::gated(int64_t half, int64_t k) {
    Check check{fmt::format("gate and up of {}x{}, activated", half, k)};
    const DeviceArena::Mark mark = arena_.mark();
    const QuantMatrix gate = random_matrix(half, k), up = random_matrix(half, k);
    NIBBLE_TRY(const OnDevice gate_alone, pack(gate));
    NIBBLE_TRY(const OnDevice up_alone, pack(up));
    NIBBLE_TRY(std::byte * records, arena_.allocate(cuda::packed_bytes(2 * half, k)));
    NIBBLE_TRY(uint32_t * refused, upload(std::vector<uint32_t>{0}));
    // In two panels, like a loader.
    const int64_t panel = half / 32 * 16;
    for (const auto& [from, first] : {std::pair{&gate_alone, int64_t{0}}, {&up_alone, int64_t{16}}})
        for (const auto& [row, rows] : {std::pair{int64_t{0}, panel}, {panel, half - panel}}) {
            QuantView part = from->canonical;
            part.rows = rows;
            part.codes += row * k / 2, part.block_scales += row * k / 16;
            NIBBLE_CHECK(cuda::prepack(part, first + 2 * row, {2 * half, k, records}, refused, stream_, {16, 32}));
        }
    std::vector<float> scales(static_cast<size_t>(2 * half));
    for (int64_t r = 0; r < 2 * half; ++r) scales[static_cast<size_t>(r)] = r / 16 % 2 ? 0.0013f : 0.0007f;
    NIBBLE_TRY(const float* row_scales, upload(scales));
    NIBBLE_TRY(const float* gate_scale, upload(std::vector<float>{0.0007f}));
    NIBBLE_TRY(const float* up_scale, upload(std::vector<float>{0.0013f}));
    std::vector<uint16_t> x(static_cast<size_t>(24 * k));
    std::normal_distribution<float> normal;
    for (uint16_t& v : x) v = bf16_from_float(normal(random_));
    NIBBLE_TRY(const uint16_t* device_x, upload(x));
    NIBBLE_TRY(std::byte * workspace, arena_.allocate(int64_t{64} << 20));
    NIBBLE_CHECK(fill_device(workspace, 0, int64_t{64} << 20, stream_));
    NIBBLE_TRY(const ElementwiseKernels* ref, select_elementwise_kernels("ref"));
    for (const int64_t m : {1, 2, 5, 8, 24}) {
        NIBBLE_TRY(const auto y_gate, run(m, gate_alone, device_x, gate_scale, false));
        NIBBLE_TRY(const auto y_up, run(m, up_alone, device_x, up_scale, false));
        NIBBLE_TRY(const cuda::MatmulPlan plan,
                   cuda::plan_matmul({.m = m, .n = 2 * half, .k = k, .gated = true}, device_));
        const DeviceArena::Mark inner = arena_.mark();
        NIBBLE_TRY(std::byte * out, arena_.allocate(m * half * 2 + 128));
        NIBBLE_CHECK(fill_device(out, poison, m * half * 2 + 128, stream_));
        NIBBLE_TRY(float* y, arena_.allocate_array<float>(m * 2 * half));
        const auto* tokens = reinterpret_cast<const std::byte*>(device_x);
        cuda::MatmulFactors factors{.row_scales = row_scales, .activation = Activation::silu};
        if (plan.activates()) factors.activated = out;
        if (plan.permuted_bytes) {
            NIBBLE_TRY(std::byte * permuted, arena_.allocate(plan.permuted_bytes));
            NIBBLE_CHECK(cuda::permute(plan, tokens, permuted, {}, stream_));
            tokens = permuted;
        }
        NIBBLE_CHECK(cuda::matmul(plan, tokens, {2 * half, k, records}, factors, y,
                                  plan.workspace_bytes ? workspace : nullptr, {.overlap = true}, stream_));
        if (!plan.activates())
            NIBBLE_CHECK(cuda::activate(Activation::silu, true, y, 0, m, half, {out}, true, stream_, true));
        std::vector<uint16_t> got(static_cast<size_t>(m * half + 64));
        NIBBLE_CHECK(download(got, out));
        arena_.release(inner);
        std::vector<float> want(y_gate), other(y_up);
        ref->round_bf16(want.data(), std::ssize(want));
        ref->round_bf16(other.data(), std::ssize(other));
        ref->activate(Activation::silu, want.data(), other.data(), std::ssize(want), true, want.data());
        for (size_t i = 0; i < want.size(); ++i, ++check.compared)
            if (got[i] != bf16_from_float(want[i]))
                note(check, fmt::format("m {} element {}: {} instead of {}", m, i, bf16_to_float(got[i]), want[i]));
        for (size_t i = want.size(); i < got.size(); ++i)
            if (got[i] != 0xA5A5) note(check, "wrote past its output");
    }
    arena_.release(mark);
    return check;
}

// Compares a one-token product that includes the norm with add_norm() followed by the product.
Result<Check> Checker::normed(int64_t n, int64_t k) {
    Check check{fmt::format("norm inside {}x{}", n, k)};
    const DeviceArena::Mark mark = arena_.mark();
    const QuantMatrix w = random_matrix(n, k);
    NIBBLE_TRY(const OnDevice d, pack(w));
    NIBBLE_TRY(const cuda::MatmulPlan plan, cuda::plan_matmul({.m = 1, .n = n, .k = k}, device_));
    if (!plan.norms) return fail("matmul: the plan for {} x {} makes no norm", n, k);
    std::normal_distribution<float> normal;
    // A router's product in the same launch.
    NIBBLE_CHECK(cuda::prepare_matmul(device_));
    constexpr int64_t experts = 120;
    std::vector<uint16_t> router(static_cast<size_t>(experts * k));
    for (uint16_t& v : router) v = bf16_from_float(normal(random_));
    NIBBLE_TRY(uint16_t * device_router, upload(router));
    NIBBLE_TRY(std::byte * tiles, arena_.allocate(cuda::operand_bytes(experts, k)));
    NIBBLE_CHECK(fill_device(tiles, 0, cuda::operand_bytes(experts, k), stream_));
    NIBBLE_CHECK(cuda::make_operand({DType::bf16, experts, k, reinterpret_cast<std::byte*>(device_router)}, experts, 0,
                                    tiles, stream_));
    const cuda::Operand side{.rows = experts, .cols = k, .tiles = tiles, .scale = 0.75f};
    const bool joint = cuda::takes_side(plan, side);
    if (!joint && k >= 1024) return fail("matmul: the plan for {} x {} has no joint product", n, k);
    for (const bool with_update : {true, false})
        for (const bool broken : {false, true}) {
            const DeviceArena::Mark inner = arena_.mark();
            std::vector<uint16_t> h(static_cast<size_t>(k));
            std::vector<float> update(h.size()), weight(h.size());
            for (size_t i = 0; i < h.size(); ++i)
                h[i] = bf16_from_float(3 * normal(random_)), update[i] = normal(random_), weight[i] = normal(random_);
            if (broken) (h[h.size() / 3] = 0x7F80), update[h.size() - 1] = NAN;
            NIBBLE_TRY(uint16_t * device_h, upload(h));
            NIBBLE_TRY(uint16_t * again, upload(h));
            NIBBLE_TRY(uint16_t * sum, upload(std::vector<uint16_t>(h.size(), 0xA5A5)));
            NIBBLE_TRY(const float* device_update, upload(update));
            NIBBLE_TRY(const float* device_weight, upload(weight));
            NIBBLE_TRY(int32_t * rows, upload(std::vector<int32_t>{INT32_MAX, INT32_MAX}));
            NIBBLE_TRY(std::byte * x, arena_.allocate(2 * k));
            NIBBLE_TRY(float* y, arena_.allocate_array<float>(2 * n));
            NIBBLE_TRY(std::byte * x_out, arena_.allocate(2 * k));
            NIBBLE_TRY(std::byte * alone_x, arena_.allocate(2 * k));
            NIBBLE_TRY(float* alone, arena_.allocate_array<float>(experts));
            NIBBLE_TRY(float* logits, arena_.allocate_array<float>(2 * experts));
            NIBBLE_TRY(std::byte * activated, arena_.allocate(4 * n));
            const float* u = with_update ? device_update : nullptr;
            NIBBLE_CHECK(cuda::add_norm({.tokens = 1,
                                         .width = k,
                                         .h = reinterpret_cast<std::byte*>(device_h),
                                         .update = u,
                                         .weight = device_weight,
                                         .eps = 1e-5f,
                                         .out = {x},
                                         .nonfinite = rows},
                                        true, stream_));
            NIBBLE_CHECK(cuda::matmul(plan, x, d.view(), {}, y, nullptr, {.overlap = true}, stream_));
            NIBBLE_CHECK(cuda::matmul(
                plan, x, d.view(), {}, y + n, nullptr,
                {.overlap = true,
                 .norm = {reinterpret_cast<const std::byte*>(again), u, device_weight, 1e-5f,
                          reinterpret_cast<std::byte*>(sum), rows + 1, x_out},
                 .side = joint ? cuda::MatmulOptions::Side{&side, logits + experts} : cuda::MatmulOptions::Side{}},
                stream_));
            NIBBLE_CHECK(cuda::matmul({.x = x, .tokens = 1}, side, logits, 0, true, stream_));
            if (cuda::norms_few_rows(side) != (k >= 1024)) note(check, "a norm before few rows, or none");
            if (cuda::norms_few_rows(side))
                NIBBLE_CHECK(cuda::norm_matmul({reinterpret_cast<const std::byte*>(again), u, device_weight, 1e-5f,
                                                reinterpret_cast<std::byte*>(sum), rows + 1, alone_x},
                                               side, alone, true, stream_));
            NIBBLE_CHECK(cuda::activate(Activation::relu2, false, y, 0, 1, n, {activated}, true, stream_));
            NIBBLE_CHECK(cuda::matmul(plan, x, d.view(),
                                      {.activated = activated + 2 * n, .activation = Activation::relu2}, y, nullptr,
                                      {.overlap = true}, stream_));
            std::vector<uint16_t> one_x(static_cast<size_t>(k)), other_x(one_x.size()),
                both_activated(static_cast<size_t>(2 * n));
            std::vector<float> both_logits(static_cast<size_t>(2 * experts));
            NIBBLE_CHECK(download(both_activated, activated));
            for (size_t i = 0; i < static_cast<size_t>(n); ++i, ++check.compared)
                if (both_activated[i] != both_activated[i + static_cast<size_t>(n)])
                    note(check, fmt::format("activated, row {}", i));
            NIBBLE_CHECK(download(one_x, x));
            NIBBLE_CHECK(download(other_x, x_out));
            for (size_t i = 0; i < one_x.size(); ++i, ++check.compared)
                if (one_x[i] != other_x[i]) note(check, fmt::format("x, column {}", i));
            NIBBLE_CHECK(download(both_logits, logits));
            if (cuda::norms_few_rows(side)) {
                std::vector<uint16_t> third_x(one_x.size());
                std::vector<float> third(static_cast<size_t>(experts));
                NIBBLE_CHECK(download(third_x, alone_x));
                NIBBLE_CHECK(download(third, alone));
                if (third_x != one_x) note(check, "x of norm_matmul()");
                for (size_t i = 0; i < third.size(); ++i, ++check.compared)
                    if (float_bits(third[i]) != float_bits(both_logits[i]))
                        note(check, fmt::format("norm_matmul, row {}", i));
            }
            for (size_t i = 0; joint && i < static_cast<size_t>(experts); ++i, ++check.compared)
                if (float_bits(both_logits[i]) != float_bits(both_logits[i + size_t{experts}]))
                    note(check, fmt::format("joint product, row {}: {} instead of {}", i,
                                            both_logits[i + size_t{experts}], both_logits[i]));
            std::vector<float> got(static_cast<size_t>(2 * n));
            std::vector<uint16_t> want_h(h.size()), got_h(h.size());
            std::vector<int32_t> flags(2);
            NIBBLE_CHECK(download(got, y));
            NIBBLE_CHECK(download(want_h, device_h));
            NIBBLE_CHECK(download(got_h, with_update ? sum : again));
            NIBBLE_CHECK(download(flags, rows));
            for (size_t i = 0; i < static_cast<size_t>(n); ++i, ++check.compared)
                if (float_bits(got[i]) != float_bits(got[i + static_cast<size_t>(n)]))
                    note(check, fmt::format("row {}: {} instead of {}", i, got[i + static_cast<size_t>(n)], got[i]));
            for (size_t i = 0; i < h.size(); ++i, ++check.compared)
                if (want_h[i] != got_h[i]) note(check, fmt::format("sum {}", i));
            if (flags[0] != flags[1] || (flags[0] == 0) != broken)
                note(check, fmt::format("NaN in row {} and {}", flags[0], flags[1]));
            arena_.release(inner);
        }
    arena_.release(mark);
    return check;
}

Result<Check> Checker::refusals() {
    Check check{"scales outside 1 ... 126 are counted"};
    const DeviceArena::Mark mark = arena_.mark();
    QuantMatrix w = random_matrix(32, 512);
    uint32_t want = 0;
    for (int s = 0; s < 256; ++s) {
        w.block_scales[static_cast<size_t>(s * 3)] = static_cast<uint8_t>(s);
        want += s < 1 || s > 126;
    }
    NIBBLE_TRY(const OnDevice d, pack(w));
    check.compared = 1;
    if (d.refused != want) note(check, fmt::format("{} instead of {}", d.refused, want));
    arena_.release(mark);
    return check;
}

Result<std::vector<Check>> Checker::products(int64_t n, int64_t k) {
    Check bits{fmt::format("{}x{}: same bits for every m and place", n, k)},
        error{fmt::format("{}x{}: distance from double precision", n, k)};
    const DeviceArena::Mark mark = arena_.mark();
    const QuantMatrix w = random_matrix(n, k);
    NIBBLE_TRY(const OnDevice d, pack(w));
    constexpr int64_t tokens = 8;
    std::vector<uint16_t> x(static_cast<size_t>(tokens * k));
    std::normal_distribution<float> normal;
    for (size_t i = 0; i < x.size(); ++i)
        x[i] = bf16_from_float(normal(random_) * std::ldexp(1.0f, static_cast<int>(random_() % 8)));
    // Doubled, so that any run of up to eight tokens is contiguous.
    std::vector<uint16_t> doubled(x);
    doubled.insert(doubled.end(), x.begin(), x.end());
    NIBBLE_TRY(const uint16_t* device_x, upload(doubled));
    const std::vector<float> scale_host{0.00123f};
    NIBBLE_TRY(const float* scale, upload(scale_host));

    NIBBLE_TRY(const auto all, run(tokens, d, device_x, scale, false));
    for (int64_t m = 1; m <= tokens; ++m)
        for (int64_t first = 0; first < tokens; first += m == 1 ? 1 : 3)
            for (const bool overlap : {false, true}) {
                NIBBLE_TRY(const auto y, run(m, d, device_x + first * k, scale, overlap));
                for (int64_t t = 0; t < m; ++t)
                    for (int64_t r = 0; r < n; ++r, ++bits.compared)
                        if (float_bits(y[static_cast<size_t>(t * n + r)]) !=
                            float_bits(all[static_cast<size_t>((first + t) % tokens * n + r)]))
                            note(bits, fmt::format("m {} token {} + {} row {}", m, first, t, r));
            }

    std::vector<double> worst(static_cast<size_t>(n));
    pool_.parallel_for(n, [&](int64_t r) {
        double sum[tokens] = {}, terms[tokens] = {};
        for (int64_t c = 0; c < k; ++c) {
            const double v = value_at(w, r, c);
            for (int64_t t = 0; t < tokens; ++t) {
                const double term = v * bf16_to_float(x[static_cast<size_t>(t * k + c)]);
                sum[t] += term;
                terms[t] += std::abs(term);
            }
        }
        for (int64_t t = 0; t < tokens; ++t) {
            const double ts = scale_host[0], got = all[static_cast<size_t>(t * n + r)];
            const double distance = std::abs(got - sum[t] * ts) / (terms[t] * ts);
            worst[static_cast<size_t>(r)] =
                std::isfinite(got) ? std::max(worst[static_cast<size_t>(r)], distance) : 1.0;
            if (!std::isfinite(got)) break;
        }
    });
    error.compared = n * tokens;
    for (int64_t r = 0; r < n; ++r) {
        error.worst = std::max(error.worst, worst[static_cast<size_t>(r)]);
        if (worst[static_cast<size_t>(r)] > matmul_bound) note(error, fmt::format("row {}", r));
    }
    arena_.release(mark);
    return std::vector{bits, error};
}

// More tokens than the GEMV supports must give the bits of the GEMV. by_row: each row has its own scale and bias.
Result<Check> Checker::wide(int64_t n, int64_t k, const std::vector<int64_t>& batches, bool tilings, bool by_row) {
    Check check{fmt::format("{}x{}: m > 8 has the bits of m <= 8{}", n, k, by_row ? ", factors by row" : "")};
    const DeviceArena::Mark mark = arena_.mark();
    const QuantMatrix w = random_matrix(n, k);
    NIBBLE_TRY(const OnDevice d, pack(w));
    const int64_t tokens = *std::max_element(batches.begin(), batches.end());
    std::vector<uint16_t> x(static_cast<size_t>(tokens * k));
    std::normal_distribution<float> normal;
    for (size_t i = 0; i < x.size(); ++i)
        x[i] = bf16_from_float(normal(random_) * std::ldexp(1.0f, static_cast<int>(random_() % 8)));
    std::fill_n(x.begin() + k, k, uint16_t{0});  // sums of zeros: the sign is part of the bits
    NIBBLE_TRY(const uint16_t* device_x, upload(x));
    const std::vector<float> scale_host{0.00123f};
    NIBBLE_TRY(const float* scale, upload(scale_host));
    cuda::MatmulFactors factors;
    if (by_row) {
        std::vector<float> row_scales(static_cast<size_t>(n)), bias(row_scales.size());
        for (size_t r = 0; r < bias.size(); ++r)
            row_scales[r] = 0.001f + 1e-5f * static_cast<float>(r % 17), bias[r] = normal(random_);
        NIBBLE_TRY(factors.row_scales, upload(row_scales));
        NIBBLE_TRY(factors.bias, upload(bias));
    }
    std::vector<float> want;
    for (int64_t t = 0; t < tokens; t += 8) {
        NIBBLE_TRY(const auto y, run(std::min<int64_t>(8, tokens - t), d, device_x + t * k, scale, false, {}, factors));
        want.insert(want.end(), y.begin(), y.end());
    }
    const auto compare = [&](int64_t m, bool overlap, const cuda::MatmulTiling& t) -> Status {
        NIBBLE_TRY(const auto y, run(m, d, device_x, scale, overlap, t, factors));
        for (size_t i = 0; i < y.size(); ++i, ++check.compared)
            if (float_bits(y[i]) != float_bits(want[i]))
                note(check, fmt::format("m {} tiling {}/{}/{}/{} token {} row {}: {} instead of {}", m, t.tokens,
                                        t.row_blocks, t.k_parts, t.parts, static_cast<int64_t>(i) / n,
                                        static_cast<int64_t>(i) % n, y[i], want[i]));
        return Ok{};
    };
    for (const int64_t m : batches) NIBBLE_CHECK(compare(m, m % 2, {}));
    if (tilings)
        for (const cuda::MatmulTiling& t : matmul_tilings())
            for (int parts = 1; parts <= t.most_parts(); parts *= 2) {
                const int64_t m = std::min<int64_t>(tokens, t.tokens + 3);
                NIBBLE_CHECK(compare(m, parts % 3 == 1, {t.tokens, t.row_blocks, t.k_parts, parts}));
            }
    arena_.release(mark);
    return check;
}

Result<std::vector<Check>> check_matmul(const Stream& stream, const DeviceInfo& device, DeviceArena& arena,
                                        uint64_t seed, bool small) {
    Checker checker(stream, device, arena, seed);
    std::vector<Check> results;
    NIBBLE_TRY(auto exact, checker.every_code_and_scale());
    results.push_back(std::move(exact));
    NIBBLE_TRY(auto refused, checker.refusals());
    results.push_back(std::move(refused));
    std::vector<std::pair<int64_t, int64_t>> halves{{48, 512}, {1536, 576}};
    if (!small) halves.insert(halves.end(), {{14336, 4096}, {2080, 16384}});
    for (const auto& [half, k] : halves) {
        NIBBLE_TRY(auto gated, checker.gated(half, k));
        results.push_back(std::move(gated));
    }
    std::vector<std::pair<int64_t, int64_t>> norms{{48, 512}, {1536, 576}, {6144, 4096}};
    if (!small) norms.insert(norms.end(), {{28672, 4096}, {10304, 2688}});
    for (const auto& [n, k] : norms) {
        NIBBLE_TRY(auto normed, checker.normed(n, k));
        results.push_back(std::move(normed));
    }
    // Every shape of launch: one to fourteen tiles per block, partial last blocks, empty last chunks, several passes of
    // x, clusters.
    std::vector<std::pair<int64_t, int64_t>> shapes{{16, 256}, {48, 2304}, {2128, 1280}, {48, 16384}};
    if (!small)
        shapes.insert(shapes.end(),
                      {{4096, 4096}, {8192, 8192}, {14336, 4096}, {4096, 14336}, {28672, 1024}, {160, 53248}});
    for (const auto& [n, k] : shapes) {
        NIBBLE_TRY(auto trip, checker.round_trip(n, k));
        results.push_back(std::move(trip));
        NIBBLE_TRY(auto products, checker.products(n, k));
        results.insert(results.end(), products.begin(), products.end());
    }
    struct Case {
        int64_t n, k;
        std::vector<int64_t> batches;
        bool by_row = false;
    };
    // {2560, 2048}: more tiles than thread blocks, which continue from one to the next. {1002, 1536}: rows of y are not
    // 16-byte aligned; empty chunks.
    std::vector<Case> cases{{64, 2048, {9, 16, 40}},   {48, 2304, {17, 33}},    {2128, 1280, {9, 64, 131}},
                            {2560, 2048, {129, 1100}}, {1002, 1536, {20, 131}}, {2132, 1280, {20, 64, 70, 131}, true}};
    if (!small) {
        cases.push_back({4096, 4096, {9, 16, 30, 32, 64, 65, 128, 129, 200, 256, 300}});
        cases.push_back({8192, 8192, {16, 64, 128, 256}});
    }
    for (const Case& c : cases) {
        NIBBLE_TRY(auto wide, checker.wide(c.n, c.k, c.batches, c.n < 8192, c.by_row));
        results.push_back(std::move(wide));
    }
    return results;
}

}  // namespace

TEST(CudaKernels, W4A16) {
    expect_all(check_matmul(kit().stream, kit().device, kit().arena, 1, extent() != Extent::all));
}

}  // namespace nibble::bench

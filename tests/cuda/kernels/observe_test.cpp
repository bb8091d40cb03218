// Compares the statistics of observers with plain loops on the host: ranges and counts exactly, second moments and
// divergences with double precision.
#include "cuda/device.h"
#include "kernels/observe_cuda.h"
#include "kernels/operand_matmul_cuda.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace nibble::bench {
namespace {

// Rows of several experts, one of which has no rows; or of no experts.
Result<Check> check_ranges(Kit& kit, int64_t rows, int64_t cols, int experts, bool nan) {
    Check check{fmt::format("ranges of {} x {}, {} experts{}", rows, cols, experts, nan ? ", with a NaN" : "")};
    const DeviceArena::Mark mark = kit.arena.mark();
    std::vector<uint16_t> x = kit.normal_bf16(rows * cols, 3.0f);
    if (nan) x[x.size() / 2] = 0xFFC1;
    std::vector<int32_t> begin(static_cast<size_t>(experts) + 1, 0);
    for (int e = 1; e < experts; ++e) begin[size_t(e)] = e == 2 ? begin[1] : static_cast<int32_t>(rows * e / experts);
    begin.back() = static_cast<int32_t>(rows);
    std::ranges::sort(begin);
    NIBBLE_TRY(const std::byte* device_x, kit.upload_bytes(x));
    NIBBLE_TRY(const int32_t* device_begin, kit.upload(begin));
    NIBBLE_TRY(auto* sums, kit.arena.allocate_array<cuda::RangeSums>(experts));
    NIBBLE_TRY(auto* counts, kit.arena.allocate_array<uint64_t>(experts * cuda::range_buckets));
    NIBBLE_CHECK(fill_device(reinterpret_cast<std::byte*>(sums), 0, experts * int64_t{sizeof *sums}, kit.stream));
    NIBBLE_CHECK(fill_device(reinterpret_cast<std::byte*>(counts), 0, experts * cuda::range_buckets * 8, kit.stream));
    for (int pass = 0; pass < 2; ++pass)  // the second pass adds
        NIBBLE_CHECK(cuda::observe_ranges({.x = device_x,
                                           .rows = rows,
                                           .cols = cols,
                                           .experts = experts,
                                           .begin = experts > 1 ? device_begin : nullptr},
                                          sums, counts, kit.stream));
    NIBBLE_TRY(const auto got, kit.download<cuda::RangeSums>(sums, experts));
    NIBBLE_TRY(const auto got_counts, kit.download<uint64_t>(counts, experts * cuda::range_buckets));
    for (int e = 0; e < experts; ++e) {
        const int64_t first = begin[size_t(e)], last = begin[size_t(e) + 1];
        uint32_t most = 0;
        std::vector<uint64_t> want(static_cast<size_t>(cuda::range_buckets), 0);
        for (int64_t i = first * cols; i < last * cols; ++i) {
            const uint32_t code = x[size_t(i)] & 0x7FFFu;
            most = std::max(most, code);
            want[code] += 2;
        }
        const cuda::RangeSums& g = got[size_t(e)];
        ++check.compared;
        if (std::bit_cast<uint32_t>(g.largest) != most << 16 || g.rows != static_cast<uint64_t>(2 * (last - first)))
            check.note(fmt::format("expert {}: {} in {} rows, instead of {} in {}", e, g.largest, g.rows,
                                   bf16_to_float(static_cast<uint16_t>(most)), 2 * (last - first)));
        for (int64_t b = 0; b < cuda::range_buckets; ++b, ++check.compared)
            if (got_counts[size_t(e * cuda::range_buckets + b)] != want[size_t(b)])
                check.note(fmt::format("expert {}, code {:#x}: {} instead of {}", e, b,
                                       got_counts[size_t(e * cuda::range_buckets + b)], want[size_t(b)]));
    }
    kit.arena.release(mark);
    return check;
}

Result<Check> check_cache(Kit& kit, int heads, int k_dim, int v_dim) {
    Check check{fmt::format("keys and values out of the cache, {} heads of {} and {}", heads, k_dim, v_dim)};
    const DeviceArena::Mark mark = kit.arena.mark();
    constexpr int64_t tokens = 150, pages = 6;
    cuda::KvCache cache{.shape = {.kv_heads = heads, .page_tokens = 64, .k_dim = k_dim, .v_dim = v_dim}};
    NIBBLE_TRY(cache.pages, kit.poisoned(pages * cache.shape.page_bytes()));
    const std::vector<uint16_t> k = kit.normal_bf16(tokens * heads * k_dim, 1.0f),
                                v = kit.normal_bf16(tokens * heads * v_dim, 1.0f);
    std::vector<int64_t> slots;
    for (int64_t t = 0; t < tokens; ++t) slots.push_back((t * 37 + 11) % (pages * 64));
    NIBBLE_TRY(const std::byte* device_k, kit.upload_bytes(k));
    NIBBLE_TRY(const std::byte* device_v, kit.upload_bytes(v));
    NIBBLE_TRY(const int64_t* device_slots, kit.upload(slots));
    NIBBLE_TRY(std::byte * k_out, kit.poisoned(std::ssize(k) * 2));
    NIBBLE_TRY(std::byte * v_out, kit.poisoned(std::ssize(v) * 2));
    NIBBLE_CHECK(cuda::append_kv(cache, device_k, device_v, device_slots, tokens, kit.stream));
    NIBBLE_CHECK(cuda::read_kv(cache, device_slots, tokens, k_out, v_out, kit.stream));
    for (const auto& [want, from] : {std::pair(&k, k_out), std::pair(&v, v_out)}) {
        NIBBLE_TRY(const auto got, kit.download<uint16_t>(from, std::ssize(*want)));
        for (size_t i = 0; i < want->size(); ++i, ++check.compared)
            if (got[i] != (*want)[i]) check.note(fmt::format("element {}", i));
    }
    kit.arena.release(mark);
    return check;
}

// The error is relative to the root of the product of the two diagonal entries. The bits must be symmetric and equal in
// a second run.
Result<Check> check_moments(Kit& kit, int64_t rows, int64_t n, bool local) {
    Check check{fmt::format("{} of {} x {}", local ? "16 x 16 moments" : "second moments", rows, n)};
    const DeviceArena::Mark mark = kit.arena.mark();
    const std::vector<uint16_t> x = kit.normal_bf16(rows * n, 1.0f);
    const int64_t count = n * (local ? 16 : n);
    NIBBLE_TRY(const std::byte* device_x, kit.upload_bytes(x));
    NIBBLE_TRY(std::byte * scratch, kit.poisoned(cuda::moments_scratch_bytes(n)));
    std::vector<std::vector<double>> got;
    for (int pass = 0; pass < 2; ++pass) {
        NIBBLE_TRY(auto* sums, kit.arena.allocate_array<double>(count));
        NIBBLE_CHECK(fill_device(reinterpret_cast<std::byte*>(sums), 0, 8 * count, kit.stream));
        NIBBLE_CHECK(local ? cuda::add_local_moments(device_x, rows, n, sums, kit.stream)
                           : cuda::add_moments(device_x, rows, n, sums, scratch, kit.stream));
        NIBBLE_TRY(auto found, kit.download<double>(sums, count));
        got.push_back(std::move(found));
    }
    const auto value = [&](int64_t t, int64_t i) { return double(bf16_to_float(x[size_t(t * n + i)])); };
    const auto want = [&](int64_t i, int64_t j) {
        double sum = 0;
        for (int64_t t = 0; t < rows; ++t) sum += value(t, i) * value(t, j);
        return sum;
    };
    std::vector<double> diagonal;
    for (int64_t i = 0; i < n; ++i) diagonal.push_back(want(i, i));
    const int64_t side = local ? 16 : n;
    for (int64_t at = 0; at < count; at += local ? 1 : 1 + n / 7, ++check.compared) {
        const int64_t block = local ? at / 256 : 0, i = at % (side * side) / side, j = at % side;
        const double exact = want(block * 16 + i, block * 16 + j), found = got[0][size_t(at)];
        const double far =
            std::abs(found - exact) / std::sqrt(diagonal[size_t(block * 16 + i)] * diagonal[size_t(block * 16 + j)]);
        check.worst = std::max(check.worst, far);
        if (!(far < 2e-5)) check.note(fmt::format("entry {}, {}: {} instead of {}", i, j, found, exact));
        if (found != got[0][size_t(block * 256 + j * side + i)])
            check.note(fmt::format("{}, {} is not symmetric", i, j));
    }
    for (size_t i = 0; i < got[0].size(); ++i, ++check.compared)
        if (got[0][i] != got[1][i]) check.note(fmt::format("entry {}: {} then {}", i, got[0][i], got[1][i]));
    kit.arena.release(mark);
    return check;
}

Result<Check> check_divergence(Kit& kit, int64_t rows, int64_t vocab) {
    Check check{fmt::format("divergences of {} rows of {}", rows, vocab)};
    const DeviceArena::Mark mark = kit.arena.mark();
    const std::vector<float> p = kit.normal(rows * vocab, 3.0f);
    std::vector<float> q = kit.normal(rows * vocab, 0.1f);
    for (size_t i = 0; i < q.size(); ++i) q[i] += p[i];
    for (int64_t i = 0; i < vocab; ++i) q[size_t(i)] = p[size_t(i)];  // row 0: equal distributions
    NIBBLE_TRY(const float* device_p, kit.upload(p));
    NIBBLE_TRY(const float* device_q, kit.upload(q));
    NIBBLE_TRY(auto* out, kit.arena.allocate_array<double>(rows));
    NIBBLE_CHECK(cuda::divergences(device_p, device_q, rows, vocab, out, kit.stream));
    NIBBLE_TRY(const auto got, kit.download<double>(out, rows));
    const auto shift = [&](const float* x) {
        double sum = 0;
        const double most = *std::max_element(x, x + vocab);
        for (int64_t i = 0; i < vocab; ++i) sum += std::exp(x[i] - most);
        return most + std::log(sum);
    };
    for (int64_t r = 0; r < rows; ++r, ++check.compared) {
        const float *a = p.data() + r * vocab, *b = q.data() + r * vocab;
        const double of_a = shift(a), of_b = shift(b);
        double sum = 0;
        for (int64_t i = 0; i < vocab; ++i) sum += std::exp(a[i] - of_a) * ((a[i] - of_a) - (b[i] - of_b));
        const double far = std::abs(got[size_t(r)] - sum) / (std::abs(sum) + 1e-9);
        check.worst = std::max(check.worst, r ? far : 0.0);
        if (!(std::abs(got[size_t(r)] - sum) < 1e-9 * std::abs(sum) + 1e-12))
            check.note(fmt::format("row {}: {} instead of {}", r, got[size_t(r)], sum));
    }
    kit.arena.release(mark);
    return check;
}

Result<std::vector<Check>> check_observers(const Kit& given) {
    Kit kit = given;
    NIBBLE_CHECK(cuda::prepare_matmul(kit.device));
    std::vector<Check> all;
    const auto add = [&](Result<Check> check) -> Status {
        NIBBLE_TRY(Check one, std::move(check));
        all.push_back(std::move(one));
        return Ok{};
    };
    for (const auto& [rows, cols, experts] :
         {std::tuple<int64_t, int64_t, int>{1, 8, 1}, {4096, 576, 1}, {9001, 1536, 1}, {777, 264, 5}, {60000, 64, 128}})
        NIBBLE_CHECK(add(check_ranges(kit, rows, cols, experts, false)));
    NIBBLE_CHECK(add(check_ranges(kit, 300, 72, 1, true)));
    NIBBLE_CHECK(add(check_cache(kit, 3, 64, 64)));
    NIBBLE_CHECK(add(check_cache(kit, 2, 192, 128)));
    NIBBLE_CHECK(add(check_cache(kit, 4, 16, 24)));
    for (const auto& [rows, n] :
         {std::pair<int64_t, int64_t>{1, 16}, {513, 48}, {2048, 64}, {4099, 576}, {300, 1536}}) {
        NIBBLE_CHECK(add(check_moments(kit, rows, n, false)));
        NIBBLE_CHECK(add(check_moments(kit, rows, n, true)));
    }
    NIBBLE_CHECK(add(check_divergence(kit, 40, 49152)));
    NIBBLE_CHECK(add(check_divergence(kit, 3, 7)));
    return all;
}

}  // namespace

TEST(CudaKernels, Observers) { expect_all(check_observers(kit())); }

}  // namespace nibble::bench

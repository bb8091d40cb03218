// Compares the options of rope_append() (norms, scales, layouts of queries, keys and values) with `ref` of
// kernels/elementwise.h, bit for bit. Keys and values are read back from the cache.
#include "cuda/device.h"
#include "kernels/elementwise_cuda.h"
#include "kernels/observe_cuda.h"

#include <algorithm>
#include <cmath>

namespace nibble::bench {
namespace {

struct RopeCase {
    std::string name;
    cuda::RopeAppend::Options options;
    cuda::KvShape kv{.kv_heads = 2, .page_tokens = 16, .k_dim = 64, .v_dim = 64};
    int rope_dims = 64;
    bool interleaved = false, norms = true, joined = false;
    int q_heads = 6;
};

std::vector<RopeCase> rope_cases() {
    std::vector<RopeCase> all;
    all.push_back({"norms of all heads", {}});
    all.back().joined = true, all.back().rope_dims = 32;
    all.push_back({"late norms", {.late = true}});
    all.push_back({"late norms, neighbours rotate", {.late = true}});
    all.back().interleaved = true;
    all.push_back({"scaled queries", {.query_beta = 0.1f, .query_period = 8, .query_offset = 1}});
    all.back().norms = false, all.back().rope_dims = 0;
    all.push_back({"gates", {.gated = true}});
    all.back().kv.k_dim = all.back().kv.v_dim = 128, all.back().rope_dims = 32;
    all.push_back({"values from keys", {.value_norm = true, .keys_as_values = true}});
    all.push_back({"scaled values of another size", {.value_scale = 0.707f}});
    all.back().kv.k_dim = 192, all.back().kv.v_dim = 128, all.back().norms = false;
    all.push_back({"queries only", {.queries_only = true}});
    all.push_back({"heads of 24 and 16", {.value_scale = 0.5f}});
    all.back().kv.k_dim = 24, all.back().kv.v_dim = 16, all.back().rope_dims = 8;
    return all;
}

// The expected rows [rows, heads * dim], BF16 values as floats.
struct ExpectedRope {
    std::vector<float> q, k, v;
};

// Computes one row like Attention::prepare_rows.
void expected_row(const RopeCase& c, const float* row, int32_t position, const float* cos, const float* sin,
                  const std::vector<float>& q_norm, const std::vector<float>& k_norm, ExpectedRope& out) {
    const ElementwiseKernels& ref = **select_elementwise_kernels("ref");
    const cuda::RopeAppend::Options& o = c.options;
    const int64_t dim = c.kv.k_dim, q_pitch = o.gated ? 2 * dim : dim, q_end = c.q_heads * q_pitch;
    const int64_t k_width = c.kv.kv_heads * dim, v_width = int64_t{c.kv.kv_heads} * c.kv.v_dim;
    constexpr float eps = 1e-5f;
    std::vector<float> q, k, v;
    for (int64_t i = 0; i < c.q_heads * dim; ++i) q.push_back(row[i / dim * q_pitch + i % dim]);
    if (!o.queries_only) {
        k.assign(row + q_end, row + q_end + k_width);
        const float* values = row + q_end + (o.keys_as_values ? 0 : k_width);
        v.assign(values, values + v_width);
    }
    for (auto* x : {&q, &k}) {
        const std::vector<float>& w = x == &q ? q_norm : k_norm;
        const int64_t normed = c.joined ? std::ssize(*x) : dim;
        const auto norm = [&] {
            for (int64_t at = 0; c.norms && at < std::ssize(*x); at += normed)
                ref.rms_norm(x->data() + at, w.data(), normed, eps, true, x->data() + at);
        };
        if (!o.late) norm();
        if (c.rope_dims > 0) ref.rope(x->data(), std::ssize(*x) / dim, dim, cos, sin, c.rope_dims, c.interleaved, true);
        if (o.late) norm();
    }
    if (o.query_period > 0) {
        const auto steps = static_cast<double>((position + o.query_offset) / o.query_period);
        const auto factor = static_cast<float>(1 + double{o.query_beta} * std::log1p(steps));
        for (float& x : q) x = round_to_bf16(x * factor);
    }
    const std::vector<float> ones(static_cast<size_t>(c.kv.v_dim), 1.0f);
    for (int64_t at = 0; o.value_norm && at < std::ssize(v); at += c.kv.v_dim)
        ref.rms_norm(v.data() + at, ones.data(), c.kv.v_dim, eps, true, v.data() + at);
    for (float& x : v) x = round_to_bf16(x * o.value_scale);
    out.q.insert(out.q.end(), q.begin(), q.end());
    out.k.insert(out.k.end(), k.begin(), k.end());
    out.v.insert(out.v.end(), v.begin(), v.end());
}

Result<Check> check_rope_case(Kit& kit, RopeCase c, bool in_rows) {
    Check check{c.name + (in_rows ? ", BF16 rows" : "")};
    const DeviceArena::Mark mark = kit.arena.mark();
    constexpr int64_t tokens = 23, pages = 4;
    const cuda::RopeAppend::Options& o = c.options;
    const int64_t dim = c.kv.k_dim, q_width = c.q_heads * dim * (o.gated ? 2 : 1), k_width = c.kv.kv_heads * dim;
    const int64_t v_width = int64_t{c.kv.kv_heads} * c.kv.v_dim;
    const int64_t width = q_width + (o.queries_only ? 0 : k_width + (o.keys_as_values ? 0 : v_width));
    std::vector<float> qkv = kit.normal(tokens * width, 2.0f);
    std::vector<uint16_t> bits;
    for (const float x : qkv) bits.push_back(bf16_from_float(x));
    const std::vector<float> q_norm = kit.normal(c.joined ? c.q_heads * dim : dim, 1.0f);
    const std::vector<float> k_norm = kit.normal(c.joined ? k_width : dim, 1.0f);
    std::vector<float> cos, sin;
    for (int64_t p = 0; p < tokens; ++p)
        for (int i = 0; i < c.rope_dims / 2; ++i) {
            cos.push_back(static_cast<float>(std::cos(p * std::pow(1e4, -2.0 * i / c.rope_dims))));
            sin.push_back(static_cast<float>(std::sin(p * std::pow(1e4, -2.0 * i / c.rope_dims))));
        }
    std::vector<int32_t> positions;
    std::vector<int64_t> slots;
    for (int32_t t = 0; t < tokens; ++t) positions.push_back((t * 7) % tokens), slots.push_back(63 - 2 * t);
    cuda::KvCache cache{.shape = c.kv};
    NIBBLE_TRY(cache.pages, kit.poisoned(pages * c.kv.stride()));
    cuda::RopeAppend r{.tokens = tokens,
                       .q_heads = c.q_heads,
                       .eps = 1e-5f,
                       .rope_dims = c.rope_dims,
                       .interleaved = c.interleaved,
                       .options = o};
    NIBBLE_TRY(const float* device_qkv, kit.upload(qkv));
    NIBBLE_TRY(const std::byte* device_rows, kit.upload_bytes(bits));
    r.qkv = in_rows ? nullptr : device_qkv, r.qkv_rows = in_rows ? device_rows : nullptr;
    NIBBLE_TRY(r.slots, kit.upload(slots));
    if (c.norms) {
        NIBBLE_TRY(r.q_norm, kit.upload(q_norm));
        NIBBLE_TRY(r.k_norm, kit.upload(k_norm));
    }
    if (c.joined) {
        NIBBLE_TRY(r.options.joined_scales, kit.arena.allocate_array<float>(2 * tokens));
    }
    NIBBLE_TRY(r.positions, kit.upload(positions));
    NIBBLE_TRY(r.cos, kit.upload(cos));
    NIBBLE_TRY(r.sin, kit.upload(sin));
    NIBBLE_TRY(r.q, kit.poisoned(2 * tokens * c.q_heads * dim));
    NIBBLE_CHECK(cuda::rope_append(r, cache, true, kit.stream));
    ExpectedRope want;
    for (float& x : qkv) x = round_to_bf16(x);
    for (size_t t = 0; t < tokens; ++t) {
        const size_t angle = static_cast<size_t>(positions[t]) * static_cast<size_t>(c.rope_dims / 2);
        expected_row(c, &qkv[t * static_cast<size_t>(width)], positions[t], cos.data() + angle, sin.data() + angle,
                     q_norm, k_norm, want);
    }
    const auto compare = [&](const char* what, const std::vector<float>& expected, const std::vector<uint16_t>& got) {
        for (size_t i = 0; i < expected.size(); ++i, ++check.compared)
            if (got[i] != bf16_from_float(expected[i]))
                check.note(fmt::format("{} {}: {} instead of {}", what, i, bf16_to_float(got[i]), expected[i]));
    };
    NIBBLE_TRY(const auto q, kit.download<uint16_t>(r.q, std::ssize(want.q)));
    compare("q", want.q, q);
    if (!o.queries_only) {
        NIBBLE_TRY(std::byte * k, kit.poisoned(2 * tokens * k_width));
        NIBBLE_TRY(std::byte * v, kit.poisoned(2 * tokens * v_width));
        NIBBLE_CHECK(cuda::read_kv(cache, r.slots, tokens, k, v, kit.stream));
        NIBBLE_TRY(const auto got_k, kit.download<uint16_t>(k, tokens * k_width));
        NIBBLE_TRY(const auto got_v, kit.download<uint16_t>(v, tokens * v_width));
        compare("k", want.k, got_k);
        compare("v", want.v, got_v);
    } else {
        NIBBLE_TRY(const auto bytes, kit.download<uint8_t>(cache.pages, pages * c.kv.stride()));
        if (std::ranges::any_of(bytes, [](uint8_t b) { return b != Kit::poison; })) check.note("the cache changed");
    }
    kit.arena.release(mark);
    return check;
}

Result<std::vector<Check>> check_rope_options(Kit& kit) {
    std::vector<Check> all;
    for (const RopeCase& c : rope_cases())
        for (const bool in_rows : {false, true}) {
            NIBBLE_TRY(Check check, check_rope_case(kit, c, in_rows));
            all.push_back(std::move(check));
        }
    return all;
}

}  // namespace

TEST(CudaKernels, RopeOptions) { expect_all(check_rope_options(kit())); }

}  // namespace nibble::bench

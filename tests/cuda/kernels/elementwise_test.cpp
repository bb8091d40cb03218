// Compares the kernels between products with `ref` of kernels/elementwise.h, bit for bit.
#include "cuda/device.h"

#include "kernels/elementwise_backward_cuda.h"
#include "kernels/elementwise_cuda.h"

#include <algorithm>
#include <cmath>

namespace nibble::bench {
namespace {

class Checker : Kit {
public:
    Checker(const Kit& kit, const ElementwiseKernels& ref) : Kit(kit), ref_(ref) {}

    Result<Check> add_norm(int64_t tokens, int64_t width, int tile, bool post);
    Result<Check> norm_rows(int64_t tokens, int64_t width, int groups);
    Result<Check> activate(Activation a, std::string_view name, bool gated, int64_t width, int tile);
    Result<Check> rope(const cuda::KvShape& kv, int q_heads, int dims, bool interleaved, bool norms);
    Status rope_rows(Check& check, const cuda::RopeAppend& r, const cuda::KvShape& kv, const std::vector<uint16_t>& qkv,
                     const std::vector<float>& want_q, const std::vector<float>& want_k,
                     const std::vector<float>& want_v);
    Result<Check> latent(cuda::KvType type);
    Result<Check> embed_and_argmax();

private:
    // Writes the expected cache content: keys and values of one head at a slot.
    void put(std::vector<uint8_t>& pages, const cuda::KvShape& kv, int64_t slot, int head, const float* k,
             const float* v, float k_scale, float v_scale) const;
    struct Angles {
        std::vector<float> cos, sin;
        Angles(int positions, int dims) {
            for (int p = 0; p < positions; ++p)
                for (int i = 0; i < dims / 2; ++i) {
                    const double angle = p * std::pow(1e4, -2.0 * i / dims);
                    cos.push_back(static_cast<float>(std::cos(angle)));
                    sin.push_back(static_cast<float>(std::sin(angle)));
                }
        }
    };
    const ElementwiseKernels& ref_;
};

// Returns the position of element (t, j) in RowsOut. It follows the description of w4a16 columns, not the kernels'
// code.
size_t place(int64_t t, int64_t j, int64_t width, int tile) {
    if (tile == 0) return static_cast<size_t>(t * width + j);
    const int64_t block = j / 64, pair = j % 64 / 2, chunk = pair % 8, in_chunk = pair / 8, row = t % tile;
    const int64_t base = ((t / tile * (width / 64) + block) * tile + row) * 64;
    return static_cast<size_t>(base + ((chunk ^ row % 8) * 8) + in_chunk * 2 + j % 2);
}

void note(Check& check, std::string where) { check.note(std::move(where)); }

// Compares want [tokens, width] of BF16 values with `got`.
void compare(Check& check, const std::vector<float>& want, const std::vector<uint16_t>& got, int64_t width, int tile) {
    for (size_t i = 0; i < want.size(); ++i, ++check.compared) {
        const auto t = static_cast<int64_t>(i) / width, j = static_cast<int64_t>(i) % width;
        const uint16_t bits = got[place(t, j, width, tile)];
        if (bits != bf16_from_float(want[i]))
            note(check, fmt::format("token {} column {}: {} instead of {}", t, j, bf16_to_float(bits), want[i]));
    }
}

// Returns the largest magnitude of numbers after rounding to BF16.
float largest(const std::vector<float>& x) {
    float m = 0;
    for (const float v : x) m = std::max(m, magnitude(round_to_bf16(v)));
    return m;
}

int64_t padded(int64_t tokens, int tile) { return tile ? (tokens + tile - 1) / tile * tile : tokens; }

Result<Check> Checker::add_norm(int64_t tokens, int64_t width, int tile, bool post) {
    Check check{fmt::format("add_norm {} x {} tile {}{}", tokens, width, tile, post ? " post" : "")};
    const DeviceArena::Mark mark = arena.mark();
    std::vector<float> h = normal(tokens * width, 3.0f), update = normal(tokens * width, 1.0f);
    const std::vector<float> weight = normal(width, 1.0f), post_norm = normal(width, 1.0f);
    std::fill_n(h.begin(), width, 0.0f);
    std::fill_n(update.begin(), width, 0.0f);
    std::vector<uint16_t> h_bits(h.size());
    for (size_t i = 0; i < h.size(); ++i) h_bits[i] = bf16_from_float(h[i]), h[i] = bf16_to_float(h_bits[i]);
    NIBBLE_TRY(uint16_t * device_h, upload(h_bits));
    NIBBLE_TRY(const float* device_update, upload(update));
    std::vector<uint16_t> update_bits;
    for (const float u : update) update_bits.push_back(bf16_from_float(u));
    NIBBLE_TRY(const std::byte* update_rows, upload_bytes(update_bits));
    NIBBLE_TRY(const float* device_weight, upload(weight));
    NIBBLE_TRY(const float* device_post, upload(post_norm));
    NIBBLE_TRY(int32_t * nonfinite, upload(std::vector<int32_t>{INT32_MAX}));
    const int64_t words = padded(tokens, tile) * width;
    NIBBLE_TRY(std::byte * out, poisoned(words * 2));
    for (const auto& [with_update, in_rows] : {std::pair{true, false}, {true, true}, {false, false}}) {
        NIBBLE_TRY(float* amax, upload(std::vector<float>{0.0f}));
        NIBBLE_CHECK(cuda::add_norm({.tokens = tokens,
                                     .width = width,
                                     .h = reinterpret_cast<std::byte*>(device_h),
                                     .update = with_update && !in_rows ? device_update : nullptr,
                                     .update_rows = in_rows ? update_rows : nullptr,
                                     .post_norm = post ? device_post : nullptr,
                                     .weight = device_weight,
                                     .eps = 1e-5f,
                                     .out = {out, tile},
                                     .nonfinite = nonfinite,
                                     .amax = amax},
                                    with_update, stream));
        std::vector<float> want(h.size());
        for (int64_t t = 0; t < tokens; ++t) {
            float* row = h.data() + t * width;
            std::vector<float> u(update.begin() + t * width, update.begin() + (t + 1) * width);
            ref_.round_bf16(u.data(), width);
            if (post) ref_.rms_norm(u.data(), post_norm.data(), width, 1e-5f, true, u.data());
            if (with_update) ref_.add(u.data(), width, true, row);
            ref_.rms_norm(row, weight.data(), width, 1e-5f, true, want.data() + t * width);
        }
        NIBBLE_TRY(const auto got, download<uint16_t>(out, words));
        compare(check, want, got, width, tile);
        NIBBLE_TRY(const auto most, download<float>(amax, 1));
        if (most[0] != largest(want)) note(check, fmt::format("amax {}, not {}", most[0], largest(want)));
        NIBBLE_TRY(const auto got_h, download<uint16_t>(device_h, tokens * width));
        compare(check, h, got_h, width, 0);
    }
    NIBBLE_TRY(const auto none, download<int32_t>(nonfinite, 1));
    if (none[0] != INT32_MAX) note(check, "a NaN where there is none");
    update[static_cast<size_t>((tokens - 1) * width + width / 2)] = INFINITY;
    if (tokens > 2) update[static_cast<size_t>(2 * width - 1)] = NAN;
    NIBBLE_TRY(const float* broken, upload(update));
    NIBBLE_CHECK(cuda::add_norm({.tokens = tokens,
                                 .width = width,
                                 .h = reinterpret_cast<std::byte*>(device_h),
                                 .update = broken,
                                 .nonfinite = nonfinite},
                                true, stream));
    NIBBLE_TRY(const auto first, download<int32_t>(nonfinite, 1));
    if (first[0] != (tokens > 2 ? 1 : tokens - 1)) note(check, fmt::format("first NaN in row {}", first[0]));
    arena.release(mark);
    return check;
}

Result<Check> Checker::norm_rows(int64_t tokens, int64_t width, int groups) {
    Check check{fmt::format("norm_rows {} x {} in {}", tokens, width, groups)};
    const DeviceArena::Mark mark = arena.mark();
    const int64_t stride = width + 40, each = width / groups;
    std::vector<float> in = normal(tokens * stride, 2.0f);
    const std::vector<float> weight = normal(width, 1.0f);
    NIBBLE_TRY(const float* device_in, upload(in));
    NIBBLE_TRY(const float* device_weight, upload(weight));
    NIBBLE_TRY(std::byte * out, poisoned(tokens * width * 2));
    NIBBLE_CHECK(cuda::norm_rows({.tokens = tokens,
                                  .width = width,
                                  .in = device_in + 7,
                                  .in_stride = stride,
                                  .weight = device_weight,
                                  .eps = 1e-6f,
                                  .out = out,
                                  .groups = groups},
                                 true, stream));
    ref_.round_bf16(in.data(), static_cast<int64_t>(in.size()));
    std::vector<float> want(static_cast<size_t>(tokens * width));
    for (int64_t t = 0; t < tokens; ++t)
        for (int g = 0; g < groups; ++g)
            ref_.rms_norm(in.data() + t * stride + 7 + g * each, weight.data() + g * each, each, 1e-6f, true,
                          want.data() + t * width + g * each);
    NIBBLE_TRY(const auto got, download<uint16_t>(out, tokens * width));
    compare(check, want, got, width, 0);
    arena.release(mark);
    return check;
}

Result<Check> Checker::activate(Activation a, std::string_view name, bool gated, int64_t width, int tile) {
    constexpr int64_t tokens = 19;
    Check check{fmt::format("activate {}{} tile {}", name, gated ? " gated" : "", tile)};
    const DeviceArena::Mark mark = arena.mark();
    const int64_t stride = width * (gated ? 2 : 1) + (tile ? 0 : 64);
    std::vector<float> in = normal(tokens * stride, 4.0f);
    // The first rows contain every finite BF16 pattern.
    for (size_t i = 0; i < 65536 && i < in.size(); ++i) {
        const float v = bf16_to_float(static_cast<uint16_t>(i));
        if (std::isfinite(v) && static_cast<int64_t>(i) % stride < width) in[i] = v;
    }
    NIBBLE_TRY(const float* device_in, upload(in));
    const int64_t words = padded(tokens, tile) * width;
    NIBBLE_TRY(std::byte * out, poisoned(words * 2));
    NIBBLE_CHECK(cuda::activate(a, gated, device_in, stride, tokens, width, {out, tile}, true, stream));
    ref_.round_bf16(in.data(), static_cast<int64_t>(in.size()));
    std::vector<float> want(static_cast<size_t>(tokens * width));
    for (int64_t t = 0; t < tokens; ++t) {
        const float* row = in.data() + t * stride;
        ref_.activate(a, row, gated ? row + width : nullptr, width, true, want.data() + t * width);
    }
    NIBBLE_TRY(const auto got, download<uint16_t>(out, words));
    compare(check, want, got, width, tile);
    if (tile == 0) {  // rows that are already BF16
        std::vector<uint16_t> rows;
        for (int64_t t = 0; t < tokens; ++t)
            for (int64_t j = 0; j < width * (gated ? 2 : 1); ++j)
                rows.push_back(bf16_from_float(in[static_cast<size_t>(t * stride + j)]));
        NIBBLE_TRY(const std::byte* device_rows, upload_bytes(rows));
        NIBBLE_TRY(std::byte * second, poisoned(words * 2));
        NIBBLE_TRY(float* amax, upload(std::vector<float>{0.0f}));
        NIBBLE_CHECK(cuda::activate(a, gated, device_rows, tokens, width, {second}, true, stream, amax));
        NIBBLE_TRY(const auto again, download<uint16_t>(second, words));
        compare(check, want, again, width, 0);
        NIBBLE_TRY(const auto most, download<float>(amax, 1));
        if (most[0] != largest(want)) note(check, fmt::format("amax {}, not {}", most[0], largest(want)));
    }
    arena.release(mark);
    return check;
}

void Checker::put(std::vector<uint8_t>& pages, const cuda::KvShape& kv, int64_t slot, int head, const float* k,
                  const float* v, float k_scale, float v_scale) const {
    const int in_page = static_cast<int>(slot % kv.page_tokens), t = in_page % 16;
    uint8_t* tile = pages.data() + slot / kv.page_tokens * kv.stride() +
                    (head * (kv.page_tokens / 16) + in_page / 16) * cuda::kv_tile_bytes(kv.type, kv.dims());
    const auto element = [&](uint8_t* at, float x, float scale) {
        const uint16_t bits = bf16_from_float(x);
        if (kv.type == cuda::KvType::e4m3)
            *at = e4m3_from_float_saturating(x / scale);
        else
            std::copy_n(reinterpret_cast<const uint8_t*>(&bits), 2, at);
    };
    for (int d = 0; d < kv.dims().k; ++d)
        element(tile + cuda::k_offset(kv.type, t, d), d < kv.k_dim ? k[d] : 0.0f, k_scale);
    tile += cuda::k_tile_bytes(kv.type, kv.dims());
    for (int d = 0; d < kv.dims().v; ++d)
        element(tile + cuda::v_offset(kv.type, t, d), d < kv.v_dim ? v[d] : 0.0f, v_scale);
}

Result<Check> Checker::rope(const cuda::KvShape& kv, int q_heads, int dims, bool interleaved, bool norms) {
    constexpr int64_t tokens = 37, pages = 4;
    constexpr int positions = 50;
    const int kv_heads = kv.kv_heads, dim = kv.k_dim;
    const int64_t width = int64_t{q_heads + kv_heads} * dim + int64_t{kv_heads} * kv.v_dim, stride = width + 24;
    Check check{fmt::format("rope_append {} head {}/{} rotary {}{}{}", kv.type == cuda::KvType::bf16 ? "bf16" : "e4m3",
                            dim, kv.v_dim, dims, interleaved ? " interleaved" : "", norms ? " norms" : "")};
    const DeviceArena::Mark mark = arena.mark();
    std::vector<float> qkv = normal(tokens * stride, 2.0f);
    std::vector<uint16_t> rounded_qkv;
    for (const float v : qkv) rounded_qkv.push_back(bf16_from_float(v));
    const std::vector<float> q_norm = normal(dim, 1.0f), k_norm = normal(dim, 1.0f);
    const Angles angles(positions, dims);
    std::vector<int32_t> position;
    std::vector<int64_t> slots;
    const int64_t room = pages * kv.page_tokens;
    for (int64_t t = 0; t < tokens; ++t) {
        position.push_back(static_cast<int32_t>(t * 7 % positions));
        slots.push_back(t == 5 ? -1 : t * 3 % room);  // each slot at most once
    }
    std::vector<float> k_scales, v_scales;
    for (int h = 0; h < kv_heads; ++h) {
        k_scales.push_back(0.011f + 0.01f * static_cast<float>(h));
        v_scales.push_back(0.013f + 0.004f * static_cast<float>(h));
    }
    cuda::KvCache cache{kv};
    const int64_t bytes = pages * kv.stride();
    NIBBLE_TRY(cache.pages, poisoned(bytes));
    NIBBLE_TRY(cache.k_scales, upload(k_scales));
    NIBBLE_TRY(cache.v_scales, upload(v_scales));
    cuda::RopeAppend r{.tokens = tokens,
                       .q_heads = q_heads,
                       .qkv_stride = stride,
                       .eps = 1e-6f,
                       .rope_dims = dims,
                       .interleaved = interleaved};
    NIBBLE_TRY(r.qkv, upload(qkv));
    NIBBLE_TRY(r.positions, upload(position));
    NIBBLE_TRY(r.slots, upload(slots));
    NIBBLE_TRY(r.cos, upload(angles.cos));
    NIBBLE_TRY(r.sin, upload(angles.sin));
    if (norms) {
        NIBBLE_TRY(r.q_norm, upload(q_norm));
        NIBBLE_TRY(r.k_norm, upload(k_norm));
    }
    NIBBLE_TRY(r.q, poisoned(tokens * q_heads * dim * 2));
    NIBBLE_CHECK(cuda::rope_append(r, cache, true, stream));

    ref_.round_bf16(qkv.data(), static_cast<int64_t>(qkv.size()));
    std::vector<uint8_t> want_pages(static_cast<size_t>(bytes), poison);
    std::vector<float> want_q, want_k, want_v;
    for (int64_t t = 0; t < tokens; ++t) {
        float* row = qkv.data() + t * stride;
        const int64_t angle = position[static_cast<size_t>(t)] * (dims / 2);
        for (int h = 0; norms && h < q_heads + kv_heads; ++h)
            ref_.rms_norm(row + h * dim, (h < q_heads ? q_norm : k_norm).data(), dim, 1e-6f, true, row + h * dim);
        if (dims)
            ref_.rope(row, q_heads + kv_heads, dim, angles.cos.data() + angle, angles.sin.data() + angle, dims,
                      interleaved, true);
        float *k = row + q_heads * dim, *v = k + kv_heads * dim;
        want_q.insert(want_q.end(), row, k);
        want_k.insert(want_k.end(), k, v);
        want_v.insert(want_v.end(), v, v + kv_heads * kv.v_dim);
    }
    const auto fill_pages = [&] {
        std::ranges::fill(want_pages, poison);
        for (size_t t = 0; t < slots.size(); ++t)
            for (int h = 0; slots[t] >= 0 && h < kv_heads; ++h) {
                const size_t row = t * static_cast<size_t>(kv_heads) + static_cast<size_t>(h);
                put(want_pages, kv, slots[t], h, want_k.data() + row * static_cast<size_t>(dim),
                    want_v.data() + row * static_cast<size_t>(kv.v_dim), k_scales[static_cast<size_t>(h)],
                    v_scales[static_cast<size_t>(h)]);
            }
    };
    fill_pages();
    NIBBLE_TRY(const auto got_q, download<uint16_t>(r.q, tokens * q_heads * dim));
    compare(check, want_q, got_q, q_heads * dim, 0);
    const auto compare_pages = [&]() -> Status {
        NIBBLE_TRY(const auto got_pages, download<uint8_t>(cache.pages, bytes));
        for (size_t i = 0; i < got_pages.size(); ++i, ++check.compared)
            if (got_pages[i] != want_pages[i]) note(check, fmt::format("byte {} of the pages", i));
        return Ok{};
    };
    NIBBLE_CHECK(compare_pages());
    r.qkv = nullptr;  // rows that are already BF16, into separate and adjacent slots
    NIBBLE_TRY(r.qkv_rows, upload_bytes(rounded_qkv));
    for (const bool contiguous : {false, true}) {
        for (size_t t = 0; contiguous && t < slots.size(); ++t)
            slots[t] = t == 5 ? -1 : static_cast<int64_t>(t) + (t < 20 ? 4 : 5);
        NIBBLE_TRY(r.slots, upload(slots));
        fill_pages();
        NIBBLE_TRY(r.q, poisoned(tokens * q_heads * dim * 2));
        NIBBLE_CHECK(fill_device(cache.pages, poison, bytes, stream));
        NIBBLE_CHECK(cuda::rope_append(r, cache, true, stream));
        NIBBLE_TRY(const auto again, download<uint16_t>(r.q, tokens * q_heads * dim));
        compare(check, want_q, again, q_heads * dim, 0);
        NIBBLE_CHECK(compare_pages());
    }
    if (dim == kv.v_dim) NIBBLE_CHECK(rope_rows(check, r, kv, rounded_qkv, want_q, want_k, want_v));
    arena.release(mark);
    return check;
}

// The same for separate rows of q, k and v.
Status Checker::rope_rows(Check& check, const cuda::RopeAppend& r, const cuda::KvShape& kv,
                          const std::vector<uint16_t>& qkv, const std::vector<float>& want_q,
                          const std::vector<float>& want_k, const std::vector<float>& want_v) {
    const int64_t q_cols = int64_t{r.q_heads} * kv.k_dim, kv_cols = int64_t{kv.kv_heads} * kv.k_dim;
    std::vector<uint16_t> adjacent;
    for (int64_t t = 0; t < r.tokens; ++t) {
        const auto row = qkv.begin() + t * r.qkv_stride;
        adjacent.insert(adjacent.end(), row, row + q_cols + 2 * kv_cols);
    }
    NIBBLE_TRY(const std::byte* rows, upload_bytes(adjacent));
    NIBBLE_TRY(std::byte * q, poisoned(2 * r.tokens * q_cols));
    NIBBLE_TRY(std::byte * k, poisoned(2 * r.tokens * kv_cols));
    NIBBLE_TRY(std::byte * v, poisoned(2 * r.tokens * kv_cols));
    NIBBLE_CHECK(cuda::rope_rows({.tokens = r.tokens,
                                  .q_heads = r.q_heads,
                                  .kv_heads = kv.kv_heads,
                                  .dim = kv.k_dim,
                                  .qkv = rows,
                                  .q_norm = r.q_norm,
                                  .k_norm = r.k_norm,
                                  .eps = r.eps,
                                  .rope_dims = r.rope_dims,
                                  .interleaved = r.interleaved,
                                  .positions = r.positions,
                                  .cos = r.cos,
                                  .sin = r.sin,
                                  .q = q,
                                  .k = k,
                                  .v = v},
                                 stream));
    NIBBLE_TRY(const auto got_q, download<uint16_t>(q, r.tokens * q_cols));
    NIBBLE_TRY(const auto got_k, download<uint16_t>(k, r.tokens * kv_cols));
    NIBBLE_TRY(const auto got_v, download<uint16_t>(v, r.tokens * kv_cols));
    compare(check, want_q, got_q, q_cols, 0);
    compare(check, want_k, got_k, kv_cols, 0);
    compare(check, want_v, got_v, kv_cols, 0);
    return Ok{};
}

Result<Check> Checker::latent(cuda::KvType type) {
    constexpr int64_t tokens = 21, pages = 2;
    constexpr int heads = 3, nope = 24, dims = 16, v_dim = 40, dim = nope + dims, positions = 30;
    Check check{fmt::format("latent_append {}", type == cuda::KvType::bf16 ? "bf16" : "e4m3")};
    const DeviceArena::Mark mark = arena.mark();
    const cuda::KvShape kv{type, heads, 32, dim, v_dim, 65536};
    std::vector<float> q = normal(tokens * heads * dim, 2.0f), both = normal(tokens * heads * (nope + v_dim), 2.0f);
    std::vector<float> shared = normal(tokens * 50, 2.0f);
    const Angles angles(positions, dims);
    std::vector<int32_t> position;
    std::vector<int64_t> slots;
    for (int64_t t = 0; t < tokens; ++t) {
        position.push_back(static_cast<int32_t>(t * 11 % positions));
        slots.push_back(t == 3 ? -1 : t * 3);
    }
    cuda::KvCache cache{kv};
    NIBBLE_TRY(cache.pages, poisoned(pages * kv.stride()));
    cuda::LatentAppend r{.tokens = tokens,
                         .heads = heads,
                         .nope_dim = nope,
                         .rope_dims = dims,
                         .v_dim = v_dim,
                         .shared_stride = 50,
                         .interleaved = true};
    NIBBLE_TRY(r.q_in, upload(q));
    NIBBLE_TRY(r.kv, upload(both));
    NIBBLE_TRY(const float* device_shared, upload(shared));
    r.shared = device_shared + 3;
    NIBBLE_TRY(r.positions, upload(position));
    NIBBLE_TRY(r.slots, upload(slots));
    NIBBLE_TRY(r.cos, upload(angles.cos));
    NIBBLE_TRY(r.sin, upload(angles.sin));
    NIBBLE_TRY(r.q, poisoned(tokens * heads * dim * 2));
    NIBBLE_CHECK(cuda::latent_append(r, cache, true, stream));
    for (auto* x : {&q, &both, &shared}) ref_.round_bf16(x->data(), static_cast<int64_t>(x->size()));
    std::vector<uint8_t> want_pages(static_cast<size_t>(pages * kv.stride()), poison);
    for (int64_t t = 0; t < tokens; ++t) {
        const float* cos = angles.cos.data() + position[static_cast<size_t>(t)] * (dims / 2);
        const float* sin = angles.sin.data() + position[static_cast<size_t>(t)] * (dims / 2);
        ref_.rope(q.data() + t * heads * dim + nope, heads, dim, cos, sin, dims, true, true);
        float* rotated = shared.data() + t * 50 + 3;
        ref_.rope(rotated, 1, dims, cos, sin, dims, true, true);
        for (int h = 0; slots[static_cast<size_t>(t)] >= 0 && h < heads; ++h) {
            const float* from = both.data() + (t * heads + h) * (nope + v_dim);
            std::vector<float> k(from, from + nope);
            k.insert(k.end(), rotated, rotated + dims);
            put(want_pages, kv, slots[static_cast<size_t>(t)], h, k.data(), from + nope, 1.0f, 1.0f);
        }
    }
    NIBBLE_TRY(const auto got_q, download<uint16_t>(r.q, tokens * heads * dim));
    compare(check, q, got_q, heads * dim, 0);
    NIBBLE_TRY(const auto got, download<uint8_t>(cache.pages, pages * kv.stride()));
    for (size_t i = 0; i < got.size(); ++i, ++check.compared)
        if (got[i] != want_pages[i]) note(check, fmt::format("byte {} of the pages", i));
    arena.release(mark);
    return check;
}

Result<Check> Checker::embed_and_argmax() {
    Check check{"embed, argmax"};
    const DeviceArena::Mark mark = arena.mark();
    constexpr int64_t vocabulary = 5003, width = 72, tokens = 6;
    std::vector<uint16_t> table(vocabulary * width);
    for (uint16_t& v : table) v = static_cast<uint16_t>(random());
    const std::vector<int32_t> chosen{0, 5002, 17, 17, 4096, 1};
    NIBBLE_TRY(const uint16_t* device_table, upload(table));
    NIBBLE_TRY(const int32_t* device_tokens, upload(chosen));
    NIBBLE_TRY(std::byte * h, poisoned(tokens * width * 2));
    NIBBLE_CHECK(
        cuda::embed(reinterpret_cast<const std::byte*>(device_table), device_tokens, tokens, width, h, true, stream));
    NIBBLE_TRY(const auto got, download<uint16_t>(h, tokens * width));
    for (size_t i = 0; i < got.size(); ++i, ++check.compared)
        if (got[i] != table[static_cast<size_t>(chosen[i / width]) * width + i % width])
            note(check, fmt::format("embedding word {}", i));

    std::vector<float> logits = normal(tokens * vocabulary, 1.0f);
    logits[4000] = logits[77] = 9.0f;           // equal logits: the first one wins
    logits[vocabulary + 4999] = std::nanf("");  // NaN wins
    std::fill_n(logits.begin() + 2 * vocabulary, vocabulary, -0.0f);
    logits[static_cast<size_t>(2 * vocabulary + 3)] = 0.0f;  // both zeros are equal
    std::fill_n(logits.begin() + 3 * vocabulary, vocabulary, -INFINITY);
    NIBBLE_TRY(const float* device_logits, upload(logits));
    NIBBLE_TRY(int32_t * index, arena.allocate_array<int32_t>(tokens));
    NIBBLE_CHECK(cuda::argmax(device_logits, tokens, vocabulary, index, true, stream));
    NIBBLE_TRY(const auto found, download<int32_t>(index, tokens));
    for (int64_t t = 0; t < tokens; ++t, ++check.compared) {
        int32_t want = 0;
        for (int32_t i = 1; i < vocabulary; ++i) {
            const float x = logits[static_cast<size_t>(t * vocabulary + i)],
                        best = logits[static_cast<size_t>(t * vocabulary + want)];
            if (best == best && (x != x || x > best)) want = i;
        }
        if (found[static_cast<size_t>(t)] != want)
            note(check, fmt::format("argmax of row {}: {} instead of {}", t, found[static_cast<size_t>(t)], want));
    }
    arena.release(mark);
    return check;
}

Result<std::vector<Check>> check_elementwise(const Kit& kit) {
    NIBBLE_TRY(const ElementwiseKernels* ref, select_elementwise_kernels("ref"));
    Checker checker(kit, *ref);
    std::vector<Check> results;
    const auto add = [&](Result<Check> check) -> Status {
        NIBBLE_TRY(auto c, std::move(check));
        results.push_back(std::move(c));
        return Ok{};
    };
    for (const bool post : {false, true})
        for (const auto& [tokens, width, tile] : {std::tuple<int64_t, int64_t, int>{1, 4096, 0},
                                                  {5, 16, 0},
                                                  {7, 72, 0},
                                                  {3, 14336, 0},
                                                  {19, 2048, 16},
                                                  {40, 4096, 32},
                                                  {130, 256, 128}})
            NIBBLE_CHECK(add(checker.add_norm(tokens, width, tile, post)));
    NIBBLE_CHECK(add(checker.norm_rows(5, 1536, 1)));
    NIBBLE_CHECK(add(checker.norm_rows(3, 63, 1)));
    NIBBLE_CHECK(add(checker.norm_rows(7, 1024, 8)));
    for (const int tile : {0, 16, 64}) {
        NIBBLE_CHECK(add(checker.activate(Activation::silu, "silu", true, 4096, tile)));
        NIBBLE_CHECK(add(checker.activate(Activation::gelu_tanh, "gelu_tanh", true, 4096, tile)));
        NIBBLE_CHECK(add(checker.activate(Activation::relu2, "relu2", false, 4096, tile)));
    }
    for (const cuda::KvType type : {cuda::KvType::bf16, cuda::KvType::e4m3}) {
        NIBBLE_CHECK(add(checker.rope({type, 2, 32}, 6, 128, false, false)));
        NIBBLE_CHECK(add(checker.rope({type, 3, 64, 64, 64}, 9, 64, false, true)));
        NIBBLE_CHECK(add(checker.rope({type, 1, 64, 16, 16, 1 << 16}, 4, 16, true, true)));
        NIBBLE_CHECK(add(checker.rope({type, 2, 64, 80, 72}, 2, 40, false, false)));
        NIBBLE_CHECK(add(checker.rope({type, 1, 32, 256, 256}, 1, 0, false, true)));
        NIBBLE_CHECK(add(checker.latent(type)));
    }
    NIBBLE_CHECK(add(checker.embed_and_argmax()));
    return results;
}

}  // namespace

TEST(CudaKernels, Elementwise) { expect_all(check_elementwise(kit())); }

}  // namespace nibble::bench

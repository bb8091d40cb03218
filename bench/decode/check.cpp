#include "decode/check.h"

#include "formats/minifloat.h"
#include "kernels/elementwise_cuda.h"

#include <algorithm>
#include <cmath>
#include <random>

namespace nibble::bench {
namespace {

constexpr uint8_t poison = 0xA5;

class Checker {
public:
    Checker(const Stream& stream, DeviceArena& arena, const ElementwiseKernels& ref, uint64_t seed)
        : stream_(stream), arena_(arena), ref_(ref), random_(seed) {}

    Result<ElementwiseCheck> add_norm(int64_t tokens, int64_t width, int tile);
    Result<ElementwiseCheck> activate(Activation a, std::string_view name, bool gated, int64_t width, int tile);
    Result<ElementwiseCheck> rope(cuda::KvType type);
    Result<ElementwiseCheck> embed_and_argmax();

private:
    template <class T>
    Result<T*> upload(const std::vector<T>& host) {
        NIBBLE_TRY(T * p, arena_.allocate_array<T>(static_cast<int64_t>(host.size())));
        NIBBLE_CHECK(copy_to_device(reinterpret_cast<std::byte*>(p), reinterpret_cast<const std::byte*>(host.data()),
                                    static_cast<int64_t>(host.size() * sizeof(T)), stream_));
        return p;
    }
    template <class T>
    Result<std::vector<T>> download(const void* device, int64_t count) {
        std::vector<T> host(static_cast<size_t>(count));
        NIBBLE_CHECK(copy_to_host(reinterpret_cast<std::byte*>(host.data()), static_cast<const std::byte*>(device),
                                  count * int64_t{sizeof(T)}, stream_));
        NIBBLE_CHECK(stream_.synchronize());
        return host;
    }
    Result<std::byte*> poisoned(int64_t bytes) {
        NIBBLE_TRY(std::byte * p, arena_.allocate(bytes));
        NIBBLE_CHECK(fill_device(p, poison, bytes, stream_));
        return p;
    }
    std::vector<float> normal(int64_t count, float sigma) {
        std::normal_distribution<float> d(0.0f, sigma);
        std::vector<float> x(static_cast<size_t>(count));
        for (float& v : x) v = d(random_);
        return x;
    }

    const Stream& stream_;
    DeviceArena& arena_;
    const ElementwiseKernels& ref_;
    std::mt19937_64 random_;
};

// Where RowsOut puts element (t, j): from the description of w4a16 columns, not from the kernels' code.
size_t place(int64_t t, int64_t j, int64_t width, int tile) {
    if (tile == 0) return static_cast<size_t>(t * width + j);
    const int64_t block = j / 64, pair = j % 64 / 2, chunk = pair % 8, in_chunk = pair / 8, row = t % tile;
    const int64_t base = ((t / tile * (width / 64) + block) * tile + row) * 64;
    return static_cast<size_t>(base + ((chunk ^ row % 8) * 8) + in_chunk * 2 + j % 2);
}

void note(ElementwiseCheck& check, std::string where) {
    if (check.wrong++ == 0) check.first = std::move(where);
}

// want [tokens, width] of BF16 values against what lies in `got`.
void compare(ElementwiseCheck& check, const std::vector<float>& want, const std::vector<uint16_t>& got, int64_t width,
             int tile) {
    for (size_t i = 0; i < want.size(); ++i, ++check.compared) {
        const auto t = static_cast<int64_t>(i) / width, j = static_cast<int64_t>(i) % width;
        const uint16_t bits = got[place(t, j, width, tile)];
        if (bits != bf16_from_float(want[i]))
            note(check, fmt::format("token {} column {}: {} instead of {}", t, j, bf16_to_float(bits), want[i]));
    }
}

int64_t padded(int64_t tokens, int tile) { return tile ? (tokens + tile - 1) / tile * tile : tokens; }

Result<ElementwiseCheck> Checker::add_norm(int64_t tokens, int64_t width, int tile) {
    ElementwiseCheck check{fmt::format("add_norm {} x {} tile {}", tokens, width, tile)};
    const DeviceArena::Mark mark = arena_.mark();
    std::vector<float> h = normal(tokens * width, 3.0f), update = normal(tokens * width, 1.0f);
    const std::vector<float> weight = normal(width, 1.0f);
    std::fill_n(h.begin(), width, 0.0f);
    std::fill_n(update.begin(), width, 0.0f);
    std::vector<uint16_t> h_bits(h.size());
    for (size_t i = 0; i < h.size(); ++i) h_bits[i] = bf16_from_float(h[i]), h[i] = bf16_to_float(h_bits[i]);
    NIBBLE_TRY(uint16_t * device_h, upload(h_bits));
    NIBBLE_TRY(const float* device_update, upload(update));
    NIBBLE_TRY(const float* device_weight, upload(weight));
    const int64_t words = padded(tokens, tile) * width;
    NIBBLE_TRY(std::byte * out, poisoned(words * 2));
    for (const bool with_update : {true, false}) {
        NIBBLE_CHECK(cuda::add_norm({.tokens = tokens,
                                     .width = width,
                                     .h = reinterpret_cast<std::byte*>(device_h),
                                     .update = with_update ? device_update : nullptr,
                                     .weight = device_weight,
                                     .eps = 1e-5f,
                                     .out = {out, tile}},
                                    with_update, stream_));
        std::vector<float> want(h.size());
        for (int64_t t = 0; t < tokens; ++t) {
            float* row = h.data() + t * width;
            std::vector<float> u(update.begin() + t * width, update.begin() + (t + 1) * width);
            ref_.round_bf16(u.data(), width);
            if (with_update) ref_.add(u.data(), width, true, row);
            ref_.rms_norm(row, weight.data(), width, 1e-5f, true, want.data() + t * width);
        }
        NIBBLE_TRY(const auto got, download<uint16_t>(out, words));
        compare(check, want, got, width, tile);
        NIBBLE_TRY(const auto got_h, download<uint16_t>(device_h, tokens * width));
        compare(check, h, got_h, width, 0);
    }
    arena_.release(mark);
    return check;
}

Result<ElementwiseCheck> Checker::activate(Activation a, std::string_view name, bool gated, int64_t width, int tile) {
    constexpr int64_t tokens = 19;
    ElementwiseCheck check{fmt::format("activate {}{} tile {}", name, gated ? " gated" : "", tile)};
    const DeviceArena::Mark mark = arena_.mark();
    std::vector<float> in = normal(tokens * width * (gated ? 2 : 1), 4.0f);
    // Every finite BF16 pattern goes through the first rows.
    for (size_t i = 0; i < 65536 && i < in.size(); ++i) {
        const float v = bf16_to_float(static_cast<uint16_t>(i));
        if (std::isfinite(v) && (!gated || static_cast<int64_t>(i) % (2 * width) < width)) in[i] = v;
    }
    NIBBLE_TRY(const float* device_in, upload(in));
    const int64_t words = padded(tokens, tile) * width;
    NIBBLE_TRY(std::byte * out, poisoned(words * 2));
    NIBBLE_CHECK(cuda::activate(a, gated, device_in, tokens, width, {out, tile}, true, stream_));
    ref_.round_bf16(in.data(), static_cast<int64_t>(in.size()));
    std::vector<float> want(static_cast<size_t>(tokens * width));
    for (int64_t t = 0; t < tokens; ++t) {
        const float* row = in.data() + t * width * (gated ? 2 : 1);
        ref_.activate(a, row, gated ? row + width : nullptr, width, true, want.data() + t * width);
    }
    NIBBLE_TRY(const auto got, download<uint16_t>(out, words));
    compare(check, want, got, width, tile);
    arena_.release(mark);
    return check;
}

Result<ElementwiseCheck> Checker::rope(cuda::KvType type) {
    constexpr int64_t tokens = 37;
    constexpr int q_heads = 6, kv_heads = 2, heads = q_heads + 2 * kv_heads, dim = cuda::kv_head_dim, positions = 50;
    ElementwiseCheck check{fmt::format("rope_append {}", type == cuda::KvType::bf16 ? "bf16" : "e4m3")};
    const DeviceArena::Mark mark = arena_.mark();
    std::vector<float> qkv = normal(tokens * heads * dim, 2.0f), cos(positions * dim / 2), sin(cos.size());
    for (size_t i = 0; i < cos.size(); ++i) {
        const double angle =
            static_cast<double>(i / (dim / 2)) * std::pow(1e4, -static_cast<double>(i % (dim / 2)) / 64);
        cos[i] = static_cast<float>(std::cos(angle)), sin[i] = static_cast<float>(std::sin(angle));
    }
    std::vector<int32_t> position;
    std::vector<int64_t> slots;
    for (int64_t t = 0; t < tokens; ++t) {
        position.push_back(static_cast<int32_t>(t * 7 % positions));
        slots.push_back(t == 5 ? -1 : t * 3 % 128);  // each once
    }
    const std::vector<float> k_scales{0.011f, 0.02f}, v_scales{0.013f, 0.017f};
    cuda::KvCache cache{{type, kv_heads, 32}};
    const int64_t pages = 4, bytes = pages * cache.shape.page_bytes();
    NIBBLE_TRY(cache.pages, poisoned(bytes));
    NIBBLE_TRY(cache.k_scales, upload(k_scales));
    NIBBLE_TRY(cache.v_scales, upload(v_scales));
    cuda::RopeAppend r{.tokens = tokens, .q_heads = q_heads};
    NIBBLE_TRY(r.qkv, upload(qkv));
    NIBBLE_TRY(r.positions, upload(position));
    NIBBLE_TRY(r.slots, upload(slots));
    NIBBLE_TRY(r.cos, upload(cos));
    NIBBLE_TRY(r.sin, upload(sin));
    NIBBLE_TRY(r.q, poisoned(tokens * q_heads * dim * 2));
    NIBBLE_CHECK(cuda::rope_append(r, cache, true, stream_));

    ref_.round_bf16(qkv.data(), static_cast<int64_t>(qkv.size()));
    std::vector<uint8_t> want_pages(static_cast<size_t>(bytes), poison);
    std::vector<float> want_q;
    for (int64_t t = 0; t < tokens; ++t) {
        float* row = qkv.data() + t * heads * dim;
        const int64_t angle = position[static_cast<size_t>(t)] * (dim / 2);
        ref_.rope(row, q_heads + kv_heads, dim, cos.data() + angle, sin.data() + angle, dim, false, true);
        want_q.insert(want_q.end(), row, row + q_heads * dim);
        const int64_t slot = slots[static_cast<size_t>(t)];
        if (slot < 0) continue;
        for (int h = 0; h < kv_heads; ++h)
            for (int d = 0; d < dim; ++d) {
                const int in_page = static_cast<int>(slot % 32);
                uint8_t* tile = want_pages.data() + slot / 32 * cache.shape.page_bytes() +
                                (h * 2 + in_page / 16) * cuda::kv_tile_bytes(type);
                const auto put = [&](int at, float x, float scale) {
                    if (type == cuda::KvType::e4m3) {
                        tile[at] = e4m3_from_float_saturating(x / scale);
                    } else {
                        const uint16_t bits = bf16_from_float(x);
                        std::copy_n(reinterpret_cast<const uint8_t*>(&bits), 2, tile + at);
                    }
                };
                put(cuda::k_offset(type, in_page % 16, d), row[(q_heads + h) * dim + d],
                    k_scales[static_cast<size_t>(h)]);
                put(cuda::v_offset(type, in_page % 16, d), row[(q_heads + kv_heads + h) * dim + d],
                    v_scales[static_cast<size_t>(h)]);
            }
    }
    NIBBLE_TRY(const auto got_q, download<uint16_t>(r.q, tokens * q_heads * dim));
    compare(check, want_q, got_q, q_heads * dim, 0);
    NIBBLE_TRY(const auto got_pages, download<uint8_t>(cache.pages, bytes));
    for (size_t i = 0; i < got_pages.size(); ++i, ++check.compared)
        if (got_pages[i] != want_pages[i]) note(check, fmt::format("byte {} of the pages", i));
    arena_.release(mark);
    return check;
}

Result<ElementwiseCheck> Checker::embed_and_argmax() {
    ElementwiseCheck check{"embed, argmax"};
    const DeviceArena::Mark mark = arena_.mark();
    constexpr int64_t vocabulary = 5003, width = 72, tokens = 6;
    std::vector<uint16_t> table(vocabulary * width);
    for (uint16_t& v : table) v = static_cast<uint16_t>(random_());
    const std::vector<int32_t> chosen{0, 5002, 17, 17, 4096, 1};
    NIBBLE_TRY(const uint16_t* device_table, upload(table));
    NIBBLE_TRY(const int32_t* device_tokens, upload(chosen));
    NIBBLE_TRY(std::byte * h, poisoned(tokens * width * 2));
    NIBBLE_CHECK(
        cuda::embed(reinterpret_cast<const std::byte*>(device_table), device_tokens, tokens, width, h, true, stream_));
    NIBBLE_TRY(const auto got, download<uint16_t>(h, tokens * width));
    for (size_t i = 0; i < got.size(); ++i, ++check.compared)
        if (got[i] != table[static_cast<size_t>(chosen[i / width]) * width + i % width])
            note(check, fmt::format("embedding word {}", i));

    std::vector<float> logits = normal(tokens * vocabulary, 1.0f);
    logits[4000] = logits[77] = 9.0f;           // equals: the first
    logits[vocabulary + 4999] = std::nanf("");  // NaN wins
    std::fill_n(logits.begin() + 2 * vocabulary, vocabulary, -0.0f);
    logits[static_cast<size_t>(2 * vocabulary + 3)] = 0.0f;  // both zeros are equal
    std::fill_n(logits.begin() + 3 * vocabulary, vocabulary, -INFINITY);
    NIBBLE_TRY(const float* device_logits, upload(logits));
    NIBBLE_TRY(int32_t * index, arena_.allocate_array<int32_t>(tokens));
    NIBBLE_CHECK(cuda::argmax(device_logits, tokens, vocabulary, index, true, stream_));
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
    arena_.release(mark);
    return check;
}

}  // namespace

Result<std::vector<ElementwiseCheck>> check_elementwise(const Stream& stream, DeviceArena& arena, uint64_t seed) {
    NIBBLE_TRY(const ElementwiseKernels* ref, select_elementwise_kernels("ref"));
    Checker checker(stream, arena, *ref, seed);
    std::vector<ElementwiseCheck> results;
    const auto add = [&](Result<ElementwiseCheck> check) -> Status {
        NIBBLE_TRY(auto c, std::move(check));
        results.push_back(std::move(c));
        return Ok{};
    };
    for (const auto& [tokens, width, tile] : {std::tuple<int64_t, int64_t, int>{1, 4096, 0},
                                              {5, 16, 0},
                                              {3, 14336, 0},
                                              {19, 2048, 16},
                                              {40, 4096, 32},
                                              {130, 128, 128}})
        NIBBLE_CHECK(add(checker.add_norm(tokens, width, tile)));
    for (const int tile : {0, 16, 64}) {
        NIBBLE_CHECK(add(checker.activate(Activation::silu, "silu", true, 4096, tile)));
        NIBBLE_CHECK(add(checker.activate(Activation::gelu_tanh, "gelu_tanh", true, 4096, tile)));
        NIBBLE_CHECK(add(checker.activate(Activation::relu2, "relu2", false, 4096, tile)));
    }
    for (const cuda::KvType type : {cuda::KvType::bf16, cuda::KvType::e4m3}) NIBBLE_CHECK(add(checker.rope(type)));
    NIBBLE_CHECK(add(checker.embed_and_argmax()));
    return results;
}

}  // namespace nibble::bench

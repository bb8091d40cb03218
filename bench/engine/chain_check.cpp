// Products of one token in one kernel against the same kernels one after the other: the same bits.
#include "engine/check.h"

#include "kernels/elementwise_cuda.h"
#include "kernels/product_chain_cuda.h"
#include "kernels/product_cuda.h"

#include <algorithm>

namespace nibble::bench {
namespace {

struct Shape {
    int64_t hidden, heads, inter, qkv;
    bool gated = true, bias = false;
};

class Checker : Kit {
public:
    explicit Checker(const Kit& kit) : Kit(kit) {}
    Result<std::vector<Check>> run(const Shape& s);

private:
    Result<cuda::Operand> weight(int64_t n, int64_t k, bool bias);
    // One after the other.
    Result<std::byte*> codes_of(const std::byte* x, int64_t cols, float scale);
    Status product(const cuda::ChainedProduct& p, const std::byte* codes, float* y);
};

Result<cuda::Operand> Checker::weight(int64_t n, int64_t k, bool bias) {
    std::vector<uint8_t> codes(static_cast<size_t>(n * k));
    for (uint8_t& c : codes) {
        c = static_cast<uint8_t>(random());
        if ((c & 0x7F) == 0x7F) c = 0x40;  // no NaN
    }
    std::vector<float> scales(static_cast<size_t>(n));
    for (float& s : scales) s = 0.0002f + 0.00001f * static_cast<float>(random() % 16);
    NIBBLE_TRY(uint8_t * from, upload(codes));
    NIBBLE_TRY(std::byte * tiles, poisoned(cuda::codes_bytes(n, k)));
    QuantView view;
    view.format = Format::fp8, view.rows = n, view.cols = k, view.codes = from;
    NIBBLE_CHECK(cuda::make_codes(view, n, 0, tiles, stream));
    cuda::Operand w{.rows = n, .cols = k, .tiles = tiles, .codes = true};
    NIBBLE_TRY(w.row_scales, upload(scales));
    if (bias) {
        NIBBLE_TRY(w.bias, upload(normal(n, 1.0f)));
    }
    return w;
}

Result<std::byte*> Checker::codes_of(const std::byte* x, int64_t cols, float scale) {
    NIBBLE_TRY(std::byte * out, poisoned(cols));
    NIBBLE_CHECK(cuda::quantize_inputs({.format = ActivationFormat::fp8,
                                        .x = x,
                                        .tokens = 1,
                                        .cols = cols,
                                        .input_scale = scale,
                                        .out = out,
                                        .codes = true},
                                       true, stream));
    return out;
}

Status Checker::product(const cuda::ChainedProduct& p, const std::byte* codes, float* y) {
    return cuda::product({.x = codes, .codes = true, .tokens = 1, .scale = p.input_scale}, p.w, y, 0, true, stream);
}

Result<std::vector<Check>> Checker::run(const Shape& s) {
    const DeviceArena::Mark mark = arena.mark();
    const int64_t rows_in = s.inter * (s.gated ? 2 : 1);
    cuda::ChainedProduct list[4];
    NIBBLE_TRY(list[0].w, weight(s.hidden, s.heads, s.bias));
    NIBBLE_TRY(list[1].w, weight(rows_in, s.hidden, s.bias));
    NIBBLE_TRY(list[2].w, weight(s.hidden, s.inter, s.bias));
    NIBBLE_TRY(list[3].w, weight(s.qkv, s.hidden, s.bias));
    const float scales[] = {0.011f, 0.013f, 0.007f, 0.012f};
    float* y[4];
    std::byte* h[2];
    for (int i = 0; i < 4; ++i) {
        list[i].input_scale = scales[i];
        NIBBLE_TRY(y[i], arena.allocate_array<float>(list[i].w.rows));
    }
    const std::vector<uint16_t> stream_values = normal_bf16(s.hidden, 1.0f);
    NIBBLE_TRY(const std::byte* heads, upload_bytes(normal_bf16(s.heads, 1.0f)));
    NIBBLE_TRY(const float* norm1, upload(normal(s.hidden, 1.0f)));
    NIBBLE_TRY(const float* norm2, upload(normal(s.hidden, 1.0f)));
    NIBBLE_TRY(uint16_t * first_h, upload(stream_values));
    NIBBLE_TRY(uint16_t * second_h, upload(stream_values));
    h[0] = reinterpret_cast<std::byte*>(first_h), h[1] = reinterpret_cast<std::byte*>(second_h);
    NIBBLE_TRY(std::byte * h_out, poisoned(2 * s.hidden));
    NIBBLE_TRY(uint64_t * meet, arena.allocate_array<uint64_t>(1));
    NIBBLE_CHECK(fill_device(reinterpret_cast<std::byte*>(meet), 0, 8, stream));
    // One after the other; the stream's sum goes back to h[0].
    NIBBLE_TRY(const std::byte* c0, codes_of(heads, s.heads, scales[0]));
    NIBBLE_CHECK(product(list[0], c0, y[0]));
    NIBBLE_TRY(std::byte * x, poisoned(2 * s.hidden));
    const auto add_norm = [&](const float* update, const float* weight) {
        return cuda::add_norm(
            {.tokens = 1, .width = s.hidden, .h = h[0], .update = update, .weight = weight, .eps = 1e-5f, .out = {x}},
            true, stream);
    };
    NIBBLE_CHECK(add_norm(y[0], norm1));
    NIBBLE_TRY(const std::byte* c1, codes_of(x, s.hidden, scales[1]));
    NIBBLE_CHECK(product(list[1], c1, y[1]));
    NIBBLE_TRY(std::byte * mid, poisoned(2 * s.inter));
    NIBBLE_CHECK(cuda::activate(Activation::silu, s.gated, y[1], 0, 1, s.inter, {mid}, true, stream));
    NIBBLE_TRY(const std::byte* c2, codes_of(mid, s.inter, scales[2]));
    NIBBLE_CHECK(product(list[2], c2, y[2]));
    NIBBLE_CHECK(add_norm(y[2], norm2));
    NIBBLE_TRY(const std::byte* c3, codes_of(x, s.hidden, scales[3]));
    NIBBLE_CHECK(product(list[3], c3, y[3]));
    float* got[4];
    for (int i = 0; i < 4; ++i) {
        NIBBLE_TRY(std::byte * p, poisoned(4 * list[i].w.rows));
        got[i] = reinterpret_cast<float*>(p);
    }
    list[0].x = heads, list[0].y = got[0];
    list[1].norm = norm1, list[1].activated = true, list[1].gated = s.gated;
    list[2].y = got[2];
    list[3].norm = norm2, list[3].y = got[3];
    cuda::ProductChain chain{.products = list, .h = h[1], .h_out = h_out, .eps = 1e-5f, .meet = meet};
    NIBBLE_TRY(chain.codes, poisoned(cuda::product_chain_code_bytes(chain)));
    if (!cuda::takes_product_chain(chain, device)) return fail("no kernel for this chain");
    std::vector<Check> results;
    for (const bool overlap : {false, true}) {
        Check check{fmt::format("chain {} {} {} {}{}{}{}", s.heads, s.hidden, s.inter, s.qkv, s.gated ? " gated" : "",
                                s.bias ? " bias" : "", overlap ? " overlap" : "")};
        for (int again = 0; again < 3; ++again) NIBBLE_CHECK(cuda::chain_products(chain, overlap, device, stream));
        for (const int i : {0, 2, 3}) {
            NIBBLE_TRY(const auto one, download<uint32_t>(y[i], list[i].w.rows));
            NIBBLE_TRY(const auto other, download<uint32_t>(got[i], list[i].w.rows));
            for (size_t r = 0; r < one.size(); ++r, ++check.compared)
                if (one[r] != other[r])
                    check.note(fmt::format("product {} row {}: {} instead of {}", i, r, float_from_bits(other[r]),
                                           float_from_bits(one[r])));
        }
        NIBBLE_TRY(const auto mids, download<uint8_t>(c2, s.inter));
        NIBBLE_TRY(const auto got_mids, download<uint8_t>(chain.codes, s.inter));
        for (size_t r = 0; r < mids.size(); ++r, ++check.compared)
            if (mids[r] != got_mids[r]) check.note(fmt::format("code {}", r));
        NIBBLE_TRY(const auto one, download<uint16_t>(h[0], s.hidden));
        NIBBLE_TRY(const auto other, download<uint16_t>(h_out, s.hidden));
        for (size_t r = 0; r < one.size(); ++r, ++check.compared)
            if (one[r] != other[r]) check.note(fmt::format("h {}", r));
        results.push_back(std::move(check));
    }
    arena.release(mark);
    return results;
}

}  // namespace

Result<std::vector<Check>> check_chains(const Kit& kit) {
    NIBBLE_CHECK(cuda::prepare_products(kit.device));
    std::vector<Check> results;
    for (const Shape& s : {Shape{4096, 4096, 14336, 6144},
                           {2048, 4096, 768, 5120, true, true},
                           {1024, 512, 3072, 1536},
                           {128, 256, 128, 384},
                           {2688, 1024, 1920, 1280, false, true},
                           {8192, 8192, 5120, 10240}}) {
        NIBBLE_TRY(std::vector<Check> some, Checker(kit).run(s));
        std::ranges::move(some, std::back_inserter(results));
    }
    return results;
}

}  // namespace nibble::bench

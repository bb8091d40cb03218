// Compares one-token products in one kernel with the same kernels one after another: the bits must be equal.
#include "cuda/device.h"

#include "kernels/elementwise_cuda.h"
#include "kernels/fused_decode_cuda.h"
#include "kernels/operand_matmul_cuda.h"
#include "kernels/w4a16_record.h"

#include <algorithm>

namespace nibble::bench {
namespace {

struct Shape {
    int64_t hidden, heads, inter, qkv;
    bool gated = true, bias = false;
    bool records = false;
};

class Checker : Kit {
public:
    explicit Checker(const Kit& kit) : Kit(kit) {}
    Result<std::vector<Check>> run(const Shape& s);

private:
    Result<cuda::Operand> weight(int64_t n, int64_t k, bool bias);
    Result<cuda::FusedProduct> packed(int64_t n, int64_t k, bool bias);
    Result<cuda::FusedProduct> fused(const Shape& s, int64_t n, int64_t k, float input_scale);
    // The separate kernels. input(): the product's inputs as codes or BF16.
    Result<const std::byte*> input(const cuda::FusedProduct& p, const std::byte* x);
    Status product(const cuda::FusedProduct& p, const std::byte* x, float* y, std::byte* activated = nullptr);
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

Result<cuda::FusedProduct> Checker::packed(int64_t n, int64_t k, bool bias) {
    std::vector<uint8_t> records(static_cast<size_t>(cuda::packed_bytes(n, k)));
    for (size_t i = 0; i < records.size(); ++i)
        records[i] = i % w4a16::record_bytes < w4a16::record_code_bytes
                         ? static_cast<uint8_t>(random())
                         : w4a16::pack_scale(static_cast<uint8_t>(0x28 + random() % 24));
    std::vector<float> scales(static_cast<size_t>(n));
    for (float& v : scales) v = 0.004f + 0.0002f * static_cast<float>(random() % 16);
    cuda::FusedProduct p;
    NIBBLE_TRY(const std::byte* from, upload_bytes(records));
    p.packed = {n, k, from, Format::nvfp4};
    NIBBLE_TRY(p.factors.row_scales, upload(scales));
    if (bias) {
        NIBBLE_TRY(p.factors.bias, upload(normal(n, 1.0f)));
    }
    return p;
}

Result<cuda::FusedProduct> Checker::fused(const Shape& s, int64_t n, int64_t k, float input_scale) {
    if (s.records) return packed(n, k, s.bias);
    cuda::FusedProduct p{.input_scale = input_scale};
    NIBBLE_TRY(p.w, weight(n, k, s.bias));
    return p;
}

Result<const std::byte*> Checker::input(const cuda::FusedProduct& p, const std::byte* x) {
    if (p.packed.rows) return x;
    NIBBLE_TRY(std::byte * out, poisoned(p.w.cols));
    NIBBLE_CHECK(cuda::quantize_inputs({.format = ActivationFormat::fp8,
                                        .x = x,
                                        .tokens = 1,
                                        .cols = p.w.cols,
                                        .input_scale = p.input_scale,
                                        .out = out,
                                        .codes = true},
                                       true, stream));
    return out;
}

Status Checker::product(const cuda::FusedProduct& p, const std::byte* x, float* y, std::byte* activated) {
    if (!p.packed.rows)
        return cuda::matmul({.x = x, .codes = true, .tokens = 1, .scale = p.input_scale}, p.w, y, 0, true, stream);
    NIBBLE_TRY(const cuda::MatmulPlan plan,
               cuda::plan_matmul({.m = 1, .n = p.packed.rows, .k = p.packed.cols, .gated = p.gated}, device));
    cuda::MatmulFactors factors = p.factors;
    factors.activated = activated;
    return cuda::matmul(plan, x, p.packed, factors, y, nullptr, {}, stream);
}

Result<std::vector<Check>> Checker::run(const Shape& s) {
    const DeviceArena::Mark mark = arena.mark();
    const int64_t rows_in = s.inter * (s.gated ? 2 : 1);
    cuda::FusedProduct list[4];
    const std::pair<int64_t, int64_t> shapes[] = {
        {s.hidden, s.heads}, {rows_in, s.hidden}, {s.hidden, s.inter}, {s.qkv, s.hidden}};
    const float scales[] = {0.011f, 0.013f, 0.007f, 0.012f};
    for (int i = 0; i < 4; ++i) {
        NIBBLE_TRY(list[i], fused(s, shapes[i].first, shapes[i].second, scales[i]));
    }
    list[1].activated = true, list[1].gated = s.gated;
    float* y[4];
    std::byte* h[2];
    for (int i = 0; i < 4; ++i) {
        NIBBLE_TRY(y[i], arena.allocate_array<float>(shapes[i].first));
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
    // The separate kernels; the sum of the stream goes back to h[0].
    NIBBLE_TRY(const std::byte* c0, input(list[0], heads));
    NIBBLE_CHECK(product(list[0], c0, y[0]));
    NIBBLE_TRY(std::byte * x, poisoned(2 * s.hidden));
    const auto add_norm = [&](const float* update, const float* weight) {
        return cuda::add_norm(
            {.tokens = 1, .width = s.hidden, .h = h[0], .update = update, .weight = weight, .eps = 1e-5f, .out = {x}},
            true, stream);
    };
    NIBBLE_CHECK(add_norm(y[0], norm1));
    NIBBLE_TRY(const std::byte* c1, input(list[1], x));
    NIBBLE_TRY(std::byte * mid, poisoned(2 * s.inter));
    NIBBLE_CHECK(product(list[1], c1, y[1], mid));
    if (!s.records) NIBBLE_CHECK(cuda::activate(Activation::silu, s.gated, y[1], 0, 1, s.inter, {mid}, true, stream));
    NIBBLE_TRY(const std::byte* c2, input(list[2], mid));
    NIBBLE_CHECK(product(list[2], c2, y[2]));
    NIBBLE_CHECK(add_norm(y[2], norm2));
    NIBBLE_TRY(const std::byte* c3, input(list[3], x));
    NIBBLE_CHECK(product(list[3], c3, y[3]));
    float* got[4];
    for (int i = 0; i < 4; ++i) {
        NIBBLE_TRY(std::byte * p, poisoned(4 * shapes[i].first));
        got[i] = reinterpret_cast<float*>(p);
    }
    list[0].x = heads, list[0].y = got[0];
    list[1].norm = norm1;
    list[2].y = got[2];
    list[3].norm = norm2, list[3].y = got[3];
    cuda::FusedDecode decode{.products = list, .h = h[1], .h_out = h_out, .eps = 1e-5f, .meet = meet};
    decode.used_bytes = cuda::fused_decode_bytes(decode);
    NIBBLE_TRY(std::byte * between, arena.allocate(2 * decode.used_bytes));
    NIBBLE_CHECK(fill_device(between, 0xFF, 2 * decode.used_bytes, stream));
    int calls = 0;
    if (!cuda::takes_fused_decode(decode, device)) return fail("no kernel for these products");
    std::vector<Check> results;
    for (const bool overlap : {false, true}) {
        Check check{fmt::format("fused {}{} {} {} {}{}{}{}", s.records ? "records " : "", s.heads, s.hidden, s.inter,
                                s.qkv, s.gated ? " gated" : "", s.bias ? " bias" : "", overlap ? " overlap" : "")};
        for (int again = 0; again < 3; ++again, ++calls) {
            decode.between = between + calls % 2 * decode.used_bytes;
            decode.used = between + (calls + 1) % 2 * decode.used_bytes;
            NIBBLE_CHECK(cuda::run_fused_decode(decode, overlap, device, stream));
        }
        for (const int i : {0, 2, 3}) {
            NIBBLE_TRY(const auto one, download<uint32_t>(y[i], shapes[i].first));
            NIBBLE_TRY(const auto other, download<uint32_t>(got[i], shapes[i].first));
            for (size_t r = 0; r < one.size(); ++r, ++check.compared)
                if (one[r] != other[r])
                    check.note(fmt::format("product {} row {}: {} instead of {}", i, r, float_from_bits(other[r]),
                                           float_from_bits(one[r])));
        }
        NIBBLE_TRY(const auto one, download<uint16_t>(h[0], s.hidden));
        NIBBLE_TRY(const auto other, download<uint16_t>(h_out, s.hidden));
        for (size_t r = 0; r < one.size(); ++r, ++check.compared)
            if (one[r] != other[r]) check.note(fmt::format("h {}", r));
        results.push_back(std::move(check));
    }
    arena.release(mark);
    return results;
}

Result<std::vector<Check>> check_fused_decode(const Kit& kit) {
    NIBBLE_CHECK(cuda::prepare_matmul(kit.device));
    std::vector<Check> results;
    for (const Shape& s : {Shape{4096, 4096, 14336, 6144},
                           {2048, 4096, 768, 5120, true, true},
                           {1024, 512, 3072, 1536},
                           {128, 256, 128, 384},
                           {2688, 1024, 1920, 1280, false, true},
                           {8192, 8192, 5120, 10240},
                           {4096, 4096, 14336, 6144, true, false, true},
                           {2048, 4096, 768, 5120, true, true, true},
                           {1024, 512, 3072, 1536, true, false, true},
                           {256, 256, 256, 384, true, true, true},
                           {2816, 1024, 2304, 1280, false, true, true},
                           {8192, 8192, 5120, 10240, true, false, true}}) {
        NIBBLE_TRY(std::vector<Check> some, Checker(kit).run(s));
        std::ranges::move(some, std::back_inserter(results));
    }
    return results;
}

}  // namespace

TEST(CudaKernels, FusedDecode) { expect_all(check_fused_decode(kit())); }

}  // namespace nibble::bench

#include "gpu_bench/product_kernels.h"

#include "kernels/operand_matmul_cuda.h"
#include "kernels/quantize.h"
#include "kernels/w4a16_matmul_cuda.h"

#include <utility>

namespace nibble::bench {

Result<ProductNoise> ProductNoise::create(Kit& kit) {
    ProductNoise n;
    std::normal_distribution<float> normal;
    std::uniform_real_distribution<float> around(0.5f, 1.5f);
    NIBBLE_TRY(n.bf16, Noise<uint16_t>::create(kit, [&](auto& r) { return bf16_from_float(normal(r)); }));
    NIBBLE_TRY(n.e4m3, Noise<uint8_t>::create(kit, [](auto& r) { return r() & 0xBF; }));
    NIBBLE_TRY(n.nibbles, Noise<uint8_t>::create(kit, [](auto& r) { return r(); }));
    NIBBLE_TRY(n.scales, Noise<uint8_t>::create(kit, [](auto& r) { return 1 + r() % 126; }));
    NIBBLE_TRY(n.factors, Noise<float>::create(kit, [&](auto& r) { return around(r); }));
    return n;
}

Result<std::byte*> ProductKernel::start_with(int64_t m, int64_t input_bytes) {
    m_ = m;
    NIBBLE_TRY(x_, kit_.arena.allocate(input_bytes));
    NIBBLE_TRY(y_, kit_.arena.allocate_array<float>(m * n_));
    NIBBLE_CHECK(fill_device(reinterpret_cast<std::byte*>(y_), 0xFF, m * n_ * 4, kit_.stream));
    return x_;
}

double ProductKernel::bytes_with(double input_bytes) const {
    return static_cast<double>(weight_bytes_) + input_bytes + 4.0 * static_cast<double>(m_ * n_);
}

namespace {

constexpr int64_t inputs_from = 1234567;  // offset of the inputs in the noise of the weights

// BF16 weights and inputs, stored by rows or as an operand.
class Bf16 : public ProductKernel {
public:
    Bf16(Kit& kit, const ProductNoise& noise) : ProductKernel(kit, noise) {}

    std::string_view name() const override { return "BF16"; }
    Status load(int64_t n, int64_t k) override {
        n_ = n, k_ = k, weight_bytes_ = cuda::operand_bytes(n, k), copies_ = cold_copies(weight_bytes_);
        NIBBLE_TRY(weights_, kit_.arena.allocate(weight_bytes_ * copies_));
        const DeviceArena::Mark mark = kit_.arena.mark();
        NIBBLE_TRY(std::byte * rows, kit_.arena.allocate(n * k * 2));
        NIBBLE_CHECK(noise_.bf16.fill(kit_, rows, n * k));
        NIBBLE_CHECK(fill_device(weights_, 0, weight_bytes_, kit_.stream));
        MatrixView view;
        view.dtype = DType::bf16, view.rows = n, view.cols = k, view.data = rows;
        NIBBLE_CHECK(cuda::make_operand(view, n, 0, weights_, kit_.stream));
        kit_.arena.release(mark);
        return repeat(kit_, weights_, weight_bytes_, copies_);
    }
    Result<bool> start(int64_t m) override {
        NIBBLE_TRY(std::byte * x, start_with(m, m * k_ * 2));
        NIBBLE_CHECK(noise_.bf16.fill(kit_, x, m * k_, inputs_from));
        return true;
    }
    Status queue(int launch) override {
        return cuda::matmul({.x = x_, .tokens = m_},
                            {.rows = n_, .cols = k_, .tiles = weights_ + launch % copies_ * weight_bytes_}, y_, 0, true,
                            kit_.stream);
    }
    void weights(int64_t row, double* out) const override {
        for (int64_t j = 0; j < k_; ++j) out[j] = bf16_to_float(noise_.bf16.at(row * k_ + j));
    }
    void inputs(int64_t row, double* out) const override {
        for (int64_t j = 0; j < k_; ++j) out[j] = bf16_to_float(noise_.bf16.at(inputs_from + row * k_ + j));
    }
    double bytes() const override { return bytes_with(2.0 * static_cast<double>(m_ * k_)); }
};

// NVFP4 weights. The plan decides the form and order of the inputs.
class W4a16 : public Bf16 {
public:
    W4a16(Kit& kit, const ProductNoise& noise, bool permutes) : Bf16(kit, noise), permutes_(permutes) {}

    std::string_view name() const override { return permutes_ ? "W4A16 NVFP4 + permute" : "W4A16 NVFP4"; }
    Status load(int64_t n, int64_t k) override {
        n_ = n, k_ = k, weight_bytes_ = cuda::packed_bytes(n, k), copies_ = cold_copies(weight_bytes_);
        NIBBLE_TRY(weights_, kit_.arena.allocate(weight_bytes_ * copies_));
        NIBBLE_TRY(scale_, kit_.upload(std::vector<float>{tensor_scale}));
        const DeviceArena::Mark mark = kit_.arena.mark();
        NIBBLE_TRY(std::byte * codes, kit_.arena.allocate(n * k / 2));
        NIBBLE_TRY(std::byte * scales, kit_.arena.allocate(n * k / 16));
        NIBBLE_CHECK(noise_.nibbles.fill(kit_, codes, n * k / 2));
        NIBBLE_CHECK(noise_.scales.fill(kit_, scales, n * k / 16));
        NIBBLE_TRY(uint32_t * refused, kit_.upload(std::vector<uint32_t>{0}));
        QuantView view{Format::nvfp4, n, k, reinterpret_cast<const uint8_t*>(codes),
                       reinterpret_cast<const uint8_t*>(scales)};
        NIBBLE_CHECK(cuda::prepack(view, 0, {n, k, weights_}, refused, kit_.stream));
        NIBBLE_TRY(const auto count, kit_.download<uint32_t>(refused, 1));
        if (count[0]) return fail("prepack refused {} scales", count[0]);
        kit_.arena.release(mark);
        return repeat(kit_, weights_, weight_bytes_, copies_);
    }
    Result<bool> start(int64_t m) override {
        NIBBLE_TRY(plan_, cuda::plan_matmul({.m = m, .n = n_, .k = k_}, kit_.device));
        if (permutes_ && !plan_.permuted_bytes) return false;
        NIBBLE_CHECK(Bf16::start(m));
        NIBBLE_TRY(workspace_, kit_.arena.allocate(plan_.workspace_bytes));
        NIBBLE_CHECK(fill_device(workspace_, 0, plan_.workspace_bytes, kit_.stream));
        if (plan_.permuted_bytes) {
            NIBBLE_TRY(permuted_, kit_.arena.allocate(plan_.permuted_bytes));
            NIBBLE_CHECK(cuda::permute(plan_, x_, permuted_, {}, kit_.stream));
        }
        return true;
    }
    Status queue(int launch) override {
        if (permutes_) NIBBLE_CHECK(cuda::permute(plan_, x_, permuted_, {true}, kit_.stream));
        return cuda::matmul(plan_, plan_.permuted_bytes ? permuted_ : x_,
                            {n_, k_, weights_ + launch % copies_ * weight_bytes_}, {.tensor_scale = scale_}, y_,
                            plan_.workspace_bytes ? workspace_ : nullptr, {true}, kit_.stream);
    }
    void weights(int64_t row, double* out) const override {
        QuantMatrix q(Format::nvfp4, 1, k_);
        for (int64_t i = 0; i < k_ / 2; ++i) q.codes[size_t(i)] = noise_.nibbles.at(row * k_ / 2 + i);
        for (int64_t i = 0; i < k_ / 16; ++i) q.block_scales[size_t(i)] = noise_.scales.at(row * k_ / 16 + i);
        q.tensor_scale = tensor_scale;
        std::vector<float> values(static_cast<size_t>(k_));
        quantize_kernels().back().decode(q.view(), values.data());  // the reference kernels
        std::copy(values.begin(), values.end(), out);
    }

private:
    static constexpr float tensor_scale = 1.0f / 8192;  // a power of two: values are exact in FP32
    bool permutes_;
    cuda::MatmulPlan plan_;
    const float* scale_ = nullptr;
    std::byte *workspace_ = nullptr, *permuted_ = nullptr;
};

// E4M3 weights and inputs with scales of 1, or of 1 x 128 and 128 x 128.
class Codes : public ProductKernel {
public:
    Codes(Kit& kit, const ProductNoise& noise, bool blocks) : ProductKernel(kit, noise), blocks_(blocks) {}

    std::string_view name() const override { return blocks_ ? "FP8 128x128" : "FP8 tensor"; }
    bool fp8() const override { return true; }
    double bound() const override { return 2e-3; }  // sums keep about 14 bits within 128 columns
    Status load(int64_t n, int64_t k) override {
        n_ = n, k_ = k, weight_bytes_ = cuda::codes_bytes(n, k), copies_ = cold_copies(weight_bytes_);
        NIBBLE_TRY(weights_, kit_.arena.allocate(weight_bytes_ * copies_));
        NIBBLE_TRY(tile_scales_, kit_.arena.allocate_array<float>((n + 127) / 128 * (k / 128)));
        NIBBLE_CHECK(noise_.factors.fill(kit_, tile_scales_, (n + 127) / 128 * (k / 128)));
        const DeviceArena::Mark mark = kit_.arena.mark();
        NIBBLE_TRY(std::byte * rows, kit_.arena.allocate(n * k));
        NIBBLE_CHECK(noise_.e4m3.fill(kit_, rows, n * k));
        NIBBLE_CHECK(fill_device(weights_, 0, weight_bytes_, kit_.stream));
        QuantView view{Format::fp8, n, k, reinterpret_cast<const uint8_t*>(rows)};
        NIBBLE_CHECK(cuda::make_codes(view, n, 0, weights_, kit_.stream));
        kit_.arena.release(mark);
        return repeat(kit_, weights_, weight_bytes_, copies_);
    }
    Result<bool> start(int64_t m) override {
        NIBBLE_TRY(std::byte * x, start_with(m, m * k_));
        NIBBLE_CHECK(noise_.e4m3.fill(kit_, x, m * k_, inputs_from));
        NIBBLE_TRY(group_scales_, kit_.arena.allocate_array<float>(m * (k_ / 128)));
        NIBBLE_CHECK(noise_.factors.fill(kit_, group_scales_, m * (k_ / 128), inputs_from));
        return true;
    }
    Status queue(int launch) override {
        cuda::ProductInput in{.x = x_, .codes = true, .tokens = m_};
        cuda::Operand w{.rows = n_, .cols = k_, .tiles = weights_ + launch % copies_ * weight_bytes_, .codes = true};
        if (blocks_) in.group_scales = group_scales_, w.tile_scales = tile_scales_;
        return cuda::matmul(in, w, y_, 0, true, kit_.stream);
    }
    void weights(int64_t row, double* out) const override {
        for (int64_t j = 0; j < k_; ++j)
            out[j] = double{e4m3_to_float(noise_.e4m3.at(row * k_ + j))} *
                     (blocks_ ? noise_.factors.at(row / 128 * (k_ / 128) + j / 128) : 1.0f);
    }
    void inputs(int64_t row, double* out) const override {
        for (int64_t j = 0; j < k_; ++j)
            out[j] = double{e4m3_to_float(noise_.e4m3.at(inputs_from + row * k_ + j))} *
                     (blocks_ ? noise_.factors.at(inputs_from + row * (k_ / 128) + j / 128) : 1.0f);
    }
    double bytes() const override { return bytes_with(static_cast<double>(m_ * k_) * (blocks_ ? 1 + 4.0 / 128 : 1.0)); }

private:
    bool blocks_;
    float *tile_scales_ = nullptr, *group_scales_ = nullptr;
};

class FromVendor : public ProductKernel {
public:
    FromVendor(Kit& kit, const ProductNoise& noise, const Vendor& vendor, bool e4m3)
        : ProductKernel(kit, noise), vendor_(vendor), e4m3_(e4m3) {}

    std::string_view name() const override { return e4m3_ ? "cuBLASLt FP8" : "cuBLASLt BF16"; }
    bool fp8() const override { return e4m3_; }
    double bound() const override { return e4m3_ ? 2e-3 : 4e-6; }
    Status load(int64_t n, int64_t k) override {
        n_ = n, k_ = k, weight_bytes_ = n * k * size(), copies_ = cold_copies(weight_bytes_);
        NIBBLE_TRY(weights_, kit_.arena.allocate(weight_bytes_ * copies_));
        NIBBLE_CHECK(fill(weights_, n * k, 0));
        return repeat(kit_, weights_, weight_bytes_, copies_);
    }
    Result<bool> start(int64_t m) override {
        auto plan = cuda::plan_vendor_product(vendor_.library, {.m = m, .n = n_, .k = k_, .e4m3 = e4m3_});
        if (!plan) return false;
        plan_ = std::move(*plan);
        NIBBLE_TRY(std::byte * x, start_with(m, m * k_ * size()));
        NIBBLE_TRY(workspace_, kit_.arena.allocate(plan_.workspace_bytes));
        NIBBLE_CHECK(fill(x, m * k_, inputs_from));
        return true;
    }
    Status queue(int launch) override {
        return cuda::vendor_product(plan_, x_, weights_ + launch % copies_ * weight_bytes_, y_, workspace_,
                                    kit_.stream);
    }
    void weights(int64_t row, double* out) const override { values(row * k_, out); }
    void inputs(int64_t row, double* out) const override { values(inputs_from + row * k_, out); }
    double bytes() const override { return bytes_with(static_cast<double>(m_ * k_ * size())); }

private:
    int64_t size() const { return e4m3_ ? 1 : 2; }
    Status fill(std::byte* to, int64_t count, int64_t first) {
        return e4m3_ ? noise_.e4m3.fill(kit_, to, count, first) : noise_.bf16.fill(kit_, to, count, first);
    }
    void values(int64_t first, double* out) const {
        for (int64_t j = 0; j < k_; ++j)
            out[j] = e4m3_ ? e4m3_to_float(noise_.e4m3.at(first + j)) : bf16_to_float(noise_.bf16.at(first + j));
    }

    const Vendor& vendor_;
    bool e4m3_;
    cuda::VendorPlan plan_;
    std::byte* workspace_ = nullptr;
};

}  // namespace

std::unique_ptr<ProductKernel> make_product_kernel(std::string_view name, Kit& kit, const ProductNoise& noise,
                                                   const Vendor& vendor) {
    if (name == "W4A16 NVFP4") return std::make_unique<W4a16>(kit, noise, false);
    if (name == "W4A16 NVFP4 + permute") return std::make_unique<W4a16>(kit, noise, true);
    if (name == "BF16") return std::make_unique<Bf16>(kit, noise);
    if (name == "FP8 tensor") return std::make_unique<Codes>(kit, noise, false);
    if (name == "FP8 128x128") return std::make_unique<Codes>(kit, noise, true);
    return std::make_unique<FromVendor>(kit, noise, vendor, name == "cuBLASLt FP8");
}

}  // namespace nibble::bench

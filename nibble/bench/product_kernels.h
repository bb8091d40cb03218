// The ways in which a GPU multiplies rows of inputs by a weight matrix, behind one interface: what `nibble bench
// matmul` checks and times.
#pragma once

#include "bench/machine.h"
#include "bench/noise.h"

#include <memory>
#include <string_view>

namespace nibble::bench {

// What weights and inputs are made of.
struct ProductNoise {
    Noise<uint16_t> bf16;    // normal, sigma 1
    Noise<uint8_t> e4m3;     // below 2, never NaN
    Noise<uint8_t> nibbles;  // pairs of E2M1 codes
    Noise<uint8_t> scales;   // the positive finite E4M3
    Noise<float> factors;    // 0.5 ... 1.5

    static Result<ProductNoise> create(Kit& kit);
};

class ProductKernel {
public:
    virtual ~ProductKernel() = default;

    virtual std::string_view name() const = 0;
    virtual bool fp8() const { return false; }  // on the FP8 tensor cores
    virtual bool takes(int64_t n, int64_t k) const { return n % 16 == 0 && k % 256 == 0; }
    virtual double bound() const { return 4e-6; }              // of the sum of the magnitudes of an output's terms
    virtual Status load(int64_t n, int64_t k) = 0;             // weights, in so many copies that L2 does not help
    virtual Result<bool> start(int64_t m) = 0;                 // inputs; false: no kernel for so many rows
    virtual Status queue(int launch) = 0;                      // the product with one of the copies
    virtual void weights(int64_t row, double* out) const = 0;  // [k], as they multiply
    virtual void inputs(int64_t row, double* out) const = 0;
    virtual double bytes() const = 0;  // that must be read and written

    const float* y() const { return y_; }
    int64_t n() const { return n_; }
    int64_t k() const { return k_; }
    int64_t m() const { return m_; }

protected:
    ProductKernel(Kit& kit, const ProductNoise& noise) : kit_(kit), noise_(noise) {}
    // `input_bytes` of x and the outputs, which become NaN.
    Result<std::byte*> start_with(int64_t m, int64_t input_bytes);
    double bytes_with(double input_bytes) const;

    Kit& kit_;
    const ProductNoise& noise_;
    int copies_ = 0;
    int64_t n_ = 0, k_ = 0, m_ = 0, weight_bytes_ = 0;
    std::byte *weights_ = nullptr, *x_ = nullptr;
    float* y_ = nullptr;
};

// "cuBLASLt BF16", "cuBLASLt FP8" (only with a library), "W4A16 NVFP4", "W4A16 NVFP4 + permute", "BF16", "FP8 tensor",
// "FP8 128x128".
std::unique_ptr<ProductKernel> make_product_kernel(std::string_view name, Kit& kit, const ProductNoise& noise,
                                                   const Vendor& vendor);

}  // namespace nibble::bench

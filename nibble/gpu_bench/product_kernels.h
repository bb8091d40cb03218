// The kernels that multiply rows of inputs by a weight matrix on a GPU, with a common interface. `nibble bench matmul`
// checks and times them.
#pragma once

#include "gpu_bench/machine.h"
#include "gpu_bench/noise.h"

#include <memory>
#include <string_view>

namespace nibble::bench {

// Sources of weights and inputs.
struct ProductNoise {
    Noise<uint16_t> bf16;    // normal, sigma 1
    Noise<uint8_t> e4m3;     // below 2, never NaN
    Noise<uint8_t> nibbles;  // pairs of E2M1 codes
    Noise<uint8_t> scales;   // all positive finite E4M3 numbers
    Noise<float> factors;    // 0.5 ... 1.5

    static Result<ProductNoise> create(Kit& kit);
};

class ProductKernel {
public:
    virtual ~ProductKernel() = default;

    virtual std::string_view name() const = 0;
    virtual bool fp8() const { return false; }  // uses the FP8 tensor cores
    virtual bool takes(int64_t n, int64_t k) const { return n % 16 == 0 && k % 256 == 0; }
    // tolerance, relative to the sum of the magnitudes of an output's terms
    virtual double bound() const { return 4e-6; }
    virtual Status load(int64_t n, int64_t k) = 0;             // loads weights, in enough copies that L2 does not help
    virtual Result<bool> start(int64_t m) = 0;                 // loads inputs; false: no kernel for m rows
    virtual Status queue(int launch) = 0;                      // queues the product with one of the copies
    virtual void weights(int64_t row, double* out) const = 0;  // writes the effective values [k]
    virtual void inputs(int64_t row, double* out) const = 0;
    virtual double bytes() const = 0;  // minimum bytes read and written

    const float* y() const { return y_; }
    int64_t n() const { return n_; }
    int64_t k() const { return k_; }
    int64_t m() const { return m_; }

protected:
    ProductKernel(Kit& kit, const ProductNoise& noise) : kit_(kit), noise_(noise) {}
    // Allocates `input_bytes` for x, and outputs filled with NaN.
    Result<std::byte*> start_with(int64_t m, int64_t input_bytes);
    double bytes_with(double input_bytes) const;

    Kit& kit_;
    const ProductNoise& noise_;
    int copies_ = 0;
    int64_t n_ = 0, k_ = 0, m_ = 0, weight_bytes_ = 0;
    std::byte *weights_ = nullptr, *x_ = nullptr;
    float* y_ = nullptr;
};

// Known names: "cuBLASLt BF16", "cuBLASLt FP8" (only with a library), "W4A16 NVFP4", "W4A16 NVFP4 + permute", "BF16",
// "FP8 tensor", "FP8 128x128".
std::unique_ptr<ProductKernel> make_product_kernel(std::string_view name, Kit& kit, const ProductNoise& noise,
                                                   const Vendor& vendor);

}  // namespace nibble::bench

// What a forward pass needs besides weights: kernels, threads, scratch memory that is kept from call to call.
#pragma once

#include "architecture/model_config.h"
#include "base/thread_pool.h"
#include "kernels/attention.h"
#include "kernels/byte_product.h"
#include "kernels/elementwise.h"
#include "kernels/elementwise_backward.h"
#include "kernels/matmul.h"
#include "kernels/ssm.h"
#include "model/batch.h"
#include "model/cpu/linear_products.h"

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

namespace nibble {

enum class Compute : uint8_t { f32, bf16 };

// Scratch in stack order: what is allocated inside a Scope is free after it. Grows by whole chunks and keeps them, so
// that a forward pass of a size seen before allocates nothing.
class Arena {
public:
    // Uninitialised, 64-byte aligned, valid until the innermost open Scope ends.
    float* floats(int64_t count) { return reinterpret_cast<float*>(bytes(count * int64_t{sizeof(float)})); }
    template <class T>
    T* array(int64_t count) {
        return reinterpret_cast<T*>(bytes(count * int64_t{sizeof(T)}));
    }
    std::byte* bytes(int64_t count);
    int64_t capacity() const;

    class Scope {
    public:
        explicit Scope(Arena& arena) : arena_(arena), chunk_(arena.chunk_), used_(arena.used_) {}
        ~Scope() { arena_.chunk_ = chunk_, arena_.used_ = used_; }
        Scope(const Scope&) = delete;
        Scope& operator=(const Scope&) = delete;

    private:
        Arena& arena_;
        size_t chunk_;
        int64_t used_;
    };

private:
    struct Chunk {
        std::unique_ptr<std::byte[]> memory;
        std::byte* base = nullptr;  // aligned
        int64_t size = 0;
    };
    std::vector<Chunk> chunks_;
    size_t chunk_ = 0;  // the one in use
    int64_t used_ = 0;  // of it
};

// cos and sin of every row of a batch, [rows, dims / 2] each, already multiplied by attention_factor. Angles follow
// transformers: FP32 frequency times FP32 position, rounded to FP32.
struct RotaryRows {
    const float* cos = nullptr;
    const float* sin = nullptr;
};

// Products in 8-bit integers with the weights of one block, whose codes are made once.
class ByteProducts {
public:
    explicit ByteProducts(const ByteKernels& kernels) : kernels_(&kernels) {}
    // out = x W^T and x W, x [n, W.cols()] or [n, W.rows()], `stride` floats from row to row.
    void forward(const PackedMatrix& weight, const float* x, int64_t n, int64_t stride, const MatmulOutput& out,
                 ThreadPool& pool);
    void backward(const PackedMatrix& weight, const float* x, int64_t n, int64_t stride, const MatmulOutput& out,
                  ThreadPool& pool);
    // Before weights that were multiplied go away: codes are found by their address. Their memory waits for equal
    // shapes until the next call.
    void forget();

private:
    using Weights = std::map<const PackedMatrix::Panels*, ByteMatrix>;
    ByteMatrix blank(int64_t rows, int64_t cols);
    void product(const ByteMatrix& weight, const float* x, int64_t n, int64_t stride, const MatmulOutput& out,
                 ThreadPool& pool);

    const ByteKernels* kernels_;
    Weights forth_, back_;
    std::vector<ByteMatrix> spare_;
    ByteMatrix input_;
};

struct Workspace {
    Compute compute = Compute::bf16;
    const MatmulKernels* matmul = nullptr;
    const ElementwiseKernels* elementwise = nullptr;
    const AttentionKernels* attention = nullptr;
    const SsmKernels* ssm = nullptr;
    const GradientKernels* gradient = nullptr;
    // Not null: linears, forward and backward, multiply in 8-bit integers whatever their weights' format (calibration's
    // faster mode; kernels/byte_product.h).
    std::unique_ptr<ByteProducts> bytes;
    // Not null: the model is being trained, and its linears multiply as the trainer says.
    LinearProducts* products = nullptr;
    ThreadPool* pool = nullptr;
    Arena arena;

    // `kernels` forces the entry of that name in every table; empty: the best of this CPU. Sums in tiles are for
    // Compute::bf16.
    static Result<Workspace> create(Compute compute, std::string_view kernels, ThreadPool& pool,
                                    SumOrder sums = SumOrder::lanes);

    bool bf16() const { return compute == Compute::bf16; }
    // Computed once per batch and kind of rotary embedding, shared by the layers.
    RotaryRows rotary(const Rope& rope, std::span<const int64_t> positions);
    // work(first, last) over [0, rows) in runs; `row_cost`, in floats touched, says when splitting pays.
    void parallel_rows(int64_t rows, int64_t row_cost, const std::function<void(int64_t, int64_t)>& work) const;

private:
    struct RotaryTable {
        Rope rope;
        std::vector<float> frequencies;
        std::vector<int64_t> positions;
        std::vector<float> cos, sin;
    };
    std::vector<RotaryTable> rotary_;
};

}  // namespace nibble

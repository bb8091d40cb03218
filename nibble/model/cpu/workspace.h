// The resources of a forward pass besides weights: kernels, threads, and scratch memory that is reused by later calls.
#pragma once

#include "architecture/model_config.h"
#include "base/thread_pool.h"
#include "kernels/attention.h"
#include "kernels/byte_product.h"
#include "kernels/delta_rule.h"
#include "kernels/elementwise.h"
#include "kernels/elementwise_backward.h"
#include "kernels/indexer.h"
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
#include <utility>
#include <vector>

namespace nibble {

enum class Compute : uint8_t { f32, bf16 };

// A stack allocator: memory allocated inside a Scope is free after it. Grows by whole chunks and keeps them, so a
// forward pass no larger than an earlier one allocates nothing.
class Arena {
public:
    // Returns uninitialized, 64-byte aligned memory that is valid until the innermost open Scope ends.
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
    size_t chunk_ = 0;  // index of the current chunk
    int64_t used_ = 0;  // bytes used in the current chunk
};

// cos and sin of every row of a batch, [rows, dims / 2] each, multiplied by attention_factor. Angles follow
// transformers: FP32 frequency times FP32 position, rounded to FP32.
struct RotaryRows {
    const float* cos = nullptr;
    const float* sin = nullptr;
};

// Products in 8-bit integers. The codes of one block's weights are made once and kept.
class ByteProducts {
public:
    explicit ByteProducts(const ByteKernels& kernels) : kernels_(&kernels) {}
    // Compute out = x W^T (x [n, W.cols()]) and out = x W (x [n, W.rows()]), `stride` floats from row to row.
    void forward(const PackedMatrix& weight, const float* x, int64_t n, int64_t stride, const MatmulOutput& out,
                 ThreadPool& pool);
    void backward(const PackedMatrix& weight, const float* x, int64_t n, int64_t stride, const MatmulOutput& out,
                  ThreadPool& pool);
    // Drops all codes. Required before weights that were multiplied are freed, because codes are found by the weights'
    // address. Their memory is reused for equal shapes until the next call.
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
    const IndexKernels* index = nullptr;
    const SsmKernels* ssm = nullptr;
    const DeltaKernels* delta = nullptr;
    const GradientKernels* gradient = nullptr;
    // If set, all linears multiply in 8-bit integers in the forward and backward pass, whatever their weights' format
    // (the faster mode of calibration; kernels/byte_product.h).
    std::unique_ptr<ByteProducts> bytes;
    // If set, the model is being trained and this hook computes the products of its linears.
    LinearProducts* products = nullptr;
    ThreadPool* pool = nullptr;
    Arena arena;
    // Pages of keys and values of whole texts that blocks share with later ones (AttentionConfig::kv_shared), by block
    // and by where the text's tokens lie. Kept until a model's next forward pass.
    std::map<std::pair<int, const int32_t*>, std::vector<std::byte>> shared_pages;
    // Choices of keys that later blocks use too (IndexerConfig::shared), by block and by where a segment's tokens lie.
    // Kept as long. A segment without an entry attends to every key.
    std::map<std::pair<int, const int32_t*>, std::vector<uint64_t>> shared_choices;

    // `kernels` names the entry to use in every table; empty: the best of this CPU. SumOrder::tiles requires
    // Compute::bf16. Error: an unknown name, or kernels that this CPU cannot run.
    static Result<Workspace> create(Compute compute, std::string_view kernels, ThreadPool& pool,
                                    SumOrder sums = SumOrder::lanes);

    bool bf16() const { return compute == Compute::bf16; }
    // Returns the tables of one kind of rotary embedding for these positions. Computed once per batch; all layers share
    // them.
    RotaryRows rotary(const Rope& rope, std::span<const int64_t> positions);
    // Calls work(first, last) for runs that cover [0, rows). `row_cost`: floats touched per row; small jobs are not
    // split.
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

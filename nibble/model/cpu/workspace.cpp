#include "model/cpu/workspace.h"

#include "base/large_pages.h"
#include "kernels/unpack.h"
#include "model/cpu/rope.h"

#include <algorithm>
#include <cmath>

namespace nibble {
namespace {

constexpr int64_t alignment = 64, smallest_chunk = 1 << 20;
constexpr size_t kept_tables = 4;        // gemma3 alternates between two rotary embeddings
constexpr int64_t worth_a_task = 16384;  // floats; for less, waking a thread costs more than the work

}  // namespace

std::byte* Arena::bytes(int64_t count) {
    const int64_t size = (std::max<int64_t>(count, 1) + alignment - 1) / alignment * alignment;
    for (; chunk_ < chunks_.size(); ++chunk_, used_ = 0)
        if (used_ + size <= chunks_[chunk_].size) {
            std::byte* p = chunks_[chunk_].base + used_;
            used_ += size;
            return p;
        }
    Chunk chunk;
    chunk.size = std::max(size, chunks_.empty() ? smallest_chunk : 2 * chunks_.back().size);
    chunk.memory = std::make_unique_for_overwrite<std::byte[]>(static_cast<size_t>(chunk.size + alignment));
    const auto at = reinterpret_cast<uintptr_t>(chunk.memory.get());
    chunk.base = chunk.memory.get() + (alignment - at % alignment) % alignment;
    prefer_large_pages(chunk.memory.get(), chunk.size);
    chunks_.push_back(std::move(chunk));
    used_ = size;
    return chunks_.back().base;
}

int64_t Arena::capacity() const {
    int64_t sum = 0;
    for (const Chunk& chunk : chunks_) sum += chunk.size;
    return sum;
}

ByteMatrix ByteProducts::blank(int64_t rows, int64_t cols) {
    const auto fits = [&](const ByteMatrix& m) { return m.rows == rows && m.cols == cols; };
    const auto found = std::ranges::find_if(spare_, fits);
    if (found == spare_.end()) return {rows, cols};
    ByteMatrix m = std::move(*found);
    spare_.erase(found);
    return m;
}

void ByteProducts::product(const ByteMatrix& weight, const float* x, int64_t n, int64_t stride, const MatmulOutput& out,
                           ThreadPool& pool) {
    byte_rows(*kernels_, x, n, weight.cols, stride, pool, input_);
    byte_product(*kernels_, input_, weight, out, pool);
}

void ByteProducts::forward(const PackedMatrix& weight, const float* x, int64_t n, int64_t stride,
                           const MatmulOutput& out, ThreadPool& pool) {
    const auto [found, fresh] = forth_.try_emplace(&weight.panels());
    if (fresh) {
        found->second = blank(weight.rows(), weight.cols());
        byte_weight(*kernels_, weight, pool, found->second);
    }
    product(found->second, x, n, stride, out, pool);
}

void ByteProducts::backward(const PackedMatrix& weight, const float* x, int64_t n, int64_t stride,
                            const MatmulOutput& out, ThreadPool& pool) {
    const auto [found, fresh] = back_.try_emplace(&weight.panels());
    if (fresh) {
        found->second = blank(weight.cols(), weight.rows());
        byte_weight(*kernels_, transposed(weight, pool), pool, found->second);
    }
    product(found->second, x, n, stride, out, pool);
}

void ByteProducts::forget() {
    spare_.clear();
    for (Weights* weights : {&forth_, &back_}) {
        for (auto& [address, codes] : *weights) spare_.push_back(std::move(codes));
        weights->clear();
    }
}

Result<Workspace> Workspace::create(Compute compute, std::string_view kernels, ThreadPool& pool, SumOrder sums) {
    if (sums == SumOrder::tiles && compute != Compute::bf16)
        return fail("--sums tiles rounds inputs to BF16: values between operators must be BF16 too");
    Workspace work;
    work.compute = compute;
    work.pool = &pool;
    NIBBLE_TRY(work.matmul, select_matmul_kernels(kernels, sums));
    if (kernels == "amx") kernels = {};  // only the products have AMX kernels
    NIBBLE_TRY(work.elementwise, select_elementwise_kernels(kernels));
    NIBBLE_TRY(work.attention, select_attention_kernels(kernels));
    NIBBLE_TRY(work.index, select_index_kernels(kernels));
    NIBBLE_TRY(work.ssm, select_ssm_kernels(kernels));
    NIBBLE_TRY(work.delta, select_delta_kernels(kernels));
    NIBBLE_TRY(work.gradient, select_gradient_kernels(kernels));
    return work;
}

RotaryRows Workspace::rotary(const Rope& rope, std::span<const int64_t> positions) {
    for (RotaryTable& t : rotary_)
        if (t.rope == rope && std::ranges::equal(t.positions, positions)) return {t.cos.data(), t.sin.data()};
    auto table = std::ranges::find_if(rotary_, [&](const RotaryTable& t) { return t.rope == rope; });
    if (table == rotary_.end()) {
        if (rotary_.size() == kept_tables) rotary_.erase(rotary_.begin());
        table = rotary_.insert(rotary_.end(), RotaryTable{rope, rope_frequencies(rope), {}, {}, {}});
    }
    const auto rows = static_cast<int64_t>(positions.size()), half = int64_t{rope.dims} / 2;
    table->positions.assign(positions.begin(), positions.end());
    table->cos.resize(static_cast<size_t>(rows * half));
    table->sin.resize(static_cast<size_t>(rows * half));
    parallel_rows(rows, 64 * half, [&](int64_t first, int64_t last) {
        for (int64_t i = first * half; i < last * half; ++i) {
            const float angle = static_cast<float>(positions[static_cast<size_t>(i / half)]) *
                                table->frequencies[static_cast<size_t>(i % half)];
            table->cos[static_cast<size_t>(i)] =
                static_cast<float>(std::cos(static_cast<double>(angle)) * rope.attention_factor);
            table->sin[static_cast<size_t>(i)] =
                static_cast<float>(std::sin(static_cast<double>(angle)) * rope.attention_factor);
        }
    });
    return {table->cos.data(), table->sin.data()};
}

void Workspace::parallel_rows(int64_t rows, int64_t row_cost, const std::function<void(int64_t, int64_t)>& work) const {
    const int64_t tasks =
        std::clamp<int64_t>(rows * row_cost / worth_a_task, 1, std::min<int64_t>(rows, 4 * pool->threads()));
    if (tasks <= 1 || pool->threads() == 1) {
        if (rows > 0) work(0, rows);
        return;
    }
    pool->parallel_for(tasks, [&](int64_t i) { work(rows * i / tasks, rows * (i + 1) / tasks); });
}

}  // namespace nibble

#include "train/lora.h"

#include "base/philox.h"
#include "formats/minifloat.h"
#include "kernels/unpack.h"
#include "model/gradients.h"

#include <algorithm>
#include <cmath>

#include <nlohmann/json.hpp>

namespace nibble {
namespace {

constexpr uint64_t lora_role = uint64_t{0x4C} << 56;  // role of Philox streams; combined with the adapter's number

std::string_view last_name(std::string_view linear) { return linear.substr(linear.rfind('.') + 1); }

PackedMatrix packed_weight(const MatrixView& values, ThreadPool& pool) {
    auto packed = prepack(values, pool);
    return std::move(*packed);  // cannot fail for BF16 and F32
}

}  // namespace

Result<std::shared_ptr<Parameters>> lora_parameters(std::span<const Block> blocks, const TrainLora& lora,
                                                    DType published, uint64_t seed, ThreadPool& pool) {
    std::vector<Parameters::Value> values;
    std::vector<std::string> unseen = lora.targets;
    uint64_t number = 0;
    for (const Block& block : blocks)
        for (const std::span<const Linear> unit : block.mixer().units())
            for (const Linear& linear : unit) {
                const std::string_view name = last_name(linear.name);
                if (!lora.targets.empty() && std::ranges::find(lora.targets, name) == lora.targets.end()) continue;
                std::erase(unseen, name);
                if (lora.rank > std::min(linear.rows, linear.cols))
                    return fail("lora.rank: {} is larger than the matrix '{}', {} x {}", lora.rank, linear.name,
                                linear.rows, linear.cols);
                const PhiloxStream stream{seed, lora_role | number++};
                const double bound = 1 / std::sqrt(static_cast<double>(linear.cols));
                std::vector<float> a(static_cast<size_t>(lora.rank * linear.cols));
                for (size_t i = 0; i < a.size(); ++i)
                    a[i] = static_cast<float>(bound * ((stream.block(i).word[0] + 0.5) * 0x1p-31 - 1));
                values.push_back({linear.name + ".lora_A.weight", {lora.rank, linear.cols}, std::move(a)});
                values.push_back({linear.name + ".lora_B.weight",
                                  {linear.rows, lora.rank},
                                  std::vector<float>(static_cast<size_t>(linear.rows * lora.rank))});
            }
    if (!unseen.empty()) return fail("lora.targets: no linear of a block is named '{}'", unseen[0]);
    return Parameters::create(std::move(values), Json::object(), published, pool);
}

Result<std::unique_ptr<LoraProducts>> LoraProducts::create(const Model& base, const Checkpoint& checkpoint,
                                                           const Parameters& adapters, const TrainLora& lora,
                                                           ThreadPool& pool) {
    const auto scale = static_cast<float>(lora.alpha / static_cast<double>(lora.rank));
    std::unique_ptr<LoraProducts> made(new LoraProducts(adapters, scale));
    for (const Block& block : base.blocks())
        for (const Linear* linear : block.linears()) {
            NIBBLE_CHECK(made->freeze(*linear, linear->name + ".weight", checkpoint, pool));
            made->order_.emplace_back(linear->name, block.config().layer);
            const auto a = adapters.id(linear->name + ".lora_A.weight"),
                       b = adapters.id(linear->name + ".lora_B.weight");
            if (a.ok() && b.ok()) made->by_linear_.emplace(linear->name, Adapter{.a = *a, .b = *b});
        }
    NIBBLE_CHECK(made->freeze(base.head().linear(), base.config().head, checkpoint, pool));
    return made;
}

Status LoraProducts::freeze(const Linear& linear, const std::string& tensor, const Checkpoint& checkpoint,
                            ThreadPool& pool) {
    const auto tensors = checkpoint.tensors();
    const auto found = std::ranges::find(tensors, tensor, &CheckpointTensor::name);
    if (found == tensors.end()) return fail("'{}' is not in the checkpoint", tensor);
    const auto index = static_cast<size_t>(found - tensors.begin());
    Frozen frozen{.rows = linear.rows, .cols = linear.cols, .format = found->stored_type};
    if (found->quantized()) {
        QuantMatrix scratch;
        NIBBLE_TRY(const QuantView view, checkpoint.read_quant(index, 0, linear.rows, scratch));
        NIBBLE_TRY(const PackedMatrix packed, prepack(view, pool));
        frozen.transposed = transposed(packed, pool);
    } else {
        Matrix scratch;
        NIBBLE_TRY(const MatrixView view, checkpoint.read_plain(index, 0, linear.rows, scratch));
        NIBBLE_TRY(frozen.transposed, prepack_transposed(view, pool));
    }
    checkpoint.done_with(index, 0, linear.rows);
    frozen_.insert_or_assign(linear.name, std::move(frozen));
    return Ok{};
}

LoraProducts::Adapter* LoraProducts::fresh(const Linear& linear, ThreadPool& pool) {
    const auto found = by_linear_.find(linear.name);
    if (found == by_linear_.end()) return nullptr;
    Adapter& adapter = found->second;
    if (adapter.version == adapters_.version()) return &adapter;
    const MatrixView a = adapters_.published(adapter.a), b = adapters_.published(adapter.b);
    adapter.a_forward = packed_weight(a, pool);
    adapter.b_forward = packed_weight(b, pool);
    adapter.a_back = transposed(adapter.a_forward, pool);
    adapter.b_back = transposed(adapter.b_forward, pool);
    adapter.version = adapters_.version();
    return &adapter;
}

bool LoraProducts::adds(std::span<const Linear> unit) const {
    return std::ranges::any_of(unit, [&](const Linear& part) { return by_linear_.contains(part.name); });
}

void LoraProducts::add(std::span<const Linear> unit, const float* x, int64_t n, float* y, int64_t stride,
                       Workspace& work) {
    const Arena::Scope scope(work.arena);
    for (const Linear& part : unit) {
        if (const Adapter* adapter = fresh(part, *work.pool)) {
            const int64_t rank = adapter->a_forward.rows();
            float* low = work.arena.floats(n * rank);
            float* term = work.arena.floats(n * part.rows);
            work.matmul->matmul(adapter->a_forward, {.x = x, .rows = n, .stride = part.cols},
                                {low, rank, nullptr, work.bf16()}, *work.pool);
            work.matmul->matmul(adapter->b_forward, {.x = low, .rows = n, .stride = rank},
                                {term, part.rows, nullptr, work.bf16()}, *work.pool);
            work.parallel_rows(n, part.rows, [&](int64_t first, int64_t last) {
                for (int64_t i = first; i < last; ++i)
                    for (int64_t j = 0; j < part.rows; ++j) {
                        float& to = y[i * stride + j];
                        const float more = scale_ * term[i * part.rows + j];
                        to = work.bf16() ? round_to_bf16(to + round_to_bf16(more)) : to + more;
                    }
            });
        }
        y += part.rows;
    }
}

std::vector<float> LoraProducts::scaled(const Linear& linear, const float* dy, int64_t n, int64_t stride) const {
    std::vector<float> d(static_cast<size_t>(n * linear.rows));
    for (int64_t i = 0; i < n; ++i)
        for (int64_t j = 0; j < linear.rows; ++j)
            d[static_cast<size_t>(i * linear.rows + j)] = scale_ * dy[i * stride + j];
    return d;
}

void LoraProducts::input_gradient(std::span<const Linear> unit, const float*, const float* dy, int64_t n,
                                  int64_t stride, float* dx, Workspace& work) {
    const Arena::Scope scope(work.arena);
    const int64_t cols = unit[0].cols;
    float* more = work.arena.floats(n * cols);
    const auto add = [&](const PackedMatrix& weight, const float* from, int64_t from_stride, bool first) {
        work.matmul->matmul(weight, {.x = from, .rows = n, .stride = from_stride}, {first ? dx : more, cols},
                            *work.pool);
        if (!first) work.elementwise->add(more, n * cols, false, dx);
    };
    bool first = true;
    for (const Linear& part : unit) {
        add(frozen_.at(part.name).transposed, dy, stride, first);
        first = false;
        if (const Adapter* adapter = fresh(part, *work.pool)) {
            const int64_t rank = adapter->a_forward.rows();
            const std::vector<float> d = scaled(part, dy, n, stride);
            float* d_low = work.arena.floats(n * rank);
            work.matmul->matmul(adapter->b_back, {.x = d.data(), .rows = n, .stride = part.rows}, {d_low, rank},
                                *work.pool);
            add(adapter->a_back, d_low, rank, false);
        }
        dy += part.rows;
    }
}

// Computes dA = (s dy B)^T x and dB = (s dy)^T (x A^T).
Status LoraProducts::weight_gradient(std::span<const Linear> unit, const float* x, const float* dy, int64_t n,
                                     int64_t stride, Workspace& work, GradientSink& sink) {
    for (const Linear& part : unit) {
        if (const Adapter* adapter = fresh(part, *work.pool)) {
            const Arena::Scope scope(work.arena);
            const int64_t rank = adapter->a_forward.rows();
            const std::vector<float> d = scaled(part, dy, n, stride);
            float* low = work.arena.floats(n * rank);
            float* d_low = work.arena.floats(n * rank);
            float* d_low_t = work.arena.floats(rank * n);
            float* d_t = work.arena.floats(part.rows * n);
            float* da = work.arena.floats(rank * part.cols);
            float* db = work.arena.floats(part.rows * rank);
            work.matmul->matmul(adapter->a_forward, {.x = x, .rows = n, .stride = part.cols},
                                {low, rank, nullptr, work.bf16()}, *work.pool);
            work.matmul->matmul(adapter->b_back, {.x = d.data(), .rows = n, .stride = part.rows}, {d_low, rank},
                                *work.pool);
            transpose(d_low, n, rank, rank, d_low_t, *work.pool);
            transpose(d.data(), n, part.rows, part.rows, d_t, *work.pool);
            work.matmul->matmul(pack_transposed(x, n, part.cols, part.cols, *work.pool),
                                {.x = d_low_t, .rows = rank, .stride = n}, {da, part.cols}, *work.pool);
            work.matmul->matmul(pack_transposed(low, n, rank, rank, *work.pool),
                                {.x = d_t, .rows = part.rows, .stride = n}, {db, rank}, *work.pool);
            NIBBLE_CHECK(sink.add(part.name + ".lora_A.weight", da, rank, part.cols));
            NIBBLE_CHECK(sink.add(part.name + ".lora_B.weight", db, part.rows, rank));
        }
        dy += part.rows;
    }
    return Ok{};
}

std::vector<UnitLine> LoraProducts::table() const {
    std::vector<UnitLine> lines;
    for (const auto& [name, layer] : order_) {
        const auto found = by_linear_.find(name);
        const std::string& format = frozen_.at(name).format;
        if (found == by_linear_.end()) {
            lines.push_back({name, layer, format + ", frozen", "FP32", "none"});
            continue;
        }
        const int64_t rank = adapters_.tensors()[found->second.a].rows();
        lines.push_back({name, layer, format + ", frozen + rank " + std::to_string(rank), "FP32",
                         "rank " + std::to_string(rank) + " in FP32"});
    }
    return lines;
}

Status LoraProducts::set_state(const std::vector<float>& state) {
    if (!state.empty()) return fail("the state has {} numbers of a recipe, but adapters have no recipe", state.size());
    return Ok{};
}

}  // namespace nibble

#include "train/device/device_optimizer.h"

#include "base/checked.h"
#include "kernels/optimizer_cuda.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace nibble {
namespace {

int64_t workspace_of(const TrainOptimizer& options, const TrainWeights& weights) {
    if (options.kind != OptimizerKind::muon) return 0;
    int64_t most = 0;
    for (size_t id = 0; id < weights.parameters().count(); ++id) {
        const CheckpointTensor& t = weights.parameters().tensors()[id];
        if (!weights.state_layout(id).second) most = std::max(most, cuda::muon_workspace(t.rows(), t.cols()));
    }
    return most;
}

float* offset(float* array, int64_t elements, bool narrow) {
    return narrow ? reinterpret_cast<float*>(reinterpret_cast<uint16_t*>(array) + elements) : array + elements;
}

}  // namespace

Status DeviceOptimizer::check(const TrainOptimizer& options, int ranks) {
    if (options.kind == OptimizerKind::muon && ranks > 1)
        return fail("optimizer.kind: muon needs whole matrices; {} GPUs divide them", ranks);
    return Ok{};
}

int64_t DeviceOptimizer::bytes(const TrainOptimizer& options, const TrainWeights& weights) {
    const int64_t owners = options.bf16_states ? 12 * static_cast<int64_t>(weights.parameters().count()) : 0;
    return owners + workspace_of(options, weights) + 4 * DeviceArena::alignment;
}

Result<DeviceOptimizer> DeviceOptimizer::create(const TrainOptimizer& options, uint64_t seed,
                                                const TrainWeights& weights, const DeviceInfo& device,
                                                const Stream& stream) {
    DeviceOptimizer o(options, seed, weights);
    NIBBLE_TRY(o.memory_, DeviceArena::create(device.index, bytes(options, weights)));
    if (const int64_t workspace = workspace_of(options, weights); workspace > 0) {
        NIBBLE_TRY(o.workspace_, o.memory_->allocate(workspace));
    }
    if (!options.bf16_states) return o;
    const std::vector<int64_t>& at = weights.flat().at;
    std::vector<uint32_t> ids(at.size());
    std::iota(ids.begin(), ids.end(), 0u);
    std::ranges::sort(ids, {}, [&](uint32_t id) { return at[id]; });
    std::vector<int64_t> begins;
    for (const uint32_t id : ids) begins.push_back(at[id]);
    const auto count = static_cast<int64_t>(ids.size());
    NIBBLE_TRY(int64_t * begin, o.memory_->allocate_array<int64_t>(count));
    NIBBLE_TRY(uint32_t * id, o.memory_->allocate_array<uint32_t>(count));
    NIBBLE_CHECK(copy_to_device(reinterpret_cast<std::byte*>(begin), reinterpret_cast<const std::byte*>(begins.data()),
                                8 * count, stream));
    NIBBLE_CHECK(copy_to_device(reinterpret_cast<std::byte*>(id), reinterpret_cast<const std::byte*>(ids.data()),
                                4 * count, stream));
    NIBBLE_CHECK(stream.synchronize());
    o.owners_ = {.count = static_cast<int>(count), .begin = begin, .id = id};
    return o;
}

Status DeviceOptimizer::update(const DeviceRanks::Sum& sum, double learning_rate, int64_t step, const float* clip,
                               const Stream& stream) const {
    const TrainOptimizer& o = options_;
    const auto t = static_cast<double>(step);
    cuda::AdamW a{.clip = clip,
                  .beta2 = static_cast<float>(o.beta2),
                  .rest1 = static_cast<float>(1 - o.beta1),
                  .rest2 = static_cast<float>(1 - o.beta2),
                  .epsilon = static_cast<float>(o.epsilon),
                  .rate = static_cast<float>(learning_rate / (1 - std::pow(o.beta1, t))),
                  .root = static_cast<float>(std::sqrt(1 - std::pow(o.beta2, t)))};
    const FlatLayout& flat = weights_->flat();
    NIBBLE_CHECK(adamw(a, sum, flat.matrix_elements, flat.elements, step, stream));
    a.keep = static_cast<float>(1 - learning_rate * o.weight_decay);
    a.decay = o.weight_decay != 0;
    if (o.kind != OptimizerKind::muon) return adamw(a, sum, 0, flat.matrix_elements, step, stream);
    const auto both = [&](const FlatMatrix& m) {
        return adamw(a, sum, m.at, m.at + round_up(m.elements(), flat_alignment), step, stream);
    };
    NIBBLE_CHECK(both(flat.embedding));
    if (!flat.tied) NIBBLE_CHECK(both(flat.head));
    return muon(sum, learning_rate, step, clip, stream);
}

// Updates the elements in [begin, end); of matrices only those that this rank keeps, run by run.
Status DeviceOptimizer::adamw(const cuda::AdamW& a, const DeviceRanks::Sum& sum, int64_t begin, int64_t end,
                              int64_t step, const Stream& stream) const {
    const int64_t vectors = weights_->flat().matrix_elements;
    const auto own = [](const TrainWeights::Kept& kept, bool of_vectors) {
        return of_vectors ? kept.vectors : kept.matrices;
    };
    const auto run = [&](int64_t at, int64_t count, int64_t first, bool of_vectors) -> Status {
        cuda::AdamW part = a;
        part.count = count;
        part.master = own(weights_->master(), of_vectors) + first;
        part.gradient = (of_vectors ? sum.vectors : sum.matrices) + first;
        part.published = weights_->published_at(at);
        const bool narrow = options_.bf16_states;
        float* const m = offset(own(weights_->m(), of_vectors), first, narrow);
        float* const v = offset(own(weights_->v(), of_vectors), first, narrow);
        if (narrow)
            return cuda::adamw_update(cuda::NarrowAdamW{.plain = part,
                                                        .m = reinterpret_cast<uint16_t*>(m),
                                                        .v = reinterpret_cast<uint16_t*>(v),
                                                        .first = at,
                                                        .owners = owners_,
                                                        .draws = draws(step)},
                                      stream);
        part.m = m, part.v = v;
        return cuda::adamw_update(part, stream);
    };
    if (begin >= vectors) return begin < end ? run(begin, end - begin, begin - vectors, true) : Status(Ok{});
    for (const FlatRun& some : weights_->shards().within(begin, end))
        if (some.rank == weights_->rank()) NIBBLE_CHECK(run(some.begin, some.elements(), some.local, false));
    return Ok{};
}

Status DeviceOptimizer::muon(const DeviceRanks::Sum& sum, double learning_rate, int64_t step, const float* clip,
                             const Stream& stream) const {
    const bool narrow = options_.bf16_states;
    for (size_t id = 0; id < weights_->parameters().count(); ++id) {
        if (weights_->state_layout(id).second) continue;
        const CheckpointTensor& t = weights_->parameters().tensors()[id];
        const int64_t at = weights_->flat().at[id], rows = t.rows(), cols = t.cols();
        float* const m = offset(weights_->m().matrices, at, narrow);
        cuda::Muon u{.rows = rows,
                     .cols = cols,
                     .master = weights_->master().matrices + at,
                     .m = narrow ? nullptr : m,
                     .narrow_m = narrow ? reinterpret_cast<uint16_t*>(m) : nullptr,
                     .gradient = sum.matrices + at,
                     .published = weights_->published() + 2 * at,
                     .clip = clip,
                     .momentum = static_cast<float>(options_.momentum),
                     .keep = static_cast<float>(1 - learning_rate * options_.weight_decay),
                     .id = static_cast<uint32_t>(id),
                     .draws = draws(step),
                     .workspace = workspace_};
        u.rate = static_cast<float>(learning_rate * 0.2 * std::sqrt(static_cast<double>(std::max(rows, cols))));
        NIBBLE_CHECK(cuda::muon_update(u, stream).within(t.name));
    }
    return Ok{};
}

}  // namespace nibble

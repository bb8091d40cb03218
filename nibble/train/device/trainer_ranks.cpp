// Data that DeviceTrainer shares with the other processes of a run: memory, micro-batches, log-probabilities, states.
#include "kernels/optimizer_cuda.h"
#include "train/device/device_trainer.h"
#include "train/device/micro_batch.h"
#include "train/rank_message.h"

#include <algorithm>
#include <array>

namespace nibble {

Status DeviceTrainer::check_sharding() const {
    if (!sharded()) return Ok{};
    const auto no = [](std::string_view what) { return fail("parallel.shard: all: {}; use shard: states", what); };
    if (options_.train.optimizer.kind == OptimizerKind::muon) return no("Muon needs whole matrices");
    if (weights_.recipe().has_experts()) return no("experts under a quantized recipe are not supported");
    if (options_.train.cache.format != KvFormat::none) return no("an FP8 KV cache is not supported");
    if (options_.generation || options_.reference) return no("no GPU has the whole model for rollouts or a reference");
    return Ok{};
}

// Memory of parameters and related buffers on the GPU with the most; micro_batch: rows.
std::vector<TrainMemoryPlan::Item> DeviceTrainer::parameter_sizes(Sharding sharding, int64_t micro_batch) const {
    const int size = ranks_->size();
    const FlatShards shards = FlatShards::make(weights_.flat(), sharding, size);
    const int most = shards.largest();
    const int64_t rows = options_.rows / size, of_shard = weights_.shard_bytes(shards, most);
    const int buffers = AccumulationPlan::make((rows + micro_batch - 1) / micro_batch).buffers;
    const std::string share = size > 1 ? fmt::format(" (1/{})", size) : "";
    std::vector<TrainMemoryPlan::Item> items{{"masters" + share, of_shard},
                                             {"states" + share, 2 * weights_.state_bytes(shards, most)}};
    if (sharding == Sharding::states) {
        items.push_back({"gradients", buffers * weights_.master_bytes()});
        items.push_back(
            {"weights", weights_.published_bytes() + weights_.operand_bytes() + DeviceWeights::staging_bytes});
    } else {
        items.push_back({"gradients" + share, buffers * of_shard});
        items.push_back({"weights" + share, weights_.published_bytes(shards, most)});
        items.push_back({"weights of current blocks", weights_.slot_bytes()});
        items.push_back({"gradients of current blocks", ShardedUnits::bytes(weights_, shards)});
    }
    items.push_back(
        {"received from other ranks", DeviceRanks::bytes(weights_.flat(), shards, weights_.recipe().delayed())});
    return items;
}

// Describes the memory of the other kind of sharding.
std::string DeviceTrainer::sharding_note() const {
    if (base_)
        return "parallel.shard: states: masters and states of adapters are divided, frozen weights are complete on "
               "every GPU";
    const auto sum = [&](Sharding sharding) {
        int64_t bytes = 0;
        for (const auto& item : parameter_sizes(sharding, plan_.micro_batch)) bytes += item.bytes;
        return bytes;
    };
    return fmt::format("parallel.shard: {}: parameters and related buffers need {}; {} with shard: {}",
                       sharded() ? "all" : "states", gib_of(sum(options_.sharding)),
                       gib_of(sum(sharded() ? Sharding::states : Sharding::all)), sharded() ? "states" : "all");
}

// Returns the minimum over the ranks, so that all make the same plan.
Result<int64_t> DeviceTrainer::free_memory() const {
    NIBBLE_TRY(const DeviceMemory memory, device_memory(device_.index));
    if (!ranks_->group()) return memory.free;
    // The plan includes the memory that the ranks have already allocated.
    int64_t free = memory.free + DeviceRanks::bytes(weights_.flat(), ranks_->shards(), weights_.recipe().delayed());
    RankBytes own;
    put_number(own, free);
    NIBBLE_TRY(const auto all, ranks_->group()->gather(std::move(own)));
    for (const RankBytes& part : all) free = std::min(free, RankReader(part).number());
    return free;
}

Result<std::vector<MicroBatch>> DeviceTrainer::own_pieces(std::span<const TrainBatch> batches) const {
    std::vector<MicroBatch> pieces = cut_micro_batches(batches, plan_.micro_batch);
    if (!ranks_->group()) return pieces;
    NIBBLE_TRY(const std::vector<int> owner, ranks_->owners(std::ssize(pieces)));
    std::vector<MicroBatch> own;
    for (size_t p = 0; p < pieces.size(); ++p)
        if (owner[p] == ranks_->rank()) own.push_back(pieces[p]);
    return own;
}

Result<std::vector<float>> DeviceTrainer::of_all_pieces(std::span<const TrainBatch> batches, int64_t tokens) const {
    const auto* host = reinterpret_cast<const float*>(landing_->data() + scalar_bytes);
    std::vector<float> own(host, host + tokens), all;
    if (!ranks_->group()) return own;
    RankBytes bytes;
    put_numbers(bytes, own);
    NIBBLE_TRY(const auto from, ranks_->group()->gather(std::move(bytes)));
    std::vector<std::vector<float>> of_rank;
    for (const RankBytes& part : from) of_rank.push_back(RankReader(part).numbers<float>());
    const std::vector<MicroBatch> pieces = cut_micro_batches(batches, plan_.micro_batch);
    NIBBLE_TRY(const std::vector<int> owner, ranks_->owners(std::ssize(pieces)));
    std::vector<size_t> taken(of_rank.size());
    for (size_t p = 0; p < pieces.size(); ++p) {
        const auto r = static_cast<size_t>(owner[p]);
        const auto count = static_cast<size_t>(pieces[p].tokens());
        if (taken[r] + count > of_rank[r].size()) return fail("rank {} has different micro-batches", r);
        const auto first = of_rank[r].begin() + static_cast<ptrdiff_t>(taken[r]);
        all.insert(all.end(), first, first + static_cast<ptrdiff_t>(count));
        taken[r] += count;
    }
    return all;
}

Status DeviceTrainer::ask_of_other_pieces(const RowObjective& objective, std::span<const TrainBatch> batches,
                                          std::pair<int64_t, int64_t> own, std::vector<float> seen,
                                          std::span<double> losses) {
    std::vector<int64_t> tokens;
    for (const TrainBatch& b : batches) tokens.insert(tokens.end(), static_cast<size_t>(b.rows), b.seq);
    NIBBLE_TRY(seen, of_all_ranks(ranks_->group(), std::move(seen)));
    return ask_of_others(objective, tokens, own, seen, losses);
}

// Each rank computes a batch of one row alone.
Status DeviceTrainer::row_log_probs(std::span<const TrainBatch* const> rows, const OfRow& each) {
    if (units_ && ranks_->size() > 1)
        return fail("parallel.shard: all: no GPU can compute a row alone; use shard: states");
    const auto own = [&](const TrainBatch& row, std::span<float> out) { return log_probs(row, out); };
    return nibble::row_log_probs(ranks_->group(), rows, own, each);
}

Result<TrainState> DeviceTrainer::state() {
    if (ranks_->group()) NIBBLE_CHECK(ranks_->group()->share({std::byte{1}}));
    TrainState state;
    NIBBLE_CHECK(collect(state));
    return state;
}

// Collects the whole state in rank 0.
Status DeviceTrainer::collect(TrainState& state) {
    NIBBLE_TRY(state, weights_.download());
    NIBBLE_TRY(state.recipe, weights_.recipe().state(stream_));
    if (cache_) std::ranges::copy(cache_->scales().state(), std::back_inserter(state.recipe));
    state.optimizer_steps = optimizer_steps_;
    state.norms = norms_.norms();
    RankGroup* group = ranks_->group();
    if (!group) return Ok{};
    struct Part {
        std::span<std::byte> bytes;
        size_t each;  // bytes per element
    };
    const auto of = [](TrainState& s, size_t id) {
        const size_t each = dtype_of(s.m[id]) == DType::bf16 ? 2 : 4;
        return std::array{Part{std::as_writable_bytes(std::span(s.masters[id])), 4}, Part{bytes_of(s.m[id]), each},
                          Part{bytes_of(s.v[id]), each}};
    };
    std::vector<RankBytes> to(static_cast<size_t>(group->size()));
    for (size_t id = 0; group->rank() > 0 && id < parameters_->count(); ++id)
        NIBBLE_CHECK(weights_.owned(id, [&](int64_t first, int64_t at, int64_t count) -> Status {
            if (at >= weights_.flat().matrix_elements) return Ok{};  // rank 0 has all vectors
            put_number(to[0], static_cast<int64_t>(id));
            put_number(to[0], first);
            for (const Part& part : of(state, id))
                put_numbers(to[0], std::span<const std::byte>(part.bytes)
                                       .subspan(size_t(first) * part.each, size_t(count) * part.each));
            return Ok{};
        }));
    for (RankBytes& bytes : to)
        if (!bytes.empty()) put_number(bytes, -1);
    NIBBLE_TRY(const auto from, group->exchange(std::move(to)));
    for (int r = 1; group->rank() == 0 && r < group->size(); ++r) {
        if (from[static_cast<size_t>(r)].empty()) continue;
        RankReader in(from[static_cast<size_t>(r)]);
        for (int64_t id = in.number(); id >= 0 && id < std::ssize(state.masters); id = in.number()) {
            const int64_t first = in.number();
            for (const Part& part : of(state, static_cast<size_t>(id))) {
                const auto bytes = in.numbers<std::byte>();
                const size_t at = static_cast<size_t>(first) * part.each;
                if (at + bytes.size() > part.bytes.size()) return fail("rank {} has different parameters", r);
                std::ranges::copy(bytes, part.bytes.begin() + static_cast<ptrdiff_t>(at));
            }
        }
    }
    return Ok{};
}

Status DeviceTrainer::sync() {
    RankGroup* group = ranks_->group();
    while (group) {  // rank 0 releases this rank, or requests states
        NIBBLE_TRY(const RankBytes order, group->share({std::byte{0}}));
        if (order != RankBytes{std::byte{1}} || group->rank() == 0) return Ok{};
        TrainState own;
        NIBBLE_CHECK(collect(own));
    }
    return Ok{};
}

Result<bool> DeviceTrainer::any(bool mine) { return ranks_->group() ? ranks_->group()->any(mine) : Result<bool>(mine); }

}  // namespace nibble

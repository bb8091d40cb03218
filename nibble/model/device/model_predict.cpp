// DeviceModel's drafts by layers for multi-token prediction: passes over separate batches, starting from hidden states
// of the last step or of the last prediction pass.
#include "base/checked.h"
#include "kernels/operand_matmul_cuda.h"
#include "model/device/draft_state.h"
#include "model/device/model_deferred.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

namespace nibble {

DeviceModel::~DeviceModel() = default;

int64_t DeviceModel::draft_bytes(int64_t rows, int64_t wanted) const {
    const int64_t ends = wanted * (4 * config_.vocab + 2 * config_.hidden) + 2 * padded_rows(wanted) * config_.hidden +
                         head_.scratch_bytes(wanted);
    return predictor_->scratch_bytes(rows, wanted) + ends + 8 * DeviceArena::alignment;
}

// Grows and never shrinks.
Status DeviceModel::reserve_states(DeviceStates& states, int64_t rows) const {
    const int64_t bytes = 2 * config_.hidden * static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(rows)));
    if (states.memory && states.memory->capacity() >= bytes) return Ok{};
    NIBBLE_TRY(DeviceArena grown, DeviceArena::create(device_.index, bytes));
    NIBBLE_TRY(std::byte * data, grown.allocate(bytes));
    if (states.memory) NIBBLE_CHECK(copy_on_device(data, states.data, states.memory->capacity(), stream_));
    NIBBLE_CHECK(stream_.synchronize());
    graphs_.clear(), draft_state_->graphs.clear();  // graphs hold the old address
    states.memory = std::move(grown), states.data = data;
    return Ok{};
}

Status DeviceModel::check_draft(const Batch& batch, std::span<const int32_t> rows, bool again, size_t requests,
                                size_t chosen) const {
    if (!predictor_) return fail("no prediction layers were loaded");
    if (under_way() > 0) return fail("a step is under way");
    if (std::ssize(rows) != batch.rows() || static_cast<int64_t>(requests) != batch.wanted() || chosen != requests)
        return fail("{} rows of hidden states for {} rows of the batch; {} requests for {} tokens", rows.size(),
                    batch.rows(), requests, chosen);
    const int64_t kept = again ? draft_state_->of_draft.rows : draft_state_->of_model.rows;
    for (const int32_t row : rows)
        if (row < 0 || row >= kept) return fail("the last step has no hidden state {}", row);
    for (const Segment& s : batch.segments()) {
        if (!s.sequence) return fail("a segment of a prediction has no sequence");
        for (const int32_t token : s.tokens)
            if (token < 0 || token >= config_.vocab)
                return fail("token id {} is not in the vocabulary of {}", token, config_.vocab);
    }
    return Ok{};
}

Status DeviceModel::predict(const Batch& batch, std::span<const int32_t> rows, bool again,
                            std::span<const TokenRequest> requests, std::span<ChosenToken> chosen) const {
    NIBBLE_CHECK(check_draft(batch, rows, again, requests.size(), chosen.size()));
    if (batch.segments().empty()) return Ok{};
    NIBBLE_CHECK(use_device(device_.index));
    chosen_from_ = nullptr;
    const int64_t n = batch.rows(), wanted = batch.wanted();
    DraftState& g = *draft_state_;
    if (!g.landing) {
        NIBBLE_TRY(PinnedBuffer memory, PinnedBuffer::create(flag_bytes() + landing_bytes));
        NIBBLE_TRY(Event done, Event::create());
        g.landing = Landing{std::move(memory), std::move(done)};
    }
    if (wanted * int64_t{sizeof(ChosenToken)} > landing_bytes)
        return fail("a step chooses {} tokens at most", landing_bytes / sizeof(ChosenToken));
    std::vector<Sequence*> sequences;
    for (const Segment& s : batch.segments()) sequences.push_back(s.sequence);
    NIBBLE_CHECK(g.batch.make(batch, sequences, predictor_->layers(), requests, {}, device_, stream_,
                              static_cast<int>(layers_.size())));
    std::vector<int32_t> pairs;
    for (int32_t i = 0; i < n; ++i) pairs.insert(pairs.end(), {i, static_cast<int32_t>(n) + i});
    g.lists.clear();
    g.rows = g.lists.add(rows);
    g.pairs = g.lists.add(std::span<const int32_t>(pairs));
    NIBBLE_CHECK(g.lists.send(device_.index, stream_));
    const DeviceBatchShape shape = g.batch.shape();
    NIBBLE_CHECK(memory_.reserve_rotary(shape.most_tokens, *host_));
    NIBBLE_CHECK(memory_.reserve(draft_bytes(n, wanted) + g.batch.attention_workspace(), n));
    NIBBLE_CHECK(memory_.reserve_products(w4a16_, std::array{n, wanted}));
    if (wanted > 0) NIBBLE_CHECK(reserve_states(g.of_draft, wanted));
    DeviceStep step = memory_.step();
    g.batch.describe(step);
    if (n != shape.segments || wanted != n) {
        NIBBLE_CHECK(queue_draft(step, wanted, again));
    } else {  // see run()
        const DraftState::GraphKey key{n,
                                       shape.pitch,
                                       step.page_stride,
                                       step.pages,
                                       g.batch.base(),
                                       step.rotary.empty() ? nullptr : step.rotary[0].second.cos,
                                       g.lists.base(),
                                       again};
        if (g.graphs_moves != memory_.moves()) g.graphs.clear(), g.graphs_moves = memory_.moves();
        auto graph = g.graphs.find(key);
        if (graph == g.graphs.end()) {
            NIBBLE_TRY(Graph captured, Graph::capture(stream_, [&] { return queue_draft(step, wanted, again); }));
            if (g.graphs.size() >= most_graphs) g.graphs.clear();
            graph = g.graphs.emplace(key, std::move(captured)).first;
        }
        NIBBLE_CHECK(graph->second.launch(stream_));
    }
    NIBBLE_CHECK(g.landing->done.record(stream_));
    NIBBLE_CHECK(g.landing->done.synchronize());
    if (wanted > 0) std::memcpy(chosen.data(), tokens_in(*g.landing), chosen.size_bytes());
    g.of_draft.rows = wanted;
    return Ok{};
}

Status DeviceModel::queue_draft(DeviceStep& step, int64_t wanted, bool again) const {
    const DraftState& g = *draft_state_;
    cuda::RowsOut to;
    if (wanted > 0) {
        NIBBLE_TRY(const InputPlan plan, head_.plan(wanted, step, true));
        to = plan.order;
        NIBBLE_TRY(to.data, step.scratch.allocate(2 * padded_rows(wanted) * config_.hidden));
    }
    NIBBLE_CHECK(predictor_->queue({.embedding = embedding_,
                                    .states = again ? g.of_draft.data : g.of_model.data,
                                    .rows = g.lists.at<int32_t>(g.rows),
                                    .pairs = g.lists.at<int32_t>(g.pairs),
                                    .wanted_rows = g.batch.wanted_rows(),
                                    .wanted = wanted,
                                    .nonfinite = g.batch.nonfinite(),
                                    .hand_on = g.of_draft.data,
                                    .normed = to},
                                   step));
    if (wanted == 0) return Ok{};
    NIBBLE_TRY(float* logits, step.scratch.allocate_array<float>(wanted * config_.vocab));
    NIBBLE_CHECK(queue_logits(to, wanted, logits, step));
    return cuda::sample({.rows = wanted,
                         .width = config_.vocab,
                         .logits = logits,
                         .requests = g.batch.requests(),
                         .seen = g.batch.seen(),
                         .out = tokens_in(*g.landing)},
                        step.overlap, stream_);
}

}  // namespace nibble

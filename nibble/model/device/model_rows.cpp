// Computes the last residual stream of whole texts, for a trainer's loss.
#include "model/device/model.h"

#include <algorithm>

namespace nibble {

int64_t DeviceModel::rows_bytes(int64_t rows, int64_t page_tokens, int64_t texts) const {
    const int64_t step = scratch_bytes(rows, 0);
    return step + step / 8 + pool_bytes(states(), page_tokens, texts);
}

Status DeviceModel::last_rows(const Batch& batch, std::byte* out) const {
    if (under_way() > 0) return fail("a step is under way");
    for (const Segment& s : batch.segments()) {
        if (s.sequence) return fail("this function takes whole texts, not sequences");
        for (const int32_t token : s.tokens)
            if (token < 0 || token >= config_.vocab)
                return fail("token id {} is not in the vocabulary of {}", token, config_.vocab);
    }
    if (batch.segments().empty()) return Ok{};
    NIBBLE_CHECK(use_device(device_.index));
    if (!pinned_) {
        NIBBLE_TRY(pinned_, PinnedBuffer::create(pinned_bytes));
    }
    chosen_from_ = nullptr;
    std::vector<Sequence> whole;
    NIBBLE_TRY(const std::vector<Sequence*> sequences, sequences_of(batch, whole));
    NIBBLE_CHECK(batch_.make(batch, sequences, layers_, {}, {}, device_, stream_));
    NIBBLE_CHECK(memory_.reserve_rotary(batch_.shape().most_tokens, *host_));
    NIBBLE_CHECK(reserve(batch_.shape().rows, 0));
    DeviceStep step = memory_.step();
    batch_.describe(step);
    NIBBLE_TRY(std::byte * x, step.scratch.allocate(2 * padded_rows(step.rows) * config_.hidden));
    NIBBLE_TRY(cuda::AddNorm norm, queue_blocks(x, step));
    norm.weight = norm_, norm.bias = norm_bias_;
    norm.out = {};
    norm.out.data = out;
    NIBBLE_CHECK(cuda::add_norm(norm, step.overlap, stream_));
    NIBBLE_CHECK(copy_to_host(pinned_->data(), reinterpret_cast<const std::byte*>(batch_.nonfinite()),
                              4 * std::ssize(layers_), stream_));
    NIBBLE_CHECK(stream_.synchronize());
    return check_rows(batch);
}

}  // namespace nibble

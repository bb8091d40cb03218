// The other models of DeviceTrainer: the teacher, and the initial weights.
#include "train/device/device_trainer.h"
#include "train/device/micro_batch.h"
#include "train/device/train_scratch.h"

namespace nibble {

int64_t DeviceTrainer::teacher_bytes(int64_t rows) const {
    const TrainPassShape shape{rows, options_.seq};
    return 2 * padded_rows(shape.tokens()) * teacher_->config().hidden +
           teacher_->rows_bytes(shape.tokens(), TrainScratch::page_tokens(shape), TrainScratch::documents(shape));
}

Status DeviceTrainer::ask_teacher(const MicroBatch& m) {
    NIBBLE_CHECK(ranks_->wait(stream_));  // the rows of the previous micro-batch have been read
    return teacher_->last_rows(texts_of(m), teacher_rows_).within("the teacher");
}

int64_t DeviceTrainer::reference_bytes() const {
    return 2 * weights_.flat().elements + 4 * weights_.flat().vector_elements();
}

// Swaps in pieces, through memory of one piece. first: copies the current weights to the reference.
Status DeviceTrainer::swap_reference(bool first) {
    std::byte* kept = reference_;
    const auto swap = [&](std::byte* now, int64_t size) -> Status {
        for (int64_t at = 0; at < size; at += passing_bytes) {
            const int64_t bytes = std::min(passing_bytes, size - at);
            NIBBLE_CHECK(copy_on_device(passing_, now + at, bytes, stream_));
            if (!first) NIBBLE_CHECK(copy_on_device(now + at, kept + at, bytes, stream_));
            NIBBLE_CHECK(copy_on_device(kept + at, passing_, bytes, stream_));
        }
        kept += size;
        return Ok{};
    };
    NIBBLE_CHECK(swap(weights_.published(), 2 * weights_.flat().elements));
    NIBBLE_CHECK(swap(reinterpret_cast<std::byte*>(weights_.master().vectors), 4 * weights_.flat().vector_elements()));
    return first ? Status(Ok{}) : weights_.republish();
}

Status DeviceTrainer::reference_log_probs(std::span<const TrainBatch* const> rows, const OfRow& each) {
    if (!reference_) return fail("the trainer keeps no reference");
    NIBBLE_CHECK(use_device(device_.index));
    NIBBLE_CHECK(swap_reference());
    if (!reference_scales_.empty()) NIBBLE_CHECK(cache_->upload(reference_scales_));
    NIBBLE_TRY(const std::vector<float> scales, weights_.recipe().input_scales());
    if (!scales.empty()) NIBBLE_CHECK(weights_.recipe().set_input_scales(reference_input_scales_));
    Status done = row_log_probs(rows, each);
    if (!scales.empty()) NIBBLE_CHECK(weights_.recipe().set_input_scales(scales));
    if (!reference_scales_.empty()) NIBBLE_CHECK(cache_->upload());
    NIBBLE_CHECK(swap_reference());
    return done;
}

}  // namespace nibble

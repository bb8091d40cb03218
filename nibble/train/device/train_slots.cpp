// Sharding::all: the slots that hold parts of the model while they are computed.
#include "base/checked.h"
#include "kernels/elementwise_backward_cuda.h"
#include "train/device/train_weights.h"

#include <algorithm>

namespace nibble {
namespace {

int64_t slot_whole(int64_t bytes) { return round_up(bytes, DeviceArena::alignment); }

int64_t at_least(int64_t bytes) { return std::max(bytes, DeviceArena::alignment); }  // an arena must not be empty

}  // namespace

// Sizes of a slot are those of the largest part that uses it.
std::array<TrainWeights::SlotSizes, 3> TrainWeights::slot_sizes() const {
    std::array<SlotSizes, 3> most;
    for (size_t part = 0; part < flat_parts_.size(); ++part) {
        SlotSizes& slot = most[slot_of(part)];
        slot.published = std::max(slot.published, 2 * flat_parts_[part].count);
        slot.operands = std::max(slot.operands, part_operands_[part]);
        if (slot_of(part) < 2) slot.copies = std::max(slot.copies, recipe_->copy_bytes(part - 1));
    }
    return most;
}

int64_t TrainWeights::slot_bytes() const {
    int64_t sum = vector_bytes_ + recipe_->kept_bytes() + (scales() ? 2 * flat_.embedding.elements() : 0);
    for (const SlotSizes& s : slot_sizes())
        sum += slot_whole(s.published) + s.operands + s.copies + DeviceWeights::staging_bytes;
    return sum;
}

Status TrainWeights::load_slots(const DeviceInfo& device, const Stream& stream) {
    const std::array<SlotSizes, 3> sizes = slot_sizes();
    int64_t published = scales() ? slot_whole(2 * flat_.embedding.elements()) : 0;
    for (const SlotSizes& s : sizes) published += slot_whole(s.published);
    NIBBLE_TRY(gathered_, DeviceArena::create(device.index, published));
    if (scales()) {
        NIBBLE_TRY(scaled_, gathered_->allocate(2 * flat_.embedding.elements()));
    }
    NIBBLE_TRY(engine_vectors_, DeviceArena::create(device.index, at_least(vector_bytes_)));
    std::vector<DeviceWeights> loaders;
    for (size_t s = 0; s < slots_.size(); ++s) {
        Slot& slot = slots_[s];
        NIBBLE_TRY(slot.published, gathered_->allocate(sizes[s].published));
        NIBBLE_TRY(slot.operands, DeviceArena::create(device.index, sizes[s].operands + DeviceWeights::staging_bytes));
        NIBBLE_TRY(slot.copies, DeviceArena::create(device.index, at_least(sizes[s].copies)));
        NIBBLE_TRY(slot.first_operand, slot.operands->allocate(sizes[s].operands));
        NIBBLE_TRY(slot.first_copy, slot.copies->allocate(sizes[s].copies));
        slot.operands->release(0);
        NIBBLE_TRY(DeviceWeights loader, DeviceWeights::loader(*parameters_, *slot.operands, stream));
        loader.keep_vectors_in(*engine_vectors_);
        loaders.push_back(std::move(loader));
    }
    NIBBLE_CHECK(recipe_->load(device, stream, [&](size_t block) {
        DeviceArena& arena = *slots_[slot_of(1 + block)].copies;
        arena.release(0);
        return &arena;
    }));
    return make_parts([&](size_t part) {
        const size_t s = slot_of(part);
        slots_[s].operands->release(0);
        return &loaders[s];
    });
}

Status TrainWeights::make_operands(size_t part, bool back, const Stream& stream) const {
    const Slot& slot = slots_[slot_of(part)];
    const std::byte* published = gathered(part);
    // The edges of tiles must be zero, but the slot holds another part's values.
    if (part_operands_[part] != 2 * flat_parts_[part].count)
        NIBBLE_CHECK(fill_device(slot.first_operand, 0, part_operands_[part], stream));
    if (part == 0 && scales())
        NIBBLE_CHECK(
            cuda::scale_rows(slot.published, flat_.embedding.elements(), config_.embedding_scale, scaled_, stream));
    if (part == head_part()) return train_head_.publish(published, stream);
    if (part == 0) return Ok{};
    NIBBLE_CHECK(fill_device(slot.first_copy, 0, recipe_->copy_bytes(part - 1), stream));
    NIBBLE_CHECK(mixers_[part - 1]->publish(published, stream));
    return back ? draw(part, stream) : Status(Ok{});
}

bool TrainWeights::draws(size_t part) const { return slot_of(part) < 2 && recipe_->draws(part - 1); }

Status TrainWeights::draw(size_t part, const Stream& stream) const {
    return draws(part) ? recipe_->draw(part - 1, gathered(part), stream) : Status(Ok{});
}

}  // namespace nibble

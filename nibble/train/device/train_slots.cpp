// Sharding::all: where parts of the model lie while they are computed, by turns.
#include "base/checked.h"
#include "kernels/train_cuda.h"
#include "train/device/train_weights.h"

#include <algorithm>

namespace nibble {
namespace {

int64_t slot_whole(int64_t bytes) { return round_up(bytes, DeviceArena::alignment); }

int64_t at_least(int64_t bytes) { return std::max(bytes, DeviceArena::alignment); }  // an arena is not empty

}  // namespace

int64_t TrainWeights::slot_bytes() const {
    std::array<int64_t, 3> published{}, operands{}, copies{};
    for (size_t part = 0; part < flat_parts_.size(); ++part) {
        const size_t slot = slot_of(part);
        published[slot] = std::max(published[slot], 2 * flat_parts_[part].count);
        operands[slot] = std::max(operands[slot], part_operands_[part]);
        if (slot < 2) copies[slot] = std::max(copies[slot], recipe_->copy_bytes(part - 1));
    }
    int64_t sum = vector_bytes_ + recipe_->kept_bytes() + (scales() ? 2 * flat_.embedding.elements() : 0);
    for (size_t s = 0; s < 3; ++s)
        sum += slot_whole(published[s]) + operands[s] + copies[s] + DeviceWeights::staging_bytes;
    return sum;
}

Status TrainWeights::load_slots(const DeviceInfo& device, const Stream& stream) {
    int64_t published = 0;
    std::array<int64_t, 3> most{};
    for (size_t part = 0; part < flat_parts_.size(); ++part)
        most[slot_of(part)] = std::max(most[slot_of(part)], 2 * flat_parts_[part].count);
    for (const int64_t bytes : most) published += slot_whole(bytes);
    if (scales()) published += slot_whole(2 * flat_.embedding.elements());
    NIBBLE_TRY(gathered_, DeviceArena::create(device.index, published));
    for (size_t s = 0; s < 3; ++s) {
        NIBBLE_TRY(slots_[s].published, gathered_->allocate(most[s]));
    }
    if (scales()) {
        NIBBLE_TRY(scaled_, gathered_->allocate(2 * flat_.embedding.elements()));
    }
    NIBBLE_TRY(engine_vectors_, DeviceArena::create(device.index, at_least(vector_bytes_)));
    std::vector<DeviceWeights> loaders;
    for (size_t s = 0; s < 3; ++s) {
        Slot& slot = slots_[s];
        int64_t operands = 0, copies = 0;
        for (size_t part = 0; part < flat_parts_.size(); ++part) {
            if (slot_of(part) != s) continue;
            operands = std::max(operands, part_operands_[part]);
            if (s < 2) copies = std::max(copies, recipe_->copy_bytes(part - 1));
        }
        NIBBLE_TRY(slot.operands, DeviceArena::create(device.index, operands + DeviceWeights::staging_bytes));
        NIBBLE_TRY(slot.copies, DeviceArena::create(device.index, at_least(copies)));
        NIBBLE_TRY(slot.first_operand, slot.operands->allocate(operands));
        NIBBLE_TRY(slot.first_copy, slot.copies->allocate(copies));
        slot.operands->release(0);
        NIBBLE_TRY(DeviceWeights loader, DeviceWeights::loader(*parameters_, *slot.operands, stream));
        loader.keep_vectors_in(*engine_vectors_);
        loaders.push_back(std::move(loader));
    }
    NIBBLE_CHECK(recipe_->load(device, stream, [&](size_t block) {
        DeviceArena& arena = *slots_[block % 2].copies;
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
    // Edges of tiles must be zero, and another part's numbers lie there.
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

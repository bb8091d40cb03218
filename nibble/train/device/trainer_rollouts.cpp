// DeviceTrainer's support for rollouts: the FP8 KV cache, and weights in another precision.
#include "train/device/device_trainer.h"

#include <algorithm>

namespace nibble {

// Returns the maximum over both formats of K and V, if there are two.
Result<std::vector<TrainMemoryPlan::Item>> DeviceTrainer::pass_sizes(const TrainPassShape& shape) const {
    NIBBLE_TRY(auto items, TrainPass::sizes(weights_, shape, device_));
    const TrainCache& how = options_.train.cache;
    if (how.format != KvFormat::fp8 || !how.mirrored) return items;
    DeviceCache::set_type(weights_.layers(), cuda::KvType::e4m3);
    auto other = TrainPass::sizes(weights_, shape, device_);
    DeviceCache::set_type(weights_.layers(), cuda::KvType::bf16);
    if (!other.ok()) return std::move(other).error();
    for (size_t i = 0; i < items.size(); ++i) items[i].bytes = std::max(items[i].bytes, (*other)[i].bytes);
    return items;
}

Result<std::shared_ptr<const LanguageModel>> DeviceTrainer::generating() {
    if (!generation_) return fail("rollouts have no separate precision");
    return serve(generation_->served());
}

Result<std::shared_ptr<const LanguageModel>> DeviceTrainer::serve(DeviceModel::Weights weights) {
    NIBBLE_TRY(std::shared_ptr<DeviceModel> model, DeviceModel::over(std::move(weights), device_, pool_));
    model->keep_pages_in(time_shared_);
    served_.push_back(model);
    return std::shared_ptr<const LanguageModel>(std::move(model));
}

// Allocates the shared memory before the pass and the later allocations.
Status DeviceTrainer::make_time_shared_memory() {
    NIBBLE_TRY(const auto items, pass_sizes(pass_shape(plan_.micro_batch, plan_.recompute)));
    int64_t planned = options_.reference ? reference_bytes() + passing_bytes : 0;
    for (const TrainMemoryPlan::Item& item : items) planned += item.bytes;
    NIBBLE_TRY(const DeviceMemory memory, device_memory(device_.index));
    const int64_t left = std::max<int64_t>(0, memory.free - planned - (int64_t{1} << 29));
    const int64_t activations = items.front().bytes;
    const auto more = static_cast<int64_t>(*options_.time_shared_part * static_cast<double>(left));
    const int64_t bytes = (activations + more) / DeviceArena::alignment * DeviceArena::alignment;
    NIBBLE_TRY(DeviceArena arena, DeviceArena::create(device_.index, std::max(bytes, activations)));
    time_shared_arena_ = std::make_shared<DeviceArena>(std::move(arena));
    NIBBLE_TRY(std::byte * base, time_shared_arena_->allocate(time_shared_arena_->capacity()));
    time_shared_ = TimeSharedMemory::create(base, time_shared_arena_->capacity(), time_shared_arena_,
                                            std::string(TrainPass::updates));
    return Ok{};
}

// Pages that are not full are read beyond their end, with weight 0. The memory is cleared because 0 times an old bit
// pattern (NaN or infinity) would be NaN.
Status DeviceTrainer::give_memory_to_rollouts() {
    if (!time_shared_) return Ok{};
    NIBBLE_CHECK(use_device(device_.index));
    NIBBLE_CHECK(fill_device(time_shared_->base(), 0, time_shared_->bytes(), stream_));
    NIBBLE_CHECK(stream_.synchronize());
    return time_shared_->give_turn(DeviceModel::rollouts);
}

Status DeviceTrainer::take_memory_back() {
    if (!time_shared_) return Ok{};
    for (const auto& served : served_)
        if (const auto model = served.lock()) NIBBLE_CHECK(model->wait());
    return time_shared_->give_turn(TrainPass::updates);
}

Status DeviceTrainer::renew_generation() {
    if (!generation_) return fail("rollouts have no separate precision");
    NIBBLE_CHECK(use_device(device_.index));
    NIBBLE_CHECK(generation_->publish_operands());
    return stream_.synchronize();
}

Status DeviceTrainer::make_cache() {
    const TrainCache& how = options_.train.cache;
    auto scales = std::make_unique<CacheScales>(weights_.outline().blocks, how);
    NIBBLE_TRY(cache_, DeviceCache::create(std::move(scales), how.mirrored, weights_.layers(), options_.rows, device_,
                                           stream_));
    return Ok{};
}

// Pages of a pass have the cache's format; they are BF16 until there are scales.
Status DeviceTrainer::cache_was_renewed() {
    NIBBLE_CHECK(cache_->upload());
    if (rounds_cache_ || !cache_->scales().ready()) return Ok{};
    rounds_cache_ = true;
    if (!cache_->mirrored()) {
        if (generation_) cache_->attach(generation_->layers());
        return Ok{};
    }
    cache_->attach(weights_.layers());
    pass_.reset();
    return make_pass();
}

Status DeviceTrainer::set_cache_scales(std::span<const float> state) {
    if (!cache_) return fail("there is no KV cache with scales");
    NIBBLE_CHECK(use_device(device_.index));
    NIBBLE_CHECK(cache_->scales().set_state(state));
    return cache_was_renewed();
}

Status DeviceTrainer::enter_phase(int64_t step, int64_t steps) {
    NIBBLE_CHECK(use_device(device_.index));
    NIBBLE_TRY(const bool others, weights_.recipe().begin_step(step, steps, false, stream_));
    weights_.recipe().pause();
    return others ? weights_.republish() : Status(Ok{});
}

Status DeviceTrainer::calibrate(std::span<const TrainBatch> batches) {
    if (!calibrates()) return fail("there are no scales to calibrate");
    NIBBLE_CHECK(use_device(device_.index));
    DeviceRecipe& recipe = weights_.recipe();
    NIBBLE_CHECK(recipe.begin_calibration(stream_));
    if (cache_) cache_->calibrate(true);
    const auto see = [&](const TrainBatch& b) -> Status {
        NIBBLE_CHECK(check(b, config().vocab));
        for (MicroBatch& m : cut_micro_batches({&b, 1}, plan_.micro_batch)) {
            m.first_row = 0;
            if (cache_) NIBBLE_CHECK(cache_->begin_step());
            NIBBLE_CHECK(pass_->prepare(m));
            NIBBLE_CHECK(pass_->forward(true));
            if (cache_) NIBBLE_CHECK(cache_->fetch({0, m.rows, m.tokens()}));
            NIBBLE_CHECK(stream_.synchronize());
            if (cache_) cache_->take();
        }
        return Ok{};
    };
    Status seen = Ok{};
    for (const TrainBatch& b : batches)
        if (seen.ok()) seen = see(b);
    if (cache_) cache_->calibrate(false);
    NIBBLE_CHECK(recipe.end_calibration(stream_));
    NIBBLE_CHECK(std::move(seen));
    if (options_.reference && reference_input_scales_.empty()) {
        NIBBLE_TRY(reference_input_scales_, recipe.input_scales());
    }
    if (!cache_) return Ok{};
    cache_->scales().renew();
    if (options_.reference && cache_->mirrored() && reference_scales_.empty())
        reference_scales_ = cache_->scales().state();
    return cache_was_renewed();
}

}  // namespace nibble

#include "train/device/device_adapters.h"

#include <algorithm>
#include <array>

namespace nibble {

Status DeviceAdapters::check(const TrainLora& lora) {
    if (lora.rank % 8) return fail("lora.rank: {}; --device cuda needs a multiple of 8", lora.rank);
    return Ok{};
}

Result<std::unique_ptr<DeviceAdapters>> DeviceAdapters::plan(std::shared_ptr<const Checkpoint> base,
                                                             const TrainLora& lora, const ModelConfig& config,
                                                             const ModelParts& parts, const Parameters& adapters,
                                                             const FlatLayout& flat) {
    auto made = std::make_unique<DeviceAdapters>();
    made->base_ = std::move(base);
    made->constants_.host_scale = static_cast<float>(lora.alpha / static_cast<double>(lora.rank));
    const FrozenWeight::Numbers numbers = FrozenWeight::numbers(*made->base_);
    const std::string with = "rank " + std::to_string(lora.rank);
    for (const Block& block : parts.blocks)
        for (const FlatUnit& unit : flat_units(block)) {
            NIBBLE_TRY(const AdapterUnit of_unit, AdapterUnit::of(unit, lora.rank, adapters, flat));
            NIBBLE_TRY(const FrozenWeight* weight, made->add(unit, of_unit, numbers));
            for (size_t i = 0; i < unit.linears.size(); ++i) {
                const bool adapts = adapters.id(unit.linears[i]->name + ".lora_A.weight").ok();
                made->lines_.push_back({.name = unit.linears[i]->name,
                                        .layer = block.config().layer,
                                        .forward = weight->stored(i) + ", frozen" + (adapts ? " + " + with : ""),
                                        .input_gradient = "BF16 x BF16 of the decoded weight, sums FP32",
                                        .weight_gradient = adapts ? with + " in BF16, sums FP32" : "none"});
            }
        }
    const std::string head = config.head.substr(0, config.head.size() - std::string_view(".weight").size());
    NIBBLE_TRY(FrozenWeight weight, FrozenWeight::plan(*made->base_, numbers, {config.head}));
    made->products_.push_back(
        std::make_unique<FrozenProduct>(head, std::move(weight), AdapterUnit{}, made->constants_));
    made->product_of_.emplace(head, made->products_.back().get());
    return made;
}

Result<const FrozenWeight*> DeviceAdapters::add(const FlatUnit& unit, const AdapterUnit& adapters,
                                                const FrozenWeight::Numbers& numbers) {
    const std::string& name = unit.linears[0]->name;
    NIBBLE_TRY(FrozenWeight weight, FrozenWeight::plan(*base_, numbers, unit.weights()));
    if (unit.of_mixture) {
        experts_.push_back(std::make_unique<FrozenExperts>(name, std::move(weight), adapters, constants_));
        experts_of_.emplace(name, experts_.back().get());
        return &experts_.back()->weight();
    }
    products_.push_back(std::make_unique<FrozenProduct>(name, std::move(weight), adapters, constants_));
    product_of_.emplace(name, products_.back().get());
    return &products_.back()->weight();
}

int64_t DeviceAdapters::bytes() const {
    int64_t sum = DeviceArena::alignment;
    for (const auto& p : products_) sum += p->bytes();
    for (const auto& e : experts_) sum += e->bytes();
    return sum;
}

Status DeviceAdapters::load(const DeviceInfo& device, const Stream& stream) {
    NIBBLE_TRY(memory_, DeviceArena::create(device.index, bytes()));
    NIBBLE_TRY(float* constants, memory_->allocate_array<float>(3));
    const std::array<float, 3> values{0.0f, 1.0f, constants_.host_scale};
    NIBBLE_CHECK(copy_to_device(reinterpret_cast<std::byte*>(constants),
                                reinterpret_cast<const std::byte*>(values.data()), sizeof values, stream));
    constants_.ends = constants, constants_.scale = constants + 2;
    for (const auto& p : products_) NIBBLE_CHECK(p->load(*base_, *memory_, stream));
    for (const auto& e : experts_) NIBBLE_CHECK(e->load(*base_, *memory_, stream));
    return stream.synchronize();
}

int64_t DeviceAdapters::scratch_bytes(int64_t n) const {
    int64_t most = 0;
    for (size_t i = 0; i + 1 < products_.size(); ++i)
        most = std::max({most, products_[i]->scratch_bytes(n), products_[i]->back_scratch_bytes(n)});
    return most;
}

int64_t DeviceAdapters::head_scratch_bytes(int64_t n) const {
    return std::max(products_.back()->scratch_bytes(n), products_.back()->back_scratch_bytes(n));
}

DeviceLinear DeviceAdapters::over(std::vector<DeviceLinear> parts) {
    return product_of_.at(parts[0].name)->stand_for(std::move(parts));
}

DeviceExperts DeviceAdapters::over(DeviceExperts experts) {
    return experts_of_.at(experts.parts[0].name)->stand_for(std::move(experts));
}

}  // namespace nibble

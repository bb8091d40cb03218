#include "train/device/device_adapters.h"

#include "base/checked.h"
#include "model/device/attention.h"
#include "model/device/mlp.h"

#include <algorithm>
#include <array>

namespace nibble {

Status DeviceAdapters::check(const ModelConfig& config, const TrainLora& lora) {
    if (lora.rank % 8) return fail("lora.rank: {}; --device cuda takes multiples of 8", lora.rank);
    for (const BlockConfig& block : config.blocks)
        if (!std::holds_alternative<AttentionConfig>(block.mixer) && !std::holds_alternative<MlpConfig>(block.mixer))
            return fail("lora: --device cuda has adapters for attention and MLPs, not for {}; use --device cpu",
                        block.prefix);
    return Ok{};
}

Result<std::unique_ptr<DeviceAdapters>> DeviceAdapters::plan(std::shared_ptr<const Checkpoint> base,
                                                             const TrainLora& lora, const ModelConfig& config,
                                                             const ModelParts& parts, const Parameters& adapters,
                                                             const FlatLayout& flat) {
    auto made = std::make_unique<DeviceAdapters>();
    made->base_ = std::move(base);
    made->rank_ = lora.rank;
    made->constants_.host_scale = static_cast<float>(lora.alpha / static_cast<double>(lora.rank));
    for (const Block& block : parts.blocks)
        for (const std::span<const Linear> unit : block.mixer().units()) {
            std::vector<std::string> tensors;
            std::vector<FrozenProduct::Adapter> of_unit;
            std::vector<bool> adapts;
            int64_t row = 0;
            for (const Linear& part : unit) {
                tensors.push_back(part.name + ".weight");
                const auto a = adapters.id(part.name + ".lora_A.weight");
                const auto b = adapters.id(part.name + ".lora_B.weight");
                adapts.push_back(a.ok() && b.ok());
                if (adapts.back()) of_unit.push_back({row, part.rows, flat.at[*a], flat.at[*b]});
                row += part.rows;
            }
            NIBBLE_TRY(const FrozenProduct* product, made->add(unit[0].name, tensors, std::move(of_unit)));
            const std::string with = "rank " + std::to_string(lora.rank);
            for (size_t i = 0; i < unit.size(); ++i)
                made->lines_.push_back(
                    {.name = unit[i].name,
                     .layer = block.config().layer,
                     .forward = product->weight().stored(i) + ", frozen" + (adapts[i] ? " + " + with : ""),
                     .input_gradient = "BF16 x BF16 of the decoded weight, sums FP32",
                     .weight_gradient = adapts[i] ? with + " in BF16, sums FP32" : "none"});
        }
    const std::string head = config.head.substr(0, config.head.size() - std::string_view(".weight").size());
    NIBBLE_CHECK(made->add(head, {config.head}, {}));
    return made;
}

Result<FrozenProduct*> DeviceAdapters::add(const std::string& name, const std::vector<std::string>& tensors,
                                           std::vector<FrozenProduct::Adapter> adapters) {
    NIBBLE_TRY(FrozenWeight weight, FrozenWeight::plan(*base_, tensors));
    auto product = std::make_unique<FrozenProduct>(name, std::move(weight), std::move(adapters), rank_, constants_);
    by_name_.emplace(name, product.get());
    return products_.emplace_back(std::move(product)).get();
}

int64_t DeviceAdapters::bytes() const {
    int64_t sum = DeviceArena::alignment;
    for (const auto& p : products_) sum += p->bytes();
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

void DeviceAdapters::take(DeviceMixer& mixer) {
    const auto both = [&](auto& engine) {
        DeviceStack& in = engine.in();
        FrozenProduct& product = product_of(in.parts[0]);
        in.parts = {product.stand_for(std::move(in.parts))};
        take(engine.out());
    };
    if (auto* attention = dynamic_cast<DeviceAttention*>(&mixer)) both(*attention);
    if (auto* mlp = dynamic_cast<DeviceMlp*>(&mixer)) both(*mlp);
}

void DeviceAdapters::take(DeviceLinear& linear) { linear = product_of(linear).stand_for({linear}); }

}  // namespace nibble

// A frozen model on a GPU under adapters (train/lora.h): every linear of its blocks and its head is a FrozenProduct.
// Embedding and norms are the engine's as they are; none of it has masters, states or gradients.
#pragma once

#include "model/device/mixer.h"
#include "train/device/flat_layout.h"
#include "train/device/frozen_product.h"
#include "train/step_products.h"
#include "train/train_config.h"

#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

namespace nibble {

class DeviceAdapters {
public:
    // What is built, by one line of error.
    static Status check(const ModelConfig& config, const TrainLora& lora);
    // Of a model that was checked; flat: FlatLayout::make_adapters().
    static Result<std::unique_ptr<DeviceAdapters>> plan(std::shared_ptr<const Checkpoint> base, const TrainLora& lora,
                                                        const ModelConfig& config, const ModelParts& parts,
                                                        const Parameters& adapters, const FlatLayout& flat);
    int64_t bytes() const;
    Status load(const DeviceInfo& device, const Stream& stream);
    // Of a product, forward or back, of n rows; the head's apart.
    int64_t scratch_bytes(int64_t n) const;
    int64_t head_scratch_bytes(int64_t n) const;

    // Linears that the engine has loaded (with keep_order()): from now on they multiply here.
    void take(DeviceMixer& mixer);
    void take(DeviceLinear& linear);

    const Checkpoint& base() const { return *base_; }
    std::vector<UnitLine> table() const { return lines_; }

private:
    Result<FrozenProduct*> add(const std::string& name, const std::vector<std::string>& tensors,
                               std::vector<FrozenProduct::Adapter> adapters);
    FrozenProduct& product_of(const DeviceLinear& first) { return *by_name_.at(first.name); }

    std::shared_ptr<const Checkpoint> base_;
    int64_t rank_ = 0;
    FrozenConstants constants_;
    std::vector<std::unique_ptr<FrozenProduct>> products_;     // the head last
    std::unordered_map<std::string, FrozenProduct*> by_name_;  // of the first linear
    std::vector<UnitLine> lines_;
    std::optional<DeviceArena> memory_;
};

}  // namespace nibble

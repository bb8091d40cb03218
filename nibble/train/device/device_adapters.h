// A frozen model on a GPU with trainable adapters (train/lora.h). Every linear of its blocks and its head is a
// FrozenProduct; the linears of experts are FrozenExperts. Embedding and vectors are the engine's. Frozen weights have
// no masters, states or gradients.
#pragma once

#include "model/device/weights.h"
#include "train/device/frozen_experts.h"
#include "train/device/frozen_product.h"
#include "train/step_products.h"
#include "train/train_config.h"

#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

namespace nibble {

class DeviceAdapters : public DeviceCover {
public:
    // Returns an error (one line) for options that are not supported on a GPU.
    static Status check(const TrainLora& lora);
    // Plans a model that was checked. flat: FlatLayout::make_adapters().
    static Result<std::unique_ptr<DeviceAdapters>> plan(std::shared_ptr<const Checkpoint> base, const TrainLora& lora,
                                                        const ModelConfig& config, const ModelParts& parts,
                                                        const Parameters& adapters, const FlatLayout& flat);
    int64_t bytes() const;
    Status load(const DeviceInfo& device, const Stream& stream);
    // Scratch memory of a product, forward or backward, of n rows. The head has its own function. Mixers plan for
    // experts.
    int64_t scratch_bytes(int64_t n) const;
    int64_t head_scratch_bytes(int64_t n) const;

    // Returns products that use the weights that the engine has loaded (with keep_order()) and add the adapters.
    DeviceLinear over(std::vector<DeviceLinear> parts) override;
    DeviceExperts over(DeviceExperts experts) override;

    const Checkpoint& base() const { return *base_; }
    std::vector<UnitLine> table() const { return lines_; }

private:
    // Adds a product and returns the stored form of its weights, by part.
    Result<const FrozenWeight*> add(const FlatUnit& unit, const AdapterUnit& adapters,
                                    const FrozenWeight::Numbers& numbers);

    std::shared_ptr<const Checkpoint> base_;
    AdapterConstants constants_;
    std::vector<std::unique_ptr<FrozenProduct>> products_;  // the head is last
    std::vector<std::unique_ptr<FrozenExperts>> experts_;
    std::unordered_map<std::string, FrozenProduct*> product_of_;  // by name of the first linear
    std::unordered_map<std::string, FrozenExperts*> experts_of_;
    std::vector<UnitLine> lines_;
    std::optional<DeviceArena> memory_;
};

}  // namespace nibble

// A frozen model on a GPU under adapters (train/lora.h): every linear of its blocks and its head is a FrozenProduct,
// the linears of experts are FrozenExperts. Embedding and vectors are the engine's as they are; none of it has masters,
// states or gradients.
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
    // What is built, by one line of error.
    static Status check(const TrainLora& lora);
    // Of a model that was checked; flat: FlatLayout::make_adapters().
    static Result<std::unique_ptr<DeviceAdapters>> plan(std::shared_ptr<const Checkpoint> base, const TrainLora& lora,
                                                        const ModelConfig& config, const ModelParts& parts,
                                                        const Parameters& adapters, const FlatLayout& flat);
    int64_t bytes() const;
    Status load(const DeviceInfo& device, const Stream& stream);
    // Of a product, forward or back, of n rows; the head's apart. Mixers plan for experts.
    int64_t scratch_bytes(int64_t n) const;
    int64_t head_scratch_bytes(int64_t n) const;

    // What the engine has loaded (with keep_order()) multiplies here.
    DeviceLinear over(std::vector<DeviceLinear> parts) override;
    DeviceExperts over(DeviceExperts experts) override;

    const Checkpoint& base() const { return *base_; }
    std::vector<UnitLine> table() const { return lines_; }

private:
    // Returns how its weights are stored, by part.
    Result<const FrozenWeight*> add(const FlatUnit& unit, const AdapterUnit& adapters,
                                    const FrozenWeight::Numbers& numbers);

    std::shared_ptr<const Checkpoint> base_;
    AdapterConstants constants_;
    std::vector<std::unique_ptr<FrozenProduct>> products_;  // the head last
    std::vector<std::unique_ptr<FrozenExperts>> experts_;
    std::unordered_map<std::string, FrozenProduct*> product_of_;  // by the first linear
    std::unordered_map<std::string, FrozenExperts*> experts_of_;
    std::vector<UnitLine> lines_;
    std::optional<DeviceArena> memory_;
};

}  // namespace nibble

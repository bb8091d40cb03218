// The precision recipe of a model on a GPU: for every unit of linears that it quantizes a TrainProduct, and what they
// share. Units, their rules, roles of random numbers and the table are those of train/train_products.h; the tensor of
// a scale is a micro-batch.
//
// Operands are emulated exactly (kernels/train_cast_cuda.h): quantized values in BF16, products of the BF16 tensor
// cores, scales on the finished FP32 sum.
#pragma once

#include "model/device/weights.h"
#include "train/device/flat_layout.h"
#include "train/device/train_linear.h"
#include "train/step_products.h"

#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

namespace nibble {

// Where a run stands: keys of random numbers.
struct RecipeStep {
    uint64_t draw = 0;                // seed * 2^20 + step
    uint64_t tokens = 0, groups = 0;  // of the step, before the micro-batch in hand; groups of 16 of a row's
    const float* ends = nullptr;      // {0, 1} on the device
};

// One unit under the rules of a recipe.
class TrainProduct : public DeviceProduct {
public:
    TrainProduct(const FlatMatrix& weight, uint32_t number, const UnitRules& rules, const RecipeStep& step)
        : weight_(weight), number_(number), rules_(rules), step_(step) {}

    // Error: sizes that the recipe has no blocks for.
    Status check() const;
    int64_t bytes() const;  // of the weight's copies
    Status load(DeviceArena& arena, const Stream& stream);
    // The copies of the weight from its published values.
    Status publish(const std::byte* published, const Stream& stream) const;

    Status forward(const std::byte* x, int64_t n, float* y, int64_t y_stride, const float* bias,
                   DeviceStep& step) const override;
    Result<cuda::KernelChoice> describe(int64_t n) const override;
    int64_t scratch_bytes(int64_t n) const override;
    // Of the products of the way back, beside the caller's, at most.
    int64_t back_scratch_bytes(int64_t n) const;
    // As TrainLinear's.
    Status input_gradient(const std::byte* dy, int64_t n, std::byte* dx, TrainWork& work) const;
    Status weight_gradient(const std::byte* dy, const std::byte* x, int64_t n, float* gradient, bool add,
                           TrainWork& work) const;

    const FlatMatrix& weight() const { return weight_; }
    const UnitRules& rules() const { return rules_; }

private:
    CastRandom random(uint32_t role) const;
    // Whether both products read the same rounding of the weight.
    bool one_copy() const { return rules_.w_back.square || rules_.w_back.format == CastFormat::fp8; }
    int64_t operand_cols() const { return cast_padded(weight_.cols, rules_.w); }
    int64_t back_rows() const { return cast_padded(weight_.rows, rules_.dy); }

    FlatMatrix weight_;
    uint32_t number_ = 0;
    UnitRules rules_;
    const RecipeStep& step_;
    cuda::Operand operand_;
    std::byte* values_ = nullptr;  // [rows, operand_cols()], row-major
    std::byte* back_ = nullptr;    // [back_rows(), cols]; with one_copy() the values
    float* scales_ = nullptr;      // of the weight: forward, its amax; back, its amax
};

// Error, one line: a recipe that has no products on a GPU, or none on several.
Status check_device_precision(const TrainPrecision& precision, int ranks);

class DeviceRecipe {
public:
    // Of a precision that was checked. Errors: the self-test of random numbers; mixers and sizes that have no products
    // on a GPU, by name.
    static Result<std::unique_ptr<DeviceRecipe>> plan(const TrainPrecision& precision, uint64_t seed,
                                                      const ModelParts& parts, const FlatLayout& flat);
    int64_t bytes() const;  // of all copies
    Status load(const DeviceInfo& device, const Stream& stream);
    int64_t scratch_bytes(int64_t n) const;

    // The product of the unit whose first linear has this name; null: the engine's.
    TrainProduct* find(const std::string& name) const;
    void begin_step(int64_t step);
    void begin_rows(int64_t first_row, int64_t seq);

    std::vector<UnitLine> table() const;
    bool sees_neighbours() const;

private:
    TrainPrecision precision_;
    uint64_t seed_ = 0;
    RecipeStep step_;
    std::vector<UnitLine> lines_;
    std::vector<std::unique_ptr<TrainProduct>> products_;
    std::unordered_map<std::string, TrainProduct*> by_name_;
    std::optional<DeviceArena> memory_;
};

}  // namespace nibble

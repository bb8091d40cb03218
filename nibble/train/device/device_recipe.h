// The precision recipe of a model on a GPU: for every unit of linears that it quantizes a TrainProduct, and what they
// share. Units, their rules, roles of random numbers and the table are those of train/train_products.h; the tensor of
// a scale is a micro-batch.
//
// On Hopper products of FP8 by FP8 (fp8, fp8_delayed, fp8_block and their like) run on the FP8 tensor cores: forward by
// the engine's kernels of codes (kernels/product_cuda.h), whose bits do not depend on the number of rows, the way back
// by cuBLASLt (kernels/codes_product_cuda.h). All other operands, and these with the switch `emulate`, are emulated
// exactly (kernels/cast_cuda.h): quantized values in BF16, products of the BF16 tensor cores, scales on the
// finished FP32 sum, or of blocks of 128 on the sums of a block.
#pragma once

#include "kernels/cast_cuda.h"
#include "model/device/weights.h"
#include "train/device/cast_operand.h"
#include "train/device/device_directions.h"
#include "train/device/flat_layout.h"
#include "train/device/operand_samples.h"
#include "train/device/train_linear.h"
#include "train/step_products.h"

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

namespace nibble {

// Scales from the steps before: of inputs, gradients and weights of `units` units, in that order; of stored inputs
// (CastRule::stored) there are those of inputs alone, and the experts of a layer are one unit (input_group()).
struct DelayedUnits {
    enum Role : int64_t { inputs, gradients, weights, all_roles };
    int64_t units = 0, roles = 0;
    float* scales = nullptr;
    float* seen = nullptr;  // the largest magnitudes of the step in hand
    float* held = nullptr;  // and those of updates before that left the scales as they are

    float* of(float* array, Role role, int64_t unit) const {
        return role < roles ? array + role * units + unit : nullptr;
    }
};

// Where a run stands, and what products share.
struct RecipeStep {
    uint64_t draw = 0;                // seed * 2^20 + step
    uint64_t tokens = 0, groups = 0;  // of the step, before the micro-batch in hand; groups of 16 of a row's
    int64_t seq = 0;                  // tokens of a row
    bool codes = false;               // the device multiplies codes
    bool late = false;                // the forward products are the late ones
    bool recording = false;           // a step that ends with an update: magnitudes are seen
    bool stored = false;              // stored inputs have scales; before, they stay BF16
    DelayedUnits delayed;
    const float* ends = nullptr;        // {0, 1} on the device
    std::byte* staging = nullptr;       // of the largest weight's values, between two kernels
    OperandSamples* samples = nullptr;  // in a watched step, while its first row is in hand or weights are copied
};

// One unit under the rules of a recipe.
class TrainProduct : public TrainedProduct {
public:
    // number: of the unit, that keys random numbers; place: among the quantized ones; scales: its unit of
    // RecipeStep::delayed.
    TrainProduct(const FlatMatrix& weight, uint32_t number, int64_t place, int64_t scales, const UnitRules& early,
                 const UnitRules& late, const RecipeStep& step);

    // Error: sizes that the recipe has no blocks for.
    Status check() const;
    int64_t bytes() const;          // of the weight's copies and what belongs to them
    int64_t copy_bytes() const;     // of these the copies, which publish() and draw() make
    int64_t staging_bytes() const;  // that publish() needs of RecipeStep::staging
    // copies: where they lie.
    Status load(DeviceArena& arena, DeviceArena& copies, const Stream& stream);
    // The copies of the weight from its published values, but for those that are drawn anew in every step.
    Status publish(const std::byte* published, const Stream& stream) const override;
    Status draw(const std::byte* published, const Stream& stream) const;  // these
    // In a watched step: what the forward product's weight is rounded from.
    Status look_at_weight(const std::byte* published, const Stream& stream) const;
    DeviceDirections* directions() const { return directions_.get(); }  // null: none

    Status forward(const DeviceInput& in, int64_t n, float* y, int64_t y_stride, const float* bias,
                   DeviceStep& step) const override;
    Status forward_rounded(const DeviceInput& in, int64_t n, std::byte* y, const float* bias,
                           DeviceStep& step) const override;
    ActivationFormat reads_codes() const override;
    bool reads_amax() const override;
    bool rounds(int64_t n) const override;
    Result<cuda::KernelChoice> describe(int64_t n) const override;
    int64_t scratch_bytes(int64_t n) const override;
    int64_t back_scratch_bytes(int64_t n) const override;
    Status input_gradient(const std::byte* dy, const std::byte* x, int64_t n, std::byte* dx,
                          TrainWork& work) const override;
    bool reads_inputs_back() const override { return rules().x.stored; }
    Status weight_gradient(const std::byte* dy, const std::byte* x, int64_t n, float* gradient, bool add,
                           TrainWork& work) const override;
    // With one cast of dy where there is a kernel for both directions.
    Status backward(const std::byte* dy, const std::byte* x, int64_t n, std::byte* dx, float* gradient, bool add,
                    TrainWork& work, const Between& between = {}) const override;

    // Whether they run on the FP8 tensor cores.
    bool forward_codes(const UnitRules& r) const;
    bool back_codes(const UnitRules& r) const;

    bool draws() const { return early_.eden; }
    const FlatMatrix& weight() const { return weight_; }
    const UnitRules& rules() const { return step_.late ? late_ : early_; }

private:
    CastRandom random(uint32_t role) const;
    // Of a delayed scale that holds in this step, and where magnitudes are seen; null: none.
    const float* given(DelayedUnits::Role role) const;
    float* seen(DelayedUnits::Role role) const;
    struct CopySizes {
        int64_t tiles = 0, back = 0, scales = 0;  // scales: numbers, of one way
    };
    CopySizes copy_sizes() const;
    // Whether both products read the same rounding of the weight: as values in one place; as codes in one cast.
    bool one_copy() const;
    bool one_rounding() const;
    Status publish_codes(const cuda::CastSource& from, const CastRule& rule, bool forward, bool back,
                         const Stream& stream) const;
    Status publish_values(const cuda::CastSource& from, const Stream& stream) const;
    Status publish_back_values(cuda::CastSource from, const Stream& stream) const;
    // Rows of the forward product, and their part along the directions (null: none).
    struct Input {
        cuda::ProductInput rows;
        const std::byte* along = nullptr;
    };
    Result<Input> input(const DeviceInput& from, int64_t n, DeviceStep& step) const;
    Result<cuda::ProductInput> coded_input(const std::byte* x, const float* amax, int64_t n, DeviceStep& step) const;
    FactorWanted by_weight(int64_t n) const;
    // Of stored inputs: x as the product reads it, under *scale (null: BF16, as it is).
    struct StoredInput {
        const std::byte* x = nullptr;
        const float* scale = nullptr;
    };
    Result<StoredInput> stored_input(const std::byte* x, int64_t n, bool record, DeviceStep& step) const;
    int64_t coded_input_size(int64_t n, const CastRule& rule) const;
    // In a watched step: what is rounded by this rule. Rows: of the first row of the step alone.
    Status look_at_rows(OperandSamples::Part part, const std::byte* x, int64_t n, const Stream& stream) const;
    // The same numbers for the weight gradient.
    struct Used {
        cuda::CastSource source;
        const std::byte* along = nullptr;
    };
    Result<Used> used(const std::byte* x, int64_t n, DeviceStep& step) const;
    cuda::Operand operand(const UnitRules& r, const float* bias) const;
    int64_t back_rows() const;            // the weight's rows as the input gradient sums over them
    FactorWanted by_weight_back() const;  // of dY
    Result<cuda::BackScale> back_scale(const Quantized& q, const FactorWanted& by, DeviceStep& step) const;
    Result<cuda::BackScale> back_scale(const float* scale, const FactorWanted& by, DeviceStep& step) const;
    // Of random bits: of dY along W's rows, of a matrix along tokens.
    CastRandom row_random() const;
    CastRandom column_random(uint32_t role, int64_t columns) const;
    Status values_input_gradient(const Quantized& dy, int64_t n, std::byte* dx, TrainWork& work) const;
    Status values_weight_gradient(const Quantized& dy_columns, const std::byte* dy, const std::byte* x, int64_t n,
                                  float* gradient, bool add, TrainWork& work) const;
    bool casts_both(const UnitRules& r) const;
    int64_t split_size(int64_t n) const;  // of scratch memory
    Result<Codes> gradient_codes(const std::byte* dy, int64_t n, CodesWanted wanted, DeviceStep& step) const;
    Status codes_input_gradient(const Codes& dy, int64_t n, std::byte* dx, TrainWork& work) const;
    Status codes_weight_gradient(const Codes& dy, const std::byte* x, int64_t n, float* gradient, bool add,
                                 TrainWork& work) const;
    int64_t codes_back_size(int64_t n) const;
    Status block_gradient(const std::byte* dy, const std::byte* x, int64_t n, float* gradient, bool add,
                          TrainWork& work) const;

    FlatMatrix weight_;
    uint32_t number_ = 0;
    int64_t place_ = 0, delayed_ = 0;
    UnitRules early_, late_;
    const RecipeStep& step_;
    std::byte* tiles_ = nullptr;  // of the forward operand
    // Of the weight on the way back: values [rows, padded, cols] as they lie, the operand of its transpose, or that in
    // codes.
    std::byte* back_ = nullptr;
    float* scales_ = nullptr;       // forward: one, its amax and (stored inputs) that of checkpoints, or those of tiles
    float* back_scales_ = nullptr;  // the same of the way back
    std::unique_ptr<DeviceDirections> directions_;
    std::byte* along_ = nullptr;  // the operand of the weight's part along them
};

// Error, one line: a recipe that needs more rows of each process.
Status check_device_share(const TrainPrecision& precision, int64_t tokens, int ranks);

class DeviceRecipe {
public:
    // Of a precision that was checked. Errors: the self-test of random numbers; mixers and sizes that have no products
    // on a GPU, by name.
    static Result<std::unique_ptr<DeviceRecipe>> plan(const TrainPrecision& precision, uint64_t seed,
                                                      const ModelParts& parts, const FlatLayout& flat);
    int64_t bytes() const;  // of all copies
    int64_t copy_bytes(size_t block) const;
    int64_t kept_bytes() const;  // of bytes(): what is no block's copy
    // copies: where those of a block lie; empty: all in one place. Blocks are asked for one after the other.
    using Copies = std::function<DeviceArena*(size_t block)>;
    Status load(const DeviceInfo& device, const Stream& stream, const Copies& copies = {});
    int64_t scratch_bytes(int64_t n) const;

    // The product of the unit whose first linear has this name; null: the engine's.
    TrainProduct* find(const std::string& name) const;
    // Step `step` of `steps` (0: of no known number). watched: this process has the step's
    // first rows. true: copies of weights are others from this step on.
    Result<bool> begin_step(int64_t step, int64_t steps, bool watched, const Stream& stream);
    // Whether steps from the next one on show how well rounded operands stand for their sources.
    void watch(bool on) { watch_ = on; }
    // Of the weights as they lie in all of `published`; what a part of them brings is looked at when it is copied.
    Status look_at_weights(const std::byte* published, const Stream& stream) const;
    std::vector<UnitQuality> quality(ThreadPool& pool) const;  // of the last step that was watched
    int64_t delayed() const;  // scales that follow from the steps before, of all processes' rows
    // As train/step_products.h has them.
    void hold_scales(bool hold) { hold_ = hold; }
    bool calibrates() const { return precision_.stored_inputs && !products_.empty(); }
    Status begin_calibration(const Stream& stream);
    Status end_calibration(const Stream& stream);
    Result<std::vector<float>> input_scales(const Stream& stream) const;  // they wait
    Status set_input_scales(std::span<const float> scales, const Stream& stream);
    // Copies of the step in hand, whose random numbers are its own; behind begin_step().
    Status draw(const std::byte* published, const Stream& stream) const;
    Status draw(size_t block, const std::byte* published, const Stream& stream) const;
    bool draws(size_t block) const;
    void begin_rows(int64_t first_row, int64_t seq);
    // Behind the gradients of a step.
    void pause() { step_.recording = false, step_.samples = nullptr; }
    // What follows from a step, before weights are copied again; nothing where *clip is NaN. The same in all processes.
    Status end_step(const float* clip, DeviceRanks& ranks, const Stream& stream);
    // A step has changed the parameters. true: copies of weights are others from here on.
    Result<bool> count_step(const Stream& stream);
    Status skip_step(const Stream& stream);  // it has not

    // TrainState::recipe, as train/train_products.h has it. They wait.
    int64_t state_size() const;
    Result<std::vector<float>> state(const Stream& stream) const;
    Status set_state(const std::vector<float>& state, const Stream& stream);

    std::vector<UnitLine> table() const;
    bool sees_neighbours() const;
    bool has_experts() const { return experts_; }  // that it quantizes

private:
    int64_t staging_bytes() const;
    // Of each operand at most.
    int64_t sampled_rows() const;
    Status renew_scales(const float* clip, DeviceRanks* ranks, const Stream& stream) const;  // null: this process alone

    TrainPrecision precision_;
    uint64_t seed_ = 0;
    RecipeStep step_;
    bool experts_ = false;
    std::vector<UnitLine> lines_;
    std::vector<std::unique_ptr<TrainProduct>> products_;
    std::vector<size_t> blocks_;  // of the products
    std::unordered_map<std::string, TrainProduct*> by_name_;
    std::optional<DeviceArena> memory_;
    int64_t done_ = 0;            // steps that changed the parameters, for the directions
    int64_t scales_ = 0;          // of one role
    float* histories_ = nullptr;  // [delayed(), amax_history]
    bool hold_ = false;
    bool watch_ = false;
    std::optional<OperandSamples> samples_;
};

}  // namespace nibble

// The precision recipe of a model on a GPU: a RecipeProduct for every unit of linears that it quantizes, and their
// shared state. Units, rules, roles of random numbers and the table are those of train/host_recipe.h. The tensor of
// a per-tensor scale is a micro-batch.
//
// On Hopper, products of two FP8 operands (fp8, fp8_delayed, fp8_block and similar) use the FP8 tensor cores. The
// forward pass uses the engine's kernels (kernels/operand_matmul_cuda.h), whose bits do not depend on the number of
// rows. The backward pass uses cuBLASLt (kernels/codes_matmul_cuda.h). All other products, and these with the switch
// `emulate`, are emulated exactly (kernels/cast_cuda.h): quantized values in BF16, BF16 tensor cores, and scales
// applied to the finished FP32 sum (or, for blocks of 128, to the sum of a block).
#pragma once

#include "kernels/cast_cuda.h"
#include "model/device/weights.h"
#include "train/device/cast_operand.h"
#include "train/device/device_directions.h"
#include "train/device/flat_layout.h"
#include "train/device/operand_samples.h"
#include "train/device/train_linear.h"
#include "train/precision_recipe.h"

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

namespace nibble {

// Scales from earlier steps: of inputs, gradients and weights of `units` units, in this order. With stored inputs
// (CastRule::stored) there are only those of inputs, and the experts of a layer are one unit (input_group()).
struct DelayedUnits {
    enum Role : int64_t { inputs, gradients, weights, all_roles };
    int64_t units = 0, roles = 0;
    float* scales = nullptr;
    float* seen = nullptr;  // largest magnitudes of the current step
    float* held = nullptr;  // largest magnitudes of earlier updates that kept the scales

    float* of(float* array, Role role, int64_t unit) const {
        return role < roles ? array + role * units + unit : nullptr;
    }
};

// The position of a run and the data that products share.
struct RecipeStep {
    uint64_t draw = 0;  // seed * 2^20 + step
    uint64_t tokens = 0,
             groups = 0;     // counts of the step before the current micro-batch; a group is 16 tokens of a row
    int64_t seq = 0;         // tokens per row
    bool codes = false;      // the device supports products of codes
    bool late = false;       // the forward products are those of the late phase
    bool recording = false;  // the current step ends with an update, so magnitudes are recorded
    bool stored = false;     // scales of stored inputs are known; until then inputs stay BF16
    DelayedUnits delayed;
    const float* ends = nullptr;        // {0, 1} on the device
    std::byte* staging = nullptr;       // values of the largest weight, between two kernels
    OperandSamples* samples = nullptr;  // set in a watched step, during its first row and while weights are copied
};

// The products of one unit under the rules of a recipe.
class RecipeProduct : public DifferentiableProduct {
public:
    // number: of the unit; keys random numbers. place: index among quantized units. scales: its unit in
    // RecipeStep::delayed.
    RecipeProduct(const FlatMatrix& weight, uint32_t number, int64_t place, int64_t scales, const UnitRules& early,
                  const UnitRules& late, const RecipeStep& step);

    // Error: sizes that do not fit the recipe's blocks.
    Status check() const;
    int64_t bytes() const;          // weight copies and their scales
    int64_t copy_bytes() const;     // bytes of the copies that publish() and draw() write
    int64_t staging_bytes() const;  // bytes of RecipeStep::staging that publish() needs
    // copies: memory for the weight copies.
    Status load(DeviceArena& arena, DeviceArena& copies, const Stream& stream);
    // Makes the weight copies from the published values, except those that draw() makes in every step.
    Status publish(const std::byte* published, const Stream& stream) const override;
    Status draw(const std::byte* published, const Stream& stream) const;  // makes these copies
    // In a watched step: samples the source of the forward product's weight.
    Status look_at_weight(const std::byte* published, const Stream& stream) const;
    DeviceDirections* directions() const { return directions_.get(); }  // null: no directions

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
    // Both gradients, with one cast of dy if a kernel supports both directions.
    Status backward(const std::byte* dy, const std::byte* x, int64_t n, std::byte* dx, float* gradient, bool add,
                    TrainWork& work, const Between& between = {}) const override;

    // Return true if the products use the FP8 tensor cores.
    bool forward_codes(const UnitRules& r) const;
    bool back_codes(const UnitRules& r) const;

    bool draws() const { return early_.eden; }
    const FlatMatrix& weight() const { return weight_; }
    const UnitRules& rules() const { return step_.late ? late_ : early_; }

private:
    CastRandom random(uint32_t role) const;
    // The delayed scale of this step, and the maximum to update; null: the role has no delayed scale.
    const float* given(DelayedUnits::Role role) const;
    float* seen(DelayedUnits::Role role) const;
    struct CopySizes {
        int64_t tiles = 0, back = 0, scales = 0;  // scales: count for one direction
    };
    CopySizes copy_sizes() const;
    // Return true if both products use the same rounding of the weight: one copy of values, or codes from one cast.
    bool one_copy() const;
    bool one_rounding() const;
    Status publish_codes(const cuda::CastSource& from, const CastRule& rule, bool forward, bool back,
                         const Stream& stream) const;
    Status publish_values(const cuda::CastSource& from, const Stream& stream) const;
    Status publish_back_values(cuda::CastSource from, const Stream& stream) const;
    // The rows of the forward product, and their components along the directions (null: none).
    struct Input {
        cuda::ProductInput rows;
        const std::byte* along = nullptr;
    };
    Result<Input> input(const DeviceInput& from, int64_t n, DeviceStep& step) const;
    Result<cuda::ProductInput> coded_input(const std::byte* x, const float* amax, int64_t n, DeviceStep& step) const;
    FactorWanted by_weight(int64_t n) const;
    // Stored inputs: x as the product reads it, with its scale (null: x stays BF16).
    struct StoredInput {
        const std::byte* x = nullptr;
        const float* scale = nullptr;
    };
    Result<StoredInput> stored_input(const std::byte* x, int64_t n, bool record, DeviceStep& step) const;
    int64_t coded_input_size(int64_t n, const CastRule& rule) const;
    // In a watched step: samples what this rule rounds. Only rows of the step's first row are sampled.
    Status look_at_rows(OperandSamples::Part part, const std::byte* x, int64_t n, const Stream& stream) const;
    // The same values for the weight gradient.
    struct Used {
        cuda::CastSource source;
        const std::byte* along = nullptr;
    };
    Result<Used> used(const std::byte* x, int64_t n, DeviceStep& step) const;
    cuda::Operand operand(const UnitRules& r, const float* bias) const;
    int64_t back_rows() const;            // rows of the weight, padded for the input gradient's sums
    FactorWanted by_weight_back() const;  // for dY
    Result<cuda::BackScale> back_scale(const Quantized& q, const FactorWanted& by, DeviceStep& step) const;
    Result<cuda::BackScale> back_scale(const float* scale, const FactorWanted& by, DeviceStep& step) const;
    // Random bits: for dY along W's rows, and for a matrix along tokens.
    CastRandom row_random() const;
    CastRandom column_random(uint32_t role, int64_t columns) const;
    Status values_input_gradient(const Quantized& dy, int64_t n, std::byte* dx, TrainWork& work) const;
    Status values_weight_gradient(const Quantized& dy_columns, const std::byte* dy, const std::byte* x, int64_t n,
                                  float* gradient, bool add, TrainWork& work) const;
    bool casts_both(const UnitRules& r) const;
    int64_t split_size(int64_t n) const;  // bytes of scratch memory
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
    std::byte* tiles_ = nullptr;  // operand of the forward product
    // The weight for the backward pass: values [rows, padded, cols], the operand of its transpose, or that operand in
    // codes.
    std::byte* back_ = nullptr;
    // forward: one scale with its maximum and (stored inputs) the checkpoint's; or the scales of tiles
    float* scales_ = nullptr;
    float* back_scales_ = nullptr;  // the same for the backward pass
    std::unique_ptr<DeviceDirections> directions_;
    std::byte* along_ = nullptr;  // operand of the weight's term along the directions
};

// Returns an error (one line) if the recipe needs more rows per process.
Status check_device_share(const TrainPrecision& precision, int64_t tokens, int ranks);

class DeviceRecipe : public PrecisionRecipe {
public:
    // Plans a precision that was checked. Errors: a failed self-test of random numbers; mixers and sizes without
    // products on a GPU, by name.
    static Result<std::unique_ptr<DeviceRecipe>> plan(const TrainPrecision& precision, uint64_t seed,
                                                      const ModelParts& parts, const FlatLayout& flat,
                                                      ThreadPool& pool);
    int64_t bytes() const;  // bytes of all copies
    int64_t copy_bytes(size_t block) const;
    int64_t kept_bytes() const;  // part of bytes() that is not a copy of a block's weights
    // copies: returns the memory for the copies of a block; empty: one memory for all. It is called for blocks in
    // order.
    using Copies = std::function<DeviceArena*(size_t block)>;
    // `stream` must outlive the recipe.
    Status load(const DeviceInfo& device, const Stream& stream, const Copies& copies = {});
    int64_t scratch_bytes(int64_t n) const;

    // Returns the product of the unit whose first linear has this name; null: the engine's product is used.
    RecipeProduct* find(const std::string& name) const;
    // Begins step `step` of `steps` (0: unknown). watched: this process has the first rows of the step. Returns true if
    // copies of weights differ from this step on.
    Result<bool> begin_step(int64_t step, int64_t steps, bool watched, const Stream& stream);
    // Samples the weights in `published`, which holds all parts. If only some parts are present, weights are sampled
    // when they are copied.
    Status look_at_weights(const std::byte* published, const Stream& stream) const;
    int64_t delayed() const;  // number of scales that follow from earlier steps, over the rows of all processes
    // As in train/step_products.h.
    Status begin_calibration(const Stream& stream);
    Status end_calibration(const Stream& stream);
    // Redraws the stochastically rounded weight copies for this step. Call it after begin_step().
    Status draw(const std::byte* published, const Stream& stream) const;
    Status draw(size_t block, const std::byte* published, const Stream& stream) const;
    bool draws(size_t block) const;
    void begin_rows(int64_t first_row, int64_t seq);
    // Call it after the gradients of a step.
    void pause() { step_.recording = false, step_.samples = nullptr; }
    // Updates the recipe's state from a step, before weights are copied again; no effect if *clip is NaN. All processes
    // compute the same result.
    Status end_step(const float* clip, DeviceRanks& ranks, const Stream& stream);
    // Call it after a step that changed the parameters. Returns true if copies of weights differ from now on.
    Result<bool> count_step(const Stream& stream);
    Status skip_step(const Stream& stream);  // call it after a step that changed nothing

    // TrainState::recipe in the layout of train/host_recipe.h. These functions wait for the stream.
    int64_t state_size() const;
    Result<std::vector<float>> state(const Stream& stream) const;
    Status set_state(const std::vector<float>& state, const Stream& stream);

    void hold_scales(bool hold) override { hold_ = hold; }
    bool calibrates() const override { return precision_.stored_inputs && !products_.empty(); }
    // These two wait for the stream of load().
    Result<std::vector<float>> input_scales() const override;
    Status set_input_scales(std::span<const float> scales) override;
    void watch(bool on) override { watch_ = on; }
    std::vector<UnitQuality> quality() const override;
    std::vector<UnitLine> table() const override { return lines_; }
    void set_table(std::vector<UnitLine> lines) { lines_ = std::move(lines); }
    bool sees_neighbours() const override;
    bool has_experts() const { return experts_; }  // true if the recipe quantizes experts

private:
    int64_t staging_bytes() const;
    // Maximum number of sampled rows per operand.
    int64_t sampled_rows() const;
    // ranks null: a single process
    Status renew_scales(const float* clip, DeviceRanks* ranks, const Stream& stream) const;

    TrainPrecision precision_;
    uint64_t seed_ = 0;
    ThreadPool* pool_ = nullptr;
    int device_ = 0;
    const Stream* stream_ = nullptr;
    RecipeStep step_;
    bool experts_ = false;
    std::vector<UnitLine> lines_;
    std::vector<std::unique_ptr<RecipeProduct>> products_;
    std::vector<size_t> blocks_;  // block of each product
    std::unordered_map<std::string, RecipeProduct*> by_name_;
    std::optional<DeviceArena> memory_;
    int64_t done_ = 0;            // steps that changed the parameters, for the directions
    int64_t scales_ = 0;          // number of scales per role
    float* histories_ = nullptr;  // [delayed(), amax_history]
    bool hold_ = false;
    bool watch_ = false;
    std::optional<OperandSamples> samples_;
};

}  // namespace nibble

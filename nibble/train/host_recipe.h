// The products of a model's linears in training, by precision: the forward product if a recipe replaces the engine's,
// and both products of the backward pass in all cases. Copies of weights (transposed, quantized) are made on first use
// for each version of the parameters.
//
// The tensor of a per-tensor scale is one row of the step, because Trainer computes rows one by one. It corresponds to
// TransformerEngine's micro-batch of one. Random numbers are keyed by seed, step, unit, role and the element's position
// in the step.
#pragma once

#include "model/cpu/model.h"
#include "model/parameters.h"
#include "train/input_directions.h"
#include "train/step_products.h"
#include "train/train_operand.h"
#include "train/train_precision.h"
#include "train/train_rules.h"

#include <array>
#include <memory>
#include <string>
#include <vector>

namespace nibble {

// The scale of a tensor from the largest magnitudes of earlier steps (TransformerEngine's delayed scaling).
struct DelayedScale {
    std::vector<float> history;
    float scale = 1, largest = 448;
    // true: the scale is amax / largest as in checkpoints, and 0 until it is known; false: the inverse
    bool stored = false;
    float seen = 0;  // maximum of the current update
    float held = 0;  // maximum of earlier updates that kept the scale
    // hold: keeps the scale. The first call without it includes the maxima seen meanwhile.
    void end_step(bool hold = false);
};

class HostRecipe : public StepProducts {
public:
    // Covers all linears of `model`, whose weights are `parameters`. Errors: a recipe that does not suit the sizes of a
    // linear; a failed self-test of random numbers.
    static Result<std::unique_ptr<HostRecipe>> create(const Model& model, const Parameters& parameters,
                                                      const TrainPrecision& precision, uint64_t seed, ThreadPool& pool);
    ~HostRecipe() override;

    void begin_step(int64_t step, int64_t steps) override;
    void begin_row(int64_t row, int64_t seq) override;
    void end_step(bool updated) override;
    void hold_scales(bool hold) override { hold_ = hold; }
    bool calibrates() const override;
    void begin_calibration() override;
    void end_calibration() override;
    Result<std::vector<float>> input_scales() const override;
    Status set_input_scales(std::span<const float> scales) override;
    StepSeen seen() const override;
    void set_seen(const StepSeen& seen) override;
    void pause() override;

    std::vector<UnitLine> table() const override;
    size_t units() const override;
    ForwardWeight forward_weight(size_t unit) const override;
    CastOperand forward_operand(size_t unit, ThreadPool& pool) const override;
    void watch(bool on) override { watch_ = on; }
    std::vector<UnitQuality> quality() const override;
    bool sees_neighbours() const override;
    std::vector<float> state() const override;
    Status set_state(const std::vector<float>& state) override;

    bool replaces(std::span<const Linear> unit) const override;
    void forward(std::span<const Linear> unit, const float* x, int64_t n, const MatmulOutput& out,
                 Workspace& work) override;
    void input_gradient(std::span<const Linear> unit, const float* x, const float* dy, int64_t n, int64_t stride,
                        float* dx, Workspace& work) override;
    Status weight_gradient(std::span<const Linear> unit, const float* x, const float* dy, int64_t n, int64_t stride,
                           Workspace& work, GradientSink& sink) override;

private:
    struct Unit;
    struct Units;
    HostRecipe(const Parameters& parameters, const TrainPrecision& precision, uint64_t seed);
    Status add_unit(std::span<const Linear> unit, const std::string& head, const UnitRules& early,
                    const UnitRules& late, int64_t layer);
    Unit& find(std::span<const Linear> unit) const;
    const UnitRules& rules(const Unit& unit) const;
    Unit& fresh(std::span<const Linear> unit);
    Matrix stacked(const Unit& unit) const;                               // published weights of all parts
    std::vector<float> weights(const Unit& unit) const;                   // the same in FP32
    std::vector<float> used_weights(Unit& unit, ThreadPool& pool) const;  // weights as rounded for the forward product
    std::vector<float> used_inputs(const Unit& unit, const float* x, int64_t n, ThreadPool& pool) const;
    CastRandom random(const Unit& unit, uint32_t role) const;
    std::vector<DelayedScale*> stored_scales() const;
    enum Side : size_t { of_inputs, of_weights, of_gradients };
    // Returns a scale from earlier steps, or nothing if the scale is that of the values.
    std::optional<float> given(const Unit& unit, Side side) const;
    void look(std::optional<CastQuality>& seen, const float* x, int64_t cols, int64_t stride, const CastRule& rule,
              const CastOperand& operand) const;
    CastOperand cast_weights(const Unit& unit, const std::vector<float>& w, ThreadPool& pool) const;
    void pack_forward(Unit& unit, ThreadPool& pool);
    void engine_forward(Unit& unit, const float* x, int64_t n, const MatmulOutput& out, Workspace& work);
    void pack_back(Unit& unit, ThreadPool& pool);
    void plain_weight_gradient(const Unit& unit, const float* x, const float* dy_t, int64_t n, float* dw,
                               Workspace& work) const;
    void cast_weight_gradient(Unit& unit, const float* x, const float* dy_t, int64_t n, float* dw, Workspace& work);

    const Parameters& parameters_;
    TrainPrecision precision_;
    uint64_t seed_;
    std::unique_ptr<Units> units_;
    int64_t step_ = 0, done_ = 0;  // done_: steps with an update, for the directions
    bool late_ = false, recording_ = false, hold_ = false;
    bool watch_ = false, watched_row_ = false;  // watched_row_: the current row is measured
    uint64_t row_tokens_ = 0, row_groups_ = 0;  // tokens of the step before the current row
    uint64_t epoch_ = 1;                        // grows when copies of weights become invalid
};

}  // namespace nibble

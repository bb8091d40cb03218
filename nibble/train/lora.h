// Low-rank adapters over frozen weights (LoRA, Hu et al. 2021, arXiv 2106.09685), as PEFT 0.17 computes them:
//
//   y = base(x) + (alpha / rank) (x A^T) B^T,   A [rank, inputs], B [outputs, rank]
//
// With BF16 arithmetic x A^T, its product with B^T, that times alpha / rank and the sum are rounded one after the
// other. `base` is the engine's own product over the checkpoint's weights as they are stored, 4-bit ones and quantized
// inputs too. The way back goes through the decoded weights in FP32, past the rounding of inputs (straight through);
// only A and B have gradients, states and masters.
#pragma once

#include "model/cpu/model.h"
#include "model/parameters.h"
#include "train/step_products.h"
#include "train/train_config.h"

#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

namespace nibble {

// "model.layers.0.self_attn.q_proj.lora_A.weight" and "...lora_B.weight" of every linear of a block whose last name is
// a target (without targets: of every one; routers have none). A is uniform in +-1 / sqrt(inputs), B zero. Errors: a
// target that no linear is called, a rank beyond a linear's size.
Result<std::shared_ptr<Parameters>> lora_parameters(std::span<const Block> blocks, const TrainLora& lora,
                                                    DType published, uint64_t seed, ThreadPool& pool);

class LoraProducts : public StepProducts {
public:
    // `adapters` from lora_parameters() of the same model; `checkpoint` holds the model's weights. Both outlive this.
    static Result<std::unique_ptr<LoraProducts>> create(const Model& base, const Checkpoint& checkpoint,
                                                        const Parameters& adapters, const TrainLora& lora,
                                                        ThreadPool& pool);

    bool replaces(std::span<const Linear>) const override { return false; }
    void forward(std::span<const Linear>, const float*, int64_t, const MatmulOutput&, Workspace&) override {}
    bool adds(std::span<const Linear> unit) const override;
    void add(std::span<const Linear> unit, const float* x, int64_t n, float* y, int64_t stride,
             Workspace& work) override;
    void input_gradient(std::span<const Linear> unit, const float* x, const float* dy, int64_t n, int64_t stride,
                        float* dx, Workspace& work) override;
    Status weight_gradient(std::span<const Linear> unit, const float* x, const float* dy, int64_t n, int64_t stride,
                           Workspace& work, GradientSink& sink) override;

    void begin_step(int64_t, int64_t) override {}
    void begin_row(int64_t, int64_t) override {}
    void end_step(bool) override {}
    void pause() override {}
    std::vector<UnitLine> table() const override;
    size_t units() const override { return 0; }
    ForwardWeight forward_weight(size_t) const override { return {}; }
    CastOperand forward_operand(size_t, ThreadPool&) const override { return {}; }
    bool sees_neighbours() const override { return false; }
    std::vector<float> state() const override { return {}; }
    Status set_state(const std::vector<float>& state) override;

private:
    struct Frozen {  // a linear's weight, decoded and transposed
        PackedMatrix transposed;
        int64_t rows = 0, cols = 0;
        std::string format;
    };
    struct Adapter {
        size_t a = 0, b = 0;  // parameter ids
        uint64_t version = 0;
        PackedMatrix a_forward, b_forward, a_back, b_back;  // of `version`
    };
    LoraProducts(const Parameters& adapters, float scale) : adapters_(adapters), scale_(scale) {}
    Status freeze(const Linear& linear, const std::string& tensor, const Checkpoint& checkpoint, ThreadPool& pool);
    Adapter* fresh(const Linear& linear, ThreadPool& pool);
    // The linear's part of dy, times the scale: [n, rows].
    std::vector<float> scaled(const Linear& linear, const float* dy, int64_t n, int64_t stride) const;

    const Parameters& adapters_;
    float scale_;
    std::vector<std::pair<std::string, int64_t>> order_;  // linears and their layers, for the table
    std::unordered_map<std::string, Frozen> frozen_;      // by the linear's name
    std::unordered_map<std::string, Adapter> by_linear_;
};

}  // namespace nibble

// Low-rank adapters over frozen weights (LoRA, Hu et al. 2021, arXiv 2106.09685), with the arithmetic of PEFT 0.17:
//
//   y = base(x) + (alpha / rank) (x A^T) B^T,   A [rank, inputs], B [outputs, rank]
//
// With BF16 arithmetic these are rounded one after another: x A^T, its product with B^T, the multiple by alpha / rank,
// and the sum. `base` is the engine's own product over the checkpoint's stored weights, including 4-bit weights and
// quantized inputs. The backward pass uses the decoded weights in FP32 and ignores the rounding of inputs
// (straight-through). Only A and B have gradients, states and masters.
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

// Creates "model.layers.0.self_attn.q_proj.lora_A.weight" and "...lora_B.weight" for every linear of a block whose last
// name is a target (without targets: for every linear; routers have none). A is uniform in +-1 / sqrt(inputs), B is
// zero. Errors: a target that is not a linear's name; a rank beyond a linear's size.
Result<std::shared_ptr<Parameters>> lora_parameters(std::span<const Block> blocks, const TrainLora& lora,
                                                    DType published, uint64_t seed, ThreadPool& pool);

class LoraProducts : public StepProducts {
public:
    // `adapters` come from lora_parameters() of the same model; `checkpoint` holds the model's weights. Both must
    // outlive this.
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
    struct Frozen {  // the decoded and transposed weight of a linear
        PackedMatrix transposed;
        int64_t rows = 0, cols = 0;
        std::string format;
    };
    struct Adapter {
        size_t a = 0, b = 0;  // parameter ids
        uint64_t version = 0;
        PackedMatrix a_forward, b_forward, a_back, b_back;  // made from `version` of the parameters
    };
    LoraProducts(const Parameters& adapters, float scale) : adapters_(adapters), scale_(scale) {}
    Status freeze(const Linear& linear, const std::string& tensor, const Checkpoint& checkpoint, ThreadPool& pool);
    Adapter* fresh(const Linear& linear, ThreadPool& pool);
    // Returns the linear's columns of dy times the scale: [n, rows].
    std::vector<float> scaled(const Linear& linear, const float* dy, int64_t n, int64_t stride) const;

    const Parameters& adapters_;
    float scale_;
    std::vector<std::pair<std::string, int64_t>> order_;  // linears with their layers, for the table
    std::unordered_map<std::string, Frozen> frozen_;      // by name of the linear
    std::unordered_map<std::string, Adapter> by_linear_;
};

}  // namespace nibble

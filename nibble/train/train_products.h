// The products of a model's linears in training, by precision: forward where a recipe replaces the engine's own, and
// the two products of the way back everywhere. Copies of weights (transposed, quantized) are made once per version of
// the parameters, when they are first wanted.
#pragma once

#include "model/cpu/linear_products.h"
#include "model/cpu/model.h"
#include "model/parameters.h"
#include "train/train_precision.h"

#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

namespace nibble {

class TrainProducts : public LinearProducts {
public:
    // All linears of `model`, whose weights are `parameters`.
    static Result<std::unique_ptr<TrainProducts>> create(const Model& model, const Parameters& parameters,
                                                         const TrainPrecision& precision, ThreadPool& pool);

    bool replaces(std::span<const Linear> unit) const override;
    void forward(std::span<const Linear> unit, const float* x, int64_t n, const MatmulOutput& out,
                 Workspace& work) override;
    void input_gradient(std::span<const Linear> unit, const float* dy, int64_t n, int64_t stride, float* dx,
                        Workspace& work) override;
    Status weight_gradient(std::span<const Linear> unit, const float* x, const float* dy, int64_t n, int64_t stride,
                           Workspace& work, GradientSink& sink) override;

private:
    struct Unit {
        std::vector<size_t> parts;  // parameter ids of the weights
        int64_t rows = 0, cols = 0;
        uint64_t version = 0;  // that the copies below are of
        PackedMatrix transposed;
        bool has_transposed = false;
    };
    TrainProducts(const Parameters& parameters, const TrainPrecision& precision)
        : parameters_(parameters), precision_(precision) {}
    Status add(std::span<const Linear> unit, const std::string& head);
    Unit& fresh(std::span<const Linear> unit);
    Matrix stacked(const Unit& unit) const;  // the published weights of all parts

    const Parameters& parameters_;
    TrainPrecision precision_;
    std::unordered_map<std::string, Unit> units_;  // by the first linear's name
};

}  // namespace nibble

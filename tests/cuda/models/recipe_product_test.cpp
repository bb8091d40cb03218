// Compares the three products of every unit of a recipe on a GPU with the CPU (train/host_recipe.h) for equal
// inputs. Codes and scales are equal, so the differences are the order of FP32 sums, the 14 bits that the FP8 tensor
// cores keep of a sum, and the BF16 rounding of input gradients.
#include "kernels/prepare_training_cuda.h"
#include "train/device/device_trainer.h"
#include "train/host_recipe.h"
#include "train/train_shapes.h"

#include "cuda/models/train_recipes.h"

#include <cmath>

namespace nibble::test {
namespace {

constexpr int64_t product_row = 1;
constexpr uint64_t product_seed = 1;
// Tolerance for FP32 sums of some hundred terms, by norms. A wrong scale, sign or code in one row of 100 gives 0.1.
constexpr double sums_bound = 3e-5;
// Tolerance for the FP8 tensor cores. A step of 32 columns aligns its products to the largest and truncates after 13
// bits. So a sum of some hundred terms of either sign may be off by a few units of 2^-13 of its largest terms. FP32
// registers add the results of 128 columns. A wrong code or scale in one row of 100 gives 0.1.
constexpr double codes_bound = 1e-3;

// BF16 numbers; some columns are larger than the others.
std::vector<float> product_numbers(int64_t rows, int64_t cols, uint64_t seed) {
    std::vector<float> x(static_cast<size_t>(rows * cols));
    for (size_t i = 0; i < x.size(); ++i) {
        const PhiloxBlock b = PhiloxStream{seed, 9}.block(i);
        const double u = (b.word[0] + 0.5) * 0x1p-32, v = (b.word[1] + 0.5) * 0x1p-32;
        const double size = i % static_cast<size_t>(cols) % 37 == 0 ? 8 : 1;
        x[i] = round_to_bf16(static_cast<float>(size * std::sqrt(-2 * std::log(u)) * std::cos(6.283185307 * v)));
    }
    return x;
}

double relative_error(const std::vector<float>& got, const std::vector<float>& want) {
    double apart = 0, size = 0;
    for (size_t i = 0; i < want.size(); ++i) {
        const double d = double{got[i]} - want[i];
        apart += d * d, size += double{want[i]} * want[i];
    }
    return std::sqrt(apart / size);
}

// Collects the gradients of a unit's weights, stacked.
class StackedSink : public GradientSink {
public:
    Status add(const std::string&, const float* gradient, int64_t rows, int64_t cols) override {
        values.insert(values.end(), gradient, gradient + rows * cols);
        return Ok{};
    }
    std::vector<float> values;
};

class CudaProducts : public testing::TestWithParam<Trained> {
protected:
    // Sizes are not multiples of 16, 32 or 128.
    explicit CudaProducts(Json model = recipe_model(), int64_t tokens = 104)
        : shape_(std::move(model)), tokens_(tokens) {}
    void SetUp() override {
        auto made = random_start(shape_, DType::bf16, 7, pool_);
        ASSERT_TRUE(made.ok());
        parameters_ = *made;
        ASSERT_TRUE(start().ok()) << start().error().message();
    }
    Status start() {
        if (weights_) return Ok{};
        const TrainPrecision& precision = GetParam().precision;
        ModelOptions like;
        like.compute = Compute::bf16;
        NIBBLE_TRY(auto model, Model::load(parameters_, like, pool_));
        model_.emplace(std::move(model));
        NIBBLE_TRY(cpu_, HostRecipe::create(*model_, *parameters_, precision, product_seed, pool_));
        NIBBLE_TRY(auto device, open_device(recipe_device()));
        device_.emplace(device);
        NIBBLE_CHECK(use_device(device_->index));
        NIBBLE_CHECK(cuda::prepare_matmul(*device_));
        NIBBLE_CHECK(cuda::prepare_training(*device_));
        NIBBLE_TRY(auto stream, Stream::create(device_->index));
        stream_.emplace(std::move(stream));
        NIBBLE_TRY(auto arena, DeviceArena::create(device_->index, int64_t{256} << 20));
        arena_.emplace(std::move(arena));
        NIBBLE_TRY(const ModelConfig config, model_config(*parameters_));
        NIBBLE_TRY(auto weights, TrainWeights::plan(parameters_, config, precision, product_seed, pool_));
        weights_.emplace(std::move(weights));
        const FlatShards whole = FlatShards::make(weights_->flat(), Sharding::states, 1);
        NIBBLE_CHECK(weights_->load(1, whole, 0, *device_, *stream_));
        // Delayed scales that differ from the initial ones.
        std::vector<float> state = cpu_->state();
        const auto each = static_cast<size_t>(precision.amax_history) + 1;
        for (size_t i = 0; precision.recipe == TrainRecipe::fp8_delayed && i < state.size(); i += each)
            state[i] = 11.3f + static_cast<float>(i / each % 7);
        for (size_t i = 0; precision.stored_inputs && i < state.size(); i += each)
            state[i] = (1.0f + 0.3f * static_cast<float>(i / each % 7)) / 2688;  // clips some values
        NIBBLE_CHECK(cpu_->set_state(state));
        NIBBLE_CHECK(weights_->recipe().set_state(state, *stream_));
        return weights_->republish();
    }
    Result<std::byte*> to_gpu(const std::vector<float>& x) {
        std::vector<uint16_t> narrow(x.size());
        for (size_t i = 0; i < x.size(); ++i) narrow[i] = bf16_from_float(x[i]);
        NIBBLE_TRY(std::byte * to, arena_->allocate(2 * std::ssize(x)));
        NIBBLE_CHECK(copy_to_device(to, reinterpret_cast<std::byte*>(narrow.data()), 2 * std::ssize(x), *stream_));
        NIBBLE_CHECK(stream_->synchronize());
        return to;
    }
    template <class T>
    Result<std::vector<T>> from_gpu(const void* x, int64_t count) {
        std::vector<T> to(static_cast<size_t>(count));
        NIBBLE_CHECK(copy_to_host(reinterpret_cast<std::byte*>(to.data()), static_cast<const std::byte*>(x),
                                  count * static_cast<int64_t>(sizeof(T)), *stream_));
        NIBBLE_CHECK(stream_->synchronize());
        return to;
    }
    Status compare(std::span<const Linear> unit, const RecipeProduct& gpu, TrainWork& work);
    void compare_all(std::initializer_list<int64_t> steps);

    Json shape_;
    int64_t tokens_ = 0;
    ThreadPool pool_;
    std::shared_ptr<Parameters> parameters_;
    std::optional<Model> model_;
    std::unique_ptr<HostRecipe> cpu_;
    std::optional<DeviceInfo> device_;
    std::optional<Stream> stream_;
    std::optional<DeviceArena> arena_;
    std::optional<TrainWeights> weights_;
    double worst_ = 0, worst_sums_ = 0;  // relative to the tolerances; of all but input gradients
};

Status CudaProducts::compare(std::span<const Linear> unit, const RecipeProduct& gpu, TrainWork& work) {
    const DeviceArena::Mark mark = arena_->mark();
    const int64_t n = tokens_, rows = gpu.weight().rows, cols = gpu.weight().cols;
    const std::string& name = unit[0].name;
    const std::vector<float> x = product_numbers(n, cols, 1), dy = product_numbers(n, rows, 2);
    NIBBLE_TRY(std::byte * gpu_x, to_gpu(x));
    NIBBLE_TRY(std::byte * gpu_dy, to_gpu(dy));
    NIBBLE_TRY(float* y, arena_->allocate_array<float>(n * rows));
    NIBBLE_TRY(std::byte * dx, arena_->allocate(2 * n * cols));
    float* const gradient = weights_->gradient(0);
    const auto see = [&](const char* what, const std::vector<float>& got, const std::vector<float>& want,
                         double bound) {
        const double error = relative_error(got, want);
        EXPECT_LT(error, bound) << name << ", " << what;
        worst_ = std::max(worst_, error / bound);
        if (std::string_view(what) != "input gradient") worst_sums_ = std::max(worst_sums_, error);
    };

    const double back_bound = gpu.back_codes(gpu.rules()) ? codes_bound : sums_bound;
    std::vector<float> want(static_cast<size_t>(n * rows));
    if (cpu_->replaces(unit)) {
        NIBBLE_CHECK(gpu.forward({.x = gpu_x}, n, y, rows, nullptr, work.step));
        cpu_->forward(unit, x.data(), n, {want.data(), rows}, model_->workspace());
        NIBBLE_TRY(const auto got, from_gpu<float>(y, n * rows));
        see("forward", got, want, gpu.forward_codes(gpu.rules()) ? codes_bound : sums_bound);
    }
    if (gpu.reads_amax() && gpu.rounds(n)) {  // with and without a known largest magnitude: equal bits
        float most = 0;
        for (const float v : x) most = std::max(most, std::abs(v));
        NIBBLE_TRY(float* amax, arena_->allocate_array<float>(1));
        NIBBLE_CHECK(
            copy_to_device(reinterpret_cast<std::byte*>(amax), reinterpret_cast<std::byte*>(&most), 4, *stream_));
        NIBBLE_CHECK(stream_->synchronize());
        NIBBLE_TRY(std::byte * rounded, arena_->allocate(2 * n * rows));
        NIBBLE_CHECK(gpu.forward_rounded({.x = gpu_x}, n, rounded, nullptr, work.step));
        NIBBLE_TRY(const auto without, from_gpu<uint16_t>(rounded, n * rows));
        NIBBLE_CHECK(gpu.forward_rounded({.x = gpu_x, .amax = amax}, n, rounded, nullptr, work.step));
        NIBBLE_TRY(const auto with, from_gpu<uint16_t>(rounded, n * rows));
        EXPECT_TRUE(with == without) << name;
    }
    NIBBLE_CHECK(gpu.weight_gradient(gpu_dy, gpu_x, n, gradient, false, work));
    StackedSink sink;
    NIBBLE_CHECK(cpu_->weight_gradient(unit, x.data(), dy.data(), n, rows, model_->workspace(), sink));
    NIBBLE_TRY(const auto dw, from_gpu<float>(gradient + gpu.weight().at, rows * cols));
    see("weight gradient", dw, sink.values, back_bound);
    // The same, added to itself.
    NIBBLE_CHECK(gpu.weight_gradient(gpu_dy, gpu_x, n, gradient, true, work));
    NIBBLE_TRY(const auto twice, from_gpu<float>(gradient + gpu.weight().at, rows * cols));
    std::vector<float> doubled = sink.values;
    for (float& v : doubled) v *= 2;
    see("weight gradient, added", twice, doubled, back_bound);

    want.assign(static_cast<size_t>(n * cols), 0.0f);
    cpu_->input_gradient(unit, x.data(), dy.data(), n, rows, want.data(), model_->workspace());
    NIBBLE_CHECK(gpu.input_gradient(gpu_dy, gpu_x, n, dx, work));
    NIBBLE_TRY(const auto narrow, from_gpu<uint16_t>(dx, n * cols));
    std::vector<float> got(narrow.size());
    for (size_t i = 0; i < got.size(); ++i) got[i] = bf16_to_float(narrow[i]);
    see("input gradient", got, want, 2.5e-3);  // rounding to BF16 changes a number by at most 2^-9

    // Both gradients at once: equal bits.
    NIBBLE_TRY(std::byte * dx_again, arena_->allocate(2 * n * cols));
    NIBBLE_CHECK(gpu.backward(gpu_dy, gpu_x, n, dx_again, gradient, false, work));
    NIBBLE_TRY(const auto narrow_again, from_gpu<uint16_t>(dx_again, n * cols));
    NIBBLE_TRY(const auto dw_again, from_gpu<float>(gradient + gpu.weight().at, rows * cols));
    EXPECT_TRUE(narrow_again == narrow && dw_again == dw) << name;
    arena_->release(mark);
    return Ok{};
}

void CudaProducts::compare_all(std::initializer_list<int64_t> steps) {
    DeviceStepMemory memory(*device_, *stream_);
    ASSERT_TRUE(memory.reserve(weights_->recipe().scratch_bytes(tokens_), tokens_).ok());
    DeviceStep step = memory.step();
    BackPlans plans(*device_);
    const auto workspace = arena_->allocate(cuda::back_workspace_bytes);
    ASSERT_TRUE(workspace.ok());
    TrainWork work{.step = step, .published = weights_->published(), .plans = plans, .workspace = *workspace};
    int64_t units = 0;
    for (const int64_t number : steps) {
        cpu_->begin_step(number, 10);
        cpu_->begin_row(product_row, tokens_);
        DeviceRecipe& recipe = weights_->recipe();
        const auto others = recipe.begin_step(number, 10, true, *stream_);
        ASSERT_TRUE(others.ok());
        if (*others) {
            ASSERT_TRUE(weights_->republish().ok());
        }
        ASSERT_TRUE(recipe.draw(weights_->published(), *stream_).ok());
        recipe.begin_rows(product_row, tokens_);
        for (const Block& block : model_->blocks())
            for (const std::span<const Linear> unit : block.mixer().units())
                if (const RecipeProduct* gpu = recipe.find(unit[0].name)) {
                    const Status status = compare(unit, *gpu, work);
                    ASSERT_TRUE(status.ok()) << unit[0].name << ": " << status.error().message();
                    ++units;
                }
    }
    EXPECT_GT(units, 0);
    RecordProperty("worst_of_bound", std::to_string(worst_));
    RecordProperty("worst_error_of_sums", fmt::format("{:.3g}", worst_sums_));
}

// Steps 3 and 9 of 10: the second one is in the late phase, if there is one.
TEST_P(CudaProducts, OfEqualInputsEqualThoseOfTheCpu) { compare_all({3, 9}); }

// Sizes that use the large tiles of every kernel.
class CudaWideProducts : public CudaProducts {
protected:
    static Json wide() {
        Json model = recipe_model();
        model["hidden_size"] = 1024, model["intermediate_size"] = 2560, model["num_hidden_layers"] = 1;
        return model;
    }
    CudaWideProducts() : CudaProducts(wide(), 2056) {}
};
TEST_P(CudaWideProducts, OfEqualInputsEqualThoseOfTheCpu) { compare_all({3}); }

INSTANTIATE_TEST_SUITE_P(Fp8, CudaWideProducts,
                         testing::Values(Trained{"fp8", recipe_of(TrainRecipe::fp8)},
                                         Trained{"fp8_delayed", recipe_of(TrainRecipe::fp8_delayed)},
                                         Trained{"fp8_block", recipe_of(TrainRecipe::fp8_block)}),
                         [](const auto& info) { return std::string(info.param.name); });

INSTANTIATE_TEST_SUITE_P(All, CudaProducts, testing::ValuesIn(trained_recipes()),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace nibble::test

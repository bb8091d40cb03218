// Calibration with gradients on a small model: which settings affect its results, and which do not.
#include "quant/calibrate.h"

#include "quant/recipe.h"
#include "quant/resolve.h"
#include "support/files.h"

#include <gtest/gtest.h>

#include <random>

namespace nibble::test {
namespace {

class CalibrateTest : public ::testing::Test {
protected:
    void SetUp() override {
        auto opened = Checkpoint::open(test_data("chat"));
        ASSERT_TRUE(opened.ok()) << opened.error().message();
        source_ = std::move(*opened);
        std::mt19937 random(1);
        for (int i = 0; i < 9; ++i) {
            auto& ids = texts_.emplace_back(static_cast<size_t>(20 + 7 * i));
            for (int32_t& id : ids) id = static_cast<int32_t>(random() % 256);
        }
    }

    Plan plan(std::string_view recipe) {
        auto made = resolve(*load_recipe(recipe), source_->tensors(), source_->config(), {.statistics = true});
        EXPECT_TRUE(made.ok()) << made.error().message();
        return std::move(*made);
    }

    Calibration run(const Plan& plan, int threads, CalibrationOptions options) {
        ThreadPool pool(threads);
        options.scratch = std::filesystem::temp_directory_path();
        auto seen = calibrate(*source_, plan, "test", texts_, options, pool, {});
        EXPECT_TRUE(seen.ok()) << seen.error().message();
        return std::move(*seen);
    }

    std::vector<QuantMatrix> solutions(const Plan& plan, Calibration& seen) {
        std::vector<QuantMatrix> all;
        for (const PlanEntry& entry : plan.entries)
            if (entry.solver) all.push_back((*seen.statistics->statistics(entry))->solution->matrix);
        return all;
    }

    bool same(const std::vector<QuantMatrix>& a, const std::vector<QuantMatrix>& b) {
        return std::ranges::equal(a, b, [](const QuantMatrix& x, const QuantMatrix& y) {
            return x.codes == y.codes && x.block_scales == y.block_scales && x.tensor_scale == y.tensor_scale;
        });
    }

    std::unique_ptr<Checkpoint> source_;
    std::vector<std::vector<int32_t>> texts_;
};

TEST_F(CalibrateTest, SolutionsDependOnTheTextOnly) {
    const Plan best = plan("w4a16_nvfp4_nibble_best");
    Calibration one = run(best, 1, {.gradient_tokens = 150});
    const std::vector<QuantMatrix> want = solutions(best, one);
    EXPECT_EQ(want.size(), 14u);
    Calibration three = run(best, 3, {.batch_tokens = 50, .gradient_tokens = 150});
    EXPECT_TRUE(same(want, solutions(best, three)));
    Calibration spilled = run(best, 2, {.gradient_tokens = 150, .memory = 0});
    EXPECT_TRUE(same(want, solutions(best, spilled)));
    Calibration fewer = run(best, 1, {.gradient_tokens = 60});
    EXPECT_FALSE(same(want, solutions(best, fewer)));
    EXPECT_NE(one.statistics->identity(), fewer.statistics->identity());
}

TEST_F(CalibrateTest, RangesOfTheGradientPassEqualThoseOfAForwardPass) {
    Calibration exact = run(plan("nvfp4"), 1, {}), bytes = run(plan("nvfp4_nibble_best"), 1, {.gradient_tokens = 150});
    ASSERT_EQ(exact.inputs.size(), 14u);
    for (const auto& [module, range] : exact.inputs) {
        const Range& other = bytes.inputs.at(module);
        EXPECT_EQ(range.rows(), other.rows()) << module;
        EXPECT_NEAR(other.amax() / range.amax(), 1.0f, 0.05f) << module;
    }
}

}  // namespace
}  // namespace nibble::test

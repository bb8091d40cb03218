// Compares ten steps with tests/oracles/train_twin.py: forward pass, backward pass, clipping, AdamW and Muon in numpy
// and FP64.
#include "base/json.h"
#include "model/models.h"
#include "train/trainer.h"

#include <nlohmann/json.hpp>

#include <cmath>
#include <fstream>

namespace nibble::test {
namespace {

const std::filesystem::path twin_folder = std::filesystem::path(NIBBLE_SOURCE_DIR) / "tests/data/train/twin";

Json read_twin(const char* file) {
    std::ifstream in(twin_folder / file);
    return Json::parse(in);
}

struct TwinRun {
    std::vector<TrainStep> steps;
    std::shared_ptr<Parameters> parameters;
};

// Runs the steps of the reference with nibble.
TwinRun run_twin(OptimizerKind kind, TrainRecipe recipe, const Json& want) {
    TwinRun run;
    ThreadPool pool(2);
    const auto checkpoint = open_checkpoint(twin_folder / "model");
    EXPECT_TRUE(checkpoint);
    const auto parameters = Parameters::copy(*checkpoint, recipe == TrainRecipe::fp32 ? DType::f32 : DType::bf16, pool);
    EXPECT_TRUE(parameters.ok()) << parameters.error().message();
    run.parameters = *parameters;
    TrainerOptions options{.precision = {.recipe = recipe}};
    options.optimizer.kind = kind;
    options.optimizer.weight_decay = want["weight_decay"];
    options.optimizer.clip = want["clip"];
    const auto trainer = Trainer::create(run.parameters, options, pool);
    EXPECT_TRUE(trainer.ok()) << trainer.error().message();
    for (size_t t = 0; t < want["losses"].size(); ++t) {
        const TrainBatch batch{.rows = want["rows"],
                               .seq = want["seq"],
                               .tokens = want["tokens"][t],
                               .labels = want["labels"][t],
                               .weights = want["weights"][t],
                               .documents = want["documents"][t]};
        const auto step = (*trainer)->step({&batch, 1}, want["learning_rate"]);
        EXPECT_TRUE(step.ok()) << step.error().message();
        run.steps.push_back(*step);
    }
    return run;
}

void ten_steps(OptimizerKind kind, const Json& want) {
    const TwinRun run = run_twin(kind, TrainRecipe::fp32, want);
    ASSERT_EQ(run.steps.size(), 10U);
    for (size_t t = 0; t < run.steps.size(); ++t) {
        const TrainStep& step = run.steps[t];
        EXPECT_NEAR(step.loss, want["losses"][t].get<double>(), 1e-5) << "step " << t;
        EXPECT_NEAR(step.gradient_norm, want["norms"][t].get<double>(), 1e-4 * step.gradient_norm) << "step " << t;
    }
    const Parameters& parameters = *run.parameters;
    for (size_t id = 0; id < parameters.count(); ++id) {
        const std::string& name = parameters.tensors()[id].name;
        double sum = 0, squares = 0;
        for (const float w : parameters.master(id)) sum += w, squares += double{w} * w;
        const double n = double(parameters.master(id).size());
        EXPECT_NEAR(sum, want["masters"][name][0].get<double>(), 2e-5 * n) << name;
        EXPECT_NEAR(squares, want["masters"][name][1].get<double>(), 2e-5 * n) << name;
    }
}

TEST(TrainTwin, TenStepsOfAdamWInFp32) { ten_steps(OptimizerKind::adamw, read_twin("steps.json")); }

TEST(TrainTwin, TenStepsOfMuonInFp32) {
    Json want = read_twin("steps.json");
    const Json muon = read_twin("muon.json");
    EXPECT_GT(std::abs(want["losses"][9].get<double>() - muon["losses"][9].get<double>()), 1e-3);
    want.update(muon);
    ten_steps(OptimizerKind::muon, want);
}

// The reference rounds wherever the forward pass rounds. Losses differ by less than 1e-5 (8e-7 when this was written).
// Without any one of these roundings, or without all, they differ more than two hundred times as much.
TEST(TrainTwin, TenStepsOfAdamWInBf16) {
    constexpr double bound = 1e-5;
    const Json want = read_twin("bf16.json");
    const auto run = run_twin(OptimizerKind::adamw, TrainRecipe::bf16, want).steps;
    ASSERT_EQ(run.size(), 10U);
    const auto apart = [&](const Json& losses) {
        double most = 0;
        for (size_t t = 0; t < run.size(); ++t) most = std::max(most, std::abs(run[t].loss - losses[t].get<double>()));
        return most;
    };
    RecordProperty("apart", std::to_string(apart(want["losses"])));
    EXPECT_LT(apart(want["losses"]), bound) << apart(want["losses"]);
    ASSERT_EQ(want["without"].size(), 8U);  // seven single ones, and all
    for (const auto& [place, losses] : want["without"].items()) EXPECT_GT(apart(losses), 200 * bound) << place;
    for (size_t t = 0; t < run.size(); ++t)
        EXPECT_NEAR(run[t].gradient_norm, want["norms"][t].get<double>(), 1e-4 * run[t].gradient_norm) << t;
}

}  // namespace
}  // namespace nibble::test

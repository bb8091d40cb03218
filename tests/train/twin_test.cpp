// Ten steps beside tests/oracles/train_twin.py: forward, backward, clipping, AdamW and Muon in numpy and FP64.
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

void ten_steps(OptimizerKind kind, const Json& want) {
    ThreadPool pool(2);
    const auto checkpoint = open_checkpoint(twin_folder / "model");
    ASSERT_TRUE(checkpoint);
    const auto parameters = Parameters::copy(*checkpoint, DType::f32, pool);
    ASSERT_TRUE(parameters.ok()) << parameters.error().message();
    TrainerOptions options{.precision = {.recipe = TrainRecipe::fp32}};
    options.optimizer.kind = kind;
    options.optimizer.weight_decay = want["weight_decay"];
    options.optimizer.clip = want["clip"];
    const auto trainer = Trainer::create(*parameters, options, pool);
    ASSERT_TRUE(trainer.ok()) << trainer.error().message();
    for (size_t t = 0; t < want["losses"].size(); ++t) {
        const TrainBatch batch{.rows = want["rows"],
                               .seq = want["seq"],
                               .tokens = want["tokens"][t],
                               .labels = want["labels"][t],
                               .weights = want["weights"][t],
                               .documents = want["documents"][t]};
        const auto step = (*trainer)->step({&batch, 1}, want["learning_rate"]);
        ASSERT_TRUE(step.ok()) << step.error().message();
        EXPECT_NEAR(step->loss, want["losses"][t].get<double>(), 1e-5) << "step " << t;
        EXPECT_NEAR(step->gradient_norm, want["norms"][t].get<double>(), 1e-4 * step->gradient_norm) << "step " << t;
    }
    for (size_t id = 0; id < (*parameters)->count(); ++id) {
        const std::string& name = (*parameters)->tensors()[id].name;
        double sum = 0, squares = 0;
        for (const float w : (*parameters)->master(id)) sum += w, squares += double{w} * w;
        const double n = double((*parameters)->master(id).size());
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

}  // namespace
}  // namespace nibble::test

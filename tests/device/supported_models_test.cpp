// The columns of docs/supported-models.md for a GPU: the models that it runs and trains (tools/make-supported-models).
#include "architecture/model_config.h"
#include "checkpoint/checkpoint.h"
#include "model/device/model.h"
#include "support/files.h"
#include "train/device/train_weights.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>

namespace nibble::test {
namespace {

// Empty if a GPU runs the model, else the first line of the refusal.
std::string run_refusal(const std::shared_ptr<const Checkpoint>& checkpoint, ThreadPool& pool) {
    const auto table = DeviceModel::kernel_table(checkpoint, {}, {true, 0}, 1, pool);
    return table.ok() ? "" : table.error().message();
}

std::string train_refusal(const Checkpoint& checkpoint) {
    const auto model = model_config(checkpoint.config());
    if (!model.ok()) return model.error().message();
    const Status status = TrainWeights::check(*model);
    return status.ok() ? "" : status.error().message();
}

// With NIBBLE_SUPPORT_MODELS (a folder of model folders) and NIBBLE_SUPPORT_OUT: writes a line a model, "NAME, tab,
// refusal of running, tab, refusal of training". Otherwise checks two golden models.
TEST(SupportedModels, AreRunAndTrainedOnAGpuOrRefusedByName) {
    ThreadPool pool(1);
    const char* given = std::getenv("NIBBLE_SUPPORT_MODELS");
    const std::filesystem::path folder = given ? std::filesystem::path(given) : test_data("golden/models");
    std::vector<std::filesystem::path> models;
    for (const auto& entry : std::filesystem::directory_iterator(folder)) models.push_back(entry.path());
    std::ranges::sort(models);
    const char* to = std::getenv("NIBBLE_SUPPORT_OUT");
    std::ofstream out;
    if (to) out.open(to);
    int ran = 0;
    for (const auto& model : models) {
        auto opened = Checkpoint::open(model);
        ASSERT_TRUE(opened.ok()) << opened.error().message();
        const std::shared_ptr<const Checkpoint> checkpoint = std::move(*opened);
        const std::string run = run_refusal(checkpoint, pool), train = train_refusal(*checkpoint);
        ran += run.empty();
        if (to) out << model.filename().string() << '\t' << run << '\t' << train << '\n';
    }
    EXPECT_GE(ran, 8) << "golden models that run on a GPU";
}

}  // namespace
}  // namespace nibble::test

#include "device/emulated_gpu.h"
#include "quant/device/worker_memory.h"
#include "quant/device_workers.h"
#include "quant/fakes.h"

#include <gtest/gtest.h>

#include <cmath>

namespace nibble::test {
namespace {

const Search four_over_six{Search::Kind::multipliers, 1.0f, 1.5f, 0.5f};
const Search mse{Search::Kind::multipliers, 0.5f, 1.0f, 0.125f};

std::vector<WeightSpec> all_specs() {
    std::vector<WeightSpec> specs{{Format::nvfp4},
                                  {Format::nvfp4, true},
                                  {Format::nvfp4, true, 256, four_over_six},
                                  {Format::nvfp4, true, 448, {Search::Kind::sweep}},
                                  {Format::nvfp4, true, 448, mse},
                                  {Format::nvfp4, false, 448, mse},
                                  {Format::nvfp4_bs32},
                                  {Format::fp8},
                                  {Format::fp8, false, 448, mse},
                                  {Format::fp8_row},
                                  {Format::fp8_row, false, 448, four_over_six},
                                  {Format::fp8_block128},
                                  {Format::fp8_block128, false, 448, four_over_six},
                                  {Format::mxfp4},
                                  {Format::mxfp8}};
    for (size_t i = 0, n = specs.size(); i < n; ++i) {
        specs.push_back(specs[i]);
        specs.back().arithmetic = Arithmetic::true_division;
    }
    return specs;
}

struct Outcome {
    std::unique_ptr<FakeExport> out;
    Result<QuantReport> report;
};

Outcome run(const FakeCheckpoint& source, const Plan& plan, int threads, bool device,
            std::unique_ptr<FakeExport> out = nullptr) {
    JobOptions options = options_for(plan);
    if (!out) out = std::make_unique<FakeExport>(export_tensors(source, plan, options.scales));
    std::unique_ptr<PanelWorkers> workers;
    if (device) {
        auto opened = open_device_workers({true, 0}, source, plan, threads);
        if (!opened.ok()) return {std::move(out), std::move(opened).error()};
        workers = *std::move(opened);
        options.workers = workers.get();
    }
    ThreadPool pool(threads);
    auto report = run_quantize(source, plan, options, *out, pool, {});
    return {std::move(out), std::move(report)};
}

Json numbers(const QuantReport& report) {
    Json json = to_json(report);
    json.erase("timing");
    return json;
}

class DeviceJob : public ::testing::Test {
protected:
    void SetUp() override {
        emulated_gpu().free_bytes = int64_t{1} << 30;
        emulated_gpu().fails_after = -1;
        emulated_gpu().copied_to_device = 0;
    }
    static int64_t least_bytes(const FakeCheckpoint& source, const Plan& plan, int workers) {
        return plan_device_memory(source, plan, workers).least_bytes();
    }
};

TEST_F(DeviceJob, BytesAndReportEqualTheHosts) {
    FakeCheckpoint source;
    add_small_model(source);
    for (const WeightSpec& spec : all_specs()) {
        SCOPED_TRACE(to_string(spec));
        const Plan plan = small_plan(source, spec);
        const Outcome host = run(source, plan, 2, false);
        ASSERT_TRUE(host.report.ok()) << host.report.error().message();
        for (const int threads : {1, 3}) {
            const Outcome device = run(source, plan, threads, true);
            ASSERT_TRUE(device.report.ok()) << device.report.error().message();
            EXPECT_TRUE(device.out->stored == host.out->stored);
            EXPECT_EQ(numbers(*device.report), numbers(*host.report));
            EXPECT_EQ(device.report->timing.kernels, "cuda:0 emulated");
        }
    }
}

TEST_F(DeviceJob, PanelsThatFitAreCopiedOnceAndOthersReadAgain) {
    FakeCheckpoint source;
    add_small_model(source);
    const Plan plan = small_plan(source, {Format::nvfp4, true, 256, four_over_six});
    const Outcome host = run(source, plan, 2, false);
    const Outcome roomy = run(source, plan, 2, true);
    const int64_t once = emulated_gpu().copied_to_device.exchange(0);
    // The driver's sixteenth plus the memory of the workers, and no more.
    emulated_gpu().free_bytes = (least_bytes(source, plan, 2) + 64) * 16 / 15 + 16;
    const Outcome tight = run(source, plan, 2, true);
    const int64_t twice = emulated_gpu().copied_to_device;
    ASSERT_TRUE(host.report.ok() && roomy.report.ok() && tight.report.ok());
    EXPECT_TRUE(roomy.out->stored == host.out->stored);
    EXPECT_TRUE(tight.out->stored == host.out->stored);
    EXPECT_EQ(numbers(*tight.report), numbers(*host.report));
    int64_t weights = 0;
    for (size_t i = 0; i < plan.entries.size(); ++i)
        if (plan.entries[i].spec.format != Format::none)
            weights +=
                plan.entries[i].rows() * plan.entries[i].cols() * (source.tensors()[i].dtype == DType::bf16 ? 2 : 4);
    EXPECT_EQ(twice - once, weights);
}

TEST_F(DeviceJob, TooLittleMemoryIsAnErrorBeforeAnythingIsWritten) {
    FakeCheckpoint source;
    add_small_model(source);
    const Plan plan = small_plan(source, {Format::nvfp4});
    const int64_t least = least_bytes(source, plan, 3);
    emulated_gpu().free_bytes = least - 1;
    const Outcome r = run(source, plan, 3, true);
    ASSERT_FALSE(r.report.ok());
    const std::string& message = r.report.error().message();
    EXPECT_NE(message.find(fmt::format("3 threads with panels of 1572864 bytes need {} bytes", least)),
              std::string::npos)
        << message;
    EXPECT_NE(message.find(fmt::format("{} of 1073741824 bytes are free", least - 1)), std::string::npos) << message;
    EXPECT_EQ(r.out->writes, 0);
}

TEST_F(DeviceJob, MemoryOnTheDeviceDoesNotGrowWithTheTensor) {
    const auto least = [](int64_t rows) {
        FakeCheckpoint source;
        source.add("a_proj.weight", {rows, 1024});
        return least_bytes(source, plan_for(source, {Format::nvfp4}), 4);
    };
    EXPECT_EQ(least(2048), least(8192));
}

TEST_F(DeviceJob, NamesTheFirstWeightThatIsNotFinite) {
    for (const Format format : {Format::nvfp4, Format::mxfp4, Format::fp8_row}) {
        FakeCheckpoint source;
        add_small_model(source);
        source.set("model.layers.0.mlp.down_proj.weight", 384 * 5 + 6, -INFINITY);
        source.set("model.wide_proj.weight", 6144 * 299 + 7, NAN);
        const Plan plan = small_plan(source, {format});
        for (const int threads : {1, 3}) {
            const Outcome r = run(source, plan, threads, true);
            ASSERT_FALSE(r.report.ok());
            EXPECT_TRUE(
                r.report.error().message().starts_with("model.layers.0.mlp.down_proj.weight[5, 6] is -infinity"))
                << r.report.error().message();
        }
    }
}

// A lost device ends the job with a one-line error, and finished work is kept; the CPU can resume it.
TEST_F(DeviceJob, ALostDeviceLeavesAJobThatTheCpuCanFinish) {
    FakeCheckpoint source;
    add_small_model(source);
    const Plan plan = small_plan(source, {Format::nvfp4, true, 256, four_over_six});
    const Outcome host = run(source, plan, 2, false);
    emulated_gpu().fails_after = 9;
    Outcome broken = run(source, plan, 2, true);
    ASSERT_FALSE(broken.report.ok());
    const std::string message = broken.report.error().message();
    EXPECT_NE(message.find("fallen off the bus"), std::string::npos) << message;
    EXPECT_NE(message.find("--resume continues"), std::string::npos) << message;
    const Outcome rest = run(source, plan, 2, false, std::move(broken.out));
    ASSERT_TRUE(rest.report.ok()) << rest.report.error().message();
    EXPECT_GT(rest.report->timing.resumed_tensors, 0);
    EXPECT_TRUE(rest.out->stored == host.out->stored);
    EXPECT_EQ(numbers(*rest.report), numbers(*host.report));
}

TEST_F(DeviceJob, TooManyMultipliersAreRefusedByName) {
    FakeCheckpoint source;
    source.add("a_proj.weight", {128, 128});
    const Search fine{Search::Kind::multipliers, 0.5f, 1.0f, 0.001f};
    const Outcome rows = run(source, plan_for(source, {Format::fp8_row, false, 448, fine}), 1, true);
    ASSERT_FALSE(rows.report.ok());
    EXPECT_EQ(rows.report.error().message(),
              "a_proj.weight: 501 multipliers are more than the 256 that a search on a GPU takes; use --device cpu");
    const Outcome tensor = run(source, plan_for(source, {Format::fp8, false, 448, fine}), 1, true);
    EXPECT_TRUE(tensor.report.ok());
}

}  // namespace
}  // namespace nibble::test

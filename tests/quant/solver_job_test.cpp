// Solvers inside the streaming job: every tensor of a golden export; the bytes do not depend on threads or
// interruptions.
#include "io/model_files.h"
#include "io/safetensors.h"
#include "quant/fakes.h"
#include "quant/resolve.h"

#include <gtest/gtest.h>

#include <cstring>

namespace nibble::test {
namespace {

namespace fs = std::filesystem;

// Reads the Hessians stored with a golden export; q stands for q/k/v, gate for gate/up.
class StoredHessians : public StatisticsSource {
public:
    explicit StoredHessians(const fs::path& path) : file_(*SafetensorsFile::open(path)) {}

    Result<std::shared_ptr<const LinearStatistics>> statistics(const PlanEntry& linear) override {
        std::string module = linear.module;
        for (const auto& [member, first] :
             {std::pair{"k_proj", "q_proj"}, {"v_proj", "q_proj"}, {"up_proj", "gate_proj"}})
            if (module.ends_with(member)) module.replace(module.size() - std::strlen(member), std::string::npos, first);
        const TensorRecord* t = file_.find("hessian." + module);
        if (!t) return fail("no Hessian of {}", module);
        auto statistics = std::make_shared<LinearStatistics>();
        statistics->tokens = 96;
        statistics->local.resize(t->data.size() / 4);
        std::memcpy(statistics->local.data(), t->data.data(), t->data.size());
        return std::shared_ptr<const LinearStatistics>(std::move(statistics));
    }
    std::string identity() const override { return "stored"; }

private:
    SafetensorsFile file_;
};

TEST(SolverJob, ALocalHessianExportIsTheGoldenOneByteForByte) {
    const std::filesystem::path root = test_data("golden");
    const std::string stem = "llama--NVFP4_WEIGHT_ONLY_LOCAL_HESSIAN";
    const Json golden = *read_json_file(root / "modelopt" / (stem + ".json"));
    const auto source = Checkpoint::open(root / "models/llama");
    ASSERT_TRUE(source.ok());
    const auto plan = resolve(*load_recipe("w4a16_nvfp4_local_hessian"), (*source)->tensors(), (*source)->config(),
                              {.arithmetic = Arithmetic::true_division, .statistics = true});
    ASSERT_TRUE(plan.ok()) << plan.error().message();
    EXPECT_TRUE(plan->needs_activations.empty());
    StoredHessians hessians(root / "modelopt" / (stem + ".safetensors"));
    JobOptions options = options_for(*plan);
    options.statistics = &hessians;
    TempDir dir;
    const auto out = open_export(
        {.out = dir / "out", .tensors = export_tensors(**source, *plan, options.scales), .config = (*source)->config()},
        ExportMode::create);
    ASSERT_TRUE(out.ok()) << out.error().message();
    ThreadPool pool(2);
    const auto report = run_quantize(**source, *plan, options, **out, pool, {});
    ASSERT_TRUE(report.ok()) << report.error().message();
    ASSERT_TRUE((*out)->finish().ok());
    const auto files = ModelFiles::open(dir / "out");
    ASSERT_TRUE(files.ok());
    for (const Json& t : golden["tensors"]) {
        const ModelTensor* ours = files->find(t["name"].get<std::string>());
        ASSERT_NE(ours, nullptr) << t["name"];
        EXPECT_EQ(sha256(ours->record->data), t["sha256"].get<std::string>()) << t["name"];
    }
}

// Makes statistics from the linear's name and shape.
class MadeUpStatistics : public StatisticsSource {
public:
    Result<std::shared_ptr<const LinearStatistics>> statistics(const PlanEntry& linear) override {
        auto s = std::make_shared<LinearStatistics>();
        s->tokens = 40;
        s->inputs = gram(linear.cols());
        s->outputs = gram(linear.rows());
        return std::shared_ptr<const LinearStatistics>(std::move(s));
    }
    std::string identity() const override { return "made up"; }

private:
    static Gram gram(int64_t n) {
        std::vector<float> x(static_cast<size_t>(40 * n));
        for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i * 2654435761u % 1021) / 500.0f - 1.0f;
        ThreadPool pool(1);
        Gram gram(n, solver_kernels().back());
        EXPECT_TRUE(gram.add(x.data(), 40, n, {}, pool).ok());
        gram.finish(pool);
        return gram;
    }
};

Plan best_plan(const FakeCheckpoint& source) {
    Plan plan = small_plan(source, {Format::nvfp4});
    for (PlanEntry& e : plan.entries)
        if (e.spec.format != Format::none) e.solver.kind = WeightSolver::Kind::nibble_best;
    return plan;
}

TEST(SolverJob, NibbleBestGivesTheSameBytesForAnyThreadCountAndAfterAStop) {
    FakeCheckpoint source;
    add_small_model(source, 2, false);
    const Plan plan = best_plan(source);
    MadeUpStatistics statistics;
    JobOptions options = options_for(plan);
    options.statistics = &statistics;
    std::vector<Stored> want;
    for (int threads : {1, 3}) {
        ThreadPool pool(threads);
        FakeExport out(export_tensors(source, plan, options.scales));
        const auto report = run_quantize(source, plan, options, out, pool, {});
        ASSERT_TRUE(report.ok()) << report.error().message();
        if (want.empty()) want = out.stored;
        EXPECT_TRUE(out.stored == want) << threads;
        for (const TensorReport& t : report->tensors)
            EXPECT_EQ(t.format == Format::nvfp4, t.method.find("nibble_best") != std::string::npos) << t.name;
    }
    FakeExport out(export_tensors(source, plan, options.scales));
    out.fail_at = 9;
    ThreadPool pool(2);
    EXPECT_FALSE(run_quantize(source, plan, options, out, pool, {}).ok());
    out.fail_at = -1;
    ASSERT_TRUE(run_quantize(source, plan, options, out, pool, {}).ok());
    EXPECT_TRUE(out.stored == want);
}

TEST(SolverJob, MissingStatisticsAreAnErrorThatNamesTheFlag) {
    FakeCheckpoint source;
    add_small_model(source, 1, false);
    const Plan plan = best_plan(source);
    FakeExport out({});
    ThreadPool pool(1);
    const auto report = run_quantize(source, plan, options_for(plan), out, pool, {});
    ASSERT_FALSE(report.ok());
    EXPECT_NE(report.error().message().find("needs calibration: pass --calib FILE"), std::string::npos)
        << report.error().message();
}

}  // namespace
}  // namespace nibble::test

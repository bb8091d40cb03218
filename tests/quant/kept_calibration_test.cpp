// Calibration of a small model: results saved on disk and reused, and GPTQ with quantized inputs.
#include "quant/calibrate.h"

#include "model/models.h"
#include "quant/gptq.h"
#include "quant/quantized_inputs.h"
#include "quant/resolve.h"
#include "support/best_kernels.h"

#include <atomic>
#include <chrono>
#include <random>
#include <thread>

namespace nibble::test {
namespace {

namespace fs = std::filesystem;

struct Bed {
    std::shared_ptr<const Checkpoint> source = open_checkpoint(test_data("chat"));
    std::vector<std::vector<int32_t>> texts{4};
    ThreadPool pool{2};
    TempDir dir;

    Bed() {
        std::mt19937 random(5);
        for (auto& text : texts)
            for (int i = 0; i < 40; ++i) text.push_back(static_cast<int32_t>(random() % 256));
    }
    Plan plan(std::string_view algorithm, bool inputs = true) const {
        const auto recipe = parse_recipe(
            fmt::format(
                "imports: {{off: configs/ptq/units/base_disable_all, nvfp4: configs/ptq/units/w4a4_nvfp4_nvfp4,\n"
                "  rest: configs/ptq/units/default_disabled_quantizers}}\n"
                "algorithm: {}\nquant_cfg:\n  - {{$import: off}}\n  - {{$import: nvfp4}}\n"
                "  - {{$import: rest}}\n",
                algorithm),
            "r.yaml");
        EXPECT_TRUE(recipe.ok()) << recipe.error().message();
        auto plan = resolve(*recipe, source->tensors(), source->config(), {.weights_only = !inputs});
        EXPECT_TRUE(plan.ok()) << plan.error().message();
        return *std::move(plan);
    }
    Result<Calibration> run(const Plan& plan, const fs::path& keep = {}, int64_t gradient_tokens = 80,
                            const JobHooks& hooks = {}) {
        CalibrationOptions options;
        options.gradient_tokens = gradient_tokens;
        options.scratch = dir.path();
        options.keep = keep;
        return calibrate(*source, plan, "test", texts, options, pool, hooks);
    }
    // Runs rank `rank` of several, in batches of two texts.
    Result<Calibration> run_rank(const Plan& plan, int rank, const JobHooks& hooks = {}) {
        CalibrationOptions options{.batch_tokens = 80, .gradient_tokens = 80, .scratch = dir.path()};
        if (rank >= 0)
            options.ranks =
                StageChainOptions{.folder = dir / "ranks", .who = fmt::format("rank {}", rank), .should_stop = {}};
        ThreadPool own(1);
        return calibrate(*source, plan, "test", texts, options, own, hooks);
    }
};

// Returns codes and scales of every solved linear, and the stored scales.
std::string content(const Plan& plan, const Calibration& seen) {
    std::string text;
    for (const PlanEntry& entry : plan.entries) {
        if (!entry.solver) continue;
        const auto found = seen.statistics->statistics(entry);
        EXPECT_TRUE(found.ok() && (*found)->solution) << entry.module;
        const QuantMatrix& m = (*found)->solution->matrix;
        text += fmt::format("{} {:a} {}\n", entry.module, m.tensor_scale, (*found)->solution->raised_blocks);
        text.append(m.codes.begin(), m.codes.end());
        text.append(m.block_scales.begin(), m.block_scales.end());
    }
    for (const auto& [name, value] : scale_table(seen, plan, Arithmetic::reciprocal).values)
        text += fmt::format("{} {:a}\n", name, value);
    return text;
}

class KeptCalibration : public testing::TestWithParam<std::string> {};

TEST_P(KeptCalibration, AStoppedCalibrationContinuesToTheSameBits) {
    Bed bed;
    const Plan plan = bed.plan(GetParam());
    const auto whole = bed.run(plan);
    ASSERT_TRUE(whole.ok()) << whole.error().message();
    const std::string expected = content(plan, *whole);

    // Stops later in every run, with the same folder, until the calibration is complete.
    const fs::path keep = bed.dir / "keep";
    int stops = 0;
    for (int ms = 0;; ms = ms + 1 + ms / 4) {
        std::atomic<bool> stop{ms == 0}, done{false};
        JobHooks hooks;
        hooks.stop_requested = &stop;
        std::thread clock([&] {
            const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(ms);
            while (!done && std::chrono::steady_clock::now() < end)
                std::this_thread::sleep_for(std::chrono::microseconds(200));
            stop = true;
        });
        const auto seen = bed.run(plan, keep, 80, hooks);
        done = true;
        clock.join();
        if (seen.ok()) {
            EXPECT_EQ(content(plan, *seen), expected);
            break;
        }
        ASSERT_EQ(seen.error().message(), "test: calibration stopped on request");
        ++stops;
    }
    EXPECT_GT(stops, 0);

    // All results are saved, so nothing runs.
    int passes = 0;
    JobHooks hooks;
    hooks.progress = [&](const Progress&) { ++passes; };
    const auto again = bed.run(plan, keep, 80, hooks);
    ASSERT_TRUE(again.ok()) << again.error().message();
    EXPECT_EQ(content(plan, *again), expected);
    EXPECT_EQ(passes, 0);

    // A damaged solution is computed again.
    const fs::path file = keep / "solutions.bin";
    std::string bytes = read_file(file);
    bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 1);
    write_file(file, bytes);
    const auto mended = bed.run(plan, keep);
    ASSERT_TRUE(mended.ok()) << mended.error().message();
    EXPECT_EQ(content(plan, *mended), expected);

    // Another text is another calibration.
    bed.texts[0][3] ^= 1;
    const auto other = bed.run(plan, keep);
    ASSERT_FALSE(other.ok());
    EXPECT_NE(other.error().message().find("the unfinished work belongs to another job: calibration"),
              std::string::npos)
        << other.error().message();
}

TEST_P(KeptCalibration, RanksGiveTheBitsOfOneProcess) {
    Bed bed;
    const Plan plan = bed.plan(GetParam());
    const auto alone = bed.run_rank(plan, -1);
    ASSERT_TRUE(alone.ok()) << alone.error().message();
    const std::string expected = content(plan, *alone);
    for (const int ranks : {1, 2, 3, 4}) {
        fs::remove_all(bed.dir / "ranks");
        std::vector<std::thread> threads;
        for (int rank = 0; rank < ranks; ++rank)
            threads.emplace_back([&, rank] {
                // Rank 0 is stopped in a block, and starts again while the others work.
                std::atomic<bool> stop{false};
                JobHooks hooks;
                hooks.stop_requested = &stop;
                hooks.progress = [&](const Progress&) { stop = true; };
                if (rank == 0) {
                    const auto stopped = bed.run_rank(plan, rank, hooks);
                    EXPECT_TRUE(stopped.ok() || stopped.error().kind() == ErrorKind::cancelled);
                }
                const auto seen = bed.run_rank(plan, rank);
                ASSERT_TRUE(seen.ok()) << seen.error().message();
                EXPECT_EQ(content(plan, *seen), expected) << ranks;
                EXPECT_EQ(seen->gaps.size(), alone->gaps.size());
                EXPECT_EQ(seen->output_errors.size(), alone->output_errors.size());
            });
        for (std::thread& thread : threads) thread.join();
    }
}

// A program may continue another one's calibration only if both compute the same bits.
TEST_P(KeptCalibration, BitsChangeOnlyWithTheRevision) {
    const std::map<std::string, std::string> bits = {{"max", "77fa04ed81fac303"},
                                                     {"nibble_best", "c8ba7901b22ac8d8"},
                                                     // hash for revision 1
                                                     {"gptq", "e485dfdd6c596e9f"}};
    Bed bed;
    const Plan plan = bed.plan(GetParam());
    const auto seen = bed.run(plan);
    ASSERT_TRUE(seen.ok()) << seen.error().message();
    EXPECT_EQ(hash_text(content(plan, *seen)), bits.at(GetParam()))
        << "raise calibration_revision and note the new bits here";
    EXPECT_EQ(calibration_revision, 1);
}

TEST_P(KeptCalibration, AnotherRevisionIsNotContinued) {
    Bed bed;
    const Plan plan = bed.plan(GetParam());
    const fs::path keep = bed.dir / "keep";
    ASSERT_TRUE(bed.run(plan, keep).ok());
    const fs::path journal = keep / Journal::file_name;
    std::string text = read_file(journal);
    const std::string now = fmt::format("\"calibration's revision\":\"{}\"", calibration_revision);
    const auto at = text.find(now);
    ASSERT_NE(at, text.npos) << text.substr(0, 400);
    write_file(journal, text.replace(at, now.size(), "\"calibration's revision\":\"0\""));
    const auto other = bed.run(plan, keep);
    ASSERT_FALSE(other.ok());
    EXPECT_NE(other.error().message().find("calibration's revision (was 0, is"), std::string::npos)
        << other.error().message();
}

INSTANTIATE_TEST_SUITE_P(Algorithms, KeptCalibration, testing::Values("max", "nibble_best", "gptq"));

// As in Model Optimizer: all inputs are quantized, weights are not, and X is the output of the input quantizer.
TEST(GptqOnQuantizedInputs, UsesTheInputsOfTheProduct) {
    Bed bed;
    const Plan plan = bed.plan("gptq");
    auto seen = bed.run(plan);
    ASSERT_TRUE(seen.ok()) << seen.error().message();
    const ScaleTable table = scale_table(*seen, plan, Arithmetic::reciprocal);
    const auto scales = resolve_activation_scales(plan, &table);
    ASSERT_TRUE(scales.ok());

    struct Recorder : Observer {
        std::string wanted;
        std::vector<float> x;
        Status input(const Linear& linear, const float* rows, int64_t n, int64_t cols,
                     std::span<const int32_t>) override {
            if (linear.name == wanted) x.insert(x.end(), rows, rows + n * cols);
            return Ok{};
        }
        Status kv(const std::string&, const float*, const float*, int64_t, int64_t, int64_t) override { return Ok{}; }
        Status output_gradient(const Linear&, const float*, int64_t, int64_t, std::span<const int32_t>) override {
            return Ok{};
        }
    };
    std::shared_ptr<const Checkpoint> changed = with_quantized_inputs(*bed.source, plan, *scales);
    ModelOptions options;
    options.kv = KvFormat::none;
    const auto model = Model::load(changed, options, bed.pool);
    ASSERT_TRUE(model.ok()) << model.error().message();
    for (const std::string module : {"model.layers.0.self_attn.q_proj", "model.layers.1.mlp.down_proj"}) {
        const auto at = std::ranges::find(plan.entries, module, &PlanEntry::module);
        ASSERT_NE(at, plan.entries.end());
        const auto index = static_cast<size_t>(at - plan.entries.begin());
        Recorder recorder;
        recorder.wanted = module;
        std::vector<Segment> segments;
        for (const auto& text : bed.texts) segments.push_back({nullptr, text, std::ssize(text)});
        ASSERT_TRUE(model->forward(Batch(segments), {}, &recorder).ok());
        const int64_t cols = at->cols(), rows = std::ssize(recorder.x) / cols;
        std::vector<float> x(recorder.x.size());
        nvfp4_inputs(*select_matmul_kernels().operator*(), recorder.x.data(), rows, cols, *scales->input[index],
                     bed.pool, x.data());
        std::vector<double> sums(static_cast<size_t>(cols * cols));
        for (int64_t t = 0; t < rows; ++t)
            for (int64_t i = 0; i < cols; ++i)
                for (int64_t j = 0; j < cols; ++j)
                    sums[static_cast<size_t>(i * cols + j)] +=
                        double{x[static_cast<size_t>(t * cols + i)]} * x[static_cast<size_t>(t * cols + j)];
        std::vector<float> hessian;
        for (const double sum : sums) hessian.push_back(static_cast<float>(2 * sum / static_cast<double>(rows)));

        const auto solved = seen->statistics->statistics(*at);
        ASSERT_TRUE(solved.ok());
        const QuantMatrix& found = (*solved)->solution->matrix;
        Matrix scratch;
        const auto weight = bed.source->read_plain(index, 0, at->rows(), scratch);
        QuantMatrix expected(Format::nvfp4, at->rows(), cols);
        expected.tensor_scale = found.tensor_scale;
        const TensorAmax amax{test::best_quantize().scan(*weight).amax, found.tensor_scale * 2688};
        ASSERT_TRUE(quantize_gptq(*weight, hessian, at->spec, amax, at->solver.gptq, test::best_solver(), bed.pool,
                                  expected.span())
                        .ok());
        size_t differ = 0;
        for (size_t i = 0; i < found.codes.size(); ++i) differ += found.codes[i] != expected.codes[i];
        EXPECT_LE(differ, found.codes.size() / 100) << module << ": sums in FP32 and FP64 may part at a tie";
    }
    // With unquantized inputs the result differs.
    const Plan plain = bed.plan("gptq", false);
    const auto unquantized = bed.run(plain);
    ASSERT_TRUE(unquantized.ok());
    EXPECT_NE(content(plain, *unquantized).substr(0, 200), content(plan, *seen).substr(0, 200));
}

}  // namespace
}  // namespace nibble::test

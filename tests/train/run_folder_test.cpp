// Tests a run's folder: a run that is stopped at any step resumes with the same bits, and failed writes are reported.
#include "run/folder.h"
#include "support/files.h"
#include "support/markup_check.h"
#include "train/small_trainer.h"

#include <gtest/gtest.h>

#include <cmath>

namespace nibble {
namespace {

namespace fs = std::filesystem;

class RunFolderTest : public testing::Test {
protected:
    struct Run {
        std::unique_ptr<Trainer> trainer;
        std::unique_ptr<BatchSource> data = synthetic_source(48, 10, 3);
        std::vector<std::string> warnings;
        std::unique_ptr<RunFolder> folder;
    };

    RunFolderOptions options(const std::string& name, Run& run) {
        return {.folder = dir / name,
                .identity = {.text = "{\"seed\": 3}"},
                .about = {{"group", "g"}},
                .saving = {.every = 2, .keep = 2},
                .page_seconds = 0,
                .warn = [&run](std::string_view text) { run.warnings.emplace_back(text); }};
    }

    Status open(Run& run, const RunFolderOptions& with) {
        run.trainer = test::small_trainer(pool, {});
        NIBBLE_TRY(run.folder, RunFolder::open(with, *run.trainer, *run.data));
        return Ok{};
    }

    static void steps(Run& run, int64_t from, int64_t to) {
        for (int64_t step = from; step < to; ++step) {
            const auto batch = run.data->next(2);
            ASSERT_TRUE(batch.ok());
            const auto done = run.trainer->step({&*batch, 1}, 1e-2);
            ASSERT_TRUE(done.ok()) << done.error().message();
            run.folder->after_step(to_json(LoggedStep{.step = step,
                                                      .loss = done->loss,
                                                      .gradient_norm = done->gradient_norm,
                                                      .learning_rate = 1e-2,
                                                      .seconds = 0.25,
                                                      .tokens = 20}),
                                   *run.trainer, *run.data);
        }
    }

    // Returns the bytes of the last checkpoint and the steps of the log.
    std::string outcome(const std::string& name) {
        const auto found = list_checkpoints(dir / name / "checkpoints");
        EXPECT_TRUE(found.ok() && !found->empty());
        std::string out = fmt::format("step {} ", found->back().step) + test::read_file(found->back().file);
        const auto history = read_run_history(dir / name);
        EXPECT_TRUE(history.ok()) << history.error().message();
        for (const LoggedStep& s : history->steps) out += to_json(s).dump();
        return out;
    }

    ThreadPool pool{2};
    test::TempDir dir;
};

// A run without checkpoints leaves its log and page, and cannot be resumed.
TEST_F(RunFolderTest, WithoutCheckpointsOnlyLogAndPageRemain) {
    Run run;
    RunFolderOptions with = options("nothing", run);
    with.saving = {.every = 0, .keep = 0};
    ASSERT_TRUE(open(run, with).ok());
    EXPECT_FALSE(run.folder->saves());
    steps(run, 0, 3);
    ASSERT_TRUE(run.folder->finish(3, *run.trainer, *run.data).ok());
    EXPECT_EQ(run.warnings, std::vector<std::string>());
    const auto found = list_checkpoints(dir / "nothing" / "checkpoints");
    EXPECT_TRUE(found.ok() && found->empty());
    EXPECT_TRUE(fs::exists(dir / "nothing" / "report.html"));
    const auto history = read_run_history(dir / "nothing");
    ASSERT_TRUE(history.ok());
    EXPECT_EQ(history->steps.size(), 3u);
}

// A fork continues with another run's parameters and data position. With the same recipe it ends with that run's bits.
TEST_F(RunFolderTest, AForkBeginsWhereAnotherRunWas) {
    Run whole;
    ASSERT_TRUE(open(whole, options("whole", whole)).ok());
    steps(whole, 0, 4);
    const fs::path state = dir / "whole" / "checkpoints" / "step_00000004.safetensors";
    ASSERT_TRUE(whole.folder->finish(4, *whole.trainer, *whole.data).ok());
    fs::copy(state, dir / "state.safetensors");
    steps(whole, 4, 7);

    Run same;
    RunFolderOptions with = options("same", same);
    with.identity.text = "{\"seed\": 4}";
    with.fork = dir / "state.safetensors";
    ASSERT_TRUE(open(same, with).ok());
    EXPECT_EQ(same.folder->first_step(), 4);
    steps(same, 4, 7);
    EXPECT_EQ(test::all_masters(same.trainer->parameters()), test::all_masters(whole.trainer->parameters()));
    ASSERT_TRUE(same.folder->finish(7, *same.trainer, *same.data).ok());
    const auto log = read_run_history(dir / "same");
    ASSERT_TRUE(log.ok());
    EXPECT_EQ(log->steps.front().step, 4);
    same.folder.reset();

    Run resumed;  // uses its own checkpoint, not the fork's
    with.resume = true;
    ASSERT_TRUE(open(resumed, with).ok());
    EXPECT_EQ(resumed.folder->first_step(), 7);

    Run quantized;  // the state of a recipe with a history starts again
    TrainerOptions delayed;
    delayed.precision = *train_precision_from_name("fp8_delayed");
    quantized.trainer = test::small_trainer(pool, delayed);
    with = options("quantized", quantized);
    with.fork = dir / "whole";
    whole.folder.reset();
    auto folder = RunFolder::open(with, *quantized.trainer, *quantized.data);
    ASSERT_TRUE(folder.ok()) << folder.error().message();
    quantized.folder = *std::move(folder);
    steps(quantized, quantized.folder->first_step(), quantized.folder->first_step() + 1);

    Run none;
    with = options("none", none);
    with.fork = dir.path();
    const Status missing = open(none, with);
    ASSERT_FALSE(missing.ok());
    EXPECT_NE(missing.error().message().find("fork: "), std::string::npos);
}

TEST_F(RunFolderTest, ARunThatWasStoppedEndsWithTheSameBits) {
    Run whole;
    ASSERT_TRUE(open(whole, options("whole", whole)).ok());
    steps(whole, 0, 7);
    ASSERT_TRUE(whole.folder->finish(7, *whole.trainer, *whole.data).ok());
    const std::string want = outcome("whole");
    EXPECT_TRUE(want.starts_with("step 7 "));
    EXPECT_EQ(test::check_markup(test::read_file(dir / "whole" / "report.html")).error, "");
    EXPECT_TRUE(fs::exists(dir / "whole" / "events" / "events.out.tfevents.00000000"));
    const auto reloads = [&](const std::string& name) {
        return test::read_file(dir / name / "report.html").find("http-equiv=\"refresh\"") != std::string::npos;
    };
    EXPECT_FALSE(reloads("whole")) << "nothing more is written";
    for (const int64_t stop : {1, 2, 3, 5, 6}) {
        const std::string name = fmt::format("stop{}", stop);
        {
            Run first;
            ASSERT_TRUE(open(first, options(name, first)).ok());
            steps(first, 0, stop);  // ends without finish(), like a killed process
            EXPECT_TRUE(reloads(name));
        }
        Run second;
        auto with = options(name, second);
        with.resume = true;
        ASSERT_TRUE(open(second, with).ok());
        EXPECT_EQ(second.folder->first_step(), stop / 2 * 2);
        steps(second, second.folder->first_step(), 7);
        ASSERT_TRUE(second.folder->finish(7, *second.trainer, *second.data).ok());
        EXPECT_TRUE(outcome(name) == want) << stop;
        EXPECT_TRUE(second.warnings.empty());
    }
}

TEST_F(RunFolderTest, AnotherRunIsNotTouched) {
    Run first;
    ASSERT_TRUE(open(first, options("a", first)).ok());
    steps(first, 0, 3);
    Run second;
    const auto message = [&](const RunFolderOptions& with) {
        const Status opened = open(second, with);
        EXPECT_FALSE(opened.ok());
        return opened.ok() ? std::string() : opened.error().message();
    };
    EXPECT_NE(message(options("a", second)).find("another process"), std::string::npos);
    ASSERT_TRUE(first.folder->finish(3, *first.trainer, *first.data).ok());
    first.folder.reset();
    const std::string before = outcome("a");
    EXPECT_NE(message(options("a", second)).find("already has a run"), std::string::npos);
    auto other = options("a", second);
    other.resume = true;
    other.identity.text = "{\"seed\": 4}";
    EXPECT_NE(message(other).find("another run"), std::string::npos);
    EXPECT_TRUE(outcome("a") == before);
}

TEST_F(RunFolderTest, AFullDiskIsReportedAndTrainingContinues) {
    Run run;
    ASSERT_TRUE(open(run, options("a", run)).ok());
    steps(run, 0, 2);
    ASSERT_TRUE(run.folder->finish(2, *run.trainer, *run.data).ok());
    // A folder occupies the name of the next file, so the file cannot be created.
    fs::create_directories(dir / "a" / "checkpoints" / "step_00000004.safetensors.partial" / "x");
    steps(run, 2, 5);
    EXPECT_EQ(run.folder->finish(5, *run.trainer, *run.data).ok(), true);
    ASSERT_EQ(run.warnings.size(), 1u);
    EXPECT_NE(run.warnings[0].find("step_00000004"), std::string::npos);
    const auto history = read_run_history(dir / "a");
    ASSERT_TRUE(history.ok());
    EXPECT_EQ(history->warnings, run.warnings);
    EXPECT_EQ(history->steps.size(), 5u);
    const auto found = list_checkpoints(dir / "a" / "checkpoints");
    ASSERT_EQ(found->size(), 2u);
    EXPECT_EQ((*found)[0].step, 2);
    EXPECT_EQ((*found)[1].step, 5);
    // The final state must be on the device.
    fs::create_directories(dir / "a" / "checkpoints" / "step_00000006.safetensors.partial" / "x");
    steps(run, 5, 6);
    EXPECT_FALSE(run.folder->finish(6, *run.trainer, *run.data).ok());
    EXPECT_TRUE(fs::exists((*found)[1].file));
}

}  // namespace
}  // namespace nibble

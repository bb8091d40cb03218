// Training and RL called as a library: they report through hooks, print nothing, stop on request, and continue with the
// same bits.
#include "jobs/bed.h"
#include "nibble/reinforce.h"
#include "nibble/train.h"

#include <gmock/gmock.h>

namespace nibble::test {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

// The text of a config, and everything that a run reports.
class TrainJobs : public ::testing::Test {
protected:
    void SetUp() override {
        ::testing::internal::CaptureStdout();
        ::testing::internal::CaptureStderr();
    }
    void TearDown() override {
        EXPECT_EQ(::testing::internal::GetCapturedStdout(), "");
        EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
    }
    TrainOptions training(const std::string& out, std::vector<std::string> set = {}) {
        set.push_back("output=" + bed.at(out));
        return {.text = "model: " + bed.model + "\nsteps: 4\nbatch: 2\nsequence: 24\ndata: {text: " + bed.text +
                        "}\nschedule: {kind: constant}\n",
                .set = set,
                .threads = 1};
    }
    RlOptions learning(const std::string& out) {
        return {.text = "policy: {model_name: " + bed.model +
                        ", max_total_sequence_length: 96, generation: {max_new_tokens: 6}}\n"
                        "grpo: {num_prompts_per_step: 2, num_generations_per_prompt: 2, max_num_steps: 2}\n"
                        "data: {task: sort, chat: false}\ncheckpointing: {save_period: 1}\n",
                .set = {"output=" + bed.at(out)},
                .threads = 1};
    }
    std::string model_of(const std::string& out) { return read_file(bed.at(out) + "/model/model.safetensors"); }

    Bed bed;
    Heard heard;
};

TEST_F(TrainJobs, TrainReportsStepsAndWritesAModel) {
    std::vector<int64_t> steps;
    std::string lines, log;
    const auto done = train(training("run"), {.job = heard.hooks(), .on_step = [&](const TrainedStep& s) {
                                                  steps.push_back(s.step);
                                                  EXPECT_GT(s.loss, 0);
                                                  EXPECT_EQ(s.tokens, 48);
                                                  lines += s.report.text() + "\n";
                                                  log += s.report.json() + "\n";
                                              }});
    ASSERT_TRUE(done.ok()) << done.error().message();
    EXPECT_EQ(steps, (std::vector<int64_t>{0, 1, 2, 3}));
    EXPECT_EQ(done->steps, 4);
    EXPECT_FALSE(done->made_earlier);
    EXPECT_EQ(done->outputs, std::vector<std::string>{bed.at("run") + "/model"});
    EXPECT_THAT(lines, HasSubstr("completed step: 3"));
    EXPECT_THAT(read_file(bed.at("run") + "/train.jsonl"), HasSubstr(log));
    EXPECT_THAT(heard.notes, ::testing::Contains(HasSubstr("4 steps of 2 x 24 tokens, precision bf16")));
    const auto again = train(training("run", {"resume=true"}), {});
    ASSERT_TRUE(again.ok()) << again.error().message();
    EXPECT_TRUE(again->made_earlier);
    EXPECT_THAT(again->lines, ::testing::ElementsAre(HasSubstr("has already completed its 4 steps")));
}

TEST_F(TrainJobs, AStoppedRunContinuesToTheSameBits) {
    ASSERT_TRUE(train(training("whole"), {}).ok());
    const auto stopped = train(training("part"), {.job = heard.hooks(), .on_step = [&](const TrainedStep& s) {
                                                      if (s.step == 1) heard.stop = true;
                                                  }});
    ASSERT_FALSE(stopped.ok());
    EXPECT_EQ(stopped.error().kind(), ErrorKind::cancelled);
    EXPECT_THAT(stopped.error().message(), HasSubstr("stopped after 2 of 4 steps"));
    const auto done = train(training("part", {"resume=yes", "optimizer.clip=1.0"}), {});
    ASSERT_TRUE(done.ok()) << done.error().message();
    EXPECT_EQ(model_of("part"), model_of("whole"));
}

TEST_F(TrainJobs, ErrorsHaveKinds) {
    const auto kind = [](const auto& result) {
        EXPECT_FALSE(result.ok());
        return result.ok() ? ErrorKind::other : result.error().kind();
    };
    EXPECT_EQ(kind(train(training("a", {"optimizer.clips=1"}), {})), ErrorKind::recipe);
    EXPECT_EQ(kind(train(training("a", {"steps"}), {})), ErrorKind::usage);
    EXPECT_EQ(kind(train(training("a", {"schedule.warmup=9"}), {})), ErrorKind::recipe);
    EXPECT_EQ(kind(train({.text = "model: m\ndata: {text: t}\n"}, {})), ErrorKind::usage);
    TrainOptions tpu = training("a");
    tpu.device = "tpu";
    EXPECT_EQ(kind(train(tpu, {})), ErrorKind::usage);
    EXPECT_EQ(kind(train({.config = bed.at("none.yaml")}, {})), ErrorKind::file);
    RlOptions rl = learning("b");
    rl.set.push_back("grpo.num_generations_per_prompt=1");
    EXPECT_EQ(kind(reinforce(rl, {})), ErrorKind::recipe);
    rl.set = {};
    EXPECT_EQ(kind(reinforce(rl, {})), ErrorKind::usage);
}

TEST_F(TrainJobs, ReinforceReportsStepsAndContinues) {
    int64_t steps = 0;
    const auto count = [&](const ReinforcedStep& s) {
        EXPECT_EQ(s.step, steps++);
        EXPECT_EQ(s.answers, 4);
        EXPECT_EQ(s.mismatch_tokens, 0);
        EXPECT_THAT(s.report.text(), HasSubstr("reward"));
    };
    const auto whole = reinforce(learning("whole"), {.job = heard.hooks(), .on_step = count});
    ASSERT_TRUE(whole.ok()) << whole.error().message();
    EXPECT_EQ(steps, 2);
    EXPECT_EQ(whole->outputs, std::vector<std::string>{bed.at("whole") + "/model"});
    const auto stopped = reinforce(
        learning("part"), {.job = heard.hooks(), .on_step = [&](const ReinforcedStep&) { heard.stop = true; }});
    ASSERT_FALSE(stopped.ok());
    EXPECT_EQ(stopped.error().kind(), ErrorKind::cancelled);
    RlOptions rest = learning("part");
    rest.resume = true;
    const auto done = reinforce(rest, {});
    ASSERT_TRUE(done.ok()) << done.error().message();
    EXPECT_EQ(model_of("part"), model_of("whole"));
}

}  // namespace
}  // namespace nibble::test

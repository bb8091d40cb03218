// Tests samples and steps that fail: a failed sample affects only itself, and a failed step affects no other step.
#include "base/json.h"
#include "rl/frozen_policy.h"
#include "rl/policy_trainer.h"
#include "rl/question_rows.h"
#include "rl/rl_log.h"
#include "rl/token_task.h"
#include "run/log.h"
#include "support/files.h"
#include "train/small_trainer.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>

namespace nibble::test {
namespace {

RlConfig failing_config() {
    RlConfig c{.prompts = 3, .generations = 4, .steps = 10, .length = 128};
    c.optimizer.learning_rate = 3e-3;
    c.loss.kl_penalty = 0;
    c.generation.most_tokens = 20;
    return c;
}

// Every second prompt fills the whole sequence length.
class LongPrompts : public TokenTask {
public:
    using TokenTask::TokenTask;
    Result<RolloutPrompt> prompt(uint64_t number) override {
        NIBBLE_TRY(RolloutPrompt p, TokenTask::prompt(number));
        if (number % 2 == 1) p.tokens.assign(128, 5), p.where = fmt::format("rows: line {}", number);
        return p;
    }
};

TEST(RlFailures, APromptThatIsTooLongFailsAlone) {
    for (const bool async : {false, true}) {
        SCOPED_TRACE(async);
        ThreadPool pool(2);
        RlConfig config = failing_config();
        config.train_batch = 4;  // one update has only the answers to the prompt that is too long
        if (async) config.async = RlAsync{.prompts_in_flight = 4}, config.loss.importance_sampling_correction = true;
        const auto trainer = small_trainer(pool, {.optimizer = config.optimizer});
        LongPrompts task(share_of_even_tokens);
        const auto policy = PolicyTrainer::create(config, *trainer, task, {.end_tokens = {3}});
        ASSERT_TRUE(policy.ok()) << policy.error().message();
        const auto step = (*policy)->step(0);  // prompt 1 of 0, 1, 2
        ASSERT_TRUE(step.ok()) << step.error().message();
        EXPECT_EQ(step->answers, 12);
        EXPECT_EQ(step->failures, 4);
        EXPECT_EQ(step->updates, 2);
        EXPECT_EQ(step->metrics.answers, 8);
        EXPECT_EQ(step->metrics.mismatch_tokens, 0);
        EXPECT_GT(step->update.gradient_norm, 0);
        EXPECT_EQ(step->failure_reasons.at(0), "rows: line 1: 128 tokens leave no room for an answer in 128");
        EXPECT_DOUBLE_EQ(step->mean_length, static_cast<double>(step->generated_tokens) / 8);
        if (async) {  // waiting answers go through a checkpoint
            const Json place = (*policy)->place();
            ASSERT_TRUE((*policy)->set_place(place).ok());
            EXPECT_EQ((*policy)->place(), place);
        }
    }
}

// Answers of two turns whose observation cannot be tokenized.
TEST(RlFailures, AnObservationWithoutTokensFailsAlone) {
    auto environment = start_environment({.command = {"python3", "-c", R"(
import json, sys
for line in sys.stdin:
    q = json.loads(line)
    print(json.dumps({"id": q["id"], "reward": 1.0, "done": False, "observation": q["text"]}), flush=True)
)"},
                                          .processes = 1,
                                          .timeout = std::chrono::seconds(20)});
    ASSERT_TRUE(environment.ok()) << environment.error().message();
    QuestionTaskOptions options;
    options.encode_observation = [](const std::string& said, int32_t) -> Result<std::vector<int32_t>> {
        if (said == "bad") return fail("no tokens for it");
        return std::vector<int32_t>{1, 2};
    };
    options.environment = *std::move(environment);
    const auto task = question_task(std::move(options));
    Rollout bad{.tokens = {4}, .written = {1}, .text = "bad"}, good{.tokens = {4}, .written = {1}, .text = "good"};
    Rollout* const both[] = {&bad, &good};
    const Status done = task->judge({RolloutPrompt{.tokens = {1}}}, both);
    ASSERT_TRUE(done.ok()) << done.error().message();
    EXPECT_EQ(bad.failure, "no tokens for it");
    EXPECT_TRUE(bad.observation.empty());
    EXPECT_EQ(good.failure, "");
    EXPECT_EQ(good.observation.size(), 2u);
}

TEST(RlFailures, RowsThatLeaveNoRoomAreCounted) {
    QuestionFile train{.file = "t"}, held{.file = "v"};
    for (const size_t tokens : {3u, 8u, 7u, 9u})
        train.rows.push_back(
            {.prompt = std::string(tokens, 'x'), .where = fmt::format("t: line {}", train.rows.size() + 1)});
    held.rows = {{.prompt = std::string(20, 'x'), .where = "v: line 1"}};
    const auto tokens = [](const TaskQuestion& q) { return Result<int64_t>(std::ssize(q.prompt)); };
    const auto said = [&](const QuestionRows& rows, int64_t length) {
        const Status done = rows.check_room(tokens, length);
        return done.ok() ? "" : done.error().message();
    };
    const QuestionRows both(train, held, 1), one(train, std::nullopt, 1);
    EXPECT_EQ(said(one, 10), "");
    EXPECT_EQ(said(one, 8),
              "t: line 2: a prompt of 8 tokens leaves no room for an answer in policy.max_total_sequence_length 8; it "
              "is the first of 2 such rows, of 4");
    EXPECT_EQ(said(both, 10),
              "v: line 1: a prompt of 20 tokens leaves no room for an answer in policy.max_total_sequence_length 10; "
              "it is the first of 1 such rows, of 5");
}

// [1, failed, 1, failed] has no differences, nor has a single judged answer.
TEST(RlFailures, AGroupHasASignalOnlyByJudgedAnswers) {
    ThreadPool pool(2);
    RlConfig config = failing_config();
    config.dynamic_sampling = true;
    const auto trainer = small_trainer(pool, {.optimizer = config.optimizer});
    int calls = 0;
    TokenTask task([&](const RolloutPrompt& p, const Rollout&) -> std::optional<double> {
        const int answer = calls++ % 4;
        switch (std::stoi(p.question) % 3) {
            case 0:
                return answer % 2 ? std::nullopt : std::optional(1.0);
            case 1:
                return answer ? std::nullopt : std::optional(0.5);
            default:
                return answer == 3 ? std::nullopt : std::optional(answer * 0.25);
        }
    });
    const auto policy = PolicyTrainer::create(config, *trainer, task, {.end_tokens = {3}});
    ASSERT_TRUE(policy.ok());
    const auto step = (*policy)->step(0);  // prompts 2, 5 and 8 of 0 ... 8
    ASSERT_TRUE(step.ok()) << step.error().message();
    EXPECT_EQ(step->sampling_batches, 3);
    EXPECT_EQ(step->equal_groups, 0);
    EXPECT_EQ(step->failures, 3);
    config.dynamic_sampling = false;
    const auto other = PolicyTrainer::create(config, *trainer, task, {.end_tokens = {3}});
    const auto all = (*other)->step(0);
    ASSERT_TRUE(all.ok()) << all.error().message();
    EXPECT_EQ(all->equal_groups, 2);
}

class BrokenReference : public ReferencePolicy {
public:
    explicit BrokenReference(std::shared_ptr<ReferencePolicy> whole) : whole_(std::move(whole)) {}
    Status log_probs(std::span<const TrainBatch* const> rows, const OfRow& each) override {
        return calls++ == 1 ? Status(fail("broken")) : whole_->log_probs(rows, each);
    }
    Status calibrate(std::span<const TrainBatch> rows) override { return whole_->calibrate(rows); }
    int calls = 0;

private:
    std::shared_ptr<ReferencePolicy> whole_;
};

// After an error before the first update the trainer has the state of the previous step, and the step can be repeated.
TEST(RlFailures, AnErrorBeforeAnUpdateLeavesTheStepBefore) {
    std::vector<float> masters[2];
    for (const bool breaks : {false, true}) {
        ThreadPool pool(2);
        RlConfig config = failing_config();
        config.loss.kl_penalty = 0.01;
        const auto trainer = small_trainer(pool, {.optimizer = config.optimizer});
        TokenTask task(share_of_even_tokens);
        auto frozen = FrozenPolicy::create(*small_checkpoint(), {}, "", pool);
        ASSERT_TRUE(frozen.ok()) << frozen.error().message();
        PolicyTrainerOptions options{.end_tokens = {3}, .reference = *std::move(frozen)};
        if (breaks) options.reference = std::make_shared<BrokenReference>(options.reference);
        const auto policy = PolicyTrainer::create(config, *trainer, task, options);
        ASSERT_TRUE(policy.ok()) << policy.error().message();
        ASSERT_TRUE((*policy)->step(0).ok());
        const Json place = (*policy)->place();
        if (breaks) {
            const auto before = all_masters(trainer->parameters());
            const auto step = (*policy)->step(1);
            ASSERT_FALSE(step.ok());
            EXPECT_EQ(step.error().message(), "broken");
            EXPECT_TRUE((*policy)->can_be_saved());
            EXPECT_EQ((*policy)->place(), place);
            EXPECT_EQ(all_masters(trainer->parameters()), before);
        }
        ASSERT_TRUE((*policy)->step(1).ok());
        masters[breaks] = all_masters(trainer->parameters());
    }
    EXPECT_EQ(masters[0], masters[1]);
}

// An error that ends a run leaves the lines of finished steps and the state after them.
class RlError : public testing::Test {
protected:
    void SetUp() override {
        std::string rows;
        for (int i = 0; i < 6; ++i) rows += fmt::format("{{\"input\": \"{}\", \"output\": \"1\"}}\n", i);
        write_file(dir_ / "train.jsonl", rows);
        write_file(dir_ / "held.jsonl", "{\"input\": \"held\", \"output\": \"1\"}\n");
        // Judges by the text alone. Until the file `mended` exists, it fails after a given number of answers, or for
        // validation rows.
        write_file(dir_ / "judge.py", R"(import json, os, sys
for line in sys.stdin:
    q = json.loads(line)
    open("calls", "a").write("x")
    bad = not os.path.exists("mended") and (
        os.path.getsize("calls") > int(sys.argv[1]) or "held" in q["prompt"])
    print("no JSON" if bad else json.dumps({"id": q["id"], "reward": len(q["text"]) % 3 / 2, "done": True}), flush=True)
)");
    }
    void config(std::string_view grpo, int most_calls) {
        write_file(dir_ / "rl.yaml", fmt::format(R"(
policy: {{model_name: {}, max_total_sequence_length: 64, optimizer: {{lr: 0.003}}, generation: {{max_new_tokens: 8}}}}
grpo: {{num_prompts_per_step: 2, num_generations_per_prompt: 3, max_num_steps: 4, {}}}
loss_fn: {{reference_policy_kl_penalty: 0}}
data: {{train: train.jsonl, validation: held.jsonl, chat: false}}
env: {{command: [python3, judge.py, "{}"], timeout_seconds: 20}}
)",
                                                 test_data("chat").string(), grpo, most_calls));
    }
    int rl(const std::string& arguments) {
        return std::system(fmt::format("cd '{}' && '{}' rl {} < /dev/null > out.txt 2>&1", dir_.path().string(),
                                       NIBBLE_PROGRAM, arguments)
                               .c_str());
    }
    std::string out() { return read_file(dir_ / "out.txt"); }
    std::vector<Json> log(const std::string& run) {
        auto lines = read_run_log(dir_ / run / "train.jsonl");
        EXPECT_TRUE(lines.ok()) << lines.error().message();
        return lines.ok() ? *lines : std::vector<Json>();
    }
    // After the repair, the run ends with the weights of a run without failures.
    void goes_on(const std::string& arguments) {
        write_file(dir_ / "mended", "");
        ASSERT_EQ(rl("rl.yaml -o run --resume --quiet" + arguments), 0) << out();
        ASSERT_EQ(rl("rl.yaml -o whole --quiet"), 0) << out();
        EXPECT_EQ(read_file(dir_ / "run/model/model.safetensors"), read_file(dir_ / "whole/model/model.safetensors"));
        const auto run = log("run"), whole = log("whole");
        ASSERT_EQ(run.size(), 5u);
        for (size_t i = 1; i < 5; ++i)
            for (const char* key : {"step", "loss", "reward", "gradient_norm"})
                EXPECT_EQ(run[i][key], whole[i][key]) << i << key;
    }
    TempDir dir_;
};

TEST_F(RlError, AStepThatCannotBeJudgedLeavesTheStepsBefore) {
    config("seed: 1", 12);
    EXPECT_NE(rl("rl.yaml -o run --quiet"), 0);
    EXPECT_THAT(out(), testing::StartsWith("nibble: step 2: none of the 6 answers could be judged: "));
    EXPECT_THAT(out(), testing::EndsWith("; the state after 2 steps is saved, --resume continues from it\n"));
    EXPECT_EQ(std::ranges::count(out(), '\n'), 1);
    EXPECT_EQ(log("run").size(), 3u);
    EXPECT_TRUE(std::filesystem::exists(dir_ / "run/checkpoints/step_00000002.safetensors"));
    goes_on("");
    // No step was done, so nothing is saved and no saved state is mentioned.
    std::filesystem::remove(dir_ / "mended");
    EXPECT_NE(rl("rl.yaml -o none --quiet"), 0);
    EXPECT_THAT(out(), testing::Not(testing::HasSubstr("saved")));
    EXPECT_TRUE(std::filesystem::is_empty(dir_ / "none/checkpoints"));
}

// The optimizer's states are divided between ranks, and every rank gets the error.
TEST_F(RlError, SeveralRanksSaveTheStepsBefore) {
    config("seed: 1", 12);
    EXPECT_NE(rl("rl.yaml -o run --quiet --ranks 2"), 0);
    EXPECT_THAT(out(), testing::HasSubstr("; the state after 2 steps is saved, --resume continues from it\n"));
    EXPECT_EQ(log("run").size(), 3u);
    goes_on(" --ranks 2");
}

TEST_F(RlError, AValidationThatCannotBeJudgedLeavesItsStep) {
    config("val_period: 2, max_val_samples: 1", 1000);
    EXPECT_NE(rl("rl.yaml -o run --quiet"), 0);
    EXPECT_THAT(out(), testing::StartsWith("nibble: after step 1: validation: no answer could be judged: "));
    EXPECT_THAT(out(), testing::EndsWith("; the state after 2 steps is saved, --resume continues from it\n"));
    const auto lines = log("run");
    ASSERT_EQ(lines.size(), 3u);
    EXPECT_FALSE(lines[2].contains("validation_reward"));
    goes_on("");
    EXPECT_TRUE(log("run")[4].contains("validation_reward"));
}

TEST_F(RlError, ARowThatIsTooLongIsReportedBeforeTheRun) {
    config("seed: 1", 1000);
    write_file(dir_ / "train.jsonl",
               fmt::format("{{\"input\": \"1\", \"output\": \"1\"}}\n{{\"input\": \"{}\", \"output\": \"1\"}}\n",
                           std::string(99, 'y')));
    EXPECT_NE(rl("rl.yaml -o run"), 0);
    EXPECT_THAT(out(),
                testing::MatchesRegex("nibble: train.jsonl: line 2: a prompt of [0-9]+ tokens leaves no room for "
                                      "an answer in policy.max_total_sequence_length 64; it is the first of 1 "
                                      "such rows, of 3\n"));
    EXPECT_FALSE(std::filesystem::exists(dir_ / "run"));
}

}  // namespace
}  // namespace nibble::test

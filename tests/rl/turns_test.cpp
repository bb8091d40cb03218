// Tests answers of several turns: the text that the model reads between turns is in the sequence, but is not learned.
#include "rl/frozen_policy.h"
#include "rl/policy_trainer.h"
#include "rl/rl_log.h"
#include "run/log.h"
#include "support/files.h"
#include "train/small_trainer.h"

#include <fmt/format.h>

#include <cstdlib>
#include <map>

namespace nibble::test {
namespace {

// Repeats the question, and continues for as many turns as the last digit modulo 3, plus one.
class CountingEnvironment : public Environment {
public:
    std::vector<EnvironmentRequest> seen;
    std::vector<EnvironmentReply> judge(const std::vector<EnvironmentRequest>& requests) override {
        std::vector<EnvironmentReply> replies;
        for (const EnvironmentRequest& r : requests) {
            seen.push_back(r);
            const bool done = r.turn == (r.expected.back() - '0') % 3;
            EnvironmentReply reply{.reward = 0.25, .done = done, .state = Json::array({r.turn})};
            if (!done) reply.observation = fmt::format("turn {}", r.turn);
            if (r.turn == 1 && fails) reply = {.failure = "broken"};
            replies.push_back(reply);
        }
        if (stop) stop->store(true);
        return replies;
    }
    bool fails = false;
    std::atomic<bool>* stop = nullptr;  // set while answers are judged
};

struct TurnsTask {
    CountingEnvironment* environment = nullptr;
    std::unique_ptr<RolloutTask> task;
};

TurnsTask turns_task() {
    TurnsTask made;
    auto environment = std::make_unique<CountingEnvironment>();
    made.environment = environment.get();
    QuestionTaskOptions options{.question = [](uint64_t n) { return task_question(TaskKind::sum, 3, 0, n); }};
    options.encode = [](const std::string& text) -> Result<std::vector<int32_t>> {
        std::vector<int32_t> tokens;
        for (const char c : text) tokens.push_back(c % 40 + 1);
        return tokens;
    };
    options.encode_observation = [](const std::string& text, int32_t last) -> Result<std::vector<int32_t>> {
        return std::vector<int32_t>{41, last, text.back() - '0' + 42};
    };
    options.environment = std::move(environment);
    made.task = question_task(std::move(options));
    return made;
}

RlConfig turns_config() {
    RlConfig c{.prompts = 6, .generations = 2, .steps = 10, .length = 200, .most_turns = 3};
    c.optimizer.learning_rate = 3e-3;
    c.loss.kl_penalty = 0.01;
    c.generation.most_tokens = 40;
    return c;
}

Result<RolloutBatch> rolled_out(TurnsTask& turns, RolloutRequest request, EngineStats* stats = nullptr) {
    ThreadPool pool(2);
    const auto trainer = small_trainer(pool, {});
    NIBBLE_TRY(const auto model, trainer->serving());
    NIBBLE_TRY(const auto engine, Engine::create(model, std::nullopt, {.sequences = 5, .context = 200}));
    NIBBLE_TRY(RolloutBatch batch, roll_out(*engine, *turns.task, request));
    if (stats) *stats = engine->stats();
    return batch;
}

RolloutRequest request() {
    return {.prompts = 6, .answers = 2, .length = 200, .most_tokens = 70, .most_turns = 3, .seed = 5};
}

TEST(Turns, TheSequenceHasWhatWasWrittenAndRead) {
    TurnsTask turns = turns_task();
    EngineStats stats;
    const auto batch = rolled_out(turns, request(), &stats);
    ASSERT_TRUE(batch.ok()) << batch.error().message();
    std::map<int64_t, int> with_turns;
    for (const Rollout& r : batch->rollouts) {
        const auto expected = (batch->prompts[r.prompt].expected.back() - '0') % 3 + 1;
        const int64_t room = 200 - std::ssize(batch->prompts[r.prompt].tokens);
        ++with_turns[r.turns];
        ASSERT_EQ(r.tokens.size(), r.written.size());
        ASSERT_EQ(r.tokens.size(), r.generated.size());
        EXPECT_EQ(r.length(), std::ranges::count(r.written, 1));
        EXPECT_EQ(r.written.back(), 1);
        EXPECT_LE(std::ssize(r.tokens), room);
        EXPECT_EQ(r.turns, expected);  // 70 tokens, 3, 70, 3: a third turn has the remaining tokens
        ASSERT_TRUE(r.reward);
        EXPECT_DOUBLE_EQ(*r.reward, 0.25 * static_cast<double>(r.turns));
        EXPECT_EQ(r.state, Json::array({r.turns - 1}));
        EXPECT_EQ(std::ranges::count(r.written, 0), 3 * (r.turns - 1));
        for (size_t t = 0; t < r.tokens.size(); ++t) {
            EXPECT_EQ(r.generated[t] == 0, r.written[t] == 0);
            if (r.written[t] || (t > 0 && !r.written[t - 1])) continue;
            EXPECT_EQ(r.tokens[t], 41);
            EXPECT_EQ(r.tokens[t + 1], r.tokens[t - 1]);
        }
    }
    EXPECT_GE(with_turns.size(), 2u);
    EXPECT_GT(stats.prefix_hits, 0);  // keys and values of earlier turns are reused
    for (const EnvironmentRequest& r : turns.environment->seen)
        EXPECT_EQ(r.state, r.turn == 0 ? Json() : Json::array({r.turn - 1}));
}

TEST(Turns, LimitsEndAnAnswer) {
    RolloutRequest r = request();
    r.most_turns = 2;
    TurnsTask turns = turns_task();
    const auto two = rolled_out(turns, r);
    r.most_turns = 3, r.length = 100;
    const auto short_ones = rolled_out(turns, r);
    ASSERT_TRUE(two.ok() && short_ones.ok());
    int limited = 0, cut = 0;
    for (const Rollout& a : two->rollouts) {
        EXPECT_LE(a.turns, 2);
        limited += a.turns == 2 && !a.observation.empty();
        EXPECT_EQ(a.written.back(), 1);
    }
    for (const Rollout& a : short_ones->rollouts) {
        const auto all = std::ssize(a.tokens) + std::ssize(short_ones->prompts[a.prompt].tokens);
        EXPECT_LE(all, 100);
        if (a.observation.empty()) continue;
        ++cut;
        EXPECT_TRUE(a.cut);
        EXPECT_GT(all + 3, 99);
    }
    EXPECT_GT(limited, 0);
    EXPECT_GT(cut, 0);
}

TEST(Turns, AFailureInALaterTurnCostsTheAnswer) {
    TurnsTask turns = turns_task();
    turns.environment->fails = true;
    const auto batch = rolled_out(turns, request());
    ASSERT_TRUE(batch.ok()) << batch.error().message();
    int failures = 0;
    for (const Rollout& r : batch->rollouts) {
        EXPECT_EQ(r.reward.has_value(), r.turns == 1);
        EXPECT_EQ(r.failure, r.turns == 1 ? "" : batch->prompts[r.prompt].name() + ": broken");
        failures += r.turns > 1;
    }
    EXPECT_GT(failures, 0);
}

TEST(Turns, NoBitDiffersInAnyTurn) {
    for (const TrainPrecision& precision :
         {TrainPrecision{.recipe = TrainRecipe::bf16}, TrainPrecision{.recipe = TrainRecipe::fp8_block},
          TrainPrecision{.recipe = TrainRecipe::nvfp4, .row_scaled = true}})
        for (const int64_t row_tokens : {0, 512}) {
            SCOPED_TRACE(fmt::format("{} {}", train_recipe_name(precision.recipe), row_tokens));
            ThreadPool pool(2);
            const RlConfig config = turns_config();
            const auto trainer = small_trainer(pool, {.precision = precision, .optimizer = config.optimizer});
            TurnsTask turns = turns_task();
            PolicyTrainerOptions options{.end_tokens = {3}, .row_tokens = row_tokens};
            auto reference = FrozenPolicy::create(*small_checkpoint(), precision, "", pool);
            ASSERT_TRUE(reference.ok());
            options.reference = *std::move(reference);
            const auto policy = PolicyTrainer::create(config, *trainer, *turns.task, options);
            ASSERT_TRUE(policy.ok()) << policy.error().message();
            for (int s = 0; s < 2; ++s) {
                const auto step = (*policy)->step(s);
                ASSERT_TRUE(step.ok()) << step.error().message();
                EXPECT_EQ(step->metrics.tokens, step->generated_tokens);
                EXPECT_GT(step->mean_turns, 1);
                EXPECT_EQ(step->metrics.mismatch_tokens, 0);
                EXPECT_EQ(step->metrics.max_abs_diff, 0);
                EXPECT_EQ(step->metrics.token_mult_prob_error, static_cast<double>(step->metrics.tokens));
                EXPECT_EQ(to_json(*step, std::nullopt, 1)["turns_per_sample"], step->mean_turns);
            }
        }
}

// Turns that continue in later steps, with a checkpoint between them: states of the environment are restored.
TEST(Turns, UnfinishedAnswersContinueInTheNextStep) {
    RlConfig config = turns_config();
    config.loss.kl_penalty = 0;
    config.loss.importance_sampling_correction = true;
    config.prompts = 2;
    config.async = RlAsync{.most_age = 4, .prompts_in_flight = 6, .round_tokens = 16};
    ThreadPool pool(2);
    std::vector<float> masters[2];
    for (const bool resumed : {false, true}) {
        const auto trainer = small_trainer(pool, {.optimizer = config.optimizer});
        Json place{{"prompt", 0}};
        std::unique_ptr<PolicyTrainer> policy;
        TurnsTask turns;
        int64_t old = 0, states = 0;
        for (int s = 0; s < 4; ++s) {
            if (!policy || resumed) {
                policy.reset();
                turns = turns_task();
                auto made = PolicyTrainer::create(config, *trainer, *turns.task, {.end_tokens = {3}});
                ASSERT_TRUE(made.ok()) << made.error().message();
                policy = *std::move(made);
                const auto read = parse_json(place.dump());
                ASSERT_TRUE(read.ok() && policy->set_place(*read).ok());
            }
            const auto step = policy->step(s);
            ASSERT_TRUE(step.ok()) << step.error().message();
            EXPECT_EQ(step->metrics.mismatch_tokens, 0);
            EXPECT_EQ(step->metrics.tokens, step->generated_tokens);
            old += step->metrics.off_policy_tokens;
            place = policy->place();
            if (place.contains("rollouts"))
                for (const Json& group : place["rollouts"])
                    for (const Json& r : group["answers"]) states += !r["whole"] && r["state"] != "null";
            for (const EnvironmentRequest& r : turns.environment->seen)
                EXPECT_EQ(r.state, r.turn == 0 ? Json() : Json::array({r.turn - 1}));
        }
        EXPECT_GT(old, 0);
        EXPECT_GT(states, 0);  // answers between two turns were stored
        masters[resumed] = all_masters(trainer->parameters());
    }
    EXPECT_EQ(masters[0], masters[1]);
}

TEST(Turns, AStopWhileAnswersAreJudgedChangesNothing) {
    RlConfig config = turns_config();
    config.loss.kl_penalty = 0;
    ThreadPool pool(2);
    std::vector<float> masters[2];
    for (const bool stops : {false, true}) {
        std::atomic<bool> stop = false;
        TurnsTask turns = turns_task();
        const auto trainer = small_trainer(pool, {.optimizer = config.optimizer});
        const auto policy =
            PolicyTrainer::create(config, *trainer, *turns.task, {.end_tokens = {3}, .stop_requested = &stop});
        ASSERT_TRUE(policy.ok()) << policy.error().message();
        for (int s = 0; s < 3; ++s) {
            if (stops && s == 1) {
                turns.environment->stop = &stop;
                const auto stopped = (*policy)->step(s);
                ASSERT_TRUE(stopped.ok()) << stopped.error().message();
                EXPECT_TRUE(stopped->stopped);
                turns.environment->stop = nullptr, stop = false;
            }
            const auto step = (*policy)->step(s);
            ASSERT_TRUE(step.ok()) << step.error().message();
            EXPECT_FALSE(step->stopped);
        }
        masters[stops] = all_masters(trainer->parameters());
    }
    EXPECT_EQ(masters[0], masters[1]);
}

TEST(Turns, RowsHaveNoLabelsAtWhatWasRead) {
    RolloutBatch batch;
    batch.prompts.push_back({.tokens = {1, 2, 3}});
    batch.rollouts.push_back({.tokens = {7, 8, 20, 21, 9}, .written = {1, 1, 0, 0, 1}});
    const auto rows = rollout_rows(batch, 0, 1, 0);
    ASSERT_EQ(rows.size(), 1u);
    EXPECT_EQ(rows[0].batch.tokens, (std::vector<int32_t>{1, 2, 3, 7, 8, 20, 21}));
    EXPECT_EQ(rows[0].batch.labels, (std::vector<int32_t>{-1, -1, 7, 8, -1, -1, 9}));
    EXPECT_EQ(rows[0].parts[0].begin, 2u);
    EXPECT_EQ(rows[0].parts[0].size, 5u);
}

// A program that is called between turns, with the chat template and with plain text.
TEST(Turns, TheCommandAsksAProgramBetweenTurns) {
    const std::string judge = NIBBLE_SOURCE_DIR "/tests/oracles/environment_example.py";
    for (const bool chat : {true, false}) {
        TempDir dir;
        write_file(dir / "rl.yaml", fmt::format(R"(
policy:
  model_name: {}
  max_total_sequence_length: 200
  optimizer: {{lr: 0.003}}
  generation: {{max_new_tokens: 12}}
grpo: {{num_prompts_per_step: 2, num_generations_per_prompt: 3, max_num_steps: 2, max_rollout_turns: 3}}
loss_fn: {{reference_policy_kl_penalty: 0}}
data: {{task: sum, chat: {}}}
env: {{command: [python3, '{}', --turns, "5"], processes: 2, timeout_seconds: 600}}
)",
                                                test_data("chat").string(), chat, judge));
        const std::string command =
            fmt::format("cd '{}' && '{}' rl rl.yaml -o run --threads 2 < /dev/null > out.txt 2>&1", dir.path().string(),
                        NIBBLE_PROGRAM);
        ASSERT_EQ(std::system(command.c_str()), 0) << read_file(dir / "out.txt");
        const auto log = read_run_log(dir / "run/train.jsonl");
        ASSERT_TRUE(log.ok()) << log.error().message();
        ASSERT_EQ(log->size(), 3u);
        for (size_t i = 1; i < 3; ++i) {
            const Json& line = (*log)[i];
            EXPECT_EQ(line["mismatch_tokens"], 0);
            EXPECT_EQ(line["failures"], 0);
            EXPECT_GT(line["turns_per_sample"], 2.0);  // random weights give no correct sum
            EXPECT_GT(line["max_turns_reached_rate"], 0.5);
        }
    }
}

}  // namespace
}  // namespace nibble::test

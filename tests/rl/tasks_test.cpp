#include "rl/tasks.h"
#include "rl/pass_at_k.h"
#include "rl/reward_shaping.h"

#include <gtest/gtest.h>

#include <set>

namespace nibble {
namespace {

constexpr TaskKind all_tasks[] = {TaskKind::sum, TaskKind::sort, TaskKind::countdown, TaskKind::words};

TEST(Tasks, QuestionsDifferAndComeAgain) {
    for (const TaskKind kind : all_tasks)
        for (int difficulty = 1; difficulty <= 6; ++difficulty) {
            std::set<std::string> prompts;
            for (uint64_t i = 0; i < 50; ++i) {
                const auto q = task_question(kind, difficulty, 11, i), again = task_question(kind, difficulty, 11, i);
                ASSERT_TRUE(q.ok());
                EXPECT_EQ(q->prompt, again->prompt);
                EXPECT_EQ(q->answer, again->answer);
                prompts.insert(q->prompt);
            }
            EXPECT_GT(prompts.size(), 25u) << task_names[static_cast<size_t>(kind)] << " " << difficulty;
        }
    EXPECT_FALSE(task_question(TaskKind::sum, 7, 0, 0).ok());
}

TEST(Tasks, TheRightAnswerIsWorthOneAndOthersLess) {
    for (const TaskKind kind : {TaskKind::sum, TaskKind::sort, TaskKind::words})
        for (uint64_t i = 0; i < 20; ++i) {
            const auto q = task_question(kind, 2, 3, i), other = task_question(kind, 2, 3, i + 1000);
            EXPECT_EQ(task_reward(kind, *q, q->answer), 1) << q->prompt;
            EXPECT_EQ(task_reward(kind, *q, "The answer is unknown"), 0);
            if (q->answer != other->answer) {
                EXPECT_LT(task_reward(kind, *q, other->answer), 1);
            }
        }
}

TEST(Tasks, CountdownChecksNumbersAndValue) {
    const TaskQuestion q{"", "2, 5, 9 -> 23"};
    const auto reward = [&](std::string_view text) { return task_reward(TaskKind::countdown, q, text); };
    EXPECT_EQ(reward("9*2+5"), 1);
    EXPECT_EQ(reward("(9 * 2) + 5 = 23\nbecause"), 1);
    EXPECT_EQ(reward("9+2+5"), 0.1);
    EXPECT_EQ(reward("9*2+5+0"), 0);
    EXPECT_EQ(reward("23"), 0);
    EXPECT_EQ(reward("the expression is 9*2+5"), 0);
    EXPECT_EQ(reward(""), 0);
}

TEST(Tasks, AnswersAreReadAsTheyAreJudged) {
    EXPECT_EQ(task_answer(TaskKind::sum, "17 + 5 = 22\nWhat is"), task_answer(TaskKind::sum, "It is 22."));
    EXPECT_EQ(task_answer(TaskKind::sort, "1, 2, 3\nand so on"), "1, 2, 3");
}

TEST(RewardShaping, ScalesAndPunishesLength) {
    EXPECT_EQ(scaled_reward(0.5, {.target_min = -1, .target_max = 1}), 0);
    EXPECT_EQ(scaled_reward(7, {.target_min = -1, .target_max = 1}), 1);
    const RewardShaping overlong{.overlong = true, .overlong_buffer_length = 100, .max_response_length = 500};
    EXPECT_EQ(shaped_reward(1, 400, false, overlong), 1);
    EXPECT_EQ(shaped_reward(1, 450, false, overlong), 0.5);
    EXPECT_EQ(shaped_reward(1, 500, true, overlong), 0);
    EXPECT_EQ(shaped_reward(1, 10, true, {.stop_properly_penalty_coef = 0.25}), 0.25);
    EXPECT_FALSE(check(RewardShaping{.overlong = true}).ok());
    EXPECT_FALSE(check(RewardScaling{.source_min = 1, .source_max = 1}).ok());
}

TEST(PassAtK, CountsSubsets) {
    EXPECT_EQ(pass_at_k(4, 0, 2), 0);
    EXPECT_NEAR(pass_at_k(4, 1, 2), 0.5, 1e-12);
    EXPECT_NEAR(pass_at_k(10, 3, 5), 1 - 21.0 / 252, 1e-12);
    EXPECT_EQ(pass_at_k(4, 3, 2), 1);
    const std::vector<std::string> answers{"a", "a", "b", "c"};
    const std::vector<uint8_t> right{1, 1, 0, 0};
    EXPECT_NEAR(cons_at_k(answers, right, 1), 0.5, 1e-12);
    EXPECT_NEAR(cons_at_k(answers, right, 4), 1, 1e-12);
    EXPECT_NEAR(cons_at_k(answers, right, 2), (1 + 4 * 0.5) / 6, 1e-12);
}

}  // namespace
}  // namespace nibble

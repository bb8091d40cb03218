// Tests questions from files, and the rules that judge their answers.
#include "rl/question_rows.h"
#include "rl/rollout.h"
#include "support/files.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

namespace nibble::test {
namespace {

std::string lines(int count, int from = 0) {
    std::string text;
    for (int i = from; i < from + count; ++i) text += fmt::format("{{\"question\": \"q{}\", \"answer\": {}}}\n", i, i);
    return text;
}

Result<QuestionFile> read(const TempDir& dir, std::string_view content, AnswerRule rule = AnswerRule::math) {
    write_file(dir / "rows.jsonl", content);
    return read_question_file(
        {.file = dir / "rows.jsonl", .input_key = "question", .output_key = "answer", .rule = rule});
}

std::string read_error(std::string_view content, AnswerRule rule = AnswerRule::math) {
    TempDir dir;
    const auto rows = read(dir, content, rule);
    if (rows.ok()) return "";
    const std::string& message = rows.error().message();
    return message.substr(message.find("rows.jsonl"));
}

TEST(QuestionRows, ReadsGsm8kAsItIs) {
    TempDir dir;
    const auto file = read(dir, R"({"question": "How many clips?", "answer": "48/2 = <<48/2=24>>24 clips.\n#### 1,072"}

{"question": "How much?", "answer": 42, "more": [1]}
{"question": "x?", "answer": "x^2 + 1"}
)");
    ASSERT_TRUE(file.ok()) << file.error().message();
    ASSERT_EQ(file->rows.size(), 3u);
    EXPECT_EQ(file->rows[0].prompt, "How many clips?");
    EXPECT_EQ(file->rows[0].answer, "1,072");
    EXPECT_EQ(file->rows[1].answer, "42");
    EXPECT_EQ(file->rows[2].answer, "x^2 + 1");
    EXPECT_TRUE(file->rows[1].where.ends_with("rows.jsonl: line 3")) << file->rows[1].where;
    const auto reward = AnswerReward::create({});
    EXPECT_EQ(*(*reward)("24 + 1048 = 1072.\n#### 1072", file->rows[0].answer), 1);
    EXPECT_EQ(*(*reward)("24", file->rows[0].answer), 0);
}

TEST(QuestionRows, NumbersAreAsTheyStandInTheFile) {
    TempDir dir;
    std::string text;
    const std::vector<std::string> numbers{"123456789012345678901234567890", "9007199254740993", "0.10", "1e3",
                                           "-2.50"};
    for (const std::string& n : numbers) text += R"({"question": "q", "answer": )" + n + "}\n";
    for (const AnswerRule rule : {AnswerRule::exact, AnswerRule::math}) {
        const auto file = read(dir, text, rule);
        ASSERT_TRUE(file.ok()) << file.error().message();
        for (size_t i = 0; i < numbers.size(); ++i)
            EXPECT_EQ(file->rows[i].answer, rule == AnswerRule::math && numbers[i] == "1e3" ? "1000.0" : numbers[i]);
    }
    const auto reward = AnswerReward::create({});
    for (const auto& [answer, expected, worth] :
         {std::tuple{"1000", "1000.0", 1}, {"0.1", "0.10", 1}, {"-5/2", "-2.50", 1}, {"100", "1000.0", 0}})
        EXPECT_EQ(*(*reward)(answer, expected), worth) << answer << ", " << expected;
}

TEST(QuestionRows, ErrorsNameFileLineAndKey) {
    const std::string good = lines(1);
    EXPECT_EQ(read_error(""), "rows.jsonl: has no rows");
    EXPECT_EQ(read_error(good + "{\"question\": \"q\"}"), "rows.jsonl: line 2: 'answer' is missing");
    EXPECT_EQ(read_error(good + "\n{\"question\": 7, \"answer\": 1}"), "rows.jsonl: line 3: 'question': must be text");
    EXPECT_EQ(read_error("{\"question\": \"q\", \"answer\": [1]}"),
              "rows.jsonl: line 1: 'answer': must be text or a number");
    EXPECT_EQ(read_error("{\"question\": \" \", \"answer\": 1}"), "rows.jsonl: line 1: 'question': is empty");
    EXPECT_EQ(read_error("{\"question\": \"q\", \"answer\": \"\"}"), "rows.jsonl: line 1: 'answer': is empty");
    EXPECT_EQ(read_error("[1]"), "rows.jsonl: line 1: must be a JSON object");
    EXPECT_NE(read_error(good + "{\"question\": ").find("rows.jsonl: line 2: "), std::string::npos);
    EXPECT_EQ(read_error(good + "{\"question\": \"\xff\"}"), "rows.jsonl: line 2: is not UTF-8");
    EXPECT_EQ(read_error("{\"question\": \"q\", \"answer\": \"Yes\"}", AnswerRule::choice),
              "rows.jsonl: line 1: 'answer': 'Yes' is not a letter from A to J");
    EXPECT_NE(read_error("{\"question\": \"q\", \"answer\": \"(\"}", AnswerRule::regex).find("line 1: 'answer': "),
              std::string::npos);
    EXPECT_FALSE(read_question_file({.file = "no/such.jsonl"}).ok());
}

TEST(QuestionRows, EveryEpochHasAllRowsInAnOrderOfItsOwn) {
    TempDir dir;
    const auto train = read(dir, lines(37)), validation = read(dir, lines(3, 100));
    const auto epoch = [](const QuestionRows& rows, uint64_t number) {
        std::vector<std::string> list;
        for (uint64_t i = 0; i < 37; ++i) list.push_back(rows.question(number * 37 + i)->prompt);
        return list;
    };
    const QuestionRows rows(*train, *validation, 5), other(*train, {}, 6);
    const auto first = epoch(rows, 0), second = epoch(rows, 1);
    EXPECT_EQ(std::set(first.begin(), first.end()).size(), 37u);
    EXPECT_EQ(std::set(second.begin(), second.end()).size(), 37u);
    EXPECT_NE(first, second);
    EXPECT_NE(first, epoch(other, 0));
    EXPECT_EQ(first, epoch(QuestionRows(*train, {}, 5), 0));
    for (uint64_t i = 0; i < 7; ++i)
        EXPECT_EQ(rows.question(validation_prompts_from + i)->prompt, fmt::format("q{}", 100 + i % 3));
    EXPECT_FALSE(other.question(validation_prompts_from).ok());
    EXPECT_EQ(train->hash, read(dir, lines(37))->hash);
    EXPECT_NE(train->hash, validation->hash);
}

TEST(QuestionRows, APromptThatDoesNotFitNamesItsLine) {
    TempDir dir;
    const auto file = read(dir, lines(1));
    const auto task = question_task(
        {.question = [&](uint64_t) -> Result<TaskQuestion> { return file->rows[0]; },
         .encode = [](const std::string&) -> Result<std::vector<int32_t>> { return fail("is not encodable"); }});
    EXPECT_NE(task->prompt(3).error().message().find("rows.jsonl: line 1: is not encodable"), std::string::npos);
}

TEST(AnswerRule, ExactAndRegex) {
    const auto exact = AnswerReward::create({.rule = AnswerRule::exact});
    EXPECT_EQ(*(*exact)(" yes\n", "yes"), 1);
    EXPECT_EQ(*(*exact)("Yes", "yes"), 0);
    const auto regex = AnswerReward::create({.rule = AnswerRule::regex});
    EXPECT_EQ(*(*regex)("It is 1492-10-12.", "1492-[0-9]{2}-[0-9]{2}"), 1);
    EXPECT_EQ(*(*regex)("It is 1493", "1492"), 0);
    EXPECT_EQ(*(*regex)("cut \xe2\x82 here", "here"), 1);
    // exceeds the step limit: the answer is excluded
    EXPECT_FALSE((*regex)(std::string(4000, 'a') + "b c", "(a+)+c").ok());
}

TEST(AnswerRule, Choices) {
    const std::pair<std::string_view, char> cases[] = {{"B", 'B'},
                                                       {"(c)", '?'},
                                                       {"The answer is (C).", 'C'},
                                                       {"Answer: b", 'B'},
                                                       {"\\boxed{\\text{D}}", 'D'},
                                                       {"A is wrong, so I take B.", 'B'},
                                                       {"Answer: B. 42 apples", 'B'},
                                                       {"Bob and Carol", '?'},
                                                       {"Z", '?'},
                                                       {"", '?'}};
    for (const auto& [text, letter] : cases) EXPECT_EQ(choice_answer(text).value_or('?'), letter) << text;
    EXPECT_EQ(*expected_answer(AnswerRule::choice, "c"), "C");
    EXPECT_EQ(*expected_answer(AnswerRule::choice, "#### E"), "E");
    const auto reward = AnswerReward::create({.rule = AnswerRule::choice});
    EXPECT_EQ(*(*reward)("I choose (B)", "B"), 1);
    EXPECT_EQ(*(*reward)("I choose (B)", "C"), 0);
}

TEST(AnswerRule, EqualAnswersInOtherWordsAreOneVote) {
    EXPECT_EQ(given_answer(AnswerRule::math, "6 and 36 make 42.\n#### 42"), given_answer(AnswerRule::math, "So: 42"));
    EXPECT_EQ(given_answer(AnswerRule::choice, "Not A. I take B."), "B");
    EXPECT_EQ(given_answer(AnswerRule::exact, " yes\n"), "yes");
    EXPECT_EQ(given_answer(AnswerRule::math, "no idea "), "no idea");
}

TEST(AnswerRule, AFormatHasItsShare) {
    const auto reward = AnswerReward::create({.format = "^<think>[^<]*</think>", .format_share = 0.3});
    EXPECT_EQ(*(*reward)("<think>6*7</think>42", "42"), 1);
    EXPECT_NEAR(*(*reward)("42", "42"), 0.7, 1e-12);
    EXPECT_NEAR(*(*reward)("<think>?</think>41", "42"), 0.3, 1e-12);
    EXPECT_EQ(*(*reward)("41", "42"), 0);
    EXPECT_FALSE(AnswerReward::create({.format = "("}).ok());
}

}  // namespace
}  // namespace nibble::test

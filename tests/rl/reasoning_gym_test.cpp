// Tests the example that wraps reasoning-gym with a fake package of that name: rows that nibble reads, and their
// rewards.
#include "rl/environment.h"
#include "rl/question_rows.h"
#include "support/files.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>

namespace nibble::test {
namespace {

// The functions of the package that the example calls, for tasks whose answer is a doubled number.
constexpr const char* package = R"py(
class Task:
    def __init__(self, name, size, seed): self.name, self.size, self.seed = name, size, seed
    def __getitem__(self, i):
        if not 0 <= i < self.size: raise IndexError
        n = 10 * self.seed + i
        return {"question": f"{self.name}: twice {n}?", "answer": str(2 * n), "metadata": {"source_dataset": self.name, "n": n}}
def create_dataset(name, size, seed): return Task(name, size, seed)
def score(answer, entry):
    if answer == "crash": raise ValueError(answer)
    if answer == "much": return 7
    return 1.0 if answer == entry["answer"] else 0.01
def get_score_answer_fn(name):
    assert name in ("double", "twice"), name
    return score
)py";

TEST(ReasoningGym, RowsAndRewards) {
    TempDir dir;
    write_file(dir / "reasoning_gym.py", package);
    const std::string example = NIBBLE_SOURCE_DIR "/tests/oracles/reasoning_gym_environment.py";
    const std::string path = "PYTHONPATH=" + dir.path().string();
    ASSERT_EQ(std::system(fmt::format("{} python3 '{}' --write 5 --task double --task twice --seed 3 > '{}'", path,
                                      example, (dir / "rows.jsonl").string())
                              .c_str()),
              0);
    const auto file = read_question_file({.file = dir / "rows.jsonl", .rule = AnswerRule::exact});
    ASSERT_TRUE(file.ok()) << file.error().message();
    ASSERT_EQ(file->rows.size(), 5u);
    EXPECT_EQ(file->rows[0].prompt, "double: twice 30?");
    EXPECT_EQ(file->rows[1].prompt, "twice: twice 30?");
    EXPECT_EQ(file->rows[4].prompt, "double: twice 32?");
    // Plain answers, in two files without common questions.
    ASSERT_EQ(std::system(fmt::format("{} python3 '{}' --plain '{}' --write 20 --task double --seed 3", path, example,
                                      (dir / "plain").string())
                              .c_str()),
              0);
    const auto train = read_question_file({.file = dir / "plain/train.jsonl", .rule = AnswerRule::exact}),
               held = read_question_file({.file = dir / "plain/validation.jsonl", .rule = AnswerRule::exact});
    ASSERT_TRUE(train.ok() && held.ok());
    EXPECT_EQ(train->rows.size(), 20u);
    EXPECT_EQ(held->rows.size(), 2u);
    EXPECT_EQ(held->rows[0].answer, "60");
    for (const TaskQuestion& q : held->rows)
        for (const TaskQuestion& other : train->rows) EXPECT_NE(q.prompt, other.prompt);
    const auto environment = start_environment({.command = {"env", path, "python3", example}});
    ASSERT_TRUE(environment.ok()) << environment.error().message();
    const std::pair<const char*, double> texts[] = {
        {"64", 1},       {" 64\n", 1}, {"I think <answer>3</answer> no, <answer> 64 </answer>.", 1},
        {"So 64", 0.01}, {"", 0.01},   {"crash", 0},
        {"much", 1}};
    std::vector<EnvironmentRequest> requests;
    for (const auto& [text, reward] : texts)
        requests.push_back({.prompt = file->rows[4].prompt, .expected = file->rows[4].answer, .text = text});
    const auto replies = (*environment)->judge(requests);
    for (size_t i = 0; i < replies.size(); ++i) {
        EXPECT_FALSE(replies[i].failure) << *replies[i].failure;
        EXPECT_EQ(replies[i].reward, texts[i].second) << texts[i].first;
        EXPECT_TRUE(replies[i].done);
    }
}

}  // namespace
}  // namespace nibble::test

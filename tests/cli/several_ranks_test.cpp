// Commands that run a model on several ranks: processes that are started by hand, or threads. Their output is that of
// one rank, and a rank that ends takes the others with it.
#include "io/safetensors_writer.h"
#include "support/files.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <regex>

namespace nibble::test {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

class SeveralRanks : public testing::Test {
protected:
    struct Ran {
        std::vector<std::string> out, errors;  // by rank
        std::vector<int> status;
    };

    // Runs `nibble ARGUMENTS` in `ranks` processes. `meanwhile`: shell commands that run after their start, with the
    // processes' numbers in the array `ids`.
    Ran run(int ranks, const std::string& arguments, const std::string& meanwhile = "",
            const std::string& address = "unix:meet") const {
        std::string script = fmt::format("cd '{}'\nids=()\n", dir_.path().string());
        for (int r = 0; r < ranks; ++r)
            script += fmt::format(
                "NIBBLE_RANK={} NIBBLE_RANKS={} NIBBLE_ADDRESS={} '{}' {} > out.{} 2> err.{} "
                "< /dev/null &\nids+=($!)\n",
                r, ranks, address, NIBBLE_PROGRAM, arguments, r, r);
        script += meanwhile + "\n";
        for (int r = 0; r < ranks; ++r) script += fmt::format("wait ${{ids[{}]}}; echo $? > status.{}\n", r, r);
        write_file(dir_ / "script", script);
        EXPECT_EQ(std::system(fmt::format("timeout 120 bash '{}' 2> /dev/null", (dir_ / "script").string()).c_str()),
                  0);
        Ran ran;
        for (int r = 0; r < ranks; ++r) {
            const auto file = [&](const char* name) { return read_file(dir_ / fmt::format("{}.{}", name, r)); };
            ran.out.push_back(file("out"));
            ran.errors.push_back(file("err"));
            ran.status.push_back(std::atoi(file("status").c_str()));
        }
        return ran;
    }
    // One process without a launcher.
    Ran alone(const std::string& arguments) const {
        const std::string command = fmt::format("cd '{}' && '{}' {} > out.0 2> err.0 < /dev/null", dir_.path().string(),
                                                NIBBLE_PROGRAM, arguments);
        const int status = std::system(command.c_str());
        return {{read_file(dir_ / "out.0")}, {read_file(dir_ / "err.0")}, {status == 0 ? 0 : 1}};
    }
    void expect_same(const std::string& command, const std::string& flags = "") const {
        const Ran one = alone(command + " " + flags);
        ASSERT_EQ(one.status[0], 0) << one.errors[0];
        const Ran two = run(2, command + " --tensor-parallel-size 2 " + flags);
        for (int r = 0; r < 2; ++r) EXPECT_EQ(two.status[size_t(r)], 0) << two.errors[size_t(r)];
        EXPECT_EQ(two.out[0], one.out[0]);
        EXPECT_EQ(two.out[1], "");
        const Ran threads = alone(command + " --tp 2 --enable-expert-parallel " + flags);
        EXPECT_EQ(threads.status[0], 0) << threads.errors[0];
        EXPECT_EQ(threads.out[0], one.out[0]);
    }

    TempDir dir_;
    const std::string chat_ = "'" + test_data("chat").string() + "'";
};

TEST_F(SeveralRanks, GenerateGivesTheSameAnswers) {
    write_file(dir_ / "prompts",
               "{\"prompt\": \"The first of many\"}\n{\"prompt\": \"A\"}\n{\"prompt\": \"The first of few\"}\n"
               "{\"messages\": [{\"role\": \"user\", \"content\": \"hello\"}]}\n");
    const std::string flags = "--quiet --threads 1 --max-tokens 40 --seed 3 --temperature 1";
    expect_same("generate " + chat_ + " --jsonl prompts", flags);
    expect_same("generate " + chat_ + " --jsonl prompts --batch 2 --kv fp8_cast --speculate lookup:3", flags);
    expect_same("generate " + chat_ + " --jsonl prompts --compute f32 --no-prefix-cache", flags);
}

TEST_F(SeveralRanks, LogitsAreTheSameBytes) {
    auto layout = SafetensorsLayout::make({{"input_ids", DType::i64, {3, 20}}});
    ASSERT_TRUE(layout.ok());
    auto writer = SafetensorsFileWriter::create(dir_ / "ids.safetensors", *std::move(layout));
    ASSERT_TRUE(writer.ok());
    std::vector<int64_t> ids;
    for (int64_t i = 0; i < 60; ++i) ids.push_back(i * 37 % 200);
    ASSERT_TRUE(writer->write(0, 0, std::as_bytes(std::span(ids))).ok());
    ASSERT_TRUE(writer->finish().ok());
    const std::string command = "logits " + chat_ + " --ids ids.safetensors --quiet --threads 1 -o ";
    ASSERT_EQ(alone(command + "one.safetensors").status[0], 0);
    const Ran two = run(2, command + "two.safetensors --tensor-parallel-size 2");
    EXPECT_EQ(two.status, (std::vector<int>{0, 0})) << two.errors[0] << two.errors[1];
    EXPECT_EQ(sha256(read_file(dir_ / "one.safetensors")), sha256(read_file(dir_ / "two.safetensors")));
}

TEST_F(SeveralRanks, EvalMeasuresTheSame) {
    std::string text;
    for (int i = 0; i < 60; ++i) text += fmt::format("Sentence number {} of a short text. ", i);
    write_file(dir_ / "text", text);
    const std::string command =
        "eval " + chat_ + " --against " + chat_ + " --text text --context 64 --json --quiet --threads 1";
    const Ran one = alone(command), two = run(2, command + " --tensor-parallel-size 2");
    ASSERT_EQ(one.status[0], 0) << one.errors[0];
    EXPECT_EQ(two.status, (std::vector<int>{0, 0})) << two.errors[0] << two.errors[1];
    const auto timeless = [](const std::string& json) {
        return std::regex_replace(json, std::regex("\"seconds\": *[-+.0-9e]+"), "");
    };
    EXPECT_THAT(one.out[0], HasSubstr("perplexity"));
    EXPECT_EQ(timeless(two.out[0]), timeless(one.out[0]));
}

TEST_F(SeveralRanks, TheMemoryOfEveryRankIsPrinted) {
    const Ran two = run(2, "generate " + chat_ + " x --max-tokens 1 --tensor-parallel-size 2");
    EXPECT_THAT(two.errors[0], HasSubstr("rank 0 of 2: "));
    EXPECT_THAT(two.errors[0], HasSubstr("rank 1 of 2: "));
    // K and V of one head with 8 dimensions in two layers.
    EXPECT_THAT(two.errors[0], HasSubstr(" of weights, 64 B of cache for a token (BF16), 0 B of states"));
    EXPECT_EQ(two.errors[1], "");
}

// Whichever rank is killed, the others end with one line that names it.
TEST_F(SeveralRanks, AKilledRankEndsTheOthersAndIsNamed) {
    std::string prompts;
    for (int i = 0; i < 2000; ++i) prompts += fmt::format("{{\"prompt\": \"number {}\"}}\n", i);
    write_file(dir_ / "prompts", prompts);
    for (const int killed : {0, 1}) {
        const std::string meanwhile = fmt::format("sleep 1; kill -9 ${{ids[{}]}}", killed);
        const Ran two = run(2,
                            "generate " + chat_ +
                                " --jsonl prompts --quiet --threads 1 --max-tokens 900 "
                                "--temperature 0 --tensor-parallel-size 2",
                            meanwhile);
        const auto other = size_t(1 - killed);
        EXPECT_THAT(two.errors[other], HasSubstr(fmt::format("rank {} of 2 has ended", killed)));
        EXPECT_EQ(std::ranges::count(two.errors[other], '\n'), 1) << two.errors[other];
    }
}

TEST_F(SeveralRanks, ImpossibleNumbersOfRanksAreOneLine) {
    const std::string command = "generate " + chat_ + " x --quiet --max-tokens 1 --tensor-parallel-size ";
    const Ran degree = alone(command + "64");
    EXPECT_THAT(degree.errors[0], HasSubstr("numbers of ranks that work, up to 64: 1, 2"));
    const Ran number = run(3, command + "2");
    for (const std::string& said : number.errors)
        EXPECT_THAT(said, HasSubstr("--tensor-parallel-size 2, but the launcher started 3 processes"));
    const Ran nowhere = run(2, command + "2", "", "''");
    for (const std::string& said : nowhere.errors) EXPECT_THAT(said, HasSubstr("NIBBLE_ADDRESS"));
    const Ran gpu = alone(command + "2 --device cuda");
    EXPECT_THAT(gpu.errors[0], HasSubstr("--device cpu"));
    // Rank 0 refuses its prompt; the other rank has nothing to do.
    const Ran prompt = run(2, "generate " + chat_ + " --jsonl missing --quiet --tensor-parallel-size 2");
    EXPECT_EQ(prompt.status, (std::vector<int>{1, 0}));
    EXPECT_EQ(prompt.errors[1], "");
}

}  // namespace
}  // namespace nibble::test

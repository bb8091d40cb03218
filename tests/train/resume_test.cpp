// Tests runs that are stopped, finished, damaged and repeated, as a user or a scheduler starts them. The advice of each
// message is followed and must work.
#include "support/files.h"
#include "train/tiny_families.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>

namespace nibble::test {
namespace {

namespace fs = std::filesystem;

class TrainResume : public testing::Test {
protected:
    void SetUp() override {
        fs::create_directories(dir / "start");
        write_file(dir / "start/config.json", tiny("llama").dump());
    }
    void config(const std::string& name, const std::string& more) {
        write_file(dir / name,
                   "model: start\nrandom_start: true\nbatch: 1\nsequence: 8\ndata: {synthetic: true}\n" + more);
    }
    // Returns the output of the program and checks its exit status.
    std::string train(const std::string& arguments, bool works = true) {
        const int code = std::system(fmt::format("cd '{}' && '{}' train {} --threads 1 < /dev/null > out.txt 2>&1",
                                                 dir.path().string(), NIBBLE_PROGRAM, arguments)
                                         .c_str());
        std::string said = read_file(dir / "out.txt");
        EXPECT_EQ(code == 0, works) << arguments << ": " << said;
        return said;
    }
    std::string model(const std::string& run) { return read_file(dir / run / "model/model.safetensors"); }
    void expect_part(const std::string& said, const std::string& part) {
        EXPECT_NE(said.find(part), std::string::npos) << said;
    }
    TempDir dir;
};

// Schedules whose rates do not depend on the number of steps can continue. For the others the message names another
// way, which works.
TEST_F(TrainResume, AFinishedRunContinuesToMoreStepsOrNamesTheWay) {
    for (const auto& [schedule, goes_on] : {std::pair{"{kind: constant}", true},
                                            {"{kind: cosine, warmup: 2, final_fraction: 1}", true},
                                            {"{kind: cosine}", false},
                                            {"{kind: linear, warmup: 1}", false},
                                            {"{kind: wsd, decay_fraction: 0.25}", false}}) {
        for (const char* run : {"run", "whole", "forked"}) fs::remove_all(dir / run);
        config("c.yaml", fmt::format("steps: 4\nschedule: {}\n", schedule));
        train("c.yaml -o run");
        const std::string four = model("run");
        expect_part(train("c.yaml -o run --resume"), "the run has already completed its 4 steps");
        EXPECT_EQ(model("run"), four);
        const std::string again = train("c.yaml -o run --steps 6", false);
        expect_part(again, "run: has a finished run; ");
        EXPECT_EQ(again.find("--resume") != again.npos, goes_on) << again;
        const std::string said = train("c.yaml -o run --resume --steps 6", goes_on);
        if (goes_on) {
            expect_part(said, "resuming after 4 steps");
            train("c.yaml -o whole --steps 6");
            EXPECT_EQ(model("run"), model("whole")) << schedule;
            EXPECT_NE(model("run"), four);
            EXPECT_FALSE(fs::exists(dir / "run/model.replaced"));
            expect_part(train("c.yaml -o run --resume --steps 5", false),
                        "run: has already completed 6 steps, but this run has 5; give more steps");
            continue;
        }
        expect_part(said,
                    "config/steps: 4 in the checkpoint, 6 now; to begin a new run from its state, give another output "
                    "and 'fork: run'");
        EXPECT_EQ(model("run"), four);
        config("fork.yaml", fmt::format("steps: 6\nschedule: {}\nfork: run\n", schedule));
        expect_part(train("fork.yaml -o forked"), "resuming after 4 steps");
        fs::remove_all(dir / "short");
        const std::string refused = train("fork.yaml -o short --steps 4", false);
        expect_part(refused, "has already completed 4 steps, but this run has 4; give more steps");
        train("fork.yaml -o short --steps 5");
    }
}

TEST_F(TrainResume, NothingToResumeStartsFromTheBeginningAndReportsIt) {
    config("c.yaml", "steps: 2\n");
    train("c.yaml -o whole");
    expect_part(train("c.yaml -o run --resume"), "run: nothing to resume, the run starts from the beginning\n");
    EXPECT_EQ(model("run"), model("whole"));
    config("r.yaml", "steps: 2\nresume: true\noutput: other\n");
    expect_part(train("r.yaml"), "other: nothing to resume");
    // The remains of a process that was killed in its first milliseconds.
    fs::create_directories(dir / "killed/checkpoints");
    write_file(dir / "killed/.nibble-lock", "1\n");
    expect_part(train("c.yaml -o killed --resume"), "nothing to resume");
    fs::create_directories(dir / "log/checkpoints");
    write_file(dir / "log/train.jsonl", "{\"run\":{}}\n");
    write_file(dir / "log/checkpoints/step_00000002.safetensors.partial", "half");
    expect_part(train("c.yaml -o log", false), "already has a run; resume it with --resume");
    expect_part(train("c.yaml -o log --resume"), "nothing to resume");
    EXPECT_EQ(model("log"), model("whole"));
}

// Checkpoints of a run do not contain frozen weights, so other frozen weights would give another model.
TEST_F(TrainResume, OtherFrozenWeightsAreAnotherRun) {
    config("base.yaml", "steps: 1\n");
    train("base.yaml -o first");
    train("base.yaml -o second --steps 2");
    const std::string like = "output: run\nbatch: 1\nsequence: 8\nsteps: 2\ndata: {synthetic: true}\n";
    for (const auto& [key, more] : {std::pair{"base", "model: base\nlora: {rank: 2, merge: false}\n"},
                                    {"teacher", "model: start\nrandom_start: true\nteacher: base\n"}}) {
        for (const char* folder : {"base", "run"}) fs::remove_all(dir / folder);
        fs::copy(dir / "first/model", dir / "base", fs::copy_options::recursive);
        write_file(dir / "frozen.yaml", like + more);
        train("frozen.yaml");
        fs::remove_all(dir / "base");
        fs::copy(dir / "second/model", dir / "base", fs::copy_options::recursive);
        expect_part(train("frozen.yaml --resume", false), fmt::format("belongs to another run: {}: ", key));
    }
}

TEST_F(TrainResume, WithoutADamagedCheckpointItResumesFromAnOlderOne) {
    config("c.yaml", "steps: 6\nschedule: {kind: constant}\nsaving: {every: 2, keep: 3}\n");
    train("c.yaml -o run");
    const std::string whole = model("run");
    const fs::path newest = dir / "run/checkpoints/step_00000006.safetensors",
                   older = dir / "run/checkpoints/step_00000004.safetensors";
    fs::remove_all(dir / "run/model");
    for (const fs::path& file : {newest, older}) {
        std::string bytes = read_file(file);
        const size_t step = bytes.find("\\\"step\\\":");
        ASSERT_NE(step, std::string::npos);
        bytes[step + 9] ^= 1;
        write_file(file, bytes);
        const std::string said = train("c.yaml -o run --resume", false);
        expect_part(said, fs::path("run") / "checkpoints" / file.filename());
        expect_part(said, "remove it to resume from an older one");
        fs::remove(file);
    }
    expect_part(train("c.yaml -o run --resume"), "resuming after 2 steps");
    EXPECT_EQ(model("run"), whole);
    fs::remove_all(dir / "run/model");
    fs::remove_all(dir / "run/checkpoints");
    expect_part(train("c.yaml -o run --resume"), "nothing to resume");
    EXPECT_EQ(model("run"), whole);
}

// Checked before anything is computed. Each message is one line that names the path.
TEST_F(TrainResume, AnOutputThatCannotBeWrittenIsRefusedAtTheStart) {
    write_file(dir / "file", "precious");
    write_file(dir / "text.txt", "hello the world and hello the world");
    config("c.yaml", "steps: 1\n");
    for (const char* output : {"file", "file/run", "/proc/nibble/run"}) {
        const std::string said = train(fmt::format("c.yaml -o {}", output), false);
        expect_part(said, fmt::format("nibble: {}: cannot be written: ", output));
        EXPECT_EQ(std::ranges::count(said, '\n'), 1) << said;
    }
    EXPECT_EQ(read_file(dir / "file"), "precious");
    train("c.yaml -o new/folders/run");
    EXPECT_TRUE(fs::exists(dir / "new/folders/run/model/config.json"));
    fs::create_directories(dir / "mine/model");
    write_file(dir / "mine/model/config.json", "{}");
    expect_part(train("c.yaml -o mine", false), "mine/model: exists already; remove it or choose another output");
    expect_part(train("c.yaml -o mine --resume", false), "mine/model: exists already");
    EXPECT_EQ(read_file(dir / "mine/model/config.json"), "{}");
    write_file(dir / "lost.yaml", "model: start\nrandom_start: true\ndata: {text: text.txt}\n");
    EXPECT_EQ(train("lost.yaml", false),
              "nibble: lost.yaml: 'output' is missing, so the trained model would be lost; add it, or give -o DIR\n");
}

}  // namespace
}  // namespace nibble::test

// Tests `nibble train` from config to trained model, as a user runs it.
#include "checkpoint/checkpoint.h"
#include "support/files.h"
#include "train/tiny_families.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <cstdlib>
#include <filesystem>

namespace nibble::test {
namespace {

int train_command(const TempDir& dir, const std::string& arguments) {
    return std::system(fmt::format("cd '{}' && '{}' train {} --threads 2 < /dev/null > out.txt 2>&1",
                                   dir.path().string(), NIBBLE_PROGRAM, arguments)
                           .c_str());
}

// DeepSeek-V3's config describes quantized weights and Nemotron-H's has a bare Infinity. Neither applies to random
// weights.
TEST(TrainCommand, StartsFromPublishedConfigs) {
    for (const std::string family : {"deepseek_v3", "nemotron_h"}) {
        TempDir dir;
        Json config = tiny(family);
        config["quantization_config"] = {{"quant_method", "fp8"}, {"fmt", "e4m3"}, {"weight_block_size", {128, 128}}};
        if (family == "nemotron_h") config["time_step_limit"] = {0.0, "Infinity"};
        std::string text = config.dump();
        if (const size_t at = text.find("\"Infinity\""); at != text.npos) text.replace(at, 10, "Infinity");
        std::filesystem::create_directories(dir / "start");
        write_file(dir / "start/config.json", text);
        write_file(dir / "train.yaml",
                   "model: start\nrandom_start: true\noutput: run\nsteps: 1\nbatch: 1\nsequence: 8\n"
                   "data: {synthetic: true}\n");
        ASSERT_EQ(train_command(dir, "train.yaml"), 0) << family << ": " << read_file(dir / "out.txt");
        const auto trained = Checkpoint::open(dir / "run/model");
        ASSERT_TRUE(trained.ok()) << trained.error().message();
        EXPECT_EQ(read_file(dir / "run/model/config.json").find("quantization_config"), std::string::npos);
        EXPECT_EQ(read_file(dir / "run/model/config.json").find("Infinity") != std::string::npos,
                  family == "nemotron_h");
    }
}

TEST(TrainCommand, SetsKeysAndListsThem) {
    TempDir dir;
    std::filesystem::create_directories(dir / "start");
    write_file(dir / "start/config.json", tiny("llama").dump());
    write_file(dir / "c.yaml",
               "model: start\nrandom_start: true\nsteps: 2\nbatch: 1\nsequence: 8\ndata: {synthetic: true}\n");
    ASSERT_EQ(train_command(dir, "c.yaml -o a --set optimizer.learning_rate=1e-2 --set schedule.kind=constant"), 0)
        << read_file(dir / "out.txt");
    EXPECT_NE(read_file(dir / "out.txt").find("learning_rate: 1.000e-02"), std::string::npos);
    std::filesystem::remove_all(dir / "a/model");
    // The same values spelled differently are accepted; a different value is refused and named.
    ASSERT_EQ(train_command(dir,
                            "c.yaml -o a --resume --set optimizer.learning_rate=0.01 --set schedule.kind=constant "
                            "--set model=./start/ --set seed=1 --steps 3"),
              0)
        << read_file(dir / "out.txt");
    EXPECT_NE(read_file(dir / "out.txt").find("resuming after 2 steps"), std::string::npos);
    EXPECT_NE(train_command(dir, "c.yaml -o a --resume --set schedule.kind=constant --steps 4"), 0);
    EXPECT_NE(read_file(dir / "out.txt")
                  .find("belongs to another run: config/optimizer/learning_rate: 0.01 in the checkpoint, 0.0003 now"),
              std::string::npos)
        << read_file(dir / "out.txt");
    EXPECT_NE(train_command(dir, "c.yaml -o b --set optimizer.learning_rates=1"), 0);
    EXPECT_NE(read_file(dir / "out.txt").find("--set: optimizer has no key 'learning_rates'"), std::string::npos);
    EXPECT_NE(train_command(dir, "c.yaml -o b --set steps"), 0);
    EXPECT_EQ(read_file(dir / "out.txt").find("nibble: --set: 'steps' is not KEY=VALUE"), 0u)
        << read_file(dir / "out.txt");
    ASSERT_EQ(std::system(fmt::format("'{}' train --keys > '{}'", NIBBLE_PROGRAM, (dir / "out.txt").string()).c_str()),
              0);
    EXPECT_EQ(read_file(dir / "out.txt").find("model\n    path; default: none\n"), 0u) << read_file(dir / "out.txt");
}

// Rules are applied after flags have overridden the config.
TEST(TrainCommand, FlagsAreAppliedBeforeTheRules) {
    TempDir dir;
    std::filesystem::create_directories(dir / "start");
    write_file(dir / "start/config.json", tiny("llama").dump());
    const std::string like =
        "model: start\nrandom_start: true\nbatch: 1\nsequence: 8\ndata: {synthetic: true}\nschedule: {warmup: 2}\n";
    write_file(dir / "base.yaml", like + "steps: 1\n");
    EXPECT_NE(train_command(dir, "base.yaml -o base"), 0);
    EXPECT_EQ(read_file(dir / "out.txt"), "nibble: base.yaml: 2 warm-up steps are more than the 1 steps of the run\n");
    ASSERT_EQ(train_command(dir, "base.yaml -o base --steps 2"), 0) << read_file(dir / "out.txt");
    write_file(dir / "fork.yaml", like + "steps: 3\nfork: base\n");
    ASSERT_EQ(train_command(dir, "fork.yaml -o forked"), 0) << read_file(dir / "out.txt");
    EXPECT_NE(read_file(dir / "out.txt").find("resuming after 2 steps"), std::string::npos);
    write_file(dir / "less.yaml", "model: start\nrandom_start: true\nbatch: 1\nsequence: 8\ndata: {synthetic: true}\n");
    ASSERT_EQ(train_command(dir, "less.yaml -o less --steps 2"), 0) << read_file(dir / "out.txt");
    std::filesystem::remove_all(dir / "less/model");
    EXPECT_NE(train_command(dir, "less.yaml -o less --resume --steps 1"), 0);
    EXPECT_NE(read_file(dir / "out.txt").find("belongs to another run: config/steps: 2 in the checkpoint, 1 now"),
              std::string::npos);
    EXPECT_FALSE(std::filesystem::exists(dir / "less/model"));
    for (const auto& [key, more] : {std::pair{"fork", "fork: base\n"},
                                    {"resume", "resume: true\n"},
                                    {"saving.every", "saving: {every: 1}\n"},
                                    {"export.format", "precision: nvfp4_w4a4\nexport: {format: nvfp4}\n"}}) {
        write_file(dir / "none.yaml", like + "steps: 3\n" + more);
        EXPECT_NE(train_command(dir, "none.yaml"), 0);
        EXPECT_EQ(read_file(dir / "out.txt"),
                  fmt::format("nibble: {}: needs an output folder: 'output', or -o DIR\n", key));
    }
}

TEST(TrainCommand, ValidationsNeedHeldOutData) {
    TempDir dir;
    std::filesystem::create_directories(dir / "start");
    write_file(dir / "start/config.json", tiny("llama").dump());
    write_file(dir / "train.yaml",
               "model: start\nrandom_start: true\nsteps: 1\nbatch: 1\nsequence: 8\nvalidation: {every: 1}\n"
               "data: {synthetic: true}\n");
    ASSERT_NE(train_command(dir, "train.yaml"), 0);
    EXPECT_EQ(read_file(dir / "out.txt"),
              "nibble: validation.every: there is no held-out data; give data.validation\n");
}

TEST(TrainCommand, AnImpossibleProfileIsRefusedBeforeTheFirstStep) {
    TempDir dir;
    std::filesystem::create_directories(dir / "start");
    write_file(dir / "start/config.json", tiny("llama").dump());
    write_file(dir / "train.yaml",
               "model: start\nrandom_start: true\noutput: run\nsteps: 5\nbatch: 1\nsequence: 8\n"
               "data: {synthetic: true}\n");
    for (const auto& [options, said] :
         {std::pair{"--profile no/such/folder.json", "--profile: no/such/folder.json: there is no folder "},
          {"--profile start", "--profile: start: is a folder"},
          {"--profile p.json --steps 4", "--profile records the third to fifth step; this run has 4"},
          {"--profile p.json --check-forward", "--check-forward excludes --profile"}}) {
        ASSERT_NE(train_command(dir, fmt::format("train.yaml {}", options)), 0);
        EXPECT_NE(read_file(dir / "out.txt").find(said), std::string::npos) << read_file(dir / "out.txt");
        EXPECT_FALSE(std::filesystem::exists(dir / "run"));
    }
    ASSERT_EQ(train_command(dir, "train.yaml --profile p.json"), 0) << read_file(dir / "out.txt");
    EXPECT_NE(read_file(dir / "p.json").find("step 4"), std::string::npos);
    ASSERT_NE(train_command(dir, "--compare run --steps 3"), 0);
    EXPECT_NE(read_file(dir / "out.txt").find("--compare excludes --steps"), std::string::npos);
}

}  // namespace
}  // namespace nibble::test

// Compares the planned memory of a CPU run with the memory that the program uses.
#include "train/host_plan.h"

#include "checkpoint/random_checkpoint.h"
#include "support/files.h"
#include "train/rank_threads.h"

#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

namespace nibble::test {
namespace {

using testing::HasSubstr;

Json model_of(int64_t hidden, int64_t layers, int64_t vocab) {
    return {{"architectures", {"LlamaForCausalLM"}},
            {"model_type", "llama"},
            {"hidden_size", hidden},
            {"num_hidden_layers", layers},
            {"num_attention_heads", hidden / 64},
            {"num_key_value_heads", hidden / 64},
            {"head_dim", 64},
            {"intermediate_size", 3 * hidden},
            {"vocab_size", vocab},
            {"rms_norm_eps", 1e-5},
            {"rope_theta", 10000.0},
            {"tie_word_embeddings", false},
            {"max_position_embeddings", 8192},
            {"hidden_act", "silu"}};
}

class HostPlan : public testing::Test {
protected:
    TrainMemoryPlan plan(const std::string& yaml, const Json& model) {
        const auto config = parse_train_config(yaml, "c.yaml");
        EXPECT_TRUE(config.ok()) << config.error().message();
        const auto checkpoint = random_checkpoint(model);
        EXPECT_TRUE(checkpoint.ok());
        const auto made =
            plan_host_memory(*config, **checkpoint,
                             {.rows = config->batch, .seq = config->sequence, .saves = !config->output.empty()}, pool_);
        EXPECT_TRUE(made.ok()) << made.error().message();
        return made.ok() ? *made : TrainMemoryPlan{};
    }
    // Returns the peak resident memory of the program, in bytes.
    double measured(const std::string& yaml) {
        write_file(dir_ / "c.yaml", yaml);
        const std::string command =
            fmt::format("cd '{}' && '{}' train c.yaml --json --threads 2 2>&1", dir_.path().string(), NIBBLE_PROGRAM);
        FILE* out = popen(command.c_str(), "r");
        std::string text;
        for (int c; (c = fgetc(out)) != EOF;) text += static_cast<char>(c);
        EXPECT_EQ(pclose(out), 0) << text;
        double most = 0;
        for (size_t at = 0; (at = text.find("\"memory_gib\":", at)) != std::string::npos; ++at)
            most = std::max(most, std::strtod(text.c_str() + at + 13, nullptr));
        return most * (1 << 30);
    }
    TempDir dir_;
    ThreadPool pool_{2};
};

// Items are counted from shapes. Memory that malloc keeps between sizes and tiles of kernels are not counted, so a
// tenth and 16 MiB are allowed either way. A missing item is larger: the smallest here, copies by recipe, is a sixth.
TEST_F(HostPlan, EqualsTheMemoryOfARun) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    GTEST_SKIP() << "a sanitizer's memory is not the program's";
#endif
    struct Case {
        const char* name;
        Json model;
        std::string yaml;
    };
    const Json wide = model_of(512, 3, 8192), deep = model_of(256, 6, 4096);
    const std::string like = "model: m\nrandom_start: true\ndata: {synthetic: true}\nsteps: 2\nquality: {every: 0}\n";
    for (const Case& c :
         {Case{"bf16", wide, "batch: 4\nsequence: 128\n"}, Case{"one row", wide, "batch: 1\nsequence: 128\n"},
          Case{"fp32", wide, "batch: 2\nsequence: 128\nprecision: fp32\n"},
          Case{"nvfp4", wide, "batch: 2\nsequence: 128\nprecision: nvfp4\n"},
          Case{"forward alone", wide, "batch: 2\nsequence: 128\nprecision: {recipe: nvfp4, passes: forward}\n"},
          Case{"fp8_block", wide, "batch: 2\nsequence: 128\nprecision: fp8_block\n"},
          Case{"lean states", wide, "batch: 2\nsequence: 128\noptimizer: {states: bf16}\n"},
          Case{"long rows", deep, "batch: 1\nsequence: 2048\n"}}) {
        std::filesystem::create_directories(dir_ / "m");
        write_file(dir_ / "m" / "config.json", c.model.dump());
        const TrainMemoryPlan counted = plan(like + c.yaml, c.model);
        const double want = measured(like + c.yaml), got = static_cast<double>(counted.total());
        EXPECT_NEAR(got, want, 0.1 * want + (16 << 20))
            << c.name << ": " << counted.text() << "; measured " << gib_of(static_cast<int64_t>(want));
    }
}

TEST_F(HostPlan, RefusesWhatDoesNotFit) {
    const TrainMemoryPlan some = plan("shape: 124m\ndata: {synthetic: true}\n", model_of(512, 3, 8192));
    const auto fits = check_host_memory(some, some.total(), nullptr);
    ASSERT_TRUE(fits.ok());
    EXPECT_EQ(fits->text(some), some.text());
    EXPECT_TRUE(check_host_memory(some, -1, nullptr).ok());
    const auto refused = check_host_memory(some, some.total() - 1, nullptr);
    ASSERT_FALSE(refused.ok());
    EXPECT_THAT(refused.error().message(), HasSubstr("the run does not fit in memory: masters "));
    EXPECT_THAT(refused.error().message(), HasSubstr(" are available"));
    // The program refuses before it allocates masters: no machine has this memory.
    const std::string command =
        fmt::format("cd '{}' && '{}' train --shape llama-8b --synthetic --batch 1048576 --seq 16777216 > out.txt 2>&1",
                    dir_.path().string(), NIBBLE_PROGRAM);
    EXPECT_NE(std::system(command.c_str()), 0);
    EXPECT_THAT(read_file(dir_ / "out.txt"),
                testing::StartsWith("nibble: the run does not fit in memory: masters 29.9"));
}

// The plans of all processes on a machine are added, and the smallest free memory that one of them finds is the limit.
TEST_F(HostPlan, CountsTheProcessesOfAMachine) {
    const TrainMemoryPlan first{.items = {{"masters", 300}}}, second{.items = {{"masters", 200}}};
    for (const int64_t spare : {0, -1}) {
        const auto errors = run_ranks(2, [&](RankGroup* group, int rank) -> Status {
            NIBBLE_TRY(const HostTogether all,
                       check_host_memory(rank == 0 ? first : second, 500 + (rank == 0 ? 1000 : spare), group));
            EXPECT_EQ(all.processes, 2);
            EXPECT_EQ(all.bytes, 500);
            EXPECT_THAT(all.text(first), HasSubstr("; 2 processes of this machine "));
            return Ok{};
        });
        for (const std::string& error : errors) {
            EXPECT_EQ(error.empty(), spare == 0) << error;
            if (spare < 0) {
                EXPECT_THAT(error, HasSubstr("2 processes of this machine need"));
            }
        }
    }
    // States are divided between processes, and only rank 0 copies them.
    const auto config = parse_train_config("shape: 124m\ndata: {synthetic: true}\n", "c.yaml");
    const auto model = random_checkpoint(model_of(512, 3, 8192));
    ASSERT_TRUE(config.ok() && model.ok());
    const auto bytes = [&](const HostRun& run, const std::string& item) {
        const auto made = plan_host_memory(*config, **model, run, pool_);
        EXPECT_TRUE(made.ok());
        return std::ranges::find(made->items, item, &TrainMemoryPlan::Item::name)->bytes;
    };
    const HostRun alone{.rows = 4, .seq = 64, .saves = true}, one{.rows = 2, .seq = 64, .ranks = 2};
    EXPECT_EQ(bytes(alone, "optimizer"), 2 * bytes(one, "optimizer"));
    EXPECT_EQ(bytes(one, "copy for checkpoints"), 0);
    EXPECT_EQ(bytes(alone, "between ranks"), 0);
    EXPECT_GT(bytes(one, "between ranks"), 0);
}

// Like mpirun: two processes that share only the address at which they connect.
TEST_F(HostPlan, CountsWhatMpirunStarted) {
    const std::string command = fmt::format(
        "cd '{0}' && export OMPI_COMM_WORLD_SIZE=2 NIBBLE_ADDRESS=unix:meet; "
        "run() {{ OMPI_COMM_WORLD_RANK=$1 '{1}' train --shape llama-8b --synthetic --batch 1048576 --seq 16777216 "
        "> out$1.txt 2>&1; }}; run 1 & run 0; wait",
        dir_.path().string(), NIBBLE_PROGRAM);
    std::system(command.c_str());
    for (const char* file : {"out0.txt", "out1.txt"})
        EXPECT_THAT(read_file(dir_ / file), HasSubstr("; 2 processes of this machine need "));
}

TEST_F(HostPlan, CgroupsLimitTheAvailableMemory) {
    constexpr int64_t gib = int64_t{1} << 30;
    EXPECT_EQ(available_memory(dir_.path()), -1);
    const auto write = [&](const std::string& name, const std::string& text) {
        std::filesystem::create_directories((dir_ / name).parent_path());
        write_file(dir_ / name, text);
    };
    write("proc/meminfo", "MemTotal: 99999999 kB\nMemAvailable:   8388608 kB\n");
    EXPECT_EQ(available_memory(dir_.path()), 8 * gib);
    write("proc/self/cgroup", "0::/a/b\n");
    EXPECT_EQ(available_memory(dir_.path()), 8 * gib);
    write("sys/fs/cgroup/a/memory.max", std::to_string(6 * gib) + "\n");
    write("sys/fs/cgroup/a/memory.current", std::to_string(gib) + "\n");
    write("sys/fs/cgroup/a/b/memory.max", "max\n");
    write("sys/fs/cgroup/a/b/memory.current", "77\n");
    EXPECT_EQ(available_memory(dir_.path()), 5 * gib);
    write("proc/self/cgroup", "12:cpu:/x\n4:memory:/y\n");
    write("sys/fs/cgroup/memory/memory.limit_in_bytes", std::to_string(2 * gib) + "\n");
    write("sys/fs/cgroup/memory/memory.usage_in_bytes", std::to_string(3 * gib) + "\n");
    EXPECT_EQ(available_memory(dir_.path()), 0);
    EXPECT_GT(available_memory(), 0);
}

}  // namespace
}  // namespace nibble::test

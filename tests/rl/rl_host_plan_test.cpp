// Compares the planned memory of an RL run on a CPU with the memory that the program uses.
#include "rl/rl_host_plan.h"

#include "base/json.h"
#include "checkpoint/convert.h"
#include "support/files.h"
#include "train/train_shapes.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <filesystem>

namespace nibble::test {
namespace {

using testing::HasSubstr;
namespace fs = std::filesystem;

// Writes the tokenizer of tests/data/chat with random weights of these sizes.
void write_model(const fs::path& to, int64_t hidden, int64_t layers, int64_t context = 1024) {
    auto config = read_json_file(test_data("chat") / "config.json");
    ASSERT_TRUE(config.ok());
    config->update({{"hidden_size", hidden},
                    {"intermediate_size", 3 * hidden},
                    {"num_hidden_layers", layers},
                    {"num_attention_heads", hidden / 64},
                    {"num_key_value_heads", hidden / 64},
                    {"head_dim", 64},
                    {"max_position_embeddings", context}});
    ThreadPool pool(2);
    const auto weights = random_start(*config, DType::bf16, 1, pool);
    ASSERT_TRUE(weights.ok()) << weights.error().message();
    const auto written = convert(**weights, {.out = to}, pool, {});
    ASSERT_TRUE(written.ok()) << written.error().message();
    for (const char* file : {"tokenizer.json", "tokenizer_config.json"})
        fs::copy(test_data("chat") / file, to / file, fs::copy_options::overwrite_existing);
}

int64_t item(const TrainMemoryPlan& plan, const std::string& name) {
    const auto found = std::ranges::find(plan.items, name, &TrainMemoryPlan::Item::name);
    return found == plan.items.end() ? 0 : found->bytes;
}

class RlHostPlan : public testing::Test {
protected:
    TrainMemoryPlan plan(const std::string& yaml, int ranks = 1, bool saves = true, int64_t available = -1) {
        const auto config = parse_rl_config(yaml, "rl.yaml");
        EXPECT_TRUE(config.ok()) << config.error().message();
        const auto model = Checkpoint::open(dir_ / "m");
        EXPECT_TRUE(model.ok()) << model.error().message();
        const auto made = plan_rl_memory(*config, **model, ranks, saves, available, pool_);
        EXPECT_TRUE(made.ok()) << made.error().message();
        return made.ok() ? *made : TrainMemoryPlan{};
    }
    // Returns the peak resident memory of the program, in bytes; 0: it failed.
    double measured(const std::string& arguments) {
        const std::string command = fmt::format("cd '{}' && exec '{}' rl {} < /dev/null > out.txt 2>&1",
                                                dir_.path().string(), NIBBLE_PROGRAM, arguments);
        const pid_t id = ::fork();
        if (id == 0) {
            ::execl("/bin/sh", "sh", "-c", command.c_str(), nullptr);
            ::_exit(127);
        }
        int status = 0;
        rusage usage{};
        ::wait4(id, &status, 0, &usage);
        EXPECT_EQ(status, 0) << read_file(dir_ / "out.txt");
        return static_cast<double>(usage.ru_maxrss) * 1024;
    }
    TempDir dir_;
    ThreadPool pool_{2};
};

std::string yaml_of(int64_t length, const std::string& policy, const std::string& loss) {
    return fmt::format(R"(
policy: {{model_name: m, max_total_sequence_length: {}{}}}
grpo: {{num_prompts_per_step: 2, num_generations_per_prompt: 4, max_num_steps: 1}}
loss_fn: {{reference_policy_kl_penalty: {}}}
data: {{task: sort, chat: false, prompt: "Q: {{}}\nA:"}}
)",
                       length, policy, loss);
}

// Like HostPlan.EqualsTheMemoryOfARun: a tenth and 24 MiB are allowed either way. With random weights answers reach the
// maximum length.
TEST_F(RlHostPlan, EqualsTheMemoryOfARun) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    GTEST_SKIP() << "a sanitizer's memory is not the program's";
#endif
    write_model(dir_ / "m", 512, 3);
    struct Case {
        const char* name;
        std::string yaml;
    };
    for (const Case& c : {Case{"bf16", yaml_of(128, "", "0")}, Case{"reference", yaml_of(128, "", "0.01")},
                          Case{"nvfp4", yaml_of(128, ", precision: {recipe: nvfp4, row_scaled: true}", "0.01")},
                          Case{"other rollouts", yaml_of(128, ", generation: {precision: fp8_block}", "0")},
                          Case{"long answers", yaml_of(512, "", "0")}}) {
        write_file(dir_ / "rl.yaml", c.yaml);
        fs::remove_all(dir_ / "run");
        const TrainMemoryPlan counted = plan(c.yaml);
        const double want = measured("rl.yaml -o run --threads 2"), got = static_cast<double>(counted.total());
        EXPECT_NEAR(got, want, 0.1 * want + (24 << 20))
            << c.name << ": " << counted.text() << "; measured " << gib_of(static_cast<int64_t>(want));
        EXPECT_THAT(read_file(dir_ / "out.txt"), HasSubstr("  memory: masters "));
    }
}

TEST_F(RlHostPlan, ItemsFollowTheConfig) {
    write_model(dir_ / "m", 128, 2);
    const auto sum = [](const TrainMemoryPlan& p) { return p.total(); };
    const TrainMemoryPlan base = plan(yaml_of(128, "", "0")), kl = plan(yaml_of(128, "", "0.01"));
    EXPECT_EQ(item(base, "reference"), 0);
    EXPECT_EQ(sum(kl) - sum(base), item(kl, "reference"));
    EXPECT_GT(item(kl, "reference"), item(kl, "masters") + item(kl, "published weights"));
    const TrainMemoryPlan other = plan(yaml_of(128, ", generation: {precision: fp8_block}", "0"));
    EXPECT_GT(item(other, "weights of rollouts"), item(base, "published weights"));
    // K and V of 8 answers in whole pages, for 2 blocks of 2 heads of 64, in BF16; half of it in FP8.
    EXPECT_EQ(item(base, "rollout caches"), 8 * 128 * 2 * 2 * 2 * 64 * 2);
    const TrainMemoryPlan fp8 = plan(yaml_of(128, ", generation: {kv_cache_dtype: fp8}", "0"));
    EXPECT_LT(item(fp8, "rollout caches"), item(base, "rollout caches") * 6 / 10);
    EXPECT_EQ(item(plan(yaml_of(128, "", "0"), 1, true, 1000), "rollout caches"), 300);
    // One of two processes.
    const TrainMemoryPlan one = plan(yaml_of(128, "", "0"), 2, false);
    EXPECT_EQ(2 * item(one, "optimizer"), item(base, "optimizer"));
    EXPECT_EQ(item(one, "copy for checkpoints"), 0);
}

// Refuses before masters are allocated, in one process and in two.
TEST_F(RlHostPlan, RefusesWhatDoesNotFit) {
    constexpr int64_t length = int64_t{1} << 30;
    write_model(dir_ / "m", 128, 2, length);
    write_file(dir_ / "rl.yaml", yaml_of(length, "", "0"));
    for (const auto& [flags, more] :
         {std::pair{"", "rollout caches"}, {" --ranks 2", "; 2 processes of this machine"}}) {
        const std::string command = fmt::format("cd '{}' && '{}' rl rl.yaml -o run{} < /dev/null > out.txt 2>&1",
                                                dir_.path().string(), NIBBLE_PROGRAM, flags);
        EXPECT_NE(std::system(command.c_str()), 0);
        EXPECT_THAT(read_file(dir_ / "out.txt"), HasSubstr("the run does not fit in memory: masters "));
        EXPECT_THAT(read_file(dir_ / "out.txt"), HasSubstr(more));
        EXPECT_FALSE(fs::exists(dir_ / "run"));
    }
}

}  // namespace
}  // namespace nibble::test

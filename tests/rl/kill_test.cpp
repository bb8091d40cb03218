// Kills or interrupts (SIGKILL, Ctrl-C) a run while answers are judged, or right after the last judgement of a step
// (during the update or the next rollouts). The resumed run has the bits of an undisturbed run.
// tests/oracles/kill_at_call.py kills at the calls that write checkpoints, the log and the exported model.
#include "base/json.h"
#include "run/log.h"
#include "support/files.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>

namespace nibble::test {
namespace {

// Judges answers. At the request whose number is in the file `kill` it sends a signal to the calling program, before or
// after the reply. The file is removed first, so that the next run survives. A program that gets SIGINT also gets its
// reply.
constexpr const char* judge = R"py(
import json, os, signal, sys, time
def end(when, n):
    wanted = open("kill").read().split() if os.path.exists("kill") else []
    if wanted[:2] == [when, str(n)]:
        os.remove("kill")
        os.kill(os.getppid(), getattr(signal, wanted[2]))
        if wanted[2] == "SIGKILL":
            sys.exit(0)
        time.sleep(0.2)
for n, line in enumerate(sys.stdin):
    end("before", n)
    r = json.loads(line)
    reward = sum(map(ord, r["text"])) % 7 / 7
    print(json.dumps({"id": r["id"], "reward": reward}), flush=True)
    end("after", n)
)py";

struct KilledRuns {
    TempDir dir;

    explicit KilledRuns(std::string_view more) {
        write_file(dir / "judge.py", judge);
        write_file(dir / "rl.yaml", fmt::format(R"(
policy:
  model_name: {}
  max_total_sequence_length: 96
  optimizer: {{lr: 0.003}}
  generation: {{max_new_tokens: 12}}
grpo: {{num_prompts_per_step: 2, num_generations_per_prompt: 2, max_num_steps: 4{}
data: {{task: sort, chat: false, prompt: "Q: {{}}\nA:"}}
env: {{command: [python3, judge.py]}}
checkpointing: {{save_period: 1}}
)",
                                                test_data("chat").string(), more));
    }
    int run(const std::string& arguments) {
        return std::system(fmt::format("cd '{}' && '{}' rl rl.yaml --threads 1 --quiet {} < /dev/null > out.txt 2>&1",
                                       dir.path().string(), NIBBLE_PROGRAM, arguments)
                               .c_str());
    }
    // Returns weights, samples, and the log without measured times.
    std::string outcome(const std::string& name) {
        std::string out = read_file(dir / name / "model/model.safetensors") + read_file(dir / name / "samples.json");
        const auto log = read_run_log(dir / name / run_log_name);
        EXPECT_TRUE(log.ok());
        for (size_t i = 1; log.ok() && i < log->size(); ++i)
            for (const auto& [key, value] : (*log)[i].items())
                if (!key.ends_with("seconds")) out += key + value.dump();
        return out;
    }
    void check(const char* signal, std::initializer_list<const char*> places) {
        ASSERT_EQ(run("-o whole"), 0) << read_file(dir / "out.txt");
        const std::string want = outcome("whole");
        for (const std::string place : places) {
            const std::string kill = fmt::format("{} {}", place, signal);
            std::filesystem::remove_all(dir / "killed");
            write_file(dir / "kill", kill);
            ASSERT_NE(run("-o killed"), 0) << kill;
            ASSERT_FALSE(std::filesystem::exists(dir / "kill")) << kill << ": no process reached it";
            ASSERT_FALSE(std::filesystem::exists(dir / "killed/model")) << kill;
            ASSERT_EQ(run("-o killed --resume"), 0) << kill << ": " << read_file(dir / "out.txt");
            EXPECT_TRUE(outcome("killed") == want) << kill;
        }
    }
};

TEST(RlKill, BeforeAndAfterAnswersAreJudged) {
    KilledRuns runs("}\nloss_fn: {reference_policy_kl_penalty: 0.01}");
    runs.check("SIGKILL", {"before 0", "before 5", "after 7", "before 8", "after 11", "before 15"});
}

TEST(RlKill, WithRolloutsThatOutliveAStep) {
    KilledRuns runs(
        ",\n  async_grpo: {enabled: true, prompts_in_flight: 4, tokens_per_round: 3}}\n"
        "loss_fn: {reference_policy_kl_penalty: 0, use_importance_sampling_correction: true}");
    runs.check("SIGKILL", {"before 1", "after 4", "before 6", "after 9", "before 10"});
}

// Two steps of four answers, then two validation answers: requests 8 and 9.
constexpr const char* validated = ", val_period: 2, max_val_samples: 2}\nloss_fn: {reference_policy_kl_penalty: 0.01}";

TEST(RlKill, CtrlCDuringAValidation) {
    KilledRuns runs(validated);
    runs.check("SIGINT", {"before 8", "after 8", "after 9", "before 3"});
}

TEST(RlKill, DuringAValidation) {
    KilledRuns runs(validated);
    runs.check("SIGKILL", {"before 8", "after 9", "before 18"});
}

}  // namespace
}  // namespace nibble::test

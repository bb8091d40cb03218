// Tests environments in separate processes, correct and faulty ones. The programs are Python one-liners that wait for a
// condition, never for a time.
#include "rl/environment.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <set>
#include <thread>

namespace nibble {
namespace {

// Judges by the text: a number is the reward, and words select faults.
constexpr const char* judge = R"py(
import json, os, sys
for line in sys.stdin:
    r = json.loads(line)
    t = r["text"]
    if t == "die":
        os._exit(3)
    if t == "hang":
        sys.stdin.read()
        sys.exit(0)
    if t == "garbage":
        print("no json", flush=True)
    elif t == "flood":
        print("x" * 3_000_000, flush=True)
    elif t == "nan":
        print('{"id": %d, "reward": NaN}' % r["id"], flush=True)
    elif t == "huge":
        print('{"id": %d, "reward": 1e999}' % r["id"], flush=True)
    elif t == "deep":
        print('{"id": %d, "reward": 1, "state": %s}' % (r["id"], "[" * 100_000 + "]" * 100_000), flush=True)
    elif t == "megabytes":
        print("\n".join(["y" * 1000] * 3000), flush=True)
    elif t == "empty":
        print(flush=True)
    elif t == "other":
        print('{"id": %d, "reward": 1}' % (r["id"] + 1), flush=True)
    elif t == "turn":
        print(json.dumps({"id": r["id"], "reward": 0, "done": False, "observation": "go on", "state": [r["turn"] + 1]}), flush=True)
    else:
        print(json.dumps({"id": r["id"], "reward": float(t) if t else 0.5 * len(r["prompt"])}), flush=True)
)py";

EnvironmentProgram python_judge(int processes, int64_t timeout_ms = 60000) {
    return {
        .command = {"python3", "-c", judge}, .processes = processes, .timeout = std::chrono::milliseconds(timeout_ms)};
}

std::vector<EnvironmentReply> judged(Environment& environment, const std::vector<std::string>& texts) {
    std::vector<EnvironmentRequest> requests;
    for (const std::string& text : texts) requests.push_back({.prompt = "ab", .expected = "", .text = text});
    return environment.judge(requests);
}

TEST(Environment, RepliesComeInOrderFromSeveralProcesses) {
    const auto environment = start_environment(python_judge(3));
    ASSERT_TRUE(environment.ok()) << environment.error().message();
    std::vector<std::string> texts;
    for (int i = 0; i < 40; ++i) texts.push_back(std::to_string(i));
    const auto replies = judged(**environment, texts);
    ASSERT_EQ(replies.size(), 40u);
    for (int i = 0; i < 40; ++i) {
        EXPECT_FALSE(replies[size_t(i)].failure) << *replies[size_t(i)].failure;
        EXPECT_EQ(replies[size_t(i)].reward, i);
        EXPECT_TRUE(replies[size_t(i)].done);
    }
    const auto turn = judged(**environment, {"turn"});
    EXPECT_FALSE(turn[0].done);
    EXPECT_EQ(turn[0].observation, "go on");
    EXPECT_EQ(turn[0].state, Json::array({1}));
}

TEST(Environment, AFaultCostsItsOwnAnswerOnly) {
    const auto environment = start_environment(python_judge(2));
    ASSERT_TRUE(environment.ok()) << environment.error().message();
    const std::vector<std::string> texts{"1", "die",   "2", "garbage", "3", "flood",     "4", "nan",   "5", "huge",
                                         "6", "other", "7", "deep",    "8", "megabytes", "9", "empty", "10"};
    const auto replies = judged(**environment, texts);
    for (size_t i = 0; i < texts.size(); ++i)
        if (i % 2 == 0)
            EXPECT_TRUE(!replies[i].failure && replies[i].reward == std::stod(texts[i])) << texts[i];
        else
            EXPECT_TRUE(replies[i].failure.has_value()) << texts[i];

    const auto bytes = judged(**environment, {"\xff"});  // neither UTF-8 nor a number
    EXPECT_TRUE(bytes[0].failure);
}

TEST(Environment, OneThatHangsIsEndedAtTheTimeout) {
    const auto environment = start_environment(python_judge(1, 300));
    ASSERT_TRUE(environment.ok()) << environment.error().message();
    const auto replies = judged(**environment, {"hang"});
    ASSERT_TRUE(replies[0].failure);
    EXPECT_NE(replies[0].failure->find("300 ms"), std::string::npos);
}

// A hanging program does not delay a stop, and programs are restarted afterwards.
TEST(Environment, AStopIsNoticedWhileProgramsHang) {
    std::atomic<bool> stop = false;
    EnvironmentProgram program = python_judge(2, 3600'000);
    program.stop = &stop;
    const auto environment = start_environment(program);
    ASSERT_TRUE(environment.ok()) << environment.error().message();
    EXPECT_EQ(judged(**environment, {"1"})[0].reward, 1);
    std::thread later([&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(200));
        stop = true;
    });
    const auto replies = judged(**environment, {"hang", "hang", "hang", "2"});
    later.join();
    for (const EnvironmentReply& reply : replies) EXPECT_EQ(reply.failure, "the run was stopped");
    stop = false;
    EXPECT_EQ(judged(**environment, {"4"})[0].reward, 4);
}

// Programs that write before they get a request, with any id, time and amount.
TEST(Environment, AReplyBeforeItsRequestIsIgnored) {
    struct Case {
        const char* what;
        std::string program;
    };
    const std::string begin = "import json, sys\n";
    const auto print = [](const std::string& id) {
        return "print(json.dumps({'id': " + id + ", 'reward': 1.0, 'done': True}), flush=True)\n";
    };
    const Case cases[] = {
        {"ids from 0 on, at the start",
         begin + "for i in range(99):\n    " + print("i") + "for l in sys.stdin: pass\n"},
        {"without an id",
         begin + "for i in range(9): print(json.dumps({'reward': 1.0}), flush=True)\nfor l in sys.stdin: pass\n"},
        {"a null id", begin + "for i in range(9):\n    " + print("None") + "for l in sys.stdin: pass\n"},
        {"the next id after every reply",
         begin + "for l in sys.stdin:\n    i = json.loads(l)['id']\n    " + print("i + 1") + "    " + print("i")},
    };
    for (const Case& c : cases) {
        EnvironmentProgram program{.command = {"python3", "-c", c.program}, .timeout = std::chrono::milliseconds(2000)};
        const auto environment = start_environment(program);
        ASSERT_TRUE(environment.ok()) << environment.error().message();
        // Long enough for output that is written at the start to arrive.
        std::this_thread::sleep_for(std::chrono::milliseconds(300));
        const auto replies = judged(**environment, {"1", "2", "3"});
        for (const EnvironmentReply& r : replies) EXPECT_TRUE(r.failure) << c.what << ": reward " << r.reward;
    }
}

TEST(Environment, IdsAreNotGuessable) {
    const char* const echo =
        "import json, sys\nfor l in sys.stdin:\n    i = json.loads(l)['id']\n"
        "    print(json.dumps({'id': i, 'reward': float(i)}), flush=True)\n";
    const auto environment = start_environment({.command = {"python3", "-c", echo}});
    ASSERT_TRUE(environment.ok()) << environment.error().message();
    std::set<double> seen;
    for (const EnvironmentReply& r : judged(**environment, std::vector<std::string>(20, "1"))) {
        ASSERT_FALSE(r.failure) << *r.failure;
        EXPECT_GT(r.reward, 1e6);  // true for all but one of 10^10 ids
        EXPECT_LT(r.reward, 0x1p53);
        seen.insert(r.reward);
    }
    EXPECT_EQ(seen.size(), 20u);
}

TEST(Environment, NoSuchProgramIsAnError) {
    const auto environment = start_environment({.command = {"/nonexistent/environment"}});
    ASSERT_FALSE(environment.ok());
    EXPECT_NE(environment.error().message().find("/nonexistent/environment"), std::string::npos);
    EXPECT_FALSE(start_environment({.command = {}}).ok());
    EXPECT_FALSE(start_environment({.command = {"true"}, .processes = 0}).ok());
}

}  // namespace
}  // namespace nibble

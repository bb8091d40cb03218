// Environments judge answers. An environment gets the text that the model wrote and returns a reward. In tasks of
// several turns it also returns the text that the model reads next.
#pragma once

#include "base/error.h"
#include "base/json.h"

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace nibble {

struct EnvironmentRequest {
    std::string prompt, expected;  // from the data row
    std::string text;              // written by the model in this turn
    int64_t turn = 0;
    Json state;  // returned by the environment in the previous turn
};

struct EnvironmentReply {
    double reward = 0;  // finite
    bool done = true;
    std::string observation;  // text that the model reads next; not empty unless done
    Json state;
    // The reason why there is no reward (a crash, a timeout, a malformed reply). The answer is then excluded from the
    // step.
    std::optional<std::string> failure;
};

class Environment {
public:
    virtual ~Environment() = default;
    // Returns one reply per request, in order. A failure affects only its own request.
    virtual std::vector<EnvironmentReply> judge(const std::vector<EnvironmentRequest>& requests) = 0;
};

// Returns an error for a reply that a run cannot use: a reward that is not finite, or neither the end nor an
// observation.
Status check_reply(const EnvironmentReply& reply);

// Judges by a function, which is called with all requests of a round.
using JudgeFunction = std::function<std::vector<EnvironmentReply>(const std::vector<EnvironmentRequest>&)>;
// A reply that check_reply() refuses becomes a failure. If the number of replies differs from that of the requests, all
// requests fail.
std::unique_ptr<Environment> function_environment(JudgeFunction function);

// Programs in any language that read JSON lines on standard input and write JSON lines on standard output: one line per
// request, one per reply (docs/topics/rl.md; tests/oracles/environment_example.py). Their standard error is nibble's.
//     {"id": 3, "prompt": "...", "expected": "...", "text": "...", "turn": 0, "state": null}
//     {"id": 3, "reward": 1.0, "done": true, "observation": "", "state": null}
// A program that ends, replies late, or sends any other line is killed and started again.
struct EnvironmentProgram {
    std::vector<std::string> command;  // program (found in PATH) and arguments
    int processes = 1;
    std::chrono::milliseconds timeout{30000};  // for one reply
    int64_t most_reply_bytes = int64_t{1} << 20;
    // If it becomes true, judge() returns early: unjudged requests fail, and programs that were judging are killed.
    const std::atomic<bool>* stop = nullptr;
};
// Starts the processes. Error: the program is not found, or a field is out of range.
Result<std::unique_ptr<Environment>> start_environment(const EnvironmentProgram& program);

}  // namespace nibble

// What judges answers. An environment gets what the model wrote and returns a reward, and for tasks of several turns
// what the model reads next.
#pragma once

#include "base/error.h"
#include "base/json.h"

#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace nibble {

struct EnvironmentRequest {
    std::string prompt, expected;  // of the data's row
    std::string text;              // what the model wrote in this turn
    int64_t turn = 0;
    Json state;  // what the environment returned with the turn before
};

struct EnvironmentReply {
    double reward = 0;  // finite
    bool done = true;
    std::string observation;  // what the model reads next; not empty unless done
    Json state;
    // Set where no reward could be had (a crash, a timeout, a reply that is no reply): the answer then counts nowhere.
    std::optional<std::string> failure;
};

class Environment {
public:
    virtual ~Environment() = default;
    // One reply per request, in order. A failure costs the request that it belongs to only.
    virtual std::vector<EnvironmentReply> judge(const std::vector<EnvironmentRequest>& requests) = 0;
};

// Programs that speak JSON lines: a request is one line on their standard input, the reply one line on their standard
// output, in any language (docs/rl.md; tests/oracles/environment_example.py). Standard error goes to nibble's.
//     {"id": 3, "prompt": "...", "expected": "...", "text": "...", "turn": 0, "state": null}
//     {"id": 3, "reward": 1.0, "done": true, "observation": "", "state": null}
// A program that ends, answers late, or answers with anything else is killed and started again.
struct EnvironmentProgram {
    std::vector<std::string> command;  // program and arguments; found in PATH
    int processes = 1;
    std::chrono::milliseconds timeout{30000};  // of one reply
    int64_t most_reply_bytes = int64_t{1} << 20;
    // true: judge() waits no longer; what was not judged fails, and programs that were at it are killed.
    const std::atomic<bool>* stop = nullptr;
};
// Starts the processes. Error: no such program, a field out of range.
Result<std::unique_ptr<Environment>> start_environment(const EnvironmentProgram& program);

}  // namespace nibble

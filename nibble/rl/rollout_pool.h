// Rollouts under way, in rounds: in a round every open answer gets a turn, or the next so many tokens of one. What is
// not whole when enough others are waits here for the weights of the next step and goes on with them.
//
// Which answers are whole after a round follows from tokens alone: never from time, memory, or how the engine batches.
#pragma once

#include "rl/rollout.h"

namespace nibble {

class RolloutPool {
public:
    // Engine and task outlive it. answers: of each prompt.
    RolloutPool(Engine& engine, RolloutTask& task, int64_t answers) : engine_(engine), task_(task), answers_(answers) {}

    // The answers to prompt `number` begin with the next round. Error: the prompt leaves no room for one.
    Status begin(uint64_t number, const RolloutRequest& request);
    // Generates, and judges the turns that end. Prompts, answers and first_prompt of the request mean nothing here.
    Status round(const RolloutRequest& request);
    bool stopped() const { return stopped_; }  // in a round, by request: the answers are of no use

    int64_t prompts() const { return std::ssize(batch_.prompts); }
    int64_t open() const;   // answers that are not whole
    int64_t whole() const;  // prompts all of whose answers are
    // The first `most` of them, oldest first.
    RolloutBatch take_whole(int64_t most);
    // Those whose answers began before this step; returns how many.
    int64_t drop_before(int64_t step);
    RolloutBatch take_all() { return take(std::vector<uint8_t>(batch_.prompts.size(), 1)); }

    // What a checkpoint keeps: numbers of prompts, answers with every bit of their log-probabilities.
    Json state() const;
    // Error: not a state of this many answers to a prompt; nothing was changed.
    Status set_state(const Json& state);

private:
    bool is_whole(size_t prompt) const;
    RolloutBatch take(const std::vector<uint8_t>& chosen);
    int64_t room(const Rollout& r, const RolloutRequest& request) const;
    Request request_of(const Rollout& r, const RolloutRequest& request) const;
    Status generate(const RolloutRequest& request, std::span<Rollout* const> open);
    void settle(Rollout& r, const RolloutRequest& request) const;

    Engine& engine_;
    RolloutTask& task_;
    int64_t answers_;
    RolloutBatch batch_;
    bool stopped_ = false;
};

}  // namespace nibble

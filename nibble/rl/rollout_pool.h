// Rollouts under way, in rounds: in a round every open answer gets a turn, or the next so many tokens of one. What is
// not whole when enough others are waits here for the weights of the next step and goes on with them.
//
// Which answers are whole after a round follows from tokens alone: never from time, memory, or how the engine batches.
//
// Several ranks make the same calls on pools of the same prompts: each generates and judges the answers to its own ones
// (rl/rank_deal.h) and gets the others'. So what a pool holds does not depend on how many ranks there are.
#pragma once

#include "parallel/rank_group.h"
#include "rl/rollout.h"

namespace nibble {

class RolloutPool {
public:
    // Engine, task and ranks (null: this process alone) outlive it. answers: of each prompt.
    RolloutPool(Engine& engine, RolloutTask& task, int64_t answers, RankGroup* ranks = nullptr)
        : engine_(engine), task_(task), answers_(answers), ranks_(ranks) {}

    // The answers to prompt `number` begin with the next round; those to a prompt that leaves no room for any have
    // failed already, without a token.
    Status begin(uint64_t number, const RolloutRequest& request);
    // Generates, and judges the turns that end. Prompts, answers and first_prompt of the request mean nothing here.
    Status round(const RolloutRequest& request);
    // Until none is open, or it was stopped: ranks wait for one another once, at the end.
    Status all_rounds(const RolloutRequest& request);
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
    struct Begun {
        size_t rollout = 0, tokens = 0;  // that it had when it was shared last
    };
    bool mine(const Rollout& r) const { return !ranks_ || owner_[r.prompt] == ranks_->rank(); }
    void deal(const RolloutRequest& request);
    std::vector<Begun> own_open() const;
    Status own_round(const RolloutRequest& request);
    Status share(std::span<const Begun> begun);
    bool is_whole(size_t prompt) const;
    RolloutBatch take(const std::vector<uint8_t>& chosen);
    int64_t room(const Rollout& r, const RolloutRequest& request) const;
    Request request_of(const Rollout& r, const RolloutRequest& request) const;
    Status generate(const RolloutRequest& request, std::span<Rollout* const> open);
    void settle(Rollout& r, const RolloutRequest& request) const;

    Engine& engine_;
    RolloutTask& task_;
    int64_t answers_;
    RankGroup* ranks_;
    std::vector<int> owner_;  // of every prompt: its rank; empty: to be dealt
    RolloutBatch batch_;
    bool stopped_ = false;
};

// Answers to prompts [first_prompt, first_prompt + prompts), until all are whole. The same batch in every rank (null:
// this process alone). Errors: an answer that ended with an error, a rank that has ended.
Result<RolloutBatch> roll_out(Engine& engine, RolloutTask& task, const RolloutRequest& request,
                              RankGroup* ranks = nullptr);

}  // namespace nibble

// Holds unfinished rollouts and advances them in rounds. In a round every open answer gets one turn, or a limited
// number of tokens of it. Answers that are unfinished when enough others are whole stay here and continue with the
// weights of the next step.
//
// Which answers are whole after a round depends on tokens only, never on time, memory, or how the engine batches.
//
// Several ranks make the same calls on pools of the same prompts. Each generates and judges the answers to its share of
// the prompts (rl/rank_work.h) and receives the others'. So the content of a pool does not depend on the number of
// ranks.
#pragma once

#include "parallel/rank_group.h"
#include "rl/rollout.h"

namespace nibble {

class RolloutPool {
public:
    // Engine, task and ranks (null: a single process) must outlive it. answers: per prompt.
    RolloutPool(Engine& engine, RolloutTask& task, int64_t answers, RankGroup* ranks = nullptr)
        : engine_(engine), task_(task), answers_(answers), ranks_(ranks) {}

    // Adds prompt `number`; its answers begin in the next round. Answers to a prompt that leaves no room fail at once,
    // without a token.
    Status begin(uint64_t number, const RolloutRequest& request);
    // Generates one round and judges the turns that end. The request's prompts, answers and first_prompt are ignored.
    Status round(const RolloutRequest& request);
    // Runs rounds until no answer is open or a stop is requested. Ranks wait for one another once, at the end.
    Status all_rounds(const RolloutRequest& request);
    bool stopped() const { return stopped_; }  // stopped by request in a round: the answers are unusable

    int64_t prompts() const { return std::ssize(batch_.prompts); }
    int64_t open() const;   // answers that are not whole
    int64_t whole() const;  // prompts all of whose answers are whole
    // Removes and returns the oldest whole prompts, at most `most`.
    RolloutBatch take_whole(int64_t most);
    // Removes the prompts whose answers began before `step` and returns their number.
    int64_t drop_before(int64_t step);
    RolloutBatch take_all() { return take(std::vector<uint8_t>(batch_.prompts.size(), 1)); }

    // Returns the state for a checkpoint: numbers of prompts, and answers with every bit of their log-probabilities.
    Json state() const;
    // Error: not a state with this number of answers per prompt. Nothing is changed then.
    Status set_state(const Json& state);

private:
    struct Begun {
        size_t rollout = 0, tokens = 0;  // tokens that it had when it was last shared with the other ranks
    };
    bool mine(const Rollout& r) const { return !ranks_ || owner_[r.prompt] == ranks_->rank(); }
    void assign(const RolloutRequest& request);
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
    std::vector<int> owner_;  // rank of every prompt; empty: prompts are not yet assigned
    RolloutBatch batch_;
    bool stopped_ = false;
};

// Generates the answers to prompts [first_prompt, first_prompt + prompts) until all are whole. Every rank (null: a
// single process) gets the same batch. Errors: an answer ended with an error; a rank has ended.
Result<RolloutBatch> roll_out(Engine& engine, RolloutTask& task, const RolloutRequest& request,
                              RankGroup* ranks = nullptr);

}  // namespace nibble

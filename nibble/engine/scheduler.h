// Decides which choices run in the next step. Decoding answers come first, each with one row and its draft. Prompts
// share the remaining rows of the step, in pieces: half of them go to the prompt that has waited longest, half to the
// shortest prompts, so that neither starves. A limit on prompt rows protects running answers from slow steps.
//
// Memory: a choice starts when its whole text fits, with one free page for every running choice. When pages run out,
// idle pages of the prefix cache are freed first. Then the last choice in the order of service is preempted: it waits
// and is computed again.
#pragma once

#include "engine/drafter.h"
#include "model/language_model.h"

#include <map>
#include <memory>
#include <vector>

namespace nibble {

class Scheduler {
public:
    // `options` are settled. Options and drafter must outlive the scheduler. chooses: the model chooses tokens on its
    // device.
    Scheduler(std::unique_ptr<KvPool> pool, const EngineOptions& options, Drafter& drafter, EngineStats& stats,
              int64_t state_copies, bool chooses);

    void wait(std::unique_ptr<Choice> choice);
    // Returns the choices of the next step, each with `base`, `draft` and memory for both. Choices that can never
    // continue end with an error. mixed_rows: most prompt rows in a step with running answers.
    std::vector<Choice*> plan(int64_t mixed_rows);
    // Returns true if the token that a step adds to `choice` must be known before the next step can be planned.
    bool holds_up(const Choice& choice) const;
    // Called when the tokens of a step are known: stores prefixes for later prompts. A later step may be in flight.
    // Error: no free states.
    Status settle(Choice& choice);
    // Returns the choices from whose prompt other choices wait to fork.
    std::vector<Choice*> forking() const;
    // Starts `children`, choices of the same request, after the prompt, all of which except its last token `leader` has
    // read.
    void fork(Choice& leader, std::vector<std::unique_ptr<Choice>> children);
    // Frees the choice's memory and queues it; its text is computed again.
    void preempt(Choice& choice);
    // Removes and returns finished choices.
    std::vector<std::unique_ptr<Choice>> take_finished();

    template <class Each>
    void each(const Each& f) const {
        for (const auto& choice : running_) f(*choice);
        for (const auto& [order, choice] : waiting_) f(*choice);
    }
    int64_t running() const { return std::ssize(running_); }
    int64_t waiting() const { return std::ssize(waiting_); }
    const KvPool& pool() const { return *pool_; }
    KvPool& pool() { return *pool_; }
    const PrefixCache& cache() const { return cache_; }
    // Returns the choices with memory, which preempt() accepts.
    std::vector<Choice*> running_choices() const {
        std::vector<Choice*> out;
        for (const auto& choice : running_) out.push_back(choice.get());
        return out;
    }
    // Removes all idle prefixes from the cache.
    void forget_prefixes() {
        while (cache_.evict()) {
        }
    }

private:
    enum class Joins : uint8_t { now, later, no_room, never };
    Joins admit(Choice& choice, int64_t& spoken_for);
    void admit_waiting(int64_t rows);
    void plan_alone(std::vector<Choice*>& step);
    bool place(Choice& choice, int64_t rows, std::vector<Choice*>& step);
    bool make_room(int64_t pages, const Choice& choice, std::vector<Choice*>& step);
    void push_out(Choice& choice);
    Choice* last_running() const;
    void plan_prompts(std::vector<Choice*>& step, int64_t rows);
    void draft(Choice& choice, int64_t rows);
    int64_t piece(const Choice& choice, int64_t rows) const;
    int64_t end_of(const Choice& choice) const;
    bool drafts(const Choice& choice) const;
    bool keeps_states(const Choice& choice) const;

    const EngineOptions& options_;
    Drafter& drafter_;
    EngineStats& stats_;
    bool chooses_, preempted_ = false;
    int64_t plans_ = 0;
    std::unique_ptr<KvPool> pool_;
    PrefixCache cache_;
    std::vector<std::unique_ptr<Choice>> running_;
    std::map<ChoiceOrder, std::unique_ptr<Choice>> waiting_;
};

}  // namespace nibble

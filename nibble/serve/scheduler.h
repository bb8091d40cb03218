// Who runs in the next step. Answers come first, a row each and its draft; prompts share what is left of the step's
// rows, in pieces. Half of it goes to the prompt that has waited longest, half to the shortest ones, so that neither
// starves. Where running answers would feel it, a step holds so many rows of prompts at most as the caller says.
//
// Memory: a choice joins when its whole text fits beside a page for everybody who runs. When pages run out, idle pages
// of the prefix cache go first, then the choice that is last in the order of service: it waits and is computed again.
#pragma once

#include "model/language_model.h"
#include "serve/drafter.h"

#include <map>
#include <memory>
#include <vector>

namespace nibble {

class Scheduler {
public:
    // `options` are settled; they and the drafter outlive the scheduler.
    Scheduler(std::unique_ptr<KvPool> pool, const EngineOptions& options, Drafter& drafter, EngineStats& stats,
              int64_t state_copies, bool chooses);

    void wait(std::unique_ptr<Choice> choice);
    // The choices of the next step, each with `base`, `draft` and room for both. Those that cannot go on at all have
    // ended with an error. mixed_rows: of prompts at most, beside running answers.
    std::vector<Choice*> plan(int64_t mixed_rows);
    // Whether the token that a step adds to `choice` must be known before the next step can be planned.
    bool holds_up(const Choice& choice) const;
    // After a step whose tokens are known: what they leave behind for prompts to come. A later step may be under way.
    Status settle(Choice& choice);
    // Choices whose prompt others wait to go on from.
    std::vector<Choice*> forking() const;
    // Choices of a request begin behind the prompt that `leader` has read but for its last token.
    void fork(Choice& leader, std::vector<std::unique_ptr<Choice>> children);
    // Gives back what it holds; it is computed again, from the queue.
    void preempt(Choice& choice);
    // Takes out those that have finished.
    std::vector<std::unique_ptr<Choice>> take_finished();

    template <class Each>
    void each(const Each& f) const {
        for (const auto& choice : running_) f(*choice);
        for (const auto& [order, choice] : waiting_) f(*choice);
    }
    int64_t running() const { return std::ssize(running_); }
    int64_t waiting() const { return std::ssize(waiting_); }
    const KvPool& pool() const { return *pool_; }
    const PrefixCache& cache() const { return cache_; }

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
    void guess(Choice& choice, int64_t rows);
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

#include "engine/scheduler.h"

#include "kernels/attention.h"

#include <algorithm>

namespace nibble {
namespace {

constexpr int64_t state_stride = 2048;        // prompt tokens between copies of recurrent states
constexpr int64_t answer_state_stride = 256;  // answer tokens between copies
constexpr int64_t scored_rows = 64;           // rows per step of a prompt whose log-probabilities are requested
constexpr int64_t most_looked_at = 256;       // waiting choices that are examined per step

}  // namespace

Scheduler::Scheduler(std::unique_ptr<KvPool> pool, const EngineOptions& options, Drafter& drafter, EngineStats& stats,
                     int64_t state_copies, bool chooses)
    : options_(options),
      drafter_(drafter),
      stats_(stats),
      chooses_(chooses),
      pool_(std::move(pool)),
      cache_(*pool_, state_copies) {}

void Scheduler::wait(std::unique_ptr<Choice> choice) {
    const ChoiceOrder order = choice->order();
    waiting_.emplace(order, std::move(choice));
}

std::vector<std::unique_ptr<Choice>> Scheduler::take_finished() {
    std::vector<std::unique_ptr<Choice>> out;
    for (auto& choice : running_)
        if (choice->answer.finished()) out.push_back(std::move(choice));
    std::erase(running_, nullptr);
    for (auto i = waiting_.begin(); i != waiting_.end();) {
        if (i->second->answer.finished()) {
            out.push_back(std::move(i->second));
            i = waiting_.erase(i);
        } else {
            ++i;
        }
    }
    for (auto& choice : out) {
        choice->path = PrefixCache::Path();
        choice->before_draft = StateCopy();
        choice->sequence.reset();
    }
    return out;
}

void Scheduler::preempt(Choice& choice) {
    choice.path = PrefixCache::Path();
    choice.before_draft = StateCopy();
    choice.sequence.reset();
    choice.draft.clear();
    choice.predicted.clear();
    choice.base = 0;
    choice.pending = 0;
    ++choice.epoch;
    if (!choice.prompt_scored) choice.prompt_scores.clear();
    const auto at = std::ranges::find_if(running_, [&](const auto& c) { return c.get() == &choice; });
    std::unique_ptr<Choice> owned = std::move(*at);
    running_.erase(at);
    wait(std::move(owned));
}

void Scheduler::push_out(Choice& choice) {
    ++stats_.preemptions;
    ++choice.job->report.preemptions;
    preempted_ = true;
    preempt(choice);
}

// Returns the current end of a choice: for one from which others fork, the end of its prompt.
int64_t Scheduler::end_of(const Choice& choice) const {
    if (choice.forks) return choice.answer.prompt() - 1;
    // The token in flight is the last one; nothing follows.
    if (choice.pending > 0 && choice.answer.tokens_left() <= choice.pending) return choice.sequence->position();
    return choice.length();
}

bool Scheduler::make_room(int64_t pages, const Choice& choice, std::vector<Choice*>& step) {
    while (pool_->free_pages() < pages) {
        if (cache_.evict()) continue;
        Choice* const victim = last_running();
        if (victim == &choice) return false;
        std::erase(step, victim);
        push_out(*victim);
    }
    return true;
}

// Reserves memory for the tokens of a step. Returns false if the choice must wait for memory that others hold.
bool Scheduler::place(Choice& choice, int64_t rows, std::vector<Choice*>& step) {
    choice.base = rows;
    choice.wants_row = choice.sequence->position() + rows == choice.length();
    const auto needed = [&] { return choice.sequence->missing_pages(rows + std::ssize(choice.draft)); };
    if (pool_->free_pages() < needed() && !choice.draft.empty()) choice.draft.clear();
    if (!make_room(needed(), choice, step)) {
        if (running_.size() == 1) {
            choice.answer.end(fail("the KV cache is too small for the answer"));
        } else {
            push_out(choice);
        }
        return false;
    }
    const Status reserved = choice.sequence->reserve(rows + std::ssize(choice.draft));
    if (!reserved.ok()) {
        choice.answer.end(reserved.error());
        return false;
    }
    step.push_back(&choice);
    return true;
}

// Returns the prompt rows of the next step, at most `rows`: up to a position where states are kept, and in whole tiles
// if the prompt continues.
int64_t Scheduler::piece(const Choice& choice, int64_t rows) const {
    const int64_t position = choice.sequence->position(), end = end_of(choice);
    if (choice.scores_prompt()) rows = std::min(rows, scored_rows);
    int64_t to = std::min(end, position + rows);
    if (pool_->recurrent() && choice.path.attached()) {
        const int64_t last = (choice.answer.prompt() - 1) / kv_page_tokens * kv_page_tokens;
        for (const int64_t mark : {last, choice.state_mark, (position / state_stride + 1) * state_stride})
            if (mark > position && mark < choice.answer.prompt()) to = std::min(to, mark);
    }
    if (const int64_t whole = to / kv_page_tokens * kv_page_tokens; to < end && whole > position) to = whole;
    return to - position;
}

bool Scheduler::drafts(const Choice& choice) const {
    if (pool_->recurrent() && options_.drafts == 0) return false;  // there is no memory for copies of states
    // Penalties depend on the tokens before, which a device does not know if it chooses several rows at once.
    if (chooses_ && choice.answer.on_device() && choice.job->request.sampling.penalizes()) return false;
    return most_drafted(choice, options_) > 0;
}

bool Scheduler::holds_up(const Choice& choice) const {
    return !choice.answer.on_device() || choice.on_host || choice.alone || drafts(choice);
}

// After a rejected draft, a recurrent model reads the accepted tokens again; a new draft may follow at once.
void Scheduler::draft(Choice& choice, int64_t rows) {
    choice.draft.clear();
    if (!drafts(choice) || !choice.decodes() || choice.pending > 0) return;
    const int64_t room = options_.context - std::ssize(choice.answer.tokens()) - 1;
    const int64_t most = std::min(
        {most_drafted(choice, options_), room, rows, choice.answer.tokens_left() - 1, most_rewind - choice.left()});
    if (most <= 0) return;
    choice.draft = drafter_.draft(choice, most);
    choice.answer.trim(choice.draft);
}

void Scheduler::plan_prompts(std::vector<Choice*>& step, int64_t rows) {
    std::vector<Choice*> prompts;
    for (const auto& c : running_)
        if (!c->decodes() && end_of(*c) > c->sequence->position()) prompts.push_back(c.get());
    if (prompts.empty()) return;
    // The prompt that has waited longest comes first, then the shortest.
    std::ranges::sort(prompts, {}, [](const Choice* c) { return c->order(); });
    std::ranges::sort(prompts.begin() + 1, prompts.end(), {},
                      [](const Choice* c) { return std::pair(c->job->request.priority, c->left()); });
    int64_t others = 0;
    for (size_t i = 1; i < prompts.size(); ++i) others += prompts[i]->left();
    int64_t share = rows - std::min(others, rows / 2);
    for (Choice* c : prompts) {
        if (!c->sequence || rows <= 0) continue;  // preempted by an earlier one
        const int64_t taken = piece(*c, std::min(rows, share));
        if (taken > 0 && place(*c, taken, step)) rows -= taken;
        share = rows;
    }
}

// Returns true if a choice can start: its cached prefix is found, and the rest of its text fits into memory that is not
// reserved.
Scheduler::Joins Scheduler::admit(Choice& choice, int64_t& spoken_for) {
    const std::vector<int32_t>& tokens = choice.answer.tokens();
    choice.sequence.emplace(pool_->sequence());
    int64_t found = 0;
    if (options_.prefix_cache && !choice.scores_prompt()) {
        auto past = cache_.begin(tokens, choice.job->request.cache_salt, *choice.sequence);
        if (!past.ok()) {
            choice.answer.end(past.error());
            return Joins::never;
        }
        if (past->wait) {
            choice.sequence.reset();
            return Joins::later;
        }
        found = past->tokens;
        choice.path = std::move(past->path);
        choice.state_mark = past->state_tile * kv_page_tokens;
    }
    const int64_t rest = std::ssize(tokens) - found + 1;
    const int64_t needed = std::min(choice.sequence->missing_pages(rest), pool_->pages_for(rest, options_.step_rows));
    const int64_t others = spoken_for + running() * pool_->pages_for(1, 1);
    if (!running_.empty() && needed + others > pool_->free_pages() + cache_.idle_pages()) {
        choice.path = PrefixCache::Path();
        choice.sequence.reset();
        return Joins::no_room;
    }
    spoken_for += needed;
    if (options_.prefix_cache) {
        stats_.prefix_queries += std::ssize(tokens);
        stats_.prefix_hits += found;
    }
    if (choice.index == 0 && choice.answer.generated() == 0) choice.job->report.cached_tokens = found;
    running_.push_back(std::move(waiting_.extract(choice.order()).mapped()));
    return Joins::now;
}

void Scheduler::admit_waiting(int64_t rows) {
    int64_t spoken_for = 0;
    stats_.deferred = 0;
    for (const auto& c : running_)
        if (!c->decodes()) spoken_for += c->sequence->missing_pages(c->left());
    std::vector<Choice*> first;  // the first of the waiting choices
    for (const auto& [order, choice] : waiting_) {
        if (std::ssize(first) >= most_looked_at) break;
        first.push_back(choice.get());
    }
    for (Choice* choice : first) {
        if (running() >= options_.sequences || rows <= 0) break;
        if (choice->answer.finished() || choice->alone) continue;
        const Joins joins = admit(*choice, spoken_for);
        if (joins == Joins::no_room) break;
        if (joins == Joins::now) rows -= std::min(rows, choice->left());
        if (joins == Joins::later) ++stats_.deferred;
    }
}

// Plans a step with only one of the choices that may have made a step fail.
void Scheduler::plan_alone(std::vector<Choice*>& step) {
    Choice* first = nullptr;
    const auto before = [](const Choice& a, const Choice& b) {
        return a.sequence.has_value() != b.sequence.has_value() ? a.sequence.has_value() : a.order() < b.order();
    };
    each([&](Choice& c) {
        if (c.alone && !c.answer.finished() && (!first || before(c, *first))) first = &c;
    });
    if (!first) return;
    while (!first->sequence) {
        int64_t spoken_for = 0;
        const Joins joins = admit(*first, spoken_for);
        if (joins == Joins::later || joins == Joins::never) return;
        if (joins == Joins::no_room) push_out(*last_running());
    }
    const int64_t rows = first->decodes() ? first->left() : piece(*first, options_.step_rows);
    first->draft.clear();
    place(*first, rows, step);
}

Choice* Scheduler::last_running() const {
    const auto last = std::ranges::max_element(running_, {}, [](const auto& c) { return c->order(); });
    return last == running_.end() ? nullptr : last->get();
}

std::vector<Choice*> Scheduler::plan(int64_t mixed_rows) {
    std::vector<Choice*> step;
    preempted_ = false;
    plan_alone(step);
    if (!step.empty()) return step;
    if (options_.preempt_every > 0 && ++plans_ % options_.preempt_every == 0 && running() > 1)
        push_out(*last_running());
    std::vector<Choice*> answers;
    for (const auto& c : running_)
        if (c->decodes() && end_of(*c) > c->sequence->position()) answers.push_back(c.get());
    std::ranges::sort(answers, {}, [](const Choice* c) { return c->order(); });
    int64_t rows = options_.step_rows, drafts = options_.sequences;
    for (size_t i = 0; i < answers.size(); ++i) {
        Choice& c = *answers[i];
        if (!c.sequence) continue;  // preempted by an earlier one
        draft(c, std::min(drafts, rows - std::ssize(answers) + static_cast<int64_t>(i)));
        if (!place(c, c.left(), step)) continue;
        rows -= c.base + std::ssize(c.draft);
        drafts -= std::ssize(c.draft);
    }
    if (!step.empty()) rows = std::min(rows, mixed_rows);
    if (!preempted_) admit_waiting(rows);
    plan_prompts(step, rows);
    return step;
}

std::vector<Choice*> Scheduler::forking() const {
    std::vector<Choice*> out;
    for (const auto& c : running_)
        if (c->forks && c->sequence->position() == end_of(*c) && !c->answer.finished()) out.push_back(c.get());
    return out;
}

bool Scheduler::keeps_states(const Choice& choice) const {
    if (!pool_->recurrent() || !choice.path.attached()) return false;
    const int64_t position = choice.sequence->position(), prompt = choice.answer.prompt();
    if (position % kv_page_tokens != 0) return false;
    if (position >= prompt) return position % answer_state_stride == 0;
    return position == choice.state_mark || position % state_stride == 0 ||
           position == (prompt - 1) / kv_page_tokens * kv_page_tokens;
}

Status Scheduler::settle(Choice& choice) {
    if (!choice.path.attached()) return Ok{};
    cache_.extend(choice.path, choice.answer.tokens(), *choice.sequence);
    return keeps_states(choice) ? cache_.keep_states(choice.path, *choice.sequence) : Status(Ok{});
}

void Scheduler::fork(Choice& leader, std::vector<std::unique_ptr<Choice>> children) {
    leader.forks = false;
    for (auto& child : children) {
        if (running() < options_.sequences) {
            const int64_t pages = pool_->pages_for(1, 1);
            while (pool_->free_pages() < pages && cache_.evict()) {
            }
            if (auto sequence = leader.sequence->fork(); sequence.ok()) {
                child->sequence.emplace(*std::move(sequence));
                child->path = cache_.share(leader.path);
                running_.push_back(std::move(child));
                continue;
            }
        }
        wait(std::move(child));
    }
}

}  // namespace nibble

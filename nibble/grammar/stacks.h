// Where a text stands in a pushdown automaton: every reading of the text is a stack of states. Readings share their
// lower parts; a copy costs as much as the distinct entries of all stacks.
#pragma once

#include "grammar/automaton.h"

#include <algorithm>
#include <cstdint>
#include <span>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace nibble {

// A state whose rule is being read, and the entry of the stack below it.
struct StackTop {
    uint32_t state = 0, below = 0;
    bool operator==(const StackTop&) const = default;
};
struct StackEntry {
    uint32_t state = 0, below = 0;
    uint32_t depth = 0;  // entries down to the bottom, which has depth 0
};
constexpr uint32_t stack_bottom = 0;  // the entry below all others

// Follows calls and ends of rules from some states until bytes are needed. `Store`: entry(index); push(state, below),
// which returns an index; and deep(below): calls from there lead to shallow rules.
template <class Store>
struct Settling {
    const PushdownAutomaton& automaton;
    Store& store;
    std::vector<StackTop>& tops;  // new ones are appended; [first, size) are compared
    size_t first;
    size_t max_live;
    bool ended = false;  // the bottom was reached: the text is complete
    bool too_many = false;
    size_t work = 0;
    std::vector<StackTop> pending = {}, seen = {};

    void add_top(StackTop top) {
        work += tops.size() - first;
        for (size_t i = first; i < tops.size(); ++i)
            if (tops[i] == top) return;
        if (tops.size() - first >= max_live)
            too_many = true;
        else
            tops.push_back(top);
    }

    void settle(StackTop from) {
        ++work;
        if (automaton.simple(from.state)) return add_top(from);
        pending.assign(1, from);
        while (!pending.empty() && !too_many) {
            const StackTop at = pending.back();
            pending.pop_back();
            work += 1 + seen.size();
            if (std::find(seen.begin(), seen.end(), at) != seen.end()) continue;
            if (seen.size() > 8 * max_live) {
                too_many = true;
                return;
            }
            seen.push_back(at);
            if (automaton.has_edges(at.state)) add_top(at);
            for (const auto& call : automaton.calls_of(at.state)) {
                if (call.back == PushdownAutomaton::none)
                    pending.push_back({call.start, at.below});
                else
                    pending.push_back(
                        {store.deep(at.below) ? call.shallow : call.start, store.push(call.back, at.below)});
            }
            if (!automaton.accepts[at.state]) continue;
            if (at.below == stack_bottom) {
                ended = true;
            } else {
                const StackEntry& entry = store.entry(at.below);
                pending.push_back({entry.state, entry.below});
            }
        }
    }
};

class GrammarStacks {
public:
    // At the start of `automaton`, which must outlive it.
    GrammarStacks(const PushdownAutomaton& automaton, int max_depth, size_t max_live);

    // False, and nothing changes, where no reading goes on with the byte, or where more than max_live would.
    bool step(uint8_t byte);
    bool step(std::string_view bytes);
    bool may_end() const { return may_end_; }
    bool finished() const { return may_end_ && tops_.empty(); }
    // The readings; their states have at least one byte to go on with.
    const std::vector<StackTop>& tops() const { return tops_; }
    const StackEntry& entry(uint32_t index) const { return entries_[index]; }
    size_t entries() const { return entries_.size(); }
    uint32_t max_depth() const { return max_depth_; }
    size_t max_live() const { return max_live_; }

private:
    friend struct Settling<GrammarStacks>;
    uint32_t push(uint32_t state, uint32_t below);
    bool deep(uint32_t below) const { return entries_[below].depth >= max_depth_; }
    bool step_once(uint8_t byte);

    const PushdownAutomaton* automaton_;
    uint32_t max_depth_;
    size_t max_live_;
    std::vector<StackEntry> entries_;  // every (state, below) once
    std::unordered_map<uint64_t, uint32_t> places_;
    std::vector<StackTop> tops_;
    bool may_end_ = false;
};

}  // namespace nibble

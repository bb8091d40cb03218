// Where a text stands in a pushdown automaton. A reading of the text is a state and a stack of states to return to. An
// ambiguous grammar gives a text many readings, so that all stacks of one state are kept as a set: a node. A node says
// whether the empty stack is in the set, and for each state that lies on top of some stacks, the node of what lies
// below it. Equal nodes are one, and stacks share their lower parts. So a position has at most one top for each state
// of the automaton, however many readings there are.
#pragma once

#include "grammar/automaton.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <span>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace nibble {

// A state, and the node of the stacks below it.
struct StackTop {
    uint32_t state = 0, below = 0;
    auto operator<=>(const StackTop&) const = default;
};
constexpr uint32_t stack_bottom = 0;  // the node of the empty stack alone

// Adds to `out` what `at` becomes without a byte: calls, and returns where its rule may end; `ended`: the text is
// complete there. `Store`: ends(node); links(node); push(state, below), which returns a node; and deep(below): calls
// from there lead to shallow rules.
template <class Store>
void follow_state(const PushdownAutomaton& automaton, Store& store, StackTop at, bool& ended,
                  std::vector<StackTop>& out) {
    for (const auto& call : automaton.calls_of(at.state)) {
        if (call.back == PushdownAutomaton::none)
            out.push_back({call.start, at.below});
        else
            out.push_back({store.deep(at.below) ? call.shallow : call.start, store.push(call.back, at.below)});
    }
    if (!automaton.accepts[at.state]) return;
    ended |= store.ends(at.below);
    for (const StackTop link : store.links(at.below)) out.push_back(link);
}

class GrammarStacks {
public:
    // At the start of `automaton`, which must outlive it. `max_live`: the most tops that are kept after a text.
    GrammarStacks(const PushdownAutomaton& automaton, int max_depth, size_t max_live);

    // False, and nothing changes, where no reading goes on with the bytes. Readings beyond the limits are given up
    // after a text that was taken, deepest first; at least one stays.
    bool step(std::string_view bytes);
    bool may_end() const { return may_end_; }
    bool finished() const { return may_end_ && tops_.empty(); }
    // The readings, one for each state; a state has at least one byte to go on with.
    const std::vector<StackTop>& tops() const { return tops_; }
    uint32_t max_depth() const { return max_depth_; }

    size_t nodes() const { return nodes_.size(); }
    bool ends(uint32_t node) const { return nodes_[node].ends; }
    std::span<const StackTop> links(uint32_t node) const {
        return {links_.data() + nodes_[node].first, nodes_[node].count};
    }
    uint32_t depth(uint32_t node) const { return nodes_[node].least_depth; }  // of the shortest stack

private:
    struct Node {
        size_t first = 0;  // of its links
        uint32_t count = 0;
        uint32_t least_depth = 0, most_depth = 0;
        bool ends = false;
    };

    template <class Store>
    friend void follow_state(const PushdownAutomaton&, Store&, StackTop, bool&, std::vector<StackTop>&);
    uint32_t push(uint32_t state, uint32_t below);
    bool deep(uint32_t below) const { return nodes_[below].least_depth >= max_depth_; }

    bool step_once(uint8_t byte);
    void settle(std::vector<StackTop> pending);
    uint32_t node(bool ends, std::span<const StackTop> links);  // sorted links, one for each state
    uint32_t unite(uint32_t a, uint32_t b);
    uint32_t without_deep(uint32_t node, uint32_t most, std::map<StackTop, uint32_t>& known);
    uint32_t shortest(uint32_t node);
    void prune();
    void collect();

    const PushdownAutomaton* automaton_;
    uint32_t max_depth_;
    size_t max_live_;
    std::vector<Node> nodes_;
    std::vector<StackTop> links_;
    std::unordered_map<uint64_t, uint32_t> single_;  // nodes of one link, without the empty stack
    std::map<std::pair<bool, std::vector<StackTop>>, uint32_t> others_;
    std::unordered_map<uint64_t, uint32_t> united_;
    std::vector<StackTop> tops_;
    bool may_end_ = false;
};

}  // namespace nibble

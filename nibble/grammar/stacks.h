// The position of a text in a pushdown automaton. A reading of the text is a state and a stack of return states.
// Ambiguous grammars give a text many readings, so all stacks of one state are stored as a set, called a node. A node
// records whether the empty stack is in the set and, for each state on top of some stacks, the node of the stacks below
// it. Equal nodes are stored once and stacks share their lower parts. A position therefore has at most one top per
// automaton state, however many readings exist.
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

// A state and the node of the stacks below it.
struct StackTop {
    uint32_t state = 0, below = 0;
    auto operator<=>(const StackTop&) const = default;
};
constexpr uint32_t stack_bottom = 0;  // the node with only the empty stack

// Adds to `out` the states reached from `at` without a byte: calls, and returns if its rule may end. Sets `ended` if
// the text is complete there. `Store` provides ends(node), links(node), push(state, below), which returns a node, and
// deep(below): whether calls from there go to shallow rules.
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
    // Starts at the beginning of `automaton`, which must outlive this object. `max_live` limits the tops kept after a
    // text.
    GrammarStacks(const PushdownAutomaton& automaton, int max_depth, size_t max_live);

    // Appends bytes. Returns false without a change if no reading continues with them. Afterwards drops readings beyond
    // the limits, deepest first; at least one remains.
    bool step(std::string_view bytes);
    bool may_end() const { return may_end_; }
    bool finished() const { return may_end_ && tops_.empty(); }
    // The readings, one per state. Every state has at least one outgoing byte.
    const std::vector<StackTop>& tops() const { return tops_; }
    uint32_t max_depth() const { return max_depth_; }

    size_t nodes() const { return nodes_.size(); }
    bool ends(uint32_t node) const { return nodes_[node].ends; }
    std::span<const StackTop> links(uint32_t node) const {
        return {links_.data() + nodes_[node].first, nodes_[node].count};
    }
    uint32_t depth(uint32_t node) const { return nodes_[node].least_depth; }  // depth of the shortest stack

private:
    struct Node {
        size_t first = 0;  // index of its first link
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
    uint32_t node(bool ends, std::span<const StackTop> links);  // links are sorted, one per state
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
    std::unordered_map<uint64_t, uint32_t> single_;  // nodes with one link and without the empty stack
    std::map<std::pair<bool, std::vector<StackTop>>, uint32_t> others_;
    std::unordered_map<uint64_t, uint32_t> united_;
    std::vector<StackTop> tops_;
    bool may_end_ = false;
};

}  // namespace nibble

// The pushdown automaton of a grammar. Every rule is a deterministic automaton over bytes and calls of rules; a stack
// of return states connects them. An accepting end can be reached from every state.
//
// Nesting is limited without dead ends. A rule that recursion could nest without bound has a shallow twin, which keeps
// only calls that are certain to end. At the depth limit, calls go to the twins.
#pragma once

#include <array>
#include <bitset>
#include <cstdint>
#include <span>
#include <vector>

namespace nibble {

using ByteSet = std::bitset<256>;

struct PushdownAutomaton {
    static constexpr uint32_t none = UINT32_MAX;

    struct Edge {
        uint8_t first = 0, last = 0;  // bytes
        uint32_t to = 0;
    };
    struct Call {
        uint32_t start = 0;    // first state of the rule
        uint32_t shallow = 0;  // first state of its shallow twin; equals `start` if it needs none
        uint32_t back = none;  // return state; none: the caller ends there too
    };

    std::vector<uint32_t> edge_begin, call_begin;  // [states + 1]
    std::vector<Edge> edges;                       // sorted and disjoint in a state
    std::vector<Call> calls;
    std::vector<uint8_t> accepts;   // [states]: the rule may end here
    std::vector<uint32_t> rule_of;  // [states]
    std::vector<ByteSet> follow;    // [rules]: bytes that can follow the end of the rule
    uint32_t start = 0;

    size_t states() const { return accepts.size(); }
    std::span<const Edge> edges_of(uint32_t state) const {
        return {edges.data() + edge_begin[state], edges.data() + edge_begin[state + 1]};
    }
    std::span<const Call> calls_of(uint32_t state) const {
        return {calls.data() + call_begin[state], calls.data() + call_begin[state + 1]};
    }
    bool has_edges(uint32_t state) const { return edge_begin[state] != edge_begin[state + 1]; }
    // Returns true if only bytes lead on: no accept and no call.
    bool simple(uint32_t state) const { return !accepts[state] && call_begin[state] == call_begin[state + 1]; }

    uint32_t next(uint32_t state, uint8_t byte) const {
        const Edge* low = edges.data() + edge_begin[state];
        const Edge* high = edges.data() + edge_begin[state + 1];
        while (high - low > 4) {
            const Edge* middle = low + (high - low) / 2;
            (middle->first <= byte ? low : high) = middle;
        }
        for (; low < high; ++low)
            if (byte >= low->first && byte <= low->last) return low->to;
        return none;
    }
};

}  // namespace nibble

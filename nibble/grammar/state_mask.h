// Which tokens the rule of a state decides alone. The walk over a tree of tokens that finds them also serves with a
// whole stack.
#pragma once

#include "grammar/grammar.h"
#include "grammar/stacks.h"
#include "grammar/vocabulary.h"

#include <cstdint>
#include <span>
#include <vector>

namespace nibble {

struct StateMask {
    size_t plain = 0;             // plain tokens with at most so many characters are allowed
    std::vector<uint32_t> few;    // tokens that are allowed, beside those; or
    std::vector<uint32_t> words;  // the same as bits, where they are many
    // Texts that may follow the end of the rule, with the tokens that end with such a text: allowed where the stack
    // says so.
    TokenTree rest;
    uint32_t depth = 0;  // entries that the tokens push at most
    size_t bytes = 0;    // memory

    void add_to(std::span<uint32_t> allowed, const GrammarVocabulary& vocabulary) const;
};

// Characters that every plain text may go on with, from `state`: 1 + those of the state behind, where one state is
// behind all of them. At most `most`. `closed`: no plain character is possible behind these, nor the end of the rule.
size_t plain_run(const PushdownAutomaton& automaton, uint32_t state, size_t most, bool& closed);

StateMask find_state_mask(const PushdownAutomaton& automaton, const GrammarVocabulary& vocabulary, uint32_t state,
                          const GrammarLimits& limits);

// Walks a tree with the readings of a text and calls allow(tokens) for nodes that a reading reaches.
class TokenWalk {
public:
    // `stacks`: whose entries `below` of the first tops refer to; null: there is only the bottom.
    TokenWalk(const PushdownAutomaton& automaton, const GrammarStacks* stacks, const GrammarLimits& limits);

    // Readings before the first byte: `top` itself; or what follows the end of the rule above `below`.
    void start_at(StackTop top);
    void start_behind(uint32_t below);

    // `allow`: the tokens of a node that was reached. `at_end`: called with the index of a node where the bottom was
    // reached: nothing but the tokens below the node is undecided.
    template <class Allow, class AtEnd>
    void run(const TokenTree& tree, Allow allow, AtEnd at_end) {
        levels_.resize(1);
        for (uint32_t i = 0; i < tree.nodes.size();) {
            const TokenTree::Node& node = tree.nodes[i];
            while (levels_.size() > node.depth) leave();
            bool ended = false;
            if (!enter(node.byte, ended)) {
                if (spent()) return;
                i = node.next;
                continue;
            }
            if (node.first != node.last)
                allow(std::span<const uint32_t>(tree.tokens.data() + node.first, tree.tokens.data() + node.last));
            if (ended) at_end(i);
            ++i;
        }
        while (levels_.size() > 1) leave();
    }

    const StackEntry& entry(uint32_t index) const {
        return index < base_ ? stacks_->entry(index) : entries_[index - base_];
    }
    uint32_t push(uint32_t state, uint32_t below);
    bool deep(uint32_t below) const { return entry(below).depth >= max_depth_; }
    uint32_t deepest() const { return deepest_; }

private:
    struct Level {
        size_t first = 0, last = 0;  // of tops_
        size_t entries = 0;
    };
    bool enter(uint8_t byte, bool& ended);
    void leave();
    // A walk that takes too long ends early: the tokens that it did not see are not allowed.
    bool spent() const { return work_ > 20'000'000; }

    const PushdownAutomaton& automaton_;
    const GrammarStacks* stacks_;
    uint32_t base_, max_depth_, deepest_ = 0;
    size_t max_live_, work_ = 0;
    std::vector<StackEntry> entries_;
    std::vector<StackTop> tops_;
    std::vector<Level> levels_;
    std::vector<StackTop> pending_, seen_;
};

}  // namespace nibble

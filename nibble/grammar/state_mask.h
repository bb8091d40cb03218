// Which tokens the rule of a state decides alone. The walk over a tree of tokens that finds them also serves with a
// whole stack.
#pragma once

#include "grammar/grammar.h"
#include "grammar/stacks.h"
#include "grammar/vocabulary.h"

#include <cstdint>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

namespace nibble {

// What a walk took. `coarse`: it followed only few readings, because the grammar is so ambiguous.
struct WalkCost {
    size_t steps = 0;
    bool coarse = false;

    void add(const WalkCost& other) {
        steps += other.steps;
        coarse |= other.coarse;
    }
    // Of all walks for one mask: enough, where the grammar is so ambiguous.
    bool enough() const { return coarse && steps > 10'000'000; }
};

struct StateMask {
    size_t plain = 0;             // plain tokens with at most so many characters are allowed
    std::vector<uint32_t> few;    // tokens that are allowed, beside those; or
    std::vector<uint32_t> words;  // the same as bits, where they are many
    // Texts that may follow the end of the rule, with the tokens that end with such a text: allowed where the stack
    // says so.
    TokenTree rest;
    uint32_t depth = 0;  // entries that the tokens push at most
    WalkCost cost;
    size_t bytes = 0;  // memory

    void add_to(std::span<uint32_t> allowed, const GrammarVocabulary& vocabulary) const;
};

// Characters that every plain text may go on with, from `state`: 1 + those of the state behind, where one state is
// behind all of them. At most `most`. `closed`: no plain character is possible behind these, nor the end of the rule.
size_t plain_run(const PushdownAutomaton& automaton, uint32_t state, size_t most, bool& closed);

StateMask find_state_mask(const PushdownAutomaton& automaton, const GrammarVocabulary& vocabulary, uint32_t state,
                          const GrammarLimits& limits);

// Numbers of keys: a list while there are few, else a table.
class SmallIndex {
public:
    // The key's value, and whether it is new and got `value`.
    std::pair<uint32_t, bool> insert(StackTop key, uint32_t value) {
        if (list_.size() < most_listed) {
            for (const auto& [known, found] : list_)
                if (known == key) return {found, false};
            list_.emplace_back(key, value);
            return {value, true};
        }
        if (table_.empty())
            for (const auto& [known, found] : list_) table_.emplace(number_of(known), found);
        const auto [it, fresh] = table_.try_emplace(number_of(key), value);
        return {it->second, fresh};
    }
    size_t size() const { return table_.empty() ? list_.size() : table_.size(); }
    void clear() {
        list_.clear();
        table_.clear();
    }

private:
    static constexpr size_t most_listed = 24;
    static uint64_t number_of(StackTop key) { return uint64_t(key.state) << 32 | key.below; }
    std::vector<std::pair<StackTop, uint32_t>> list_;
    std::unordered_map<uint64_t, uint32_t> table_;
};

// Walks a tree with the readings of a text and calls allow(tokens) for nodes that a reading reaches.
class TokenWalk {
public:
    // `stacks`: whose nodes `below` of the first tops refer to; null: there is only the bottom.
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

    // Nodes: those of the stacks, then own ones, each of a single stack above another node.
    uint32_t depth(uint32_t node) const { return node < base_ ? stacks_->depth(node) : entries_[node - base_].depth; }
    bool ends(uint32_t node) const { return node < base_ ? stacks_->ends(node) : !stacks_ && node == stack_bottom; }
    std::span<const StackTop> links(uint32_t node) const {
        if (node < base_) return stacks_->links(node);
        return {&entries_[node - base_].link, ends(node) ? 0u : 1u};
    }
    uint32_t push(uint32_t state, uint32_t below);
    bool deep(uint32_t below) const { return depth(below) >= max_depth_; }
    uint32_t deepest() const { return deepest_; }
    WalkCost cost() const { return {work_, max_live_ == few_live}; }

private:
    struct Entry {
        StackTop link;
        uint32_t depth = 0;
    };
    struct Level {
        size_t first = 0, last = 0;  // of tops_
        size_t entries = 0;
    };
    // Adds to the tops what `from` becomes without a byte, as far as max_live_ tops allow.
    void settle(StackTop from, size_t first, bool& ended);
    bool enter(uint8_t byte, bool& ended);
    void leave();
    // Where bytes take long because they have many readings, few readings are followed from then on: all tokens that
    // are found stay allowed, others may be missing.
    void limit_readings() {
        if (work_ > 100'000 && work_ > 100 * bytes_) max_live_ = few_live;
    }
    // A walk that takes too long ends early: the tokens that it did not see are not allowed.
    bool spent() const { return work_ > 20'000'000; }

    const PushdownAutomaton& automaton_;
    const GrammarStacks* stacks_;
    uint32_t base_, max_depth_, deepest_ = 0;
    static constexpr size_t few_live = 8;
    size_t max_live_, work_ = 0, bytes_ = 0;
    std::vector<Entry> entries_;
    std::vector<StackTop> tops_;
    std::vector<Level> levels_;
    std::vector<StackTop> pending_;
    SmallIndex seen_, pushed_;  // of this byte
};

}  // namespace nibble

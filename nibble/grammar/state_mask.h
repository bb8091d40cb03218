// Finds the tokens that the rule of a state decides alone. The traversal of the token tree is also used with a whole
// stack.
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

// Cost of traversals. `coarse`: only few readings were followed because the grammar is very ambiguous.
struct TraversalCost {
    size_t steps = 0;
    bool coarse = false;

    void add(const TraversalCost& other) {
        steps += other.steps;
        coarse |= other.coarse;
    }
    // Returns true if the traversals for one mask should stop early because the grammar is very ambiguous.
    bool enough() const { return coarse && steps > 10'000'000; }
};

struct StateMask {
    size_t plain = 0;             // plain tokens with at most this many characters are allowed
    std::vector<uint32_t> few;    // further allowed tokens, as a list, or
    std::vector<uint32_t> words;  // the tokens as bits if there are many
    // Texts that may follow the end of the rule, with the tokens that end with such a text. The stack decides whether
    // they are allowed.
    TokenTree rest;
    uint32_t depth = 0;  // maximum number of entries that a token pushes
    TraversalCost cost;
    size_t bytes = 0;  // memory of this mask

    void add_to(std::span<uint32_t> allowed, const GrammarVocabulary& vocabulary) const;
};

// Returns the number of plain characters, at most `most`, that may follow `state` whatever they are, as long as each
// leads to one unique state. `closed`: after them neither a plain character nor the end of the rule is possible.
size_t plain_run(const PushdownAutomaton& automaton, uint32_t state, size_t most, bool& closed);

StateMask find_state_mask(const PushdownAutomaton& automaton, const GrammarVocabulary& vocabulary, uint32_t state,
                          const GrammarLimits& limits);

// Maps keys to numbers: a list for few keys, else a table.
class SmallIndex {
public:
    // Returns the key's value, and whether it was new and got `value`.
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

// Traverses a token tree with the readings of a text and calls allow(tokens) for each node that a reading reaches.
class TokenTraversal {
public:
    // `stacks` owns the nodes `below` of the first tops; null: only the bottom exists.
    TokenTraversal(const PushdownAutomaton& automaton, const GrammarStacks* stacks, const GrammarLimits& limits);

    // Sets the readings before the first byte: `top`, or what follows the end of a rule above `below`.
    void start_at(StackTop top);
    void start_after(uint32_t below);

    // `allow` gets the tokens of each reached node. `at_end` gets the index of a node at which the bottom was reached;
    // only tokens below that node are undecided.
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

    // Nodes: those of the stacks, then own nodes with a single stack each.
    uint32_t depth(uint32_t node) const { return node < base_ ? stacks_->depth(node) : entries_[node - base_].depth; }
    bool ends(uint32_t node) const { return node < base_ ? stacks_->ends(node) : !stacks_ && node == stack_bottom; }
    std::span<const StackTop> links(uint32_t node) const {
        if (node < base_) return stacks_->links(node);
        return {&entries_[node - base_].link, ends(node) ? 0u : 1u};
    }
    uint32_t push(uint32_t state, uint32_t below);
    bool deep(uint32_t below) const { return depth(below) >= max_depth_; }
    uint32_t deepest() const { return deepest_; }
    TraversalCost cost() const { return {work_, max_live_ == few_live}; }

private:
    struct Entry {
        StackTop link;
        uint32_t depth = 0;
    };
    struct Level {
        size_t first = 0, last = 0;  // range in tops_
        size_t entries = 0;
    };
    // Adds to the tops the states reached from `from` without a byte, up to max_live_ tops.
    void settle(StackTop from, size_t first, bool& ended);
    bool enter(uint8_t byte, bool& ended);
    void leave();
    // Follows only few readings once bytes become expensive. Tokens found stay allowed; others may be missing.
    void limit_readings() {
        if (work_ > 100'000 && work_ > 100 * bytes_) max_live_ = few_live;
    }
    // Returns true if the traversal must end early. Tokens not visited are then not allowed.
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
    SmallIndex seen_, pushed_;  // for the current byte
};

}  // namespace nibble

#include "grammar/state_mask.h"

#include <algorithm>
#include <utility>

namespace nibble {
namespace {

// Returns the state after any plain character from `state`; none if it is not unique.
uint32_t after_plain(const PushdownAutomaton& a, uint32_t state) {
    constexpr uint32_t none = PushdownAutomaton::none;
    // Returns the state after every byte of [first, last], if it is unique.
    const auto all = [&](uint32_t from, int first, int last) {
        if (from == none) return none;
        uint32_t to = none;
        for (const auto& e : a.edges_of(from)) {
            if (e.last < first || e.first > last) continue;
            if (e.first > first || (to != none && e.to != to)) return none;
            to = e.to;
            first = e.last + 1;
            if (first > last) return to;
        }
        return none;
    };
    const uint32_t to = all(state, 0x23, 0x5B);
    if (to == none || all(state, 0x20, 0x21) != to || all(state, 0x5D, 0x7F) != to) return none;
    const uint32_t one = all(state, 0xC2, 0xDF);
    const uint32_t two = all(state, 0xE1, 0xEC);
    const uint32_t three = all(state, 0xF1, 0xF3);
    const auto more = [&](uint32_t from, int n) {
        for (; n > 0; --n) from = all(from, 0x80, 0xBF);
        return from;
    };
    if (more(one, 1) != to || more(two, 2) != to || more(three, 3) != to) return none;
    if (more(all(a.next(state, 0xE0), 0xA0, 0xBF), 1) != to || more(all(a.next(state, 0xED), 0x80, 0x9F), 1) != to)
        return none;
    if (more(all(state, 0xEE, 0xEF), 2) != to) return none;
    if (more(all(a.next(state, 0xF0), 0x90, 0xBF), 2) != to || more(all(a.next(state, 0xF4), 0x80, 0x8F), 2) != to)
        return none;
    return to;
}

void set_bit(std::span<uint32_t> words, uint32_t token) { words[token / 32] |= 1u << (token % 32); }

}  // namespace

size_t plain_run(const PushdownAutomaton& automaton, uint32_t state, size_t most, bool& closed) {
    closed = false;
    size_t n = 0;
    for (; n < most; ++n) {
        const uint32_t next = after_plain(automaton, state);
        if (next == PushdownAutomaton::none) break;
        state = next;
    }
    if (n == 0 || !automaton.simple(state)) return n;
    closed = true;
    for (const auto& e : automaton.edges_of(state))
        closed &= (e.first == e.last && (e.first == '"' || e.first == '\\')) || e.last < 0x20;
    return n;
}

void StateMask::add_to(std::span<uint32_t> allowed, const GrammarVocabulary& vocabulary) const {
    if (plain > 0) {
        const size_t most = vocabulary.most_characters();
        const auto mask = vocabulary.plain_up_to(std::min(plain, most));
        for (size_t i = 0; i < mask.size(); ++i) allowed[i] |= mask[i];
        for (const auto& [n, token] : vocabulary.long_plain()) {
            if (n > plain) break;
            set_bit(allowed, token);
        }
    }
    for (size_t i = 0; i < words.size(); ++i) allowed[i] |= words[i];
    for (const uint32_t token : few) set_bit(allowed, token);
}

TokenTraversal::TokenTraversal(const PushdownAutomaton& automaton, const GrammarStacks* stacks,
                               const GrammarLimits& limits)
    : automaton_(automaton),
      stacks_(stacks),
      base_(stacks ? uint32_t(stacks->nodes()) : 0),
      max_depth_(uint32_t(limits.max_stack)),
      max_live_(limits.max_live) {
    if (!stacks) entries_.emplace_back();
    levels_.push_back({0, 0, entries_.size()});
}

uint32_t TokenTraversal::push(uint32_t state, uint32_t below) {
    const uint32_t own = depth(below) + 1;
    deepest_ = std::max(deepest_, own);
    ++work_;
    const auto [node, fresh] = pushed_.insert({state, below}, base_ + uint32_t(entries_.size()));
    if (fresh) entries_.push_back({{state, below}, own});
    return node;
}

void TokenTraversal::start_at(StackTop top) {
    tops_.push_back(top);
    levels_[0] = {0, tops_.size(), entries_.size()};
}

void TokenTraversal::start_after(uint32_t below) {
    bool ended = false;
    const std::vector<StackTop> starts(links(below).begin(), links(below).end());
    for (const StackTop start : starts) settle(start, 0, ended);
    levels_[0] = {0, tops_.size(), entries_.size()};
}

void TokenTraversal::settle(StackTop from, size_t first, bool& ended) {
    pending_.assign(1, from);
    while (!pending_.empty()) {
        const StackTop at = pending_.back();
        pending_.pop_back();
        ++work_;
        if (seen_.size() > 8 * max_live_) return;
        if (!seen_.insert(at, 0).second) continue;
        if (automaton_.has_edges(at.state) && tops_.size() - first < max_live_) tops_.push_back(at);
        if (!automaton_.simple(at.state)) follow_state(automaton_, *this, at, ended, pending_);
    }
}

bool TokenTraversal::enter(uint8_t byte, bool& ended) {
    const Level from = levels_.back();
    const size_t first = tops_.size();
    seen_.clear();
    pushed_.clear();
    ++work_;
    ++bytes_;
    limit_readings();
    for (size_t i = from.first; i < from.last && !spent(); ++i) {
        const StackTop top = tops_[i];
        if (const uint32_t to = automaton_.next(top.state, byte); to != PushdownAutomaton::none)
            settle({to, top.below}, first, ended);
    }
    if (spent() || (tops_.size() == first && !ended)) {
        tops_.resize(first);
        entries_.resize(from.entries);
        return false;
    }
    levels_.push_back({first, tops_.size(), entries_.size()});
    return true;
}

void TokenTraversal::leave() {
    const Level level = levels_.back();
    levels_.pop_back();
    tops_.resize(level.first);
    entries_.resize(levels_.back().entries);
}

StateMask find_state_mask(const PushdownAutomaton& automaton, const GrammarVocabulary& vocabulary, uint32_t state,
                          const GrammarLimits& limits) {
    StateMask out;
    bool closed = false;
    out.plain = plain_run(automaton, state, vocabulary.longest_plain(), closed);
    const bool all_plain = out.plain == vocabulary.longest_plain();
    std::vector<uint32_t> allowed(vocabulary.words(), 0);
    std::vector<std::pair<uint32_t, uint32_t>> rests;  // (token, position in its text after the end of the rule)
    size_t count = 0;
    const ByteSet& follow = automaton.follow[automaton.rule_of[state]];
    TokenTraversal traversal(automaton, nullptr, limits);
    traversal.start_at({state, stack_bottom});
    const auto over = [&](const TokenTree& tree) {
        traversal.run(
            tree,
            [&](std::span<const uint32_t> tokens) {
                for (const uint32_t t : tokens) set_bit(allowed, t);
                count += tokens.size();
            },
            [&](uint32_t node) {
                const uint32_t depth = tree.nodes[node].depth;
                for (uint32_t i = node + 1; i < tree.nodes[node].next; i = tree.nodes[i].next) {  // its children
                    if (!follow[tree.nodes[i].byte]) continue;
                    // The tokens of the child and its descendants are contiguous.
                    const uint32_t next = tree.nodes[i].next;
                    const size_t last = next < tree.nodes.size() ? tree.nodes[next].first : tree.tokens.size();
                    for (size_t t = tree.nodes[i].first; t < last; ++t) rests.emplace_back(tree.tokens[t], depth);
                }
            });
    };
    over(vocabulary.others());
    if (!all_plain && !closed) over(vocabulary.plain());
    out.depth = traversal.deepest();
    out.cost = traversal.cost();

    std::vector<std::pair<std::string, uint32_t>> texts;
    for (const auto& [token, from] : rests) {
        if (allowed[token / 32] >> (token % 32) & 1) continue;
        texts.emplace_back(vocabulary.text(token).substr(from), token);
    }
    out.rest = TokenTree::of(std::move(texts));
    if (count < vocabulary.words() / 2) {
        for (uint32_t w = 0; w < allowed.size(); ++w)
            for (uint32_t bits = allowed[w]; bits; bits &= bits - 1)
                out.few.push_back(w * 32 + uint32_t(__builtin_ctz(bits)));
    } else {
        out.words = std::move(allowed);
    }
    out.bytes = sizeof(StateMask) + 4 * (out.few.size() + out.words.size() + out.rest.tokens.size()) +
                sizeof(TokenTree::Node) * out.rest.nodes.size();
    return out;
}

}  // namespace nibble

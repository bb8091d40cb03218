#include "grammar/left_recursion.h"

#include "grammar/nfa.h"

#include <algorithm>

namespace nibble {
namespace {

using Rule = std::vector<Dfa::State>;

// Finds the strongly connected components of a graph (Tarjan's algorithm without recursion).
class Components {
public:
    explicit Components(const std::vector<std::vector<uint32_t>>& next)
        : of(next.size(), none), next_(next), low_(next.size(), none), order_(next.size(), none) {
        for (uint32_t node = 0; node < next.size(); ++node)
            if (order_[node] == none) visit(node);
    }

    // Returns true if `node` can be reached from itself.
    bool circular(uint32_t node) const {
        return members[of[node]].size() > 1 || std::ranges::find(next_[node], node) != next_[node].end();
    }

    std::vector<uint32_t> of;  // component of each node
    std::vector<std::vector<uint32_t>> members;

private:
    static constexpr uint32_t none = UINT32_MAX;

    void visit(uint32_t root) {
        std::vector<std::pair<uint32_t, size_t>> path{{root, 0}};
        enter(root);
        while (!path.empty()) {
            auto& [node, at] = path.back();
            if (at < next_[node].size()) {
                const uint32_t to = next_[node][at++];
                if (order_[to] == none) {
                    enter(to);
                    path.emplace_back(to, 0);
                } else if (of[to] == none) {
                    low_[node] = std::min(low_[node], order_[to]);
                }
                continue;
            }
            const uint32_t done = node;
            path.pop_back();
            if (!path.empty()) low_[path.back().first] = std::min(low_[path.back().first], low_[done]);
            if (low_[done] != order_[done]) continue;
            members.emplace_back();
            do {
                of[stack_.back()] = uint32_t(members.size() - 1);
                members.back().push_back(stack_.back());
                stack_.pop_back();
            } while (members.back().back() != done);
        }
    }
    void enter(uint32_t node) {
        low_[node] = order_[node] = count_++;
        stack_.push_back(node);
    }

    const std::vector<std::vector<uint32_t>>& next_;
    std::vector<uint32_t> low_, order_, stack_;
    uint32_t count_ = 0;
};

// Builds an automaton part by part.
struct Builder {
    Nfa nfa;

    uint32_t state() { return nfa.states++; }
    void jump(uint32_t from, uint32_t to) { nfa.jumps.push_back({from, to}); }
    // Adds the bytes and calls of `state` of a rule whose states start at `base`.
    void edges(uint32_t from, const Dfa::State& state, uint32_t base) {
        for (const auto& e : state.edges) nfa.edges.push_back({from, e.first, e.last, base + e.to});
    }
    void call(uint32_t from, const Dfa::Call& call, uint32_t base) {
        nfa.calls.push_back({from, call.rule, base + call.to});
    }
    Result<Dfa> determinized(GrammarBudget& budget) {
        const auto by_from = [](const auto& a, const auto& b) { return a.from < b.from; };
        std::ranges::stable_sort(nfa.edges, by_from);
        std::ranges::stable_sort(nfa.jumps, by_from);
        std::ranges::stable_sort(nfa.calls, by_from);
        NIBBLE_CHECK(budget.pay_work(nfa.states + nfa.edges.size() + nfa.calls.size()));
        return Dfa::of(nfa, budget);
    }
};

// Returns the rule without the empty text, for callees that also lost it: a call of a nullable rule may be skipped
// instead. No transition leads back to the start state.
Result<Rule> without_empty_text(const Rule& rule, const std::vector<bool>& nullable, GrammarBudget& budget) {
    Builder out;
    const uint32_t base = 2;
    out.nfa.start = out.state();
    out.nfa.end = out.state();
    out.nfa.states += uint32_t(rule.size());
    const auto copy = [&](uint32_t from, const Dfa::State& state) {
        out.edges(from, state, base);
        for (const auto& c : state.calls) out.call(from, c, base);
    };
    for (uint32_t s = 0; s < rule.size(); ++s) {
        copy(base + s, rule[s]);
        for (const auto& c : rule[s].calls)
            if (nullable[c.rule]) out.jump(base + s, base + c.to);
        if (rule[s].accepts) out.jump(base + s, out.nfa.end);
    }
    NIBBLE_TRY(const auto first, states_without_bytes(rule, 0, nullable, budget));
    for (const uint32_t s : first) copy(out.nfa.start, rule[s]);
    NIBBLE_TRY(const Dfa dfa, out.determinized(budget));
    return dfa.states();
}

// Returns the texts of rule `wanted` of a component. A text starts with a text of some rule X of the component that
// begins without a call into the component. Then, any number of times, follows what comes after a leading call of X in
// a rule Y; the whole is then a text of Y.
Result<Rule> unrolled(const std::vector<Rule>& rules, const std::vector<uint32_t>& members, uint32_t wanted,
                      const std::vector<uint32_t>& component, GrammarBudget& budget) {
    Builder out;
    out.nfa.start = out.state();
    out.nfa.end = out.state();
    std::vector<uint32_t> base(rules.size(), 0);
    for (const uint32_t r : members) {
        base[r] = out.nfa.states;
        out.nfa.states += uint32_t(rules[r].size());
    }
    for (const uint32_t r : members) {
        const Rule& rule = rules[r];
        for (uint32_t s = 1; s < rule.size(); ++s) {
            out.edges(base[r] + s, rule[s], base[r]);
            for (const auto& c : rule[s].calls) out.call(base[r] + s, c, base[r]);
            if (rule[s].accepts && r == wanted) out.jump(base[r] + s, out.nfa.end);
        }
        out.edges(out.nfa.start, rule[0], base[r]);
        for (const auto& c : rule[0].calls) {
            if (component[c.rule] != component[r]) {
                out.call(out.nfa.start, c, base[r]);
                continue;
            }
            const Rule& called = rules[c.rule];
            for (uint32_t s = 1; s < called.size(); ++s)
                if (called[s].accepts) out.jump(base[c.rule] + s, base[r] + c.to);
        }
    }
    NIBBLE_TRY(const Dfa dfa, out.determinized(budget));
    return dfa.states();
}

// Returns for each rule the rules that it can call before any byte.
Result<std::vector<std::vector<uint32_t>>> beginning_calls(const std::vector<Rule>& rules,
                                                           const std::vector<bool>& nullable, GrammarBudget& budget) {
    std::vector<std::vector<uint32_t>> out(rules.size());
    for (uint32_t r = 0; r < rules.size(); ++r) {
        if (rules[r].empty()) continue;
        NIBBLE_TRY(const auto states, states_without_bytes(rules[r], 0, nullable, budget));
        for (const uint32_t s : states)
            for (const auto& c : rules[r][s].calls) out[r].push_back(c.rule);
    }
    return out;
}

}  // namespace

Result<std::vector<uint32_t>> states_without_bytes(const std::vector<Dfa::State>& rule, uint32_t state,
                                                   const std::vector<bool>& nullable, GrammarBudget& budget) {
    std::vector<uint32_t> out{state};
    for (size_t i = 0; i < out.size(); ++i) {
        NIBBLE_CHECK(budget.pay_work(1 + rule[out[i]].calls.size() + out.size() / 8));
        for (const auto& c : rule[out[i]].calls)
            if (nullable[c.rule] && std::find(out.begin(), out.end(), c.to) == out.end()) out.push_back(c.to);
    }
    return out;
}

Result<std::vector<bool>> nullable_rules(const std::vector<std::vector<Dfa::State>>& rules, GrammarBudget& budget) {
    std::vector<bool> nullable(rules.size(), false);
    for (bool changed = true; changed;) {
        changed = false;
        for (size_t r = rules.size(); r-- > 0;) {
            if (nullable[r] || rules[r].empty()) continue;
            NIBBLE_TRY(const auto states, states_without_bytes(rules[r], 0, nullable, budget));
            for (const uint32_t s : states)
                if (rules[r][s].accepts) nullable[r] = changed = true;
        }
    }
    return nullable;
}

Result<bool> remove_left_recursion(std::vector<std::vector<Dfa::State>>& rules, GrammarBudget& budget) {
    NIBBLE_TRY(const auto nullable, nullable_rules(rules, budget));
    NIBBLE_TRY(auto begins, beginning_calls(rules, nullable, budget));
    bool recursive = false;
    {
        const Components components(begins);
        for (uint32_t r = 0; r < rules.size(); ++r) recursive |= components.circular(r);
    }
    if (!recursive) return false;

    // Without empty texts, only a call from the first state can begin a rule.
    for (Rule& rule : rules) {
        if (rule.empty()) continue;
        NIBBLE_TRY(rule, without_empty_text(rule, nullable, budget));
    }
    NIBBLE_TRY(begins, beginning_calls(rules, std::vector<bool>(rules.size(), false), budget));
    const Components components(begins);
    std::vector<Rule> out = rules;
    for (uint32_t r = 0; r < rules.size(); ++r)
        if (components.circular(r) && !rules[r].empty()) {
            NIBBLE_TRY(out[r], unrolled(rules, components.members[components.of[r]], r, components.of, budget));
        }
    rules = std::move(out);
    if (!nullable[0]) return true;
    // The start rule also accepts the empty text; calls of it mean the rule without the empty text.
    const auto moved = uint32_t(rules.size());
    rules.push_back(std::move(rules[0]));
    for (Rule& rule : rules)
        for (Dfa::State& s : rule)
            for (Dfa::Call& c : s.calls)
                if (c.rule == 0) c.rule = moved;
    rules[0].assign(2, {});
    rules[0][0].accepts = rules[0][1].accepts = true;
    rules[0][0].calls.push_back({moved, 1});
    return true;
}

}  // namespace nibble

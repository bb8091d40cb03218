#include "grammar/dfa.h"

#include "grammar/nfa.h"

#include <algorithm>
#include <map>
#include <unordered_map>

namespace nibble {

Status GrammarBudget::pay_states(size_t n) {
    if ((states_ += n) > limits.max_states)
        return fail("the grammar is too large: it needs more than {} states", limits.max_states);
    return Ok{};
}

Status GrammarBudget::pay_work(size_t n) {
    if ((work_ += n) > limits.max_work)
        return fail("the grammar is too complicated: compiling it needs more than {} steps", limits.max_work);
    return Ok{};
}

// The subset construction. A set holds only the end state and states that have outgoing bytes or calls.
class Determinizer {
public:
    Determinizer(const Nfa& nfa, GrammarBudget& budget)
        : nfa_(nfa),
          budget_(budget),
          edges_(index(nfa.edges)),
          jumps_(index(nfa.jumps)),
          calls_(index(nfa.calls)),
          mark_(nfa.states, 0) {}

    Result<Dfa> run() {
        Dfa out;
        std::vector<uint32_t> first{nfa_.start};
        NIBBLE_TRY(const uint32_t start, place(first, out));
        (void)start;
        for (size_t at = 0; at < sets_.size(); ++at) {
            const std::vector<uint32_t> set = *sets_[at];
            NIBBLE_CHECK(edges_of(set, at, out));
            NIBBLE_CHECK(calls_of(set, at, out));
        }
        out.trim();
        return out;
    }

private:
    template <class List>
    std::vector<uint32_t> index(const List& list) const {
        std::vector<uint32_t> begin(nfa_.states + 1, 0);
        for (const auto& entry : list) ++begin[entry.from + 1];
        for (size_t i = 1; i < begin.size(); ++i) begin[i] += begin[i - 1];
        return begin;
    }

    // Returns the state for the set reachable from `targets`, which is overwritten.
    Result<uint32_t> place(std::vector<uint32_t>& targets, Dfa& out) {
        ++round_;
        std::vector<uint32_t> set;
        for (const uint32_t t : targets) mark_[t] = round_;
        std::sort(targets.begin(), targets.end());
        targets.erase(std::unique(targets.begin(), targets.end()), targets.end());
        size_t work = 0;
        while (!targets.empty()) {
            const uint32_t at = targets.back();
            targets.pop_back();
            ++work;
            if (at == nfa_.end || edges_[at] != edges_[at + 1] || calls_[at] != calls_[at + 1]) set.push_back(at);
            for (uint32_t j = jumps_[at]; j < jumps_[at + 1]; ++j, ++work) {
                const uint32_t to = nfa_.jumps[j].to;
                if (std::exchange(mark_[to], round_) != round_) targets.push_back(to);
            }
        }
        std::sort(set.begin(), set.end());
        NIBBLE_CHECK(budget_.pay_work(work + set.size()));
        const auto [it, fresh] = places_.try_emplace(std::move(set), uint32_t(sets_.size()));
        if (!fresh) return it->second;
        NIBBLE_CHECK(budget_.pay_states(1));
        sets_.push_back(&it->first);
        out.states_.emplace_back();
        out.states_.back().accepts = std::binary_search(it->first.begin(), it->first.end(), nfa_.end);
        return it->second;
    }

    Status edges_of(const std::vector<uint32_t>& set, size_t at, Dfa& out) {
        std::vector<const Nfa::Edge*> edges;
        std::vector<int> cuts;
        for (const uint32_t s : set)
            for (uint32_t e = edges_[s]; e < edges_[s + 1]; ++e) {
                edges.push_back(&nfa_.edges[e]);
                cuts.push_back(nfa_.edges[e].first);
                cuts.push_back(nfa_.edges[e].last + 1);
            }
        std::sort(cuts.begin(), cuts.end());
        cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());
        NIBBLE_CHECK(budget_.pay_work(edges.size() * (edges.size() < 8 ? 1 : cuts.size())));
        std::vector<uint32_t> targets;
        for (size_t c = 0; c + 1 < cuts.size(); ++c) {
            targets.clear();
            for (const Nfa::Edge* e : edges)
                if (e->first <= cuts[c] && e->last >= cuts[c]) targets.push_back(e->to);
            if (targets.empty()) continue;
            NIBBLE_TRY(const uint32_t to, place(targets, out));
            auto& list = out.states_[at].edges;
            if (!list.empty() && list.back().to == to && list.back().last + 1 == cuts[c])
                list.back().last = uint8_t(cuts[c + 1] - 1);
            else
                list.push_back({uint8_t(cuts[c]), uint8_t(cuts[c + 1] - 1), to});
        }
        return Ok{};
    }

    Status calls_of(const std::vector<uint32_t>& set, size_t at, Dfa& out) {
        std::map<uint32_t, std::vector<uint32_t>> targets;
        for (const uint32_t s : set)
            for (uint32_t c = calls_[s]; c < calls_[s + 1]; ++c)
                targets[nfa_.calls[c].rule].push_back(nfa_.calls[c].to);
        for (auto& [rule, list] : targets) {
            NIBBLE_TRY(const uint32_t to, place(list, out));
            out.states_[at].calls.push_back({rule, to});
        }
        return Ok{};
    }

    struct Hash {
        size_t operator()(const std::vector<uint32_t>& set) const {
            uint64_t h = set.size();
            for (const uint32_t s : set) h = (h ^ s) * 0x9E3779B97F4A7C15u, h ^= h >> 29;
            return size_t(h);
        }
    };

    const Nfa& nfa_;
    GrammarBudget& budget_;
    std::vector<uint32_t> edges_, jumps_, calls_, mark_;
    uint32_t round_ = 0;
    std::unordered_map<std::vector<uint32_t>, uint32_t, Hash> places_;
    std::vector<const std::vector<uint32_t>*> sets_;  // keys of places_, by state
};

Result<Dfa> Dfa::of(const GrammarExpression& expression, GrammarBudget& budget) {
    NIBBLE_TRY(const Nfa nfa, Nfa::of(expression, budget));
    return of(nfa, budget);
}

Result<Dfa> Dfa::of(const Nfa& nfa, GrammarBudget& budget) { return Determinizer(nfa, budget).run(); }

std::vector<bool> reach_an_end(const std::vector<Dfa::State>& states, const std::vector<bool>* passable) {
    std::vector<std::vector<uint32_t>> back(states.size());
    std::vector<uint32_t> work;
    std::vector<bool> good(states.size());
    for (uint32_t i = 0; i < states.size(); ++i) {
        for (const Dfa::Edge& e : states[i].edges) back[e.to].push_back(i);
        for (const Dfa::Call& c : states[i].calls)
            if (!passable || (*passable)[c.rule]) back[c.to].push_back(i);
        if (states[i].accepts) {
            good[i] = true;
            work.push_back(i);
        }
    }
    while (!work.empty()) {
        const uint32_t at = work.back();
        work.pop_back();
        for (const uint32_t from : back[at])
            if (!good[from]) {
                good[from] = true;
                work.push_back(from);
            }
    }
    return good;
}

void Dfa::trim() {
    const std::vector<bool> good = reach_an_end(states_);
    if (states_.empty() || !good[0]) {
        states_.clear();
        return;
    }
    std::vector<uint32_t> place(states_.size(), 0);
    uint32_t kept = 0;
    for (uint32_t i = 0; i < states_.size(); ++i)
        if (good[i]) place[i] = kept++;
    std::vector<State> out(kept);
    for (uint32_t i = 0; i < states_.size(); ++i) {
        if (!good[i]) continue;
        State& s = out[place[i]];
        s.accepts = states_[i].accepts;
        for (const Edge& e : states_[i].edges)
            if (good[e.to]) s.edges.push_back({e.first, e.last, place[e.to]});
        for (const Call& c : states_[i].calls)
            if (good[c.to]) s.calls.push_back({c.rule, place[c.to]});
    }
    states_ = std::move(out);
}

Result<Dfa> Dfa::both(const Dfa& a, const Dfa& b, GrammarBudget& budget) { return product(a, b, true, budget); }
Result<Dfa> Dfa::minus(const Dfa& a, const Dfa& b, GrammarBudget& budget) { return product(a, b, false, budget); }

// The product automaton: states are pairs. In a difference the state of b may be missing.
Result<Dfa> Dfa::product(const Dfa& a, const Dfa& b, bool keep_both, GrammarBudget& budget) {
    constexpr uint32_t gone = UINT32_MAX;
    Dfa out;
    if (a.empty() || (keep_both && b.empty())) return out;
    std::unordered_map<uint64_t, uint32_t> places;
    std::vector<std::pair<uint32_t, uint32_t>> pairs;
    const auto place = [&](uint32_t x, uint32_t y) -> Result<uint32_t> {
        const auto [it, fresh] = places.try_emplace(uint64_t(x) << 32 | y, uint32_t(pairs.size()));
        if (fresh) {
            NIBBLE_CHECK(budget.pay_states(1));
            pairs.emplace_back(x, y);
            out.states_.emplace_back();
            const bool second = y != gone && b.states_[y].accepts;
            out.states_.back().accepts = a.states_[x].accepts && second == keep_both;
        }
        return it->second;
    };
    NIBBLE_TRY(const uint32_t start, place(0, b.empty() ? gone : 0));
    (void)start;
    for (size_t at = 0; at < pairs.size(); ++at) {
        const auto [x, y] = pairs[at];
        const auto add = [&](int first, int last, uint32_t to_x, uint32_t to_y) -> Status {
            if (first > last || (keep_both && to_y == gone)) return Ok{};
            NIBBLE_TRY(const uint32_t to, place(to_x, to_y));
            auto& list = out.states_[at].edges;
            if (!list.empty() && list.back().to == to && list.back().last + 1 == first)
                list.back().last = uint8_t(last);
            else
                list.push_back({uint8_t(first), uint8_t(last), to});
            return Ok{};
        };
        for (const Edge& e : a.states_[x].edges) {
            int from = e.first;
            if (y != gone)
                for (const Edge& f : b.states_[y].edges) {
                    if (f.last < from || f.first > e.last) continue;
                    NIBBLE_CHECK(add(from, int(f.first) - 1, e.to, gone));
                    from = std::max<int>(from, f.first);
                    const int last = std::min(e.last, f.last);
                    NIBBLE_CHECK(add(from, last, e.to, f.to));
                    from = last + 1;
                }
            NIBBLE_CHECK(add(from, e.last, e.to, gone));
            NIBBLE_CHECK(budget.pay_work(1 + (y == gone ? 0 : b.states_[y].edges.size())));
        }
    }
    out.trim();
    return out;
}

bool Dfa::matches(std::string_view bytes) const {
    if (states_.empty()) return false;
    uint32_t at = 0;
    for (const char c : bytes) {
        bool found = false;
        for (const Edge& e : states_[at].edges)
            if (uint8_t(c) >= e.first && uint8_t(c) <= e.last) {
                at = e.to;
                found = true;
                break;
            }
        if (!found) return false;
    }
    return states_[at].accepts;
}

}  // namespace nibble

#include "grammar/self_calls.h"

#include <algorithm>

namespace nibble {
namespace {

constexpr size_t most_states =
    64;  // limit for rules that are analysed: the work grows with the third power of the states

}  // namespace

SelfCalls::SelfCalls(const std::vector<Dfa::State>& rule, uint32_t index) : rule_(rule), index_(index) {
    const bool calls_itself = std::ranges::any_of(rule, [&](const Dfa::State& s) {
        return std::ranges::any_of(s.calls, [&](const Dfa::Call& c) { return c.rule == index && rule[c.to].accepts; });
    });
    if (!calls_itself || rule.size() > most_states) return;
    const auto n = uint32_t(rule.size());
    covers_.assign(size_t{n} * n, true);
    for (bool changed = true; changed;) {
        changed = false;
        for (uint32_t a = 0; a < n; ++a)
            for (uint32_t b = 0; b < n; ++b)
                if (simulates(a, b) && !still_simulates(a, b)) {
                    covers_[a * n + b] = false;
                    changed = true;
                }
    }
}

bool SelfCalls::still_simulates(uint32_t a, uint32_t b) const {
    const Dfa::State &x = rule_[a], &y = rule_[b];
    if (y.accepts && !x.accepts) return false;
    for (const Dfa::Edge& wanted : y.edges) {
        int from = wanted.first;  // bytes below it are covered
        for (const Dfa::Edge& e : x.edges)
            if (e.first <= from && e.last >= from && simulates(e.to, wanted.to)) from = e.last + 1;
        if (from <= wanted.last) return false;
    }
    return std::ranges::all_of(y.calls, [&](const Dfa::Call& wanted) {
        return std::ranges::any_of(
            x.calls, [&](const Dfa::Call& c) { return c.rule == wanted.rule && simulates(c.to, wanted.to); });
    });
}

bool SelfCalls::repeats_end(const Dfa::Call& call) const {
    if (covers_.empty() || call.rule != index_ || !rule_[call.to].accepts) return false;
    for (uint32_t end = 0; end < rule_.size(); ++end)
        if (rule_[end].accepts && !simulates(end, call.to)) return false;
    return true;
}

}  // namespace nibble

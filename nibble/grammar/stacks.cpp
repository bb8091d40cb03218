#include "grammar/stacks.h"

#include <utility>

namespace nibble {

GrammarStacks::GrammarStacks(const PushdownAutomaton& automaton, int max_depth, size_t max_live)
    : automaton_(&automaton), max_depth_(uint32_t(max_depth)), max_live_(max_live), entries_(1) {
    Settling<GrammarStacks> settling{automaton, *this, tops_, 0, max_live};
    settling.settle({automaton.start, stack_bottom});
    may_end_ = settling.ended;
}

uint32_t GrammarStacks::push(uint32_t state, uint32_t below) {
    const auto [it, fresh] = places_.try_emplace(uint64_t(state) << 32 | below, uint32_t(entries_.size()));
    if (fresh) entries_.push_back({state, below, entries_[below].depth + 1});
    return it->second;
}

bool GrammarStacks::step_once(uint8_t byte) {
    std::vector<StackTop> next;
    Settling<GrammarStacks> settling{*automaton_, *this, next, 0, max_live_};
    for (const StackTop& top : tops_)
        if (const uint32_t to = automaton_->next(top.state, byte); to != PushdownAutomaton::none)
            settling.settle({to, top.below});
    if (settling.too_many || (next.empty() && !settling.ended)) return false;
    tops_ = std::move(next);
    may_end_ = settling.ended;
    return true;
}

bool GrammarStacks::step(uint8_t byte) { return step_once(byte); }

bool GrammarStacks::step(std::string_view bytes) {
    const auto tops = tops_;
    const bool may_end = may_end_;
    for (const char c : bytes)
        if (!step_once(uint8_t(c))) {
            tops_ = tops;
            may_end_ = may_end;
            return false;
        }
    return true;
}

}  // namespace nibble

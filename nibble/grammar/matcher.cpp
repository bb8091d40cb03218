#include "grammar/matcher.h"

#include "grammar/state_mask.h"

#include <algorithm>

namespace nibble {

GrammarTokens::GrammarTokens(std::shared_ptr<const Grammar> grammar,
                             std::shared_ptr<const GrammarVocabulary> vocabulary, size_t mask_bytes)
    : grammar_(std::move(grammar)), vocabulary_(std::move(vocabulary)), most_bytes_(mask_bytes) {}

GrammarTokens::~GrammarTokens() = default;

std::shared_ptr<const StateMask> GrammarTokens::mask_of(uint32_t state) const {
    {
        const std::lock_guard lock(mutex_);
        if (const auto it = masks_.find(state); it != masks_.end()) return it->second;
    }
    auto mask = std::make_shared<const StateMask>(
        find_state_mask(grammar_->automaton(), *vocabulary_, state, grammar_->limits()));
    const std::lock_guard lock(mutex_);
    if (bytes_ + mask->bytes > most_bytes_) {
        masks_.clear();
        bytes_ = 0;
    }
    if (masks_.emplace(state, mask).second) bytes_ += mask->bytes;
    return mask;
}

GrammarMatcher::GrammarMatcher(std::shared_ptr<const GrammarTokens> tokens)
    : tokens_(std::move(tokens)),
      stacks_(tokens_->grammar().automaton(), tokens_->grammar().limits().max_stack,
              tokens_->grammar().limits().max_live) {}

void GrammarMatcher::mask(std::span<uint32_t> allowed) const {
    std::fill(allowed.begin(), allowed.end(), 0);
    const GrammarVocabulary& vocabulary = tokens_->vocabulary();
    const Grammar& grammar = tokens_->grammar();
    const auto allow = [&](std::span<const uint32_t> tokens) {
        for (const uint32_t t : tokens) allowed[t / 32] |= 1u << (t % 32);
    };
    const auto nothing = [](uint32_t) {};
    TraversalCost cost;
    for (const StackTop& top : stacks_.tops()) {
        if (cost.enough() && std::ranges::any_of(allowed, [](uint32_t word) { return word != 0; })) return;
        const auto mask = tokens_->mask_of(top.state);
        cost.add(mask->cost);  // counts cached masks too, so the result does not depend on other requests
        if (stacks_.depth(top.below) + mask->depth > uint32_t(grammar.limits().max_stack)) {
            // Near the depth limit the allowed tokens depend on the stack.
            TokenTraversal traversal(grammar.automaton(), &stacks_, grammar.limits());
            traversal.start_at(top);
            traversal.run(vocabulary.others(), allow, nothing);
            traversal.run(vocabulary.plain(), allow, nothing);
            cost.add(traversal.cost());
            continue;
        }
        mask->add_to(allowed, vocabulary);
        if (top.below == stack_bottom || mask->rest.nodes.empty()) continue;
        TokenTraversal traversal(grammar.automaton(), &stacks_, grammar.limits());
        traversal.start_after(top.below);
        traversal.run(mask->rest, allow, nothing);
        cost.add(traversal.cost());
    }
}

bool GrammarMatcher::accept(int32_t token) {
    if (token < 0 || size_t(token) >= tokens_->vocabulary().size()) return false;
    const std::string_view text = tokens_->vocabulary().text(uint32_t(token));
    return !text.empty() && stacks_.step(text);
}

bool GrammarMatcher::accept_bytes(std::string_view bytes) { return stacks_.step(bytes); }

std::string GrammarMatcher::forced(size_t most) const {
    std::string out;
    GrammarStacks stacks = stacks_;
    while (out.size() < most && !stacks.may_end()) {
        int only = -1;
        for (const StackTop& top : stacks.tops())
            for (const auto& e : tokens_->grammar().automaton().edges_of(top.state)) {
                if (e.first != e.last || (only >= 0 && only != e.first)) return out;
                only = e.first;
            }
        const char next = char(only);
        if (only < 0 || !stacks.step({&next, 1})) return out;
        out += next;
    }
    return out;
}

}  // namespace nibble

#include "grammar/stacks.h"

#include <utility>

namespace nibble {
namespace {

constexpr size_t most_nodes = 512;       // kept between steps; collect() runs above it
constexpr size_t most_kept_nodes = 256;  // maximum that the tops may need after pruning

// While the readings of one byte are followed.
constexpr size_t most_followed = 20'000, most_settling_nodes = 50'000;

uint64_t key_of(uint32_t a, uint32_t b) { return uint64_t(a) << 32 | b; }

}  // namespace

GrammarStacks::GrammarStacks(const PushdownAutomaton& automaton, int max_depth, size_t max_live)
    : automaton_(&automaton), max_depth_(uint32_t(max_depth)), max_live_(max_live), nodes_{{.ends = true}} {
    settle({{automaton.start, stack_bottom}});
}

uint32_t GrammarStacks::node(bool ends, std::span<const StackTop> links) {
    if (links.empty()) return stack_bottom;
    Node made{.first = links_.size(), .count = uint32_t(links.size()), .least_depth = UINT32_MAX, .ends = ends};
    for (const StackTop& link : links) {
        made.least_depth = std::min(made.least_depth, nodes_[link.below].least_depth + 1);
        made.most_depth = std::max(made.most_depth, nodes_[link.below].most_depth + 1);
    }
    if (ends) made.least_depth = 0;
    const auto next = uint32_t(nodes_.size());
    if (!ends && links.size() == 1) {
        const auto [it, fresh] = single_.try_emplace(key_of(links[0].state, links[0].below), next);
        if (!fresh) return it->second;
    } else {
        const auto [it, fresh] = others_.try_emplace({ends, std::vector<StackTop>(links.begin(), links.end())}, next);
        if (!fresh) return it->second;
    }
    links_.insert(links_.end(), links.begin(), links.end());
    nodes_.push_back(made);
    return next;
}

uint32_t GrammarStacks::push(uint32_t state, uint32_t below) {
    const StackTop link{state, below};
    return node(false, {&link, 1});
}

// Returns the node with the stacks of both nodes.
uint32_t GrammarStacks::unite(uint32_t a, uint32_t b) {
    if (a == b) return a;
    if (a > b) std::swap(a, b);
    if (const auto it = united_.find(key_of(a, b)); it != united_.end()) return it->second;
    const std::vector<StackTop> x(links(a).begin(), links(a).end()), y(links(b).begin(), links(b).end());
    const bool both_end = ends(a) || ends(b);
    std::vector<StackTop> all;
    for (size_t i = 0, j = 0; i < x.size() || j < y.size();) {
        if (j == y.size() || (i < x.size() && x[i].state < y[j].state)) {
            all.push_back(x[i++]);
        } else if (i == x.size() || y[j].state < x[i].state) {
            all.push_back(y[j++]);
        } else {
            all.push_back({x[i].state, unite(x[i].below, y[j].below)});
            ++i, ++j;
        }
    }
    return united_[key_of(a, b)] = node(both_end, all);
}

// Sets the tops to the states reached from `pending` without a byte.
void GrammarStacks::settle(std::vector<StackTop> pending) {
    tops_.clear();
    may_end_ = false;
    if (pending.size() == 1 && automaton_->simple(pending[0].state)) {
        tops_ = std::move(pending);
        return;
    }
    // A state is followed with all its stacks at once, and again when it has more: were each stack followed alone,
    // their number would count, which doubles with every rule that calls a nullable one twice. Beyond the limit of work
    // a state keeps the stacks that it has.
    std::unordered_map<uint32_t, uint32_t> place;  // index in tops_ by state
    std::vector<uint32_t> waiting;                 // places in tops_, in the order in which they are followed
    std::vector<bool> waits;
    const auto add = [&](const StackTop& at) {
        const auto [it, fresh] = place.try_emplace(at.state, uint32_t(tops_.size()));
        const uint32_t where = it->second;
        if (fresh) {
            tops_.push_back(at);
            waits.push_back(false);
        } else {
            if (waiting.size() > most_followed || nodes_.size() > most_settling_nodes) return;
            const uint32_t joined = unite(tops_[where].below, at.below);
            if (joined == std::exchange(tops_[where].below, joined)) return;
        }
        if (automaton_->simple(at.state) || waits[where]) return;
        waits[where] = true;
        waiting.push_back(where);
    };
    for (const StackTop& at : pending) add(at);
    for (size_t i = 0; i < waiting.size(); ++i) {
        waits[waiting[i]] = false;
        pending.clear();
        follow_state(*automaton_, *this, tops_[waiting[i]], may_end_, pending);
        for (const StackTop& at : pending) add(at);
    }
    std::erase_if(tops_, [&](const StackTop& top) { return !automaton_->has_edges(top.state); });
}

bool GrammarStacks::step_once(uint8_t byte) {
    std::vector<StackTop> next;
    for (const StackTop& top : tops_)
        if (const uint32_t to = automaton_->next(top.state, byte); to != PushdownAutomaton::none)
            next.push_back({to, top.below});
    if (next.empty()) return false;
    settle(std::move(next));
    return !tops_.empty() || may_end_;
}

bool GrammarStacks::step(std::string_view bytes) {
    auto tops = tops_;
    const bool may_end = may_end_;
    for (const char c : bytes)
        if (!step_once(uint8_t(c))) {
            tops_ = std::move(tops);
            may_end_ = may_end;
            if (nodes_.size() > 2 * most_nodes) collect();
            return false;
        }
    prune();
    return true;
}

// Returns the node with the stacks of at most `most` entries. Precondition: one exists.
uint32_t GrammarStacks::without_deep(uint32_t at, uint32_t most, std::map<StackTop, uint32_t>& known) {
    if (nodes_[at].most_depth <= most) return at;
    const auto it = known.find({at, most});
    if (it != known.end()) return it->second;
    std::vector<StackTop> kept(links(at).begin(), links(at).end());
    std::erase_if(kept, [&](const StackTop& link) { return nodes_[link.below].least_depth >= most; });
    for (StackTop& link : kept) link.below = without_deep(link.below, most - 1, known);
    return known[{at, most}] = node(ends(at), kept);
}

// Returns the node with only the shortest stack; the first of equally short ones.
uint32_t GrammarStacks::shortest(uint32_t at) {
    if (ends(at)) return stack_bottom;
    const auto all = links(at);
    const StackTop link =
        *std::ranges::min_element(all, {}, [&](const StackTop& one) { return nodes_[one.below].least_depth; });
    return push(link.state, shortest(link.below));
}

// Drops the deepest readings if there are too many.
void GrammarStacks::prune() {
    if (tops_.size() > max_live_) {
        std::ranges::stable_sort(tops_, {}, [&](const StackTop& top) { return depth(top.below); });
        tops_.resize(max_live_);
    }
    std::map<StackTop, uint32_t> known;
    for (StackTop& top : tops_)
        if (nodes_[top.below].most_depth > max_depth_ && nodes_[top.below].least_depth < max_depth_)
            top.below = without_deep(top.below, max_depth_, known);
    if (nodes_.size() <= most_nodes) return;
    collect();
    for (uint32_t most = max_depth_ / 4; nodes_.size() > most_kept_nodes && most > 0; most /= 4) {
        known.clear();
        for (StackTop& top : tops_)
            top.below =
                nodes_[top.below].least_depth < most ? without_deep(top.below, most, known) : shortest(top.below);
        collect();
    }
}

// Keeps only nodes that the tops need.
void GrammarStacks::collect() {
    const std::vector<Node> nodes = std::exchange(nodes_, {{.ends = true}});
    const std::vector<StackTop> links = std::exchange(links_, {});
    single_.clear();
    others_.clear();
    united_.clear();
    std::vector<bool> needed(nodes.size());
    for (const StackTop& top : tops_) needed[top.below] = true;
    for (size_t i = nodes.size(); i-- > 0;)  // links always point to earlier nodes
        if (needed[i])
            for (size_t l = 0; l < nodes[i].count; ++l) needed[links[nodes[i].first + l].below] = true;
    std::vector<uint32_t> place(nodes.size(), stack_bottom);
    for (size_t i = 1; i < nodes.size(); ++i) {
        if (!needed[i]) continue;
        std::vector<StackTop> own(links.begin() + std::ptrdiff_t(nodes[i].first),
                                  links.begin() + std::ptrdiff_t(nodes[i].first + nodes[i].count));
        for (StackTop& link : own) link.below = place[link.below];
        place[i] = node(nodes[i].ends, own);
    }
    for (StackTop& top : tops_) top.below = place[top.below];
}

}  // namespace nibble

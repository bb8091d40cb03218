#include "grammar/expression.h"

#include "base/utf8.h"
#include "grammar/dfa.h"

#include <algorithm>

namespace nibble {

CodeSet::CodeSet(std::initializer_list<std::pair<char32_t, char32_t>> ranges) {
    for (const auto& [first, last] : ranges) add(first, last);
}

CodeSet CodeSet::all() { return {{0, 0xD7FF}, {0xE000, 0x10FFFF}}; }

void CodeSet::add(char32_t first, char32_t last) {
    if (first > last) return;
    auto it = std::lower_bound(ranges_.begin(), ranges_.end(), first,
                               [](const auto& range, char32_t code) { return range.second + 1 < code; });
    const auto begin = it;
    for (; it != ranges_.end() && it->first <= last + 1; ++it) {
        first = std::min(first, it->first);
        last = std::max(last, it->second);
    }
    ranges_.insert(ranges_.erase(begin, it), {first, last});
}

CodeSet CodeSet::inverse() const {
    CodeSet gaps;
    char32_t at = 0;
    for (const auto& [first, last] : ranges_) {
        if (first > at) gaps.ranges_.emplace_back(at, first - 1);
        at = last + 1;
    }
    if (at <= 0x10FFFF) gaps.ranges_.emplace_back(at, 0x10FFFF);
    return gaps.both(all());
}

CodeSet CodeSet::both(const CodeSet& other) const {
    CodeSet out;
    for (size_t a = 0, b = 0; a < ranges_.size() && b < other.ranges_.size();) {
        const char32_t first = std::max(ranges_[a].first, other.ranges_[b].first);
        const char32_t last = std::min(ranges_[a].second, other.ranges_[b].second);
        if (first <= last) out.ranges_.emplace_back(first, last);
        ranges_[a].second < other.ranges_[b].second ? ++a : ++b;
    }
    return out;
}

bool CodeSet::has(char32_t code) const {
    return std::any_of(ranges_.begin(), ranges_.end(),
                       [&](const auto& range) { return code >= range.first && code <= range.second; });
}

namespace expression {
namespace {

std::shared_ptr<GrammarExpression> made(GrammarExpression::Kind kind) {
    auto out = std::make_shared<GrammarExpression>();
    out->kind = kind;
    return out;
}

}  // namespace

ExprPtr text(std::string bytes) {
    auto out = made(GrammarExpression::Kind::text);
    out->text = std::move(bytes);
    return out;
}

ExprPtr characters(std::string_view utf8, Spelling spelling) {
    if (spelling == Spelling::plain) return text(std::string(utf8));
    std::vector<ExprPtr> items;
    for (size_t at = 0; at < utf8.size();) {
        const Utf8Step step = utf8_step(utf8, at);
        items.push_back(set(CodeSet{{step.code, step.code}}, spelling));
        at += step.size;
    }
    return sequence(std::move(items));
}

ExprPtr set(CodeSet codes, Spelling spelling) {
    auto out = made(GrammarExpression::Kind::set);
    out->set = std::move(codes);
    out->spelling = spelling;
    return out;
}

ExprPtr sequence(std::vector<ExprPtr> items) {
    if (items.size() == 1) return std::move(items[0]);
    auto out = made(GrammarExpression::Kind::sequence);
    out->items = std::move(items);
    return out;
}

ExprPtr choice(std::vector<ExprPtr> items) {
    if (items.size() == 1) return std::move(items[0]);
    auto out = made(GrammarExpression::Kind::choice);
    out->items = std::move(items);
    return out;
}

ExprPtr repeat(ExprPtr item, size_t least, size_t most) {
    auto out = made(GrammarExpression::Kind::repeat);
    out->items.push_back(std::move(item));
    out->least = least;
    out->most = most;
    return out;
}

ExprPtr optional(ExprPtr item) { return repeat(std::move(item), 0, 1); }

ExprPtr rule(uint32_t index) {
    auto out = made(GrammarExpression::Kind::rule);
    out->rule = index;
    return out;
}

ExprPtr automaton(Dfa dfa) {
    auto out = made(GrammarExpression::Kind::automaton);
    out->automaton = std::make_shared<const Dfa>(std::move(dfa));
    return out;
}

ExprPtr graph(uint32_t nodes, std::vector<GrammarExpression::Arc> arcs) {
    auto out = made(GrammarExpression::Kind::graph);
    out->nodes = nodes;
    out->arcs = std::move(arcs);
    return out;
}

std::string control_text(std::string_view token) { return "\xFF" + std::string(token); }

}  // namespace expression
}  // namespace nibble

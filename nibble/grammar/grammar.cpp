#include "grammar/grammar.h"

#include "grammar/automaton.h"
#include "grammar/dfa.h"
#include "grammar/ebnf_parser.h"
#include "grammar/ebnf_rule.h"
#include "grammar/json_schema.h"
#include "grammar/left_recursion.h"
#include "grammar/regex_parser.h"
#include "grammar/self_calls.h"
#include "grammar/stacks.h"

#include <algorithm>

namespace nibble {
namespace {

// Compiles the rules of a grammar into one automaton.
class RuleCompiler {
public:
    RuleCompiler(const std::vector<std::string>& names, GrammarBudget& budget) : names_(names), budget_(budget) {}

    Status make(const std::vector<ExprPtr>& expressions) {
        for (size_t i = 0; i < expressions.size(); ++i) {
            NIBBLE_TRY(Dfa dfa, Dfa::of(*expressions[i], budget_).within(names_[i]));
            rules_.push_back(dfa.states());
        }
        NIBBLE_CHECK(drop_endless());
        NIBBLE_TRY(const bool changed, remove_left_recursion(rules_, budget_));
        if (changed) NIBBLE_CHECK(drop_endless());
        NIBBLE_CHECK(add_twins());
        NIBBLE_TRY(nullable_, nullable_rules(rules_, budget_));
        return order_rules();
    }

    Result<std::unique_ptr<const PushdownAutomaton>> join() {
        auto out = std::make_unique<PushdownAutomaton>();
        std::vector<uint32_t> first(rules_.size() + 1, 0);
        for (size_t r = 0; r < rules_.size(); ++r) first[r + 1] = first[r] + uint32_t(rules_[r].size());
        out->start = first[0];
        for (uint32_t r = 0; r < rules_.size(); ++r) {
            const SelfCalls self_calls(rules_[r], r);
            for (const Dfa::State& s : rules_[r]) {
                out->edge_begin.push_back(uint32_t(out->edges.size()));
                out->call_begin.push_back(uint32_t(out->calls.size()));
                out->accepts.push_back(s.accepts);
                out->rule_of.push_back(r);
                for (const auto& e : s.edges) out->edges.push_back({e.first, e.last, first[r] + e.to});
                for (const auto& c : s.calls) {
                    const Dfa::State& back = rules_[r][c.to];
                    const bool tail =
                        (back.accepts && back.edges.empty() && back.calls.empty()) || self_calls.repeats_end(c);
                    out->calls.push_back(
                        {first[c.rule], first[twin_[c.rule]], tail ? PushdownAutomaton::none : first[r] + c.to});
                }
            }
        }
        out->edge_begin.push_back(uint32_t(out->edges.size()));
        out->call_begin.push_back(uint32_t(out->calls.size()));
        NIBBLE_CHECK(find_follow(*out));
        return std::unique_ptr<const PushdownAutomaton>(std::move(out));
    }

private:
    using Rule = std::vector<Dfa::State>;

    // Removes calls that never return and states that lead nowhere.
    Status drop_endless() {
        std::vector<bool> passable(rules_.size(), false);
        rank_.assign(rules_.size(), 0);
        size_t ranks = 0;
        for (bool changed = true; changed;) {
            changed = false;
            for (size_t r = rules_.size(); r-- > 0;) {
                if (passable[r] || rules_[r].empty()) continue;
                NIBBLE_CHECK(budget_.pay_work(rules_[r].size()));
                if (!reach_an_end(rules_[r], &passable)[0]) continue;
                passable[r] = true;
                changed = true;
                rank_[r] = ++ranks;
            }
        }
        if (!passable[0]) return fail("no text of finite length satisfies the grammar: {} matches nothing", names_[0]);
        for (size_t r = 0; r < rules_.size(); ++r) {
            if (!passable[r]) {
                rules_[r].clear();
                continue;
            }
            const auto good = reach_an_end(rules_[r], &passable);
            for (Dfa::State& s : rules_[r]) {
                std::erase_if(s.edges, [&](const Dfa::Edge& e) { return !good[e.to]; });
                std::erase_if(s.calls, [&](const Dfa::Call& c) { return !passable[c.rule] || !good[c.to]; });
            }
        }
        return Ok{};
    }

    // Adds shallow twins. A twin keeps only calls of rules that were proved to end before its own rule, so nested calls
    // end. A rule without removed calls is its own twin.
    Status add_twins() {
        const size_t n = rules_.size();
        std::vector<uint32_t> by_rank;
        for (uint32_t r = 0; r < n; ++r)
            if (!rules_[r].empty()) by_rank.push_back(r);
        std::sort(by_rank.begin(), by_rank.end(), [&](uint32_t a, uint32_t b) { return rank_[a] < rank_[b]; });
        twin_.resize(n);
        for (uint32_t r = 0; r < n; ++r) twin_[r] = r;
        for (const uint32_t r : by_rank) {
            bool same = true;
            for (const Dfa::State& s : rules_[r])
                for (const auto& c : s.calls) same &= rank_[c.rule] < rank_[r] && twin_[c.rule] == c.rule;
            if (same) continue;
            NIBBLE_CHECK(budget_.pay_states(rules_[r].size()));
            Rule twin = rules_[r];
            for (Dfa::State& s : twin) {
                std::erase_if(s.calls, [&](const Dfa::Call& c) { return rank_[c.rule] >= rank_[r]; });
                for (Dfa::Call& c : s.calls) c.rule = twin_[c.rule];
            }
            twin_[r] = uint32_t(rules_.size());
            rules_.push_back(std::move(twin));
            twin_.push_back(twin_[r]);
        }
        for (size_t r = n; r < rules_.size(); ++r) {
            const auto good = reach_an_end(rules_[r]);
            for (Dfa::State& s : rules_[r]) {
                std::erase_if(s.edges, [&](const Dfa::Edge& e) { return !good[e.to]; });
                std::erase_if(s.calls, [&](const Dfa::Call& c) { return !good[c.to]; });
            }
        }
        return Ok{};
    }

    // Orders rules so that called rules precede their callers, following calls before any byte. There is no cycle.
    Status order_rules() {
        std::vector<std::vector<uint32_t>> begins(rules_.size());  // rules that a rule may call before any byte
        for (uint32_t r = 0; r < rules_.size(); ++r) {
            if (rules_[r].empty()) continue;
            NIBBLE_TRY(const auto states, states_without_bytes(rules_[r], 0, nullable_, budget_));
            for (const uint32_t s : states)
                for (const auto& c : rules_[r][s].calls) begins[r].push_back(c.rule);
        }
        std::vector<uint8_t> mark(rules_.size(), 0);  // 1: being visited, 2: done
        std::vector<std::pair<uint32_t, size_t>> path;
        for (uint32_t r = 0; r < rules_.size(); ++r) {
            if (mark[r]) continue;
            path.emplace_back(r, 0);
            mark[r] = 1;
            while (!path.empty()) {
                auto& [at, next] = path.back();
                if (next == begins[at].size()) {
                    mark[at] = 2;
                    order_.push_back(at);
                    path.pop_back();
                    continue;
                }
                const uint32_t to = begins[at][next++];
                if (mark[to] == 0) {
                    mark[to] = 1;
                    path.emplace_back(to, 0);
                }
            }
        }
        return Ok{};
    }

    Result<ByteSet> first_bytes(uint32_t r, uint32_t state, bool& may_end) {
        ByteSet out;
        may_end = false;
        NIBBLE_TRY(const auto states, states_without_bytes(rules_[r], state, nullable_, budget_));
        for (const uint32_t s : states) {
            may_end |= rules_[r][s].accepts;
            for (const auto& e : rules_[r][s].edges)
                for (int b = e.first; b <= e.last; ++b) out.set(size_t(b));
            for (const auto& c : rules_[r][s].calls) out |= first_[c.rule];
        }
        NIBBLE_CHECK(budget_.pay_work(states.size()));
        return out;
    }

    Status find_follow(PushdownAutomaton& out) {
        first_.assign(rules_.size(), {});
        bool end = false;
        for (const uint32_t r : order_) {
            if (rules_[r].empty()) continue;
            NIBBLE_TRY(first_[r], first_bytes(r, 0, end));
        }
        out.follow.assign(rules_.size(), {});
        std::vector<std::vector<uint32_t>> passes(
            rules_.size());  // [r]: rules that r may end with; what follows r also follows them
        for (uint32_t r = 0; r < rules_.size(); ++r)
            for (const Dfa::State& s : rules_[r])
                for (const auto& c : s.calls) {
                    NIBBLE_TRY(const ByteSet bytes, first_bytes(r, c.to, end));
                    out.follow[c.rule] |= bytes;
                    if (end) passes[r].push_back(c.rule);
                }
        std::vector<uint32_t> work(order_);
        while (!work.empty()) {
            const uint32_t r = work.back();
            work.pop_back();
            for (const uint32_t to : passes[r]) {
                NIBBLE_CHECK(budget_.pay_work(1));
                const ByteSet more = out.follow[to] | out.follow[r];
                if (more == out.follow[to]) continue;
                out.follow[to] = more;
                work.push_back(to);
            }
        }
        return Ok{};
    }

    const std::vector<std::string>& names_;
    GrammarBudget& budget_;
    std::vector<Rule> rules_;
    std::vector<size_t> rank_;    // order in which rules were proved to end
    std::vector<uint32_t> twin_;  // index of the shallow twin
    std::vector<bool> nullable_;
    std::vector<uint32_t> order_;
    std::vector<ByteSet> first_;
};

bool nests_at_most(const Json& json, int levels) {
    if (!json.is_structured()) return true;
    return levels > 0 && std::ranges::all_of(json, [&](const Json& part) { return nests_at_most(part, levels - 1); });
}

}  // namespace

Grammar::Grammar(std::unique_ptr<const PushdownAutomaton> automaton, const GrammarLimits& limits)
    : automaton_(std::move(automaton)), limits_(limits) {}

Result<std::shared_ptr<const Grammar>> Grammar::from_json_schema(const Json& schema, const SchemaOptions& options,
                                                                 const GrammarLimits& limits) {
    // Printing the schema recurses to its depth.
    if (!nests_at_most(schema, 8 * limits.max_depth))
        return fail("the schema nests deeper than {} levels", 8 * limits.max_depth);
    if (const size_t size = schema.dump(-1, ' ', false, Json::error_handler_t::replace).size();
        size > limits.max_source_bytes)
        return fail("the schema is longer than {} bytes", limits.max_source_bytes);
    GrammarBudget budget(limits);
    std::vector<ExprPtr> rules{expression::text("")};
    std::vector<std::string> names{"the schema"};
    NIBBLE_TRY(rules[0], schema_rules(schema, options, budget, rules, names));
    return compile(rules, names, budget);
}

Result<std::shared_ptr<const Grammar>> Grammar::json_object(const SchemaOptions& options, const GrammarLimits& limits) {
    return from_json_schema({{"type", "object"}}, options, limits);
}

Result<std::shared_ptr<const Grammar>> Grammar::compile(const std::vector<ExprPtr>& rules,
                                                        const std::vector<std::string>& names, GrammarBudget& budget) {
    RuleCompiler compiler(names, budget);
    NIBBLE_CHECK(compiler.make(rules));
    NIBBLE_TRY(auto automaton, compiler.join());
    return std::shared_ptr<const Grammar>(new Grammar(std::move(automaton), budget.limits));
}

Result<std::shared_ptr<const Grammar>> Grammar::from_choices(std::span<const std::string> choices,
                                                             const GrammarLimits& limits) {
    if (choices.empty()) return fail("there are no choices");
    size_t bytes = 0;
    std::vector<ExprPtr> items;
    for (const std::string& choice : choices) {
        if (choice.empty()) return fail("choice {} is empty", items.size());
        if ((bytes += choice.size()) > limits.max_source_bytes)
            return fail("the choices are longer than {} bytes", limits.max_source_bytes);
        items.push_back(expression::text(choice));
    }
    GrammarBudget budget(limits);
    return compile({expression::choice(std::move(items))}, {"the choices"}, budget);
}

Result<std::shared_ptr<const Grammar>> Grammar::from_regex(std::string_view pattern, const GrammarLimits& limits) {
    GrammarBudget budget(limits);
    NIBBLE_TRY(auto parsed, parse_regex(pattern, {}, budget).within("regular expression"));
    return compile({std::move(parsed)}, {"the regular expression"}, budget);
}

Result<std::shared_ptr<const Grammar>> Grammar::from_ebnf(std::string_view text, const GrammarLimits& limits) {
    GrammarBudget budget(limits);
    std::vector<ExprPtr> rules;
    std::vector<std::string> names;
    NIBBLE_CHECK(parse_ebnf(text, budget, rules, names));
    return compile(rules, names, budget);
}

Result<std::shared_ptr<const Grammar>> Grammar::from_structure(const GrammarStructure& structure,
                                                               const SchemaOptions& options,
                                                               const GrammarLimits& limits) {
    GrammarBudget budget(limits);
    std::vector<ExprPtr> rules{expression::text("")};
    std::vector<std::string> names{"the structure"};
    const auto pieces = [&](const std::vector<GrammarPiece>& list) -> Result<ExprPtr> {
        std::vector<ExprPtr> items;
        for (const GrammarPiece& piece : list) {
            ExprPtr item;
            if (piece.schema) {
                NIBBLE_TRY(item, schema_rules(*piece.schema, options, budget, rules, names, piece.tagged.get()));
            } else if (!piece.ebnf.empty()) {
                NIBBLE_TRY(item, ebnf_rule(piece.ebnf, piece.spelling, budget, rules, names));
                item = expression::sequence({expression::text(piece.before), item, expression::text(piece.after)});
            } else {
                item = expression::text(piece.control ? expression::control_text(piece.text) : piece.text);
            }
            items.push_back(std::move(item));
        }
        return expression::sequence(std::move(items));
    };
    if (structure.one_of.empty() || structure.most == 0) return fail("a structure without choices");
    std::vector<ExprPtr> ways;
    for (size_t i = 0; i < structure.one_of.size(); ++i) {
        NIBBLE_TRY(auto way, pieces(structure.one_of[i]).within(fmt::format("choice {}", i)));
        ways.push_back(std::move(way));
    }
    names.push_back("a choice");
    rules.push_back(expression::choice(std::move(ways)));
    const ExprPtr one = expression::rule(uint32_t(rules.size() - 1));
    NIBBLE_TRY(const auto perhaps, pieces(structure.perhaps));
    NIBBLE_TRY(const auto before, pieces(structure.before));
    NIBBLE_TRY(const auto between, pieces(structure.between));
    NIBBLE_TRY(const auto after, pieces(structure.after));
    rules[0] =
        expression::sequence({expression::optional(perhaps), before, one,
                              expression::repeat(expression::sequence({between, one}), 0, structure.most - 1), after});
    return compile(rules, names, budget);
}

bool Grammar::matches(std::string_view text) const {
    GrammarStacks stacks(*automaton_, limits_.max_stack, limits_.max_live);
    return std::ranges::all_of(text, [&](char c) { return stacks.step({&c, 1}); }) && stacks.may_end();
}

}  // namespace nibble

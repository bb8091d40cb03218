#include "grammar/ebnf_rule.h"

#include "grammar/ebnf_parser.h"

#include <algorithm>
#include <unordered_map>

namespace nibble {
namespace {

// Encodes bytes as they appear in a JSON string.
std::string json_bytes(std::string_view bytes) {
    std::string out;
    for (const char c : bytes) {
        static constexpr std::pair<char, char> letters[]{
            {'\n', 'n'}, {'\r', 'r'}, {'\t', 't'}, {'\f', 'f'}, {'\b', 'b'}};
        const auto* letter = std::ranges::find(letters, c, &std::pair<char, char>::first);
        if (letter != std::end(letters))
            out += {'\\', letter->second};
        else if (uint8_t(c) < 0x20)
            out += fmt::format("\\u{:04x}", uint8_t(c));
        else if (c == '"' || c == '\\')
            out += {'\\', c};
        else
            out += c;
    }
    return out;
}

// Copies expressions. Rule numbers increase by `offset`; characters get the new spelling.
class ExpressionCopier {
public:
    ExpressionCopier(uint32_t offset, Spelling spelling, GrammarBudget& budget)
        : offset_(offset), spelling_(spelling), budget_(budget) {}

    Result<ExprPtr> copy(const ExprPtr& from) {
        NIBBLE_CHECK(budget_.pay_work(1));
        if (const auto known = known_.find(from.get()); known != known_.end()) return known->second;
        GrammarExpression to = *from;
        switch (from->kind) {
            case GrammarExpression::Kind::text:
                if (spelling_ == Spelling::json) to.text = json_bytes(from->text);
                break;
            case GrammarExpression::Kind::set:
                to.spelling = spelling_;
                break;
            case GrammarExpression::Kind::rule:
                to.rule += offset_;
                break;
            case GrammarExpression::Kind::automaton:
                if (spelling_ == Spelling::json)
                    return fail(
                        "a regular expression with lookaround or word boundaries is not supported inside a JSON "
                        "string");
                break;
            default:
                break;
        }
        for (ExprPtr& item : to.items) {
            NIBBLE_TRY(item, copy(item));
        }
        for (GrammarExpression::Arc& arc : to.arcs) {
            NIBBLE_TRY(arc.item, copy(arc.item));
        }
        return known_[from.get()] = std::make_shared<const GrammarExpression>(std::move(to));
    }

private:
    uint32_t offset_;
    Spelling spelling_;
    GrammarBudget& budget_;
    std::unordered_map<const GrammarExpression*, ExprPtr> known_;
};

}  // namespace

Result<ExprPtr> ebnf_rule(std::string_view text, Spelling spelling, GrammarBudget& budget, std::vector<ExprPtr>& rules,
                          std::vector<std::string>& names) {
    std::vector<ExprPtr> own;
    std::vector<std::string> own_names;
    NIBBLE_CHECK(parse_ebnf(text, budget, own, own_names));
    const auto start = static_cast<uint32_t>(rules.size());
    ExpressionCopier copier(start, spelling, budget);
    for (size_t i = 0; i < own.size(); ++i) {
        NIBBLE_TRY(ExprPtr copy, copier.copy(own[i]));
        rules.push_back(std::move(copy));
        names.push_back(std::move(own_names[i]));
    }
    return expression::rule(start);
}

}  // namespace nibble

#include "grammar/ebnf_parser.h"

#include "base/utf8.h"
#include "grammar/json_schema.h"
#include "grammar/regex_parser.h"

#include <algorithm>
#include <map>

namespace nibble {
namespace {

constexpr size_t most_copies = 100'000;
constexpr std::string_view llguidance_mark = "%llguidance";

bool name_character(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-';
}

// Terminals of Lark's common.lark that occur in grammars of answers.
std::string_view common_terminal(std::string_view name) {
    static constexpr std::pair<std::string_view, std::string_view> terminals[]{
        {"DIGIT", "[0-9]"},
        {"HEXDIGIT", "[0-9a-fA-F]"},
        {"INT", "[0-9]+"},
        {"SIGNED_INT", "[+-]?[0-9]+"},
        {"DECIMAL", "[0-9]+\\.[0-9]*|\\.[0-9]+"},
        {"FLOAT", "[0-9]+[eE][+-]?[0-9]+|([0-9]+\\.[0-9]*|\\.[0-9]+)([eE][+-]?[0-9]+)?"},
        {"NUMBER", "[0-9]+|[0-9]+[eE][+-]?[0-9]+|([0-9]+\\.[0-9]*|\\.[0-9]+)([eE][+-]?[0-9]+)?"},
        {"SIGNED_NUMBER", "[+-]?([0-9]+|[0-9]+[eE][+-]?[0-9]+|([0-9]+\\.[0-9]*|\\.[0-9]+)([eE][+-]?[0-9]+)?)"},
        {"LETTER", "[a-zA-Z]"},
        {"UCASE_LETTER", "[A-Z]"},
        {"LCASE_LETTER", "[a-z]"},
        {"WORD", "[a-zA-Z]+"},
        {"CNAME", "[a-zA-Z_][a-zA-Z0-9_]*"},
        {"ESCAPED_STRING", "\"([^\"\\\\\\n]|\\\\[^\\n])*\""},
        {"WS_INLINE", "[ \\t]+"},
        {"WS", "[ \\t\\f\\r\\n]+"},
        {"NEWLINE", "(\\r?\\n)+"},
        {"CR", "\\r"},
        {"LF", "\\n"},
    };
    for (const auto& [key, pattern] : terminals)
        if (key == name) return pattern;
    return {};
}

class EbnfParser {
public:
    EbnfParser(std::string_view text, GrammarBudget& budget, std::vector<ExprPtr>& rules,
               std::vector<std::string>& names)
        : text_(text), budget_(budget), rules_(rules), names_(names) {}

    Status run() {
        if (!utf8_valid(text_)) return fail("the grammar is not UTF-8");
        // "::=" is GBNF's; a Lark rule is "name:".
        lark_ = text_.find("::=") == text_.npos || text_.starts_with(llguidance_mark);
        start_name_ = lark_ ? "start" : "root";
        rule_index(start_name_);
        while (skip(true), at_ < text_.size()) NIBBLE_CHECK(statement());
        for (size_t i = 0; i < rules_.size(); ++i)
            if (!rules_[i]) return fail("line {}: there is no rule '{}'", i == 0 ? 1 : used_at_[i], names_[i]);
        return Ok{};
    }

private:
    template <class... Args>
    Error here(fmt::format_string<Args...> format, Args&&... args) const {
        return fail("line {}: {}", line(), fmt::format(format, std::forward<Args>(args)...));
    }
    size_t line() const {
        return 1 + size_t(std::count(text_.begin(), text_.begin() + std::ptrdiff_t(std::min(at_, text_.size())), '\n'));
    }

    bool starts(std::string_view what) const { return text_.substr(at_).starts_with(what); }
    bool take(std::string_view what) {
        if (!starts(what)) return false;
        at_ += what.size();
        return true;
    }

    // Skips white space and comments; with `lines` also line ends.
    void skip(bool lines) {
        while (at_ < text_.size()) {
            const char c = text_[at_];
            if (c == ' ' || c == '\t' || c == '\r' || (lines && c == '\n')) {
                ++at_;
            } else if (lark_ ? starts("//") : c == '#') {
                at_ = std::min(text_.find('\n', at_), text_.size());
            } else {
                return;
            }
        }
    }

    // Returns true if the rule continues on the next line: the line starts with '|', or no rule starts there.
    bool goes_on() {
        const size_t before = at_;
        skip(true);
        const size_t after = at_;
        if (at_ == text_.size()) return false;
        if (after == before || text_.substr(before, after - before).find('\n') == text_.npos) return true;
        if (starts("|")) return true;
        if (starts("%") || starts("?") || starts("!")) return at_ = before, false;
        while (at_ < text_.size() && name_character(text_[at_])) ++at_;
        const bool named = at_ > after;
        if (lark_ && (starts(".") || starts("[")))  // a priority, attributes
            at_ = std::min(text_.find_first_of(":\n", at_), text_.size());
        skip(false);
        const bool rule = named && starts(lark_ ? ":" : "::=");
        at_ = rule ? before : after;
        return !rule;
    }

    std::string name() {
        const size_t from = at_;
        while (at_ < text_.size() && name_character(text_[at_])) ++at_;
        return std::string(text_.substr(from, at_ - from));
    }

    uint32_t rule_index(const std::string& name) {
        const auto [it, fresh] = index_.try_emplace(name, uint32_t(rules_.size()));
        if (fresh) {
            rules_.emplace_back();
            names_.push_back(name);
            used_at_.push_back(line());
        }
        return it->second;
    }

    Status statement() {
        if (lark_ && take("%")) return directive();
        if (lark_ && !take("?")) take("!");
        const size_t from = at_;
        const std::string rule = name();
        if (rule.empty()) return here("a rule begins with its name, not with '{}'", text_.substr(from, 1));
        if (lark_ && take(".")) name();  // a priority
        if (lark_ && take("[")) NIBBLE_CHECK(attributes());
        skip(false);
        if (!take(lark_ ? ":" : "::=")) return here("'{}' is not followed by '{}'", rule, lark_ ? ":" : "::=");
        const uint32_t index = rule_index(rule);
        if (rules_[index]) return here("the rule '{}' is there already", rule);
        if (rules_.size() > budget_.limits.max_rules) return here("more than {} rules", budget_.limits.max_rules);
        goes_on();
        NIBBLE_TRY(ExprPtr body, alternatives(0));
        rules_[index] = std::move(body);
        skip(false);
        if (at_ < text_.size() && text_[at_] != '\n') return here("'{}' is not expected here", text_.substr(at_, 1));
        return Ok{};
    }

    // Parses %ignore and %import.
    Status directive() {
        const std::string kind = name();
        skip(false);
        if (kind == "import") {
            if (!take("common.")) return here("%import: only terminals of 'common' are there");
            NIBBLE_CHECK(import_common(name()));
            skip(false);
            return at_ == text_.size() || text_[at_] == '\n' ? Status(Ok{}) : here("%import: one terminal on a line");
        }
        if (kind == llguidance_mark.substr(1)) {
            NIBBLE_TRY(const Json options, json_object());
            for (const auto& [option, value] : options.items())
                if (option != "no_forcing") return here("%llguidance: the option '{}' is not supported", option);
            return Ok{};
        }
        if (kind != "ignore") return here("%{} is not supported", kind);
        return here("%ignore is not supported: write the white space where it may stand");
    }

    // Parses llguidance's name[capture="x", ...]. Captures do not change the language.
    Status attributes() {
        while (!take("]")) {
            skip(false);
            const std::string attribute = name();
            if (attribute != "capture" && attribute != "stop_capture")
                return here("the attribute '{}' of a rule is not supported: it needs a lexer or a sampler of its own",
                            attribute);
            skip(false);
            if (take("=")) {
                skip(false);
                if (!starts("\"")) return here("'{}' without a text", attribute);
                NIBBLE_CHECK(literal());
            }
            skip(false);
            if (!starts("]") && !take(",")) return here("'[' without ']'");
        }
        return Ok{};
    }

    // Reads a JSON object inside the grammar, possibly over several lines.
    Result<Json> json_object() {
        skip(true);
        const size_t from = at_;
        int depth = 0;
        bool quoted = false;
        for (; at_ < text_.size(); ++at_) {
            const char c = text_[at_];
            if (quoted && c == '\\')
                ++at_;
            else if (c == '"')
                quoted = !quoted;
            else if (!quoted && c == '{')
                ++depth;
            else if (!quoted && c == '}' && --depth == 0)
                break;
            if (depth == 0) break;
        }
        if (depth != 0 || at_ == from || at_ >= text_.size()) return here("a JSON object is missing");
        ++at_;
        auto json = parse_json(text_.substr(from, at_ - from));
        if (!json.ok()) return here("{}", json.error().message());
        return json;
    }

    // Parses llguidance's %json {schema}.
    Result<ExprPtr> inline_directive() {
        const std::string kind = name();
        if (kind != "json") return here("%{} is not supported", kind);
        NIBBLE_TRY(const Json schema, json_object());
        const size_t at_line = line();
        auto document = schema_rules(schema, answer_schema, budget_, rules_, names_);
        used_at_.resize(rules_.size(), at_line);
        if (!document.ok()) return here("%json: {}", document.error().message());
        return document;
    }

    Status import_common(const std::string& terminal) {
        const std::string_view pattern = common_terminal(terminal);
        if (pattern.empty()) return here("%import: there is no terminal common.{}", terminal);
        NIBBLE_TRY(rules_[rule_index(terminal)], parse_regex(pattern, {}, budget_));
        return Ok{};
    }

    Result<ExprPtr> alternatives(int depth) {
        if (depth > budget_.limits.max_depth) return here("groups are nested deeper than {}", budget_.limits.max_depth);
        std::vector<ExprPtr> ways;
        do {
            NIBBLE_TRY(auto way, sequence(depth));
            ways.push_back(std::move(way));
        } while (goes_on() && take("|"));
        return expression::choice(std::move(ways));
    }

    Result<ExprPtr> sequence(int depth) {
        std::vector<ExprPtr> items;
        while (goes_on() && !starts("|") && !starts(")") && !(lark_ && starts("]"))) {
            if (lark_ && take("->")) {  // the name of an alternative
                skip(false);
                name();
                continue;
            }
            NIBBLE_TRY(auto item, one(depth));
            NIBBLE_TRY(item, repeated(std::move(item)));
            items.push_back(std::move(item));
        }
        return expression::sequence(std::move(items));
    }

    Result<ExprPtr> one(int depth) {
        if (take("(")) {
            NIBBLE_TRY(auto inner, alternatives(depth + 1));
            if (!take(")")) return here("'(' without ')'");
            return inner;
        }
        if (lark_ && take("[")) {
            NIBBLE_TRY(auto inner, alternatives(depth + 1));
            if (!take("]")) return here("'[' without ']'");
            return expression::optional(std::move(inner));
        }
        if (starts("\"")) return quoted();
        if (lark_ && take("%")) return inline_directive();
        if (lark_ && starts("/")) return slashed();
        if (starts("[")) return bracket();
        if (!lark_ && take(".")) return expression::set(CodeSet::all());
        if (starts("<")) return control();
        const size_t from = at_;
        const std::string rule = name();
        if (rule.empty()) return here("'{}' is not expected here", text_.substr(from, 1));
        return expression::rule(rule_index(rule));
    }

    // Parses "text" with C escapes; in Lark also "a".."z" and the suffix i.
    Result<ExprPtr> quoted() {
        NIBBLE_TRY(std::string text, literal());
        if (lark_ && take("..")) {
            if (!starts("\"")) return here("a range that does not end with a text");
            NIBBLE_TRY(const std::string to, literal());
            const Utf8Step a = utf8_step(text, 0), b = utf8_step(to, 0);
            if (a.size != text.size() || b.size != to.size() || a.size == 0 || b.size == 0 || b.code < a.code)
                return here("a range from \"{}\" to \"{}\"", text, to);
            return expression::set({{a.code, b.code}});
        }
        if (lark_ && starts("i") && !(at_ + 1 < text_.size() && name_character(text_[at_ + 1]))) {
            ++at_;
            std::vector<ExprPtr> letters;
            for (const char c : text) {
                const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
                if (!letter && uint8_t(c) >= 0x80) return here("a flag i behind a text that is not ASCII");
                const auto code = char32_t(c);
                letters.push_back(letter ? expression::set({{code | 0x20, code | 0x20}, {code & ~0x20u, code & ~0x20u}})
                                         : expression::text(std::string(1, c)));
            }
            return expression::sequence(std::move(letters));
        }
        return expression::text(std::move(text));
    }

    Result<std::string> literal() {
        ++at_;
        std::string out;
        while (true) {
            if (at_ >= text_.size() || text_[at_] == '\n') return here("a text without its closing quote");
            if (take("\"")) return out;
            if (take("\\")) {
                NIBBLE_TRY(const char32_t code, escaped());
                utf8_append(out, code);
            } else {
                out += text_[at_++];
            }
        }
    }

    Result<char32_t> escaped() {
        if (at_ >= text_.size()) return here("a backslash at the end");
        const char c = text_[at_++];
        static constexpr std::pair<char, char> letters[]{
            {'n', '\n'}, {'r', '\r'}, {'t', '\t'}, {'f', '\f'}, {'b', '\b'}};
        for (const auto& [letter, code] : letters)
            if (c == letter) return char32_t(code);
        const size_t digits = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
        if (digits == 0) {
            if (name_character(c) && c != '-' && c != '_') return here("the escape \\{} is not known", c);
            return char32_t(c);
        }
        char32_t code = 0;
        for (size_t i = 0; i < digits; ++i, ++at_) {
            const char d = at_ < text_.size() ? text_[at_] : ' ';
            const int n = d >= '0' && d <= '9'                 ? d - '0'
                          : (d | 32) >= 'a' && (d | 32) <= 'f' ? (d | 32) - 'a' + 10
                                                               : -1;
            if (n < 0) return here("\\{} needs {} hexadecimal digits", c, digits);
            code = code * 16 + char32_t(n);
            if (code > 0x10FFFF) return here("an escape beyond U+10FFFF");
        }
        if (code >= 0xD800 && code < 0xE000) return here("an escape that is half a character");
        return code;
    }

    // Parses Lark's /regular expression/.
    Result<ExprPtr> slashed() {
        const size_t from = ++at_;
        bool in_class = false;
        for (; at_ < text_.size() && text_[at_] != '\n' && (in_class || text_[at_] != '/'); ++at_) {
            if (text_[at_] == '\\')
                ++at_;
            else if (text_[at_] == '[')
                in_class = true;
            else if (text_[at_] == ']')
                in_class = false;
        }
        if (at_ >= text_.size() || text_[at_] != '/') return here("a regular expression without its closing '/'");
        const auto parsed = parse_regex(text_.substr(from, at_ - from), {}, budget_);
        if (!parsed.ok()) return here("regular expression: {}", parsed.error().message());
        ++at_;
        if (at_ < text_.size() && text_[at_] >= 'a' && text_[at_] <= 'z')
            return here("flags of regular expressions are not supported");
        return *parsed;
    }

    // Parses GBNF's [a-z] and [^a-z], with string escapes.
    Result<ExprPtr> bracket() {
        ++at_;
        const bool negated = take("^");
        CodeSet set;
        const auto member = [&]() -> Result<char32_t> {
            if (take("\\")) return escaped();
            const Utf8Step step = utf8_step(text_, at_);
            at_ += step.size;
            return step.code;
        };
        while (!take("]")) {
            if (at_ >= text_.size() || text_[at_] == '\n') return here("'[' without ']'");
            NIBBLE_TRY(const char32_t first, member());
            char32_t last = first;
            if (starts("-") && !starts("-]")) {
                ++at_;
                if (at_ >= text_.size()) return here("'[' without ']'");
                NIBBLE_TRY(last, member());
                if (last < first) return here("a range that ends before it begins");
            }
            set.add(first, last);
        }
        return expression::set(negated ? set.inverse() : set);
    }

    // Parses <|token|> (llama.cpp; Lark for llguidance): a control token of the vocabulary.
    Result<ExprPtr> control() {
        if (starts("<[")) return here("tokens by their numbers are not supported");
        const size_t end = text_.find('>', at_);
        if (end == text_.npos || text_.substr(at_, end - at_).find('\n') != text_.npos) return here("'<' without '>'");
        const std::string token(text_.substr(at_, end + 1 - at_));
        at_ = end + 1;
        return expression::text(expression::control_text(token));
    }

    Result<size_t> number() {
        size_t out = 0;
        const size_t from = at_;
        for (; at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9'; ++at_) {
            out = out * 10 + size_t(text_[at_] - '0');
            if (out > most_copies) return here("a repetition of more than {} times", most_copies);
        }
        if (at_ == from) return here("a repetition without a number");
        return out;
    }

    Result<ExprPtr> repeated(ExprPtr item) {
        for (int n = 0;; ++n) {
            if (n > 8) return here("too many repetitions of one part");
            skip(false);
            if (take("*")) {
                item = expression::repeat(std::move(item), 0);
            } else if (take("+")) {
                item = expression::repeat(std::move(item), 1);
            } else if (take("?")) {
                item = expression::optional(std::move(item));
            } else if (take("{") || (lark_ && take("~"))) {
                const bool braces = text_[at_ - 1] == '{';
                skip(false);
                NIBBLE_TRY(const size_t least, number());
                size_t most = least;
                skip(false);
                if (braces ? take(",") : take("..")) {
                    skip(false);
                    most = GrammarExpression::unlimited;
                    if (!braces || !starts("}")) {
                        NIBBLE_TRY(most, number());
                    }
                    skip(false);
                }
                if (braces && !take("}")) return here("'{{' without '}}'");
                if (most < least) return here("a repetition whose most is less than its least");
                item = expression::repeat(std::move(item), least, most);
            } else {
                return item;
            }
        }
    }

    std::string_view text_;
    GrammarBudget& budget_;
    std::vector<ExprPtr>& rules_;
    std::vector<std::string>& names_;
    std::vector<size_t> used_at_;  // lines
    std::map<std::string, uint32_t> index_;
    std::string start_name_;
    size_t at_ = 0;
    bool lark_ = false;
};

}  // namespace

Status parse_ebnf(std::string_view text, GrammarBudget& budget, std::vector<ExprPtr>& rules,
                  std::vector<std::string>& names) {
    if (text.size() > budget.limits.max_source_bytes)
        return fail("the grammar is longer than {} bytes", budget.limits.max_source_bytes);
    return EbnfParser(text, budget, rules, names).run();
}

}  // namespace nibble

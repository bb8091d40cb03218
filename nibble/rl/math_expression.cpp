#include "rl/math_expression.h"

#include "base/philox.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <numbers>
#include <optional>
#include <string>

namespace nibble {

struct MathExpression::Node {
    enum class Kind : uint8_t { number, letter, add, multiply, divide, power, negate, root, function, factorial };
    Kind kind = Kind::number;
    double value = 0;
    std::string name;  // for letters and functions
    std::vector<std::shared_ptr<const Node>> parts;
};

namespace {

using Node = MathExpression::Node;
using NodePtr = std::shared_ptr<const Node>;
using Kind = Node::Kind;

constexpr size_t most_bytes = 4096;
constexpr int most_depth = 64;

NodePtr make(Kind kind, std::vector<NodePtr> parts) {
    auto node = std::make_shared<Node>();
    node->kind = kind, node->parts = std::move(parts);
    return node;
}
NodePtr number(double value) {
    auto node = std::make_shared<Node>();
    node->value = value;
    return node;
}

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

class ExpressionParser {
public:
    explicit ExpressionParser(std::string_view text) : text_(text) {}

    Result<NodePtr> whole() {
        NIBBLE_TRY(NodePtr node, sum());
        skip();
        if (at_ != text_.size()) return wrong("an operator or the end");
        return node;
    }
    bool decimal() const { return decimal_; }

private:
    Error wrong(std::string_view expected) const { return fail("expression: byte {}: expected {}", at_, expected); }
    bool starts(std::string_view word) const { return text_.substr(at_).starts_with(word); }
    bool take(std::string_view word) {
        skip();
        if (!starts(word)) return false;
        // The letters of a command must end with the word: \in does not match the beginning of \int.
        if (word[0] == '\\' && is_letter(word.back()) && at_ + word.size() < text_.size() &&
            is_letter(text_[at_ + word.size()]))
            return false;
        at_ += word.size();
        return true;
    }
    // Skips spaces and LaTeX commands for spacing and size.
    void skip() {
        static constexpr std::string_view blank[] = {" ",   "\n",  "\t",     "~",      "\\,",     "\\;",
                                                     "\\!", "\\:", "\\ ",    "\\left", "\\right", "\\displaystyle",
                                                     "\\$", "$",   "\\bigl", "\\bigr", "\\big",   "\\quad"};
        for (bool again = true; again;) {
            again = false;
            for (const std::string_view word : blank)
                if (starts(word)) at_ += word.size(), again = true;
        }
    }

    Result<NodePtr> sum() {
        if (++depth_ > most_depth) return fail("expression: deeper than {}", most_depth);
        NIBBLE_TRY(NodePtr left, product());
        for (;;) {
            const bool minus = take("-") || take("\u2212");
            if (!minus && !take("+")) break;
            NIBBLE_TRY(NodePtr right, product());
            if (minus) right = make(Kind::negate, {right});
            left = make(Kind::add, {left, right});
        }
        --depth_;
        return left;
    }

    Result<NodePtr> product() {
        NIBBLE_TRY(NodePtr left, unary());
        for (;;) {
            if (take("\\cdot") || take("\\times") || take("*") || take("\u00d7") || take("\u00b7")) {
                NIBBLE_TRY(NodePtr right, unary());
                left = make(Kind::multiply, {left, right});
            } else if (take("/") || take("\\div") || take("\u00f7")) {
                NIBBLE_TRY(NodePtr right, unary());
                left = make(Kind::divide, {left, right});
            } else if (begins_factor()) {
                const bool mixed =
                    left->kind == Kind::number && (starts("\\frac") || starts("\\dfrac") || starts("\\tfrac"));
                NIBBLE_TRY(NodePtr right, power());
                left = make(mixed ? Kind::add : Kind::multiply, {left, right});
            } else {
                return left;
            }
        }
    }
    bool begins_factor() {
        skip();
        if (at_ == text_.size()) return false;
        const char c = text_[at_];
        return is_digit(c) || is_letter(c) || c == '(' || c == '.' || starts("\\frac") || starts("\\dfrac") ||
               starts("\\tfrac") || starts("\\sqrt") || starts("\\pi") || starts("\\text") || starts("\\mathrm") ||
               starts("\u03c0") || starts("\u221a");
    }

    Result<NodePtr> unary() {
        if (take("-") || take("\u2212")) {
            NIBBLE_TRY(NodePtr node, unary_deeper());
            return make(Kind::negate, {node});
        }
        if (take("+")) return unary_deeper();
        return power();
    }
    Result<NodePtr> unary_deeper() {
        if (++depth_ > most_depth) return fail("expression: deeper than {}", most_depth);
        auto node = unary();
        --depth_;
        return node;
    }

    Result<NodePtr> power() {
        NIBBLE_TRY(NodePtr base, primary());
        for (;;) {
            if (take("!")) {
                base = make(Kind::factorial, {base});
            } else if (take("^\\circ") || take("^{\\circ}") || take("\\%") || take("%")) {
                if (text_[at_ - 1] == '%') base = make(Kind::divide, {base, number(100)});
            } else if (take("**") || take("^")) {
                NIBBLE_TRY(NodePtr exponent, exponent_part());
                base = make(Kind::power, {base, exponent});
            } else {
                return base;
            }
        }
    }
    Result<NodePtr> exponent_part() {
        skip();
        if (starts("{")) return group("{", "}");
        return unary_deeper();
    }

    Result<NodePtr> group(std::string_view open, std::string_view close) {
        if (!take(open)) return wrong(open);
        NIBBLE_TRY(NodePtr node, sum());
        if (!take(close)) return wrong(close);
        return node;
    }
    // Parses the argument of \frac{1}{2} or \frac12.
    Result<NodePtr> argument() {
        skip();
        if (starts("{")) return group("{", "}");
        if (at_ < text_.size() && is_digit(text_[at_])) return number(text_[at_++] - '0');
        return primary_deeper();
    }
    Result<NodePtr> primary_deeper() {
        if (++depth_ > most_depth) return fail("expression: deeper than {}", most_depth);
        auto node = primary();
        --depth_;
        return node;
    }

    Result<NodePtr> primary() {
        skip();
        if (at_ == text_.size()) return wrong("a number, a letter or a bracket");
        if (starts("(")) return group("(", ")");
        if (starts("{")) return group("{", "}");
        if (starts("[")) return group("[", "]");
        if (take("|")) {
            NIBBLE_TRY(NodePtr node, sum());
            if (!take("|")) return wrong("|");
            return call("abs", node);
        }
        if (take("\\frac") || take("\\dfrac") || take("\\tfrac")) {
            NIBBLE_TRY(NodePtr above, argument());
            NIBBLE_TRY(NodePtr below, argument());
            return make(Kind::divide, {above, below});
        }
        if (take("\\sqrt") || take("\u221a")) return root();
        if (take("\\pi") || take("\u03c0")) return number(std::numbers::pi);
        if (take("\\text") || take("\\mathrm") || take("\\mathbf") || take("\\operatorname")) return words();
        if (is_digit(text_[at_]) || text_[at_] == '.') return decimal_number();
        if (text_[at_] == '\\') ++at_;
        return name();
    }
    NodePtr call(std::string name, NodePtr argument) {
        auto node = std::make_shared<Node>();
        node->kind = Kind::function, node->name = std::move(name), node->parts = {std::move(argument)};
        return node;
    }
    Result<NodePtr> root() {
        skip();
        NodePtr degree = number(2);
        if (starts("[")) {
            NIBBLE_TRY(degree, group("[", "]"));
        }
        NIBBLE_TRY(NodePtr inner, argument());
        return make(Kind::root, {inner, degree});
    }
    Result<NodePtr> words() {
        if (!take("{")) return wrong("{");
        const size_t end = text_.find('}', at_);
        if (end == text_.npos) return wrong("}");
        std::string name;
        for (const char c : text_.substr(at_, end - at_))
            if (c != ' ') name += c;
        at_ = end + 1;
        return letter(std::move(name));
    }
    NodePtr letter(std::string name) {
        auto node = std::make_shared<Node>();
        node->kind = Kind::letter, node->name = std::move(name);
        return node;
    }
    Result<NodePtr> name() {
        size_t end = at_;
        while (end < text_.size() && is_letter(text_[end])) ++end;
        if (end == at_) return wrong("a number, a letter or a bracket");
        const std::string word(text_.substr(at_, end - at_));
        for (const std::string_view function :
             {"sin", "cos", "tan", "sec", "csc", "cot", "log", "ln", "exp", "abs", "sqrt"})
            if (word == function) {
                at_ = end;
                skip();
                NodePtr base, exponent;  // base and exponent of \\log_2 or \\sin^2
                if (function == "log" && take("_")) {
                    NIBBLE_TRY(base, argument());
                }
                if (function != "sqrt" && take("^")) {
                    NIBBLE_TRY(exponent, exponent_part());
                }
                NIBBLE_TRY(NodePtr inner, starts("(") || starts("{") ? primary_deeper() : power_deeper());
                if (function == "sqrt") return make(Kind::root, {inner, number(2)});
                NodePtr value = call(base ? "ln" : word, inner);
                if (base) value = make(Kind::divide, {value, call("ln", base)});
                return exponent ? make(Kind::power, {value, exponent}) : value;
            }
        if (word == "pi") return at_ = end, number(std::numbers::pi);
        // xy is x times y, but a word of more than three letters is one unknown ("dollars", "Monday").
        if (word.size() > 3) return at_ = end, letter(word);
        ++at_;
        return word[0] == 'e' ? number(std::numbers::e) : letter(word.substr(0, 1));
    }
    Result<NodePtr> power_deeper() {
        if (++depth_ > most_depth) return fail("expression: deeper than {}", most_depth);
        auto node = power();
        --depth_;
        return node;
    }
    Result<NodePtr> decimal_number() {
        std::string digits;
        for (; at_ < text_.size(); ++at_) {
            const char c = text_[at_];
            if (is_digit(c))
                digits += c;
            else if (c == '.' && digits.find('.') == digits.npos && at_ + 1 < text_.size() && is_digit(text_[at_ + 1]))
                digits += c, decimal_ = true;
            else if (!(c == ',' && thousands()) && !(c == '{' && text_.substr(at_, 3) == "{,}" && (at_ += 2)))
                break;
        }
        if (at_ < text_.size() && text_[at_] == '.' && at_ + 1 == text_.size()) ++at_;  // final dot of a sentence
        double value = 0;
        const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
        if (error != std::errc{} || end != digits.data() + digits.size()) return wrong("a number");
        return number(value);
    }
    // Returns true at a comma that is followed by exactly three digits.
    bool thousands() const {
        const auto digit = [&](size_t i) { return i < text_.size() && is_digit(text_[i]); };
        return digit(at_ + 1) && digit(at_ + 2) && digit(at_ + 3) && !digit(at_ + 4);
    }

    std::string_view text_;
    size_t at_ = 0;
    int depth_ = 0;
    bool decimal_ = false;
};

double letter_value(std::string_view name, int point) {
    uint64_t hash = 1469598103934665603ull;  // FNV-1a
    for (const char c : name) hash = (hash ^ static_cast<uint8_t>(c)) * 1099511628211ull;
    const PhiloxBlock block = PhiloxStream{hash, 0x6D617468}.block(static_cast<uint64_t>(point));
    return 0.5 + static_cast<double>(block.word[0]) * 0x1p-32 * 2.5;
}

std::complex<double> evaluate(const Node& n, int point) {
    using C = std::complex<double>;
    const auto part = [&](size_t i) { return evaluate(*n.parts[i], point); };
    switch (n.kind) {
        case Kind::number:
            return n.value;
        case Kind::letter:
            return letter_value(n.name, point);
        case Kind::add:
            return part(0) + part(1);
        case Kind::multiply:
            return part(0) * part(1);
        case Kind::divide:
            return part(0) / part(1);
        case Kind::negate:
            return -part(0);
        case Kind::power: {
            const C base = part(0), exponent = part(1);
            if (base == C(0)) return exponent == C(0) ? C(1) : C(0);
            if (exponent.imag() == 0 && std::trunc(exponent.real()) == exponent.real() &&
                std::fabs(exponent.real()) <= 1024) {
                C result = 1, square = base;
                for (auto left = static_cast<int64_t>(std::fabs(exponent.real())); left; left /= 2, square *= square)
                    if (left % 2) result *= square;
                return exponent.real() < 0 ? C(1) / result : result;
            }
            return std::pow(base, exponent);
        }
        case Kind::root:
            return std::pow(part(0), C(1) / part(1));
        case Kind::factorial:
            return std::tgamma(part(0).real() + 1);
        case Kind::function: {
            const C x = part(0);
            if (n.name == "sin") return std::sin(x);
            if (n.name == "cos") return std::cos(x);
            if (n.name == "tan") return std::tan(x);
            if (n.name == "sec") return 1.0 / std::cos(x);
            if (n.name == "csc") return 1.0 / std::sin(x);
            if (n.name == "cot") return 1.0 / std::tan(x);
            if (n.name == "exp") return std::exp(x);
            if (n.name == "abs") return std::abs(x);
            if (n.name == "log") return std::log10(x);
            return std::log(x);
        }
    }
    return NAN;
}

bool mentions_letter(const Node& n) {
    return n.kind == Kind::letter || std::ranges::any_of(n.parts, [](const NodePtr& p) { return mentions_letter(*p); });
}

}  // namespace

Result<MathExpression> MathExpression::parse(std::string_view text) {
    if (text.size() > most_bytes) return fail("expression: {} bytes, at most {}", text.size(), most_bytes);
    ExpressionParser parser(text);
    NIBBLE_TRY(NodePtr root, parser.whole());
    return MathExpression(std::move(root), parser.decimal());
}

std::complex<double> MathExpression::at(int point) const { return evaluate(*root_, point); }
bool MathExpression::has_letters() const { return mentions_letter(*root_); }

bool equal(const MathExpression& a, const MathExpression& b) {
    const bool decimal = a.decimal_ || b.decimal_;
    constexpr double rounded = 5.0000001e-7;  // half a unit of the sixth decimal place
    const int points = a.has_letters() || b.has_letters() ? 4 : 1;
    for (int point = 0; point < points; ++point) {
        const std::complex<double> x = a.at(point), y = b.at(point);
        const double distance = std::abs(x - y), size = std::max({std::abs(x), std::abs(y), 1.0});
        if (!(distance <= std::max(1e-9 * size, decimal ? rounded : 0.0))) return false;
    }
    return true;
}

}  // namespace nibble

#include "text/jinja_parser.h"

#include "text/jinja_builtins.h"
#include "text/jinja_lexer.h"

#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>

namespace nibble::jinja {
namespace {

class Parser {
public:
    explicit Parser(std::string_view source) : tokens_(tokenize(source)) {}

    Body run() { return statements({}); }

private:
    static constexpr int max_nesting = 100, max_depth = 500;
    using K = TokenKind;

    struct Nested {
        explicit Nested(Parser& p) : parser(p) {
            if (++parser.nesting_ > max_nesting) parser.fail("the template is nested too deeply");
        }
        ~Nested() { --parser.nesting_; }
        Parser& parser;
    };

    const Token& now() const { return tokens_[at_]; }
    [[noreturn]] void fail(std::string message) const { throw Failure{now().line, std::move(message)}; }
    bool op(std::string_view text) const { return now().kind == K::op && now().text == text; }
    bool name(std::string_view text) const { return now().kind == K::name && now().text == text; }
    bool take_op(std::string_view text) { return op(text) && ++at_; }
    bool take_name(std::string_view text) { return name(text) && ++at_; }
    std::string found() const {
        switch (now().kind) {
            case K::end:
                return "the end of the template";
            case K::variable_end:
                return "'}}'";
            case K::block_end:
                return "'%}'";
            case K::data:
            case K::variable_begin:
            case K::block_begin:
                return "text";
            case K::string:
                return "a string";
            default:
                return "'" + now().text.substr(0, 40) + "'";
        }
    }
    void expect_op(std::string_view text) {
        if (!take_op(text)) fail(fmt::format("expected '{}', found {}", text, found()));
    }
    std::string expect_name() {
        if (now().kind != K::name) fail("expected a name, found " + found());
        return tokens_[at_++].text;
    }
    void expect_block_end() {
        if (now().kind != K::block_end) fail("expected '%}', found " + found());
        ++at_;
    }

    ExpressionPtr make(Op o, int line) const {
        auto e = std::make_unique<Expression>();
        e->op = o;
        e->line = line;
        return e;
    }
    void adopt(Expression& parent, ExpressionPtr child) {
        if (child) parent.depth = std::max(parent.depth, child->depth + 1);
        if (parent.depth > max_depth) fail("an expression is nested too deeply");
        parent.items.push_back(std::move(child));
    }
    template <class... Children>
    ExpressionPtr node(Op o, int line, Children... children) {
        auto e = make(o, line);
        (adopt(*e, std::move(children)), ...);
        return e;
    }
    ExpressionPtr constant(Value value, int line) {
        auto e = make(Op::constant, line);
        e->value = std::move(value);
        return e;
    }

    // --- statements -------------------------------------------------------------------------------------------------

    // Up to a tag that is one of `ends`, whose name is then current (behind its "{%").
    Body statements(std::initializer_list<std::string_view> ends) {
        Nested nested(*this);
        Body body;
        for (;;) {
            const Token& t = now();
            if (t.kind == K::end) {
                if (ends.size() == 0) return body;
                fail(fmt::format("the template ends where '{}' is missing", *(ends.end() - 1)));
            }
            ++at_;
            if (t.kind == K::data) {
                body.push_back({Do::text, t.line, t.text});
            } else if (t.kind == K::variable_begin) {
                Statement s{Do::print, t.line};
                s.items.push_back(tuple());
                if (now().kind != K::variable_end) fail("expected '}}', found " + found());
                ++at_;
                body.push_back(std::move(s));
            } else {
                if (now().kind != K::name) fail("expected the name of a tag, found " + found());
                if (std::find(ends.begin(), ends.end(), now().text) != ends.end()) return body;
                body.push_back(statement());
            }
        }
    }

    Body block(std::initializer_list<std::string_view> ends) {
        expect_block_end();
        return statements(ends);
    }

    // The body of a tag that is a function of its own: break and continue do not reach out of it.
    Body closed_block(std::string_view end) {
        const int loops = std::exchange(loops_, 0);
        Body body = block({end});
        loops_ = loops;
        finish();
        return body;
    }

    void finish() {  // the name of the end tag, and its "%}"
        ++at_;
        expect_block_end();
    }

    Statement statement() {
        const int line = now().line;
        const std::string tag = tokens_[at_++].text;
        if (tag == "if") return if_statement(line);
        if (tag == "for") return for_statement(line);
        if (tag == "set") return set_statement(line);
        if (tag == "macro") return macro_statement(line);
        if (tag == "call") return call_statement(line);
        if (tag == "filter") {
            Statement s{Do::filter_block, line};
            s.items.push_back(filters(nullptr, true));
            s.arms.emplace_back(nullptr, closed_block("endfilter"));
            return s;
        }
        if (tag == "generation" || tag == "with") {
            Statement s{Do::scope, line};
            if (tag == "with" && now().kind != K::block_end) do {
                    s.targets.push_back(target(false));
                    expect_op("=");
                    s.items.push_back(expression());
                } while (take_op(","));
            if (tag == "with") {
                s.arms.emplace_back(nullptr, block({"endwith"}));
                finish();
            } else {
                s.arms.emplace_back(nullptr, closed_block("endgeneration"));
            }
            return s;
        }
        if (tag == "break" || tag == "continue") {
            if (loops_ == 0) fail(fmt::format("'{}' outside of a loop", tag));
            expect_block_end();
            return {tag == "break" ? Do::stop : Do::next, line};
        }
        --at_;
        fail(fmt::format("unknown tag '{}'", tag));
    }

    Statement if_statement(int line) {
        Statement s{Do::branch, line};
        ++conditional_;
        auto condition = tuple();
        for (;;) {
            Body body = block({"elif", "else", "endif"});
            s.arms.emplace_back(std::move(condition), std::move(body));
            if (take_name("elif")) {
                condition = tuple();
                continue;
            }
            if (take_name("else")) s.arms.emplace_back(nullptr, block({"endif"}));
            break;
        }
        --conditional_;
        finish();
        return s;
    }

    Statement for_statement(int line) {
        Statement s{Do::loop, line};
        s.targets.push_back(target_list());
        if (!take_name("in")) fail("expected 'in', found " + found());
        s.items.push_back(tuple(false));
        s.items.push_back(take_name("if") ? expression() : nullptr);
        s.recursive = take_name("recursive");
        ++loops_;
        s.arms.emplace_back(nullptr, block({"else", "endfor"}));
        --loops_;
        if (take_name("else")) s.arms.emplace_back(nullptr, block({"endfor"}));
        finish();
        return s;
    }

    Statement set_statement(int line) {
        Statement s{Do::set, line};
        s.targets.push_back(target_list(true));
        if (take_op("=")) {
            s.items.push_back(tuple());
            expect_block_end();
            return s;
        }
        s.what = Do::set_block;
        s.items.push_back(op("|") ? filters(nullptr, false) : nullptr);
        s.arms.emplace_back(nullptr, closed_block("endset"));
        return s;
    }

    void signature(Macro& macro) {
        expect_op("(");
        while (!op(")")) {
            if (!macro.parameters.empty()) expect_op(",");
            Parameter p{expect_name(), nullptr};
            if (take_op("="))
                p.fallback = expression();
            else if (!macro.parameters.empty() && macro.parameters.back().fallback)
                fail("a parameter without a default follows one with a default");
            macro.parameters.push_back(std::move(p));
        }
        expect_op(")");
    }

    void macro_body(Statement& s, std::string_view end) {
        const auto outer = std::exchange(macro_, s.macro.get());
        s.arms.emplace_back(nullptr, closed_block(end));
        macro_ = outer;
    }

    Statement macro_statement(int line) {
        Statement s{Do::macro, line};
        s.macro = std::make_shared<Macro>();
        s.macro->name = expect_name();
        signature(*s.macro);
        macro_body(s, "endmacro");
        return s;
    }

    Statement call_statement(int line) {
        Statement s{Do::call_block, line};
        s.macro = std::make_shared<Macro>();
        s.macro->name = "caller";
        if (op("(")) signature(*s.macro);
        s.items.push_back(expression());
        if (s.items[0]->op != Op::call) fail("{% call %} needs a call");
        macro_body(s, "endcall");
        return s;
    }

    // --- targets ----------------------------------------------------------------------------------------------------

    ExpressionPtr target(bool with_namespace) {
        const int line = now().line;
        auto e = make(Op::name, line);
        e->name = expect_name();
        if (e->name == "true" || e->name == "false" || e->name == "none" || e->name == "True" || e->name == "False" ||
            e->name == "None")
            fail(fmt::format("cannot assign to '{}'", e->name));
        if (!with_namespace || !take_op(".")) return e;
        auto attribute = node(Op::attribute, line, std::move(e));
        attribute->name = expect_name();
        return attribute;
    }

    ExpressionPtr target_list(bool with_namespace = false) {
        const int line = now().line;
        const bool bracket = take_op("(");
        auto first = target(with_namespace);
        if (op(",")) {
            auto all = node(Op::tuple, line, std::move(first));
            while (take_op(",")) {
                if (now().kind != K::name || name("in")) break;
                adopt(*all, target(with_namespace));
            }
            first = std::move(all);
        }
        if (bracket) expect_op(")");
        return first;
    }

    // --- expressions ------------------------------------------------------------------------------------------------

    // a, b, c without brackets, or one.
    ExpressionPtr tuple(bool with_conditional = true) {
        const int line = now().line;
        auto first = with_conditional ? expression() : logical_or();
        if (!op(",")) return first;
        auto all = node(Op::tuple, line, std::move(first));
        while (take_op(",")) {
            if (now().kind == K::variable_end || now().kind == K::block_end || op(")")) break;
            adopt(*all, with_conditional ? expression() : logical_or());
        }
        return all;
    }

    ExpressionPtr expression() {
        Nested nested(*this);
        auto value = logical_or();
        while (name("if")) {
            const int line = tokens_[at_++].line;
            ++conditional_;
            auto condition = logical_or();
            ExpressionPtr other = take_name("else") ? expression() : nullptr;
            --conditional_;
            value = node(Op::conditional, line, std::move(value), std::move(condition), std::move(other));
        }
        return value;
    }

    ExpressionPtr logical_or() {
        auto left = logical_and();
        while (name("or")) {
            const int line = tokens_[at_++].line;
            left = node(Op::logical_or, line, std::move(left), logical_and());
        }
        return left;
    }

    ExpressionPtr logical_and() {
        auto left = logical_not();
        while (name("and")) {
            const int line = tokens_[at_++].line;
            left = node(Op::logical_and, line, std::move(left), logical_not());
        }
        return left;
    }

    ExpressionPtr logical_not() {
        if (!name("not")) return compare();
        Nested nested(*this);
        const int line = tokens_[at_++].line;
        return node(Op::logical_not, line, logical_not());
    }

    ExpressionPtr compare() {
        auto first = sum();
        ExpressionPtr all;
        for (;;) {
            std::string sign;
            const int line = now().line;
            if (op("==") || op("!=") || op("<") || op("<=") || op(">") || op(">=") || name("in"))
                sign = tokens_[at_++].text;
            else if (name("not") && tokens_[at_ + 1].kind == K::name && tokens_[at_ + 1].text == "in")
                at_ += 2, sign = "not in";
            else
                return all ? std::move(all) : std::move(first);
            if (!all) all = node(Op::compare, line, std::move(first));
            all->operators.push_back(sign);
            adopt(*all, sum());
        }
    }

    ExpressionPtr sum() {
        auto left = concat();
        while (op("+") || op("-")) {
            const Token& t = tokens_[at_++];
            left = node(t.text == "+" ? Op::add : Op::subtract, t.line, std::move(left), concat());
        }
        return left;
    }

    ExpressionPtr concat() {
        auto first = product();
        if (!op("~")) return first;
        auto all = node(Op::concat, now().line, std::move(first));
        while (take_op("~")) adopt(*all, product());
        return all;
    }

    ExpressionPtr product() {
        auto left = power();
        while (op("*") || op("/") || op("//") || op("%")) {
            const Token& t = tokens_[at_++];
            const Op o = t.text == "*"    ? Op::multiply
                         : t.text == "/"  ? Op::divide
                         : t.text == "//" ? Op::floor_divide
                                          : Op::modulo;
            left = node(o, t.line, std::move(left), power());
        }
        return left;
    }

    ExpressionPtr power() {
        auto left = unary(true);
        while (op("**")) {
            const int line = tokens_[at_++].line;
            left = node(Op::power, line, std::move(left), unary(true));
        }
        return left;
    }

    ExpressionPtr unary(bool with_filter) {
        Nested nested(*this);
        const int line = now().line;
        ExpressionPtr e;
        if (take_op("-"))
            e = node(Op::negative, line, unary(false));
        else if (take_op("+"))
            e = node(Op::positive, line, unary(false));
        else
            e = primary();
        e = postfix(std::move(e));
        return with_filter ? filter_chain(std::move(e)) : std::move(e);
    }

    ExpressionPtr primary() {
        const Token& t = now();
        if (t.kind == K::string) {
            std::string text;
            while (now().kind == K::string) text += tokens_[at_++].text;
            return constant(std::move(text), t.line);
        }
        if (t.kind == K::integer || t.kind == K::real) {
            ++at_;
            return t.kind == K::integer ? constant(t.integer, t.line) : constant(t.real, t.line);
        }
        if (t.kind == K::name) {
            ++at_;
            if (t.text == "true" || t.text == "True") return constant(true, t.line);
            if (t.text == "false" || t.text == "False") return constant(false, t.line);
            if (t.text == "none" || t.text == "None") return constant(Value::none(), t.line);
            auto e = make(Op::name, t.line);
            e->name = t.text;
            if (macro_) {
                macro_->varargs |= t.text == "varargs";
                macro_->kwargs |= t.text == "kwargs";
                macro_->caller |= t.text == "caller";
            }
            return e;
        }
        if (take_op("(")) {
            if (take_op(")")) return make(Op::tuple, t.line);
            auto e = tuple();
            expect_op(")");
            return e;
        }
        if (take_op("[")) {
            auto e = make(Op::list, t.line);
            while (!op("]")) {
                if (!e->items.empty()) expect_op(",");
                if (op("]")) break;
                adopt(*e, expression());
            }
            expect_op("]");
            return e;
        }
        if (take_op("{")) {
            auto e = make(Op::dict, t.line);
            while (!op("}")) {
                if (!e->items.empty()) expect_op(",");
                if (op("}")) break;
                adopt(*e, expression());
                expect_op(":");
                adopt(*e, expression());
            }
            expect_op("}");
            return e;
        }
        fail("expected a value, found " + found());
    }

    ExpressionPtr postfix(ExpressionPtr e) {
        for (;;) {
            const int line = now().line;
            if (take_op(".")) {
                if (now().kind == K::integer) {
                    const int64_t index = tokens_[at_++].integer;
                    e = node(Op::item, line, std::move(e), constant(index, line));
                    continue;
                }
                e = node(Op::attribute, line, std::move(e));
                e->name = expect_name();
            } else if (take_op("[")) {
                e = subscript(std::move(e), line);
            } else if (op("(")) {
                e = node(Op::call, line, std::move(e));
                arguments(*e);
            } else {
                return e;
            }
        }
    }

    ExpressionPtr subscript(ExpressionPtr e, int line) {
        ExpressionPtr part[3];
        int colons = 0;
        if (!op(":")) part[0] = expression();
        while (colons < 2 && take_op(":")) {
            ++colons;
            if (!op(":") && !op("]")) part[colons] = expression();
        }
        if (colons == 0 && op(",")) fail("an index of several parts is not supported");
        expect_op("]");
        if (colons == 0) return node(Op::item, line, std::move(e), std::move(part[0]));
        return node(Op::slice, line, std::move(e), std::move(part[0]), std::move(part[1]), std::move(part[2]));
    }

    void arguments(Expression& e) {
        const auto watch = [&](ExpressionPtr child) {
            e.depth = std::max(e.depth, child->depth + 1);
            if (e.depth > max_depth) fail("an expression is nested too deeply");
            return child;
        };
        expect_op("(");
        for (bool first = true; !op(")"); first = false) {
            if (!first) expect_op(",");
            if (op(")")) break;
            Call& c = e.call;
            if (take_op("**"))
                c.star_star = watch(expression());
            else if (take_op("*"))
                c.star = watch(expression());
            else if (now().kind == K::name && tokens_[at_ + 1].kind == K::op && tokens_[at_ + 1].text == "=") {
                std::string key = expect_name();
                ++at_;
                for (const auto& [other, value] : c.named)
                    if (other == key) fail(fmt::format("the argument '{}' is given twice", key));
                c.named.emplace_back(std::move(key), watch(expression()));
            } else {
                if (!c.named.empty() || c.star || c.star_star) fail("a positional argument follows a named one");
                c.positional.push_back(watch(expression()));
            }
        }
        expect_op(")");
    }

    ExpressionPtr filter_chain(ExpressionPtr e) {
        for (;;) {
            if (op("|"))
                e = filters(std::move(e), false);
            else if (name("is"))
                e = test(std::move(e));
            else if (op("(")) {
                e = node(Op::call, now().line, std::move(e));
                arguments(*e);
            } else
                return e;
        }
    }

    // `inline_start`: the first filter has no "|" before it ({% filter upper|trim %}).
    ExpressionPtr filters(ExpressionPtr e, bool inline_start) {
        while (inline_start || take_op("|")) {
            inline_start = false;
            const int line = now().line;
            std::string filter = expect_name();
            if (!find_filter(filter) && conditional_ == 0)
                throw Failure{line, fmt::format("unknown filter '{}'", filter)};
            e = node(Op::filter, line, std::move(e));
            e->name = std::move(filter);
            if (op("(")) arguments(*e);
        }
        return e;
    }

    ExpressionPtr test(ExpressionPtr e) {
        ++at_;
        const int line = now().line;
        const bool negated = take_name("not");
        std::string test = expect_name();
        if (!find_test(test) && conditional_ == 0) throw Failure{line, fmt::format("unknown test '{}'", test)};
        e = node(Op::test, line, std::move(e));
        e->name = std::move(test);
        const K k = now().kind;
        if (op("("))
            arguments(*e);
        else if ((k == K::name && !name("else") && !name("or") && !name("and")) || k == K::string || k == K::integer ||
                 k == K::real || op("[") || op("{")) {
            if (name("is")) fail("tests cannot be chained with 'is'");
            Nested nested(*this);
            e->call.positional.push_back(postfix(primary()));
            e->depth = std::max(e->depth, e->call.positional[0]->depth + 1);
        }
        return negated ? node(Op::logical_not, line, std::move(e)) : std::move(e);
    }

    std::vector<Token> tokens_;
    size_t at_ = 0;
    int nesting_ = 0, loops_ = 0, conditional_ = 0;
    Macro* macro_ = nullptr;
};

}  // namespace

Body parse(std::string_view source) { return Parser(source).run(); }

}  // namespace nibble::jinja

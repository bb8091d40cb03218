#include "text/jinja_expressions.h"

#include "text/jinja_builtins.h"

#include <fmt/format.h>

#include <algorithm>

namespace nibble::jinja {

std::string ExpressionParser::found() const {
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
void ExpressionParser::expect_op(std::string_view text) {
    if (!take_op(text)) fail(fmt::format("expected '{}', found {}", text, found()));
}
std::string ExpressionParser::expect_name() {
    if (now().kind != K::name) fail("expected a name, found " + found());
    return tokens_[at_++].text;
}
void ExpressionParser::expect_block_end() {
    if (now().kind != K::block_end) fail("expected '%}', found " + found());
    ++at_;
}

ExpressionPtr ExpressionParser::make(Op o, int line) const {
    auto e = std::make_unique<Expression>();
    e->op = o;
    e->line = line;
    return e;
}

void ExpressionParser::adopt(Expression& parent, ExpressionPtr child) {
    if (child) parent.depth = std::max(parent.depth, child->depth + 1);
    if (parent.depth > max_depth) fail("an expression is nested too deeply");
    parent.items.push_back(std::move(child));
}

ExpressionPtr ExpressionParser::constant(Value value, int line) {
    auto e = make(Op::constant, line);
    e->value = std::move(value);
    return e;
}

ExpressionPtr ExpressionParser::target(bool with_namespace) {
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

ExpressionPtr ExpressionParser::target_list(bool with_namespace) {
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

ExpressionPtr ExpressionParser::tuple(bool with_conditional) {
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

ExpressionPtr ExpressionParser::expression() {
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

ExpressionPtr ExpressionParser::logical_or() {
    auto left = logical_and();
    while (name("or")) {
        const int line = tokens_[at_++].line;
        left = node(Op::logical_or, line, std::move(left), logical_and());
    }
    return left;
}

ExpressionPtr ExpressionParser::logical_and() {
    auto left = logical_not();
    while (name("and")) {
        const int line = tokens_[at_++].line;
        left = node(Op::logical_and, line, std::move(left), logical_not());
    }
    return left;
}

ExpressionPtr ExpressionParser::logical_not() {
    if (!name("not")) return compare();
    Nested nested(*this);
    const int line = tokens_[at_++].line;
    return node(Op::logical_not, line, logical_not());
}

ExpressionPtr ExpressionParser::compare() {
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

ExpressionPtr ExpressionParser::sum() {
    auto left = concat();
    while (op("+") || op("-")) {
        const Token& t = tokens_[at_++];
        left = node(t.text == "+" ? Op::add : Op::subtract, t.line, std::move(left), concat());
    }
    return left;
}

ExpressionPtr ExpressionParser::concat() {
    auto first = product();
    if (!op("~")) return first;
    auto all = node(Op::concat, now().line, std::move(first));
    while (take_op("~")) adopt(*all, product());
    return all;
}

ExpressionPtr ExpressionParser::product() {
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

ExpressionPtr ExpressionParser::power() {
    auto left = unary(true);
    while (op("**")) {
        const int line = tokens_[at_++].line;
        left = node(Op::power, line, std::move(left), unary(true));
    }
    return left;
}

ExpressionPtr ExpressionParser::unary(bool with_filter) {
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

ExpressionPtr ExpressionParser::primary() {
    const Token& t = now();
    if (t.kind == K::string) {
        std::string text;
        while (now().kind == K::string) text += tokens_[at_++].text;
        return constant(Marked::written(std::move(text)), t.line);
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

ExpressionPtr ExpressionParser::postfix(ExpressionPtr e) {
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

ExpressionPtr ExpressionParser::subscript(ExpressionPtr e, int line) {
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

void ExpressionParser::arguments(Expression& e) {
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
            if (c.named.size() >= 1000) fail("a call has over 1000 named arguments");
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

ExpressionPtr ExpressionParser::filter_chain(ExpressionPtr e) {
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

ExpressionPtr ExpressionParser::filters(ExpressionPtr e, bool inline_start) {
    while (inline_start || take_op("|")) {
        inline_start = false;
        const int line = now().line;
        std::string filter = expect_name();
        if (!find_filter(filter) && conditional_ == 0) throw Failure{line, fmt::format("unknown filter '{}'", filter)};
        e = node(Op::filter, line, std::move(e));
        e->name = std::move(filter);
        if (op("(")) arguments(*e);
    }
    return e;
}

ExpressionPtr ExpressionParser::test(ExpressionPtr e) {
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

}  // namespace nibble::jinja

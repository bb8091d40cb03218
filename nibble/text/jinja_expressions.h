// Parses tokens into expressions: the part of Jinja's grammar inside "{{ }}" and after the name of a tag. The statement
// parser derives from it.
#pragma once

#include "text/jinja_ast.h"
#include "text/jinja_lexer.h"

#include <string>
#include <vector>

namespace nibble::jinja {

class ExpressionParser {
protected:
    explicit ExpressionParser(std::string_view source) : tokens_(tokenize(source)) {}

    static constexpr int max_nesting = 100, max_depth = 500;
    using K = TokenKind;

    struct Nested {
        explicit Nested(ExpressionParser& p) : parser(p) {
            if (++parser.nesting_ > max_nesting) parser.fail("the template is nested too deeply");
        }
        ~Nested() { --parser.nesting_; }
        ExpressionParser& parser;
    };

    const Token& now() const { return tokens_[at_]; }
    [[noreturn]] void fail(std::string message) const { throw Failure{now().line, std::move(message)}; }
    bool op(std::string_view text) const { return now().kind == K::op && now().text == text; }
    bool name(std::string_view text) const { return now().kind == K::name && now().text == text; }
    bool take_op(std::string_view text) { return op(text) && ++at_; }
    bool take_name(std::string_view text) { return name(text) && ++at_; }
    std::string found() const;
    void expect_op(std::string_view text);
    std::string expect_name();
    void expect_block_end();

    // The target of an assignment: a name, an attribute of a namespace, or several of them with or without brackets.
    ExpressionPtr target(bool with_namespace);
    ExpressionPtr target_list(bool with_namespace = false);

    // One expression, or a tuple a, b, c without brackets.
    ExpressionPtr tuple(bool with_conditional = true);
    ExpressionPtr expression();
    // `inline_start`: the first filter has no "|" before it ({% filter upper|trim %}).
    ExpressionPtr filters(ExpressionPtr e, bool inline_start);

    std::vector<Token> tokens_;
    size_t at_ = 0;
    int conditional_ = 0;     // number of enclosing conditions; filters and tests inside them may never run
    Macro* macro_ = nullptr;  // the macro whose body is being parsed

private:
    ExpressionPtr make(Op o, int line) const;
    void adopt(Expression& parent, ExpressionPtr child);
    template <class... Children>
    ExpressionPtr node(Op o, int line, Children... children) {
        auto e = make(o, line);
        (adopt(*e, std::move(children)), ...);
        return e;
    }
    ExpressionPtr constant(Value value, int line);

    ExpressionPtr logical_or();
    ExpressionPtr logical_and();
    ExpressionPtr logical_not();
    ExpressionPtr compare();
    ExpressionPtr sum();
    ExpressionPtr concat();
    ExpressionPtr product();
    ExpressionPtr power();
    ExpressionPtr unary(bool with_filter);
    ExpressionPtr primary();
    ExpressionPtr postfix(ExpressionPtr e);
    ExpressionPtr subscript(ExpressionPtr e, int line);
    void arguments(Expression& e);
    ExpressionPtr filter_chain(ExpressionPtr e);
    ExpressionPtr test(ExpressionPtr e);

    int nesting_ = 0;
};

}  // namespace nibble::jinja

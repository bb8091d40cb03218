#include "text/jinja_parser.h"

#include "text/jinja_expressions.h"

#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>

namespace nibble::jinja {
namespace {

class Parser : ExpressionParser {
public:
    explicit Parser(std::string_view source) : ExpressionParser(source) {}

    Body run() { return statements({}); }

private:
    // Parses up to a tag in `ends`. Its name is then the current token; "{%" is consumed.
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

    // Parses a body that acts as its own function: break and continue cannot leave it.
    Body closed_block(std::string_view end) {
        const int loops = std::exchange(loops_, 0);
        Body body = block({end});
        loops_ = loops;
        finish();
        return body;
    }

    void finish() {  // consumes the end tag's name and "%}"
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
            if (macro.parameters.size() >= 1000) fail("a macro has over 1000 parameters");
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

    int loops_ = 0;
};

}  // namespace

Body parse(std::string_view source) { return Parser(source).run(); }

}  // namespace nibble::jinja

// Evaluates the tree. Scopes are Jinja's: a loop's body, a macro and a block have their own scope, an `if` has none.
#pragma once

#include "text/jinja_ast.h"
#include "text/jinja_builtins.h"

#include <ctime>
#include <unordered_map>

namespace nibble::jinja {

struct Scope {
    std::unordered_map<std::string, Value> names;
    std::shared_ptr<Scope> parent;
};

class Interpreter {
public:
    Interpreter(Meter& meter, int64_t max_output, const std::tm* clock);
    ~Interpreter();
    Interpreter(const Interpreter&) = delete;
    Interpreter& operator=(const Interpreter&) = delete;

    // Throws Failure. `body` must outlive the interpreter.
    Marked run(const Body& body, std::vector<std::pair<std::string, Value>> variables);

    Value call(const Value& function, const Arguments& arguments);
    // Makes a namespace. The interpreter empties it at its end, because a namespace may contain itself.
    Value make_space();
    [[noreturn]] void fail(std::string message) const { budget.fail(std::move(message)); }
    Marked text(const Value& value) { return str(value, budget); }
    // Returns the first position at or after `from` (find) or the last one (rfind) of `what` in `text`; npos if absent.
    size_t find(std::string_view text, std::string_view what, size_t from = 0);
    size_t rfind(std::string_view text, std::string_view what);
    // Makes an undefined value; its reason counts as created text.
    Value missing(std::string reason) {
        budget.pay_bytes(int64_t(64 + reason.size()));
        return Value::undefined(std::move(reason));
    }
    Value string(Marked text) { return make_string(budget, std::move(text)); }
    Value list(std::vector<Value> items, Row row = Row::list) { return make_list(budget, std::move(items), row); }

    Budget budget;
    const std::tm* clock;  // may be null

private:
    enum class Flow : uint8_t { on, stop, next };
    using ScopePtr = std::shared_ptr<Scope>;

    ScopePtr inner(const ScopePtr& parent);
    Flow execute(const Body& body, const ScopePtr& scope);
    Flow execute(const Statement& s, const ScopePtr& scope);
    void loop(const Statement& s, const ScopePtr& scope, const Value& over, int level);
    void assign(const Expression& target, const Value& value, const ScopePtr& scope);
    Value make_macro(const Statement& s, const ScopePtr& scope);
    Value call_macro(const Statement& s, const ScopePtr& scope, const Arguments& arguments);
    Marked capture(const Body& body, const ScopePtr& scope);
    void write(const Marked& text);

    Value evaluate(const Expression& e, const ScopePtr& scope);
    Value look_up(const std::string& name, const ScopePtr& scope);
    Value filtered(const Expression& e, const ScopePtr& scope, const Value* input);
    Arguments arguments(const Call& call, const ScopePtr& scope);

    Marked* out_ = nullptr;
    int64_t max_output_;
    std::vector<ScopePtr>
        captured_;  // scopes captured by macros; a macro in its own scope is a cycle, which the destructor breaks
    std::vector<std::shared_ptr<Dict>>
        spaces_;  // namespaces, kept until the destructor empties them one by one; loops_ likewise
    std::vector<std::shared_ptr<Loop>> loops_;
};

}  // namespace nibble::jinja

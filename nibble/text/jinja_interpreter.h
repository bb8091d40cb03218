// Walks the tree. Scopes are Jinja's: a loop's body, a macro and a block have their own, an `if` has none.
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
    Interpreter(Budget limits, int64_t max_output, const std::tm* clock);
    ~Interpreter();
    Interpreter(const Interpreter&) = delete;
    Interpreter& operator=(const Interpreter&) = delete;

    // Throws Failure. `body` must outlive the interpreter.
    std::string run(const Body& body, std::vector<std::pair<std::string, Value>> variables);

    Value call(const Value& function, const Arguments& arguments);
    // A namespace, whose content is dropped with the interpreter: it may hold itself.
    Value make_space();
    [[noreturn]] void fail(std::string message) const { budget.fail(std::move(message)); }
    std::string text(const Value& value) { return str(value, budget); }
    Value string(std::string text) { return make_string(budget, std::move(text)); }
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
    std::string capture(const Body& body, const ScopePtr& scope);
    void write(const std::string& text);

    Value evaluate(const Expression& e, const ScopePtr& scope);
    Value look_up(const std::string& name, const ScopePtr& scope);
    Value filtered(const Expression& e, const ScopePtr& scope, const Value* input);
    Arguments arguments(const Call& call, const ScopePtr& scope);

    std::string* out_ = nullptr;
    int64_t max_output_;
    std::vector<ScopePtr> captured_;  // by macros, which lie in scopes: cycles, broken by the destructor
    std::vector<std::shared_ptr<Dict>> spaces_;
};

}  // namespace nibble::jinja

#include "text/jinja_interpreter.h"

#include "text/substring.h"

#include <fmt/format.h>

#include <algorithm>

namespace nibble::jinja {
namespace {

// Scope of a nested evaluation: sets the current line to the node's and restores the outer line at the end.
struct Entered {
    Entered(Budget& b, int line) : budget(b), outer(b.line) {
        budget.line = line;
        budget.enter();
        budget.pay_steps(1);
    }
    ~Entered() {
        budget.leave();
        budget.line = outer;
    }
    Budget& budget;
    int outer;
};

}  // namespace

Interpreter::Interpreter(Meter& meter, int64_t max_output, const std::tm* now)
    : budget{meter}, clock(now), max_output_(max_output) {}

Interpreter::~Interpreter() {
    for (const auto& scope : captured_) scope->names.clear();
    for (const auto& space : spaces_) space->entries.clear();
    for (const auto& loop : loops_) {
        loop->last_changed = {};
        loop->items = {};
        loop->recurse = {};
    }
}

Marked Interpreter::run(const Body& body, std::vector<std::pair<std::string, Value>> variables) {
    auto globals = std::make_shared<Scope>();
    for (auto& [name, value] : functions(*this)) globals->names[name] = value;
    for (auto& [name, value] : variables) globals->names[name] = std::move(value);
    return capture(body, inner(globals));
}

Interpreter::ScopePtr Interpreter::inner(const ScopePtr& parent) {
    budget.pay_steps(1);
    auto scope = std::make_shared<Scope>();
    scope->parent = parent;
    return scope;
}

size_t Interpreter::find(std::string_view text, std::string_view what, size_t from) {
    const size_t at = find_text(text, what, budget.meter, from);
    if (!budget.meter.ok()) budget.stop();
    return at;
}

size_t Interpreter::rfind(std::string_view text, std::string_view what) {
    const size_t at = rfind_text(text, what, budget.meter);
    if (!budget.meter.ok()) budget.stop();
    return at;
}

Value Interpreter::make_space() {
    budget.pay_bytes(128);
    spaces_.push_back(std::make_shared<Dict>());
    return Value(spaces_.back(), Kind::space);
}

void Interpreter::write(const Marked& text) {
    if (int64_t(out_->size() + text.size()) > max_output_)
        fail(fmt::format("the output is longer than {} bytes", max_output_));
    budget.pay_bytes(text.cost() - 64);
    *out_ += text;
}

Marked Interpreter::capture(const Body& body, const ScopePtr& scope) {
    Marked text;
    Marked* const outer = std::exchange(out_, &text);
    execute(body, scope);
    out_ = outer;
    return text;
}

Interpreter::Flow Interpreter::execute(const Body& body, const ScopePtr& scope) {
    for (const Statement& s : body) {
        const Entered entered(budget, s.line);
        if (const Flow flow = execute(s, scope); flow != Flow::on) return flow;
    }
    return Flow::on;
}

Interpreter::Flow Interpreter::execute(const Statement& s, const ScopePtr& scope) {
    switch (s.what) {
        case Do::text:
            write(Marked::written(s.text));
            break;
        case Do::print:
            write(text(evaluate(*s.items[0], scope)));
            break;
        case Do::branch:
            for (const auto& [condition, body] : s.arms)
                if (!condition || truth(evaluate(*condition, scope))) return execute(body, scope);
            break;
        case Do::loop:
            loop(s, scope, evaluate(*s.items[0], scope), 0);
            break;
        case Do::set:
            assign(*s.targets[0], evaluate(*s.items[0], scope), scope);
            break;
        case Do::set_block: {
            Value value = string(capture(s.arms[0].second, inner(scope)));
            if (s.items[0]) value = filtered(*s.items[0], scope, &value);
            assign(*s.targets[0], value, scope);
            break;
        }
        case Do::filter_block: {
            const Value value = string(capture(s.arms[0].second, inner(scope)));
            write(text(filtered(*s.items[0], scope, &value)));
            break;
        }
        case Do::macro:
            scope->names[s.macro->name] = make_macro(s, scope);
            break;
        case Do::call_block: {
            const Expression& e = *s.items[0];
            const Value function = evaluate(*e.items[0], scope);
            Arguments given = arguments(e.call, scope);
            given.named.emplace_back("caller", make_macro(s, scope));
            write(text(call(function, given)));
            break;
        }
        case Do::scope: {
            const ScopePtr own = inner(scope);
            for (size_t i = 0; i < s.items.size(); ++i) assign(*s.targets[i], evaluate(*s.items[i], scope), own);
            return execute(s.arms[0].second, own);
        }
        case Do::stop:
            return Flow::stop;
        case Do::next:
            return Flow::next;
    }
    return Flow::on;
}

void Interpreter::loop(const Statement& s, const ScopePtr& scope, const Value& over, int level) {
    std::vector<Value> items = iterate(over, budget);
    if (s.items[1]) {
        std::vector<Value> kept;
        for (Value& item : items) {
            const ScopePtr own = inner(scope);
            assign(*s.targets[0], item, own);
            if (truth(evaluate(*s.items[1], own))) kept.push_back(std::move(item));
        }
        items = std::move(kept);
    }
    if (items.empty()) {
        if (s.arms.size() > 1) execute(s.arms[1].second, inner(scope));
        return;
    }
    budget.pay_bytes(sizeof(Loop) + 64);
    const auto state = loops_.emplace_back(std::make_shared<Loop>());
    state->items = std::make_shared<const std::vector<Value>>(std::move(items));
    state->level = level;
    if (s.recursive)
        state->recurse = [&s, scope, level](Interpreter& self, const Arguments& given) {
            const auto bound = bind(self, "loop", given, {"iterable"});
            if (!bound[0]) self.fail("loop() needs what to go through");
            Marked text;
            Marked* const outer = std::exchange(self.out_, &text);
            self.loop(s, scope, *bound[0], level + 1);
            self.out_ = outer;
            return self.string(std::move(text));
        };
    for (size_t i = 0; i < state->items->size(); ++i) {
        state->index0 = i;
        const ScopePtr own = inner(scope);
        own->names["loop"] = Value(state);
        assign(*s.targets[0], (*state->items)[i], own);
        if (execute(s.arms[0].second, own) == Flow::stop) break;
    }
}

void Interpreter::assign(const Expression& target, const Value& value, const ScopePtr& scope) {
    if (target.op == Op::name) {
        scope->names[target.name] = value;
    } else if (target.op == Op::attribute) {
        const Value space = look_up(target.items[0]->name, scope);
        if (!space.is(Kind::space))
            fail(fmt::format("cannot assign attribute on non-namespace object '{}'", target.items[0]->name));
        space.dict().put(Value(Marked::written(target.name)), value, budget);
    } else {
        const auto values = iterate(value, budget);
        if (values.size() != target.items.size())
            fail(fmt::format("{} values to unpack (expected {}, got {})",
                             values.size() < target.items.size() ? "not enough" : "too many", target.items.size(),
                             values.size()));
        for (size_t i = 0; i < values.size(); ++i) assign(*target.items[i], values[i], scope);
    }
}

Value Interpreter::make_macro(const Statement& s, const ScopePtr& scope) {
    budget.pay_bytes(256);
    if (captured_.empty() || captured_.back() != scope) captured_.push_back(scope);
    auto function = std::make_shared<Function>();
    function->name = s.macro->name;
    function->call = [&s, scope](Interpreter& self, const Arguments& given) {
        return self.call_macro(s, scope, given);
    };
    return Value(std::move(function));
}

Value Interpreter::call_macro(const Statement& s, const ScopePtr& scope, const Arguments& given) {
    const Macro& macro = *s.macro;
    const ScopePtr own = inner(scope);
    const auto takes = [&](const std::string& name) {
        for (const Parameter& p : macro.parameters)
            if (p.name == name) return true;
        return false;
    };
    if (given.positional.size() > macro.parameters.size() && !macro.varargs)
        fail(fmt::format("macro '{}' takes not more than {} argument(s)", macro.name, macro.parameters.size()));
    auto more_named = std::make_shared<Dict>();
    for (const auto& [name, value] : given.named) {
        budget.pay_steps(1 + int64_t(macro.parameters.size()) / 16);
        if (takes(name))
            own->names[name] = value;
        else if (name == "caller" && macro.caller)
            own->names[name] = value;
        else if (macro.kwargs)
            more_named->put(string(Marked::from_data(name)), value, budget);
        else if (name == "caller")
            fail(fmt::format(
                "macro '{}' was invoked with two values for the special caller argument, or does not use caller",
                macro.name));
        else
            fail(fmt::format("macro '{}' takes no keyword argument '{}'", macro.name, name));
    }
    for (size_t i = 0; i < macro.parameters.size(); ++i) {
        const Parameter& p = macro.parameters[i];
        const bool named = own->names.contains(p.name);
        if (i < given.positional.size()) {
            if (named) fail(fmt::format("macro '{}' got multiple values for argument '{}'", macro.name, p.name));
            own->names[p.name] = given.positional[i];
        } else if (!named) {
            own->names[p.name] = p.fallback ? evaluate(*p.fallback, own)
                                            : missing(fmt::format("parameter '{}' was not provided", p.name));
        }
    }
    if (macro.caller && !own->names.contains("caller")) own->names["caller"] = missing("No caller defined");
    if (macro.kwargs) {
        int depth = 0;
        for (const auto& [name, value] : more_named->entries) depth = std::max(depth, container_depth(value));
        more_named->depth = deeper(budget, depth);
        own->names["kwargs"] = Value(std::move(more_named));
    }
    if (macro.varargs) {
        std::vector<Value> more;
        for (size_t i = macro.parameters.size(); i < given.positional.size(); ++i) more.push_back(given.positional[i]);
        own->names["varargs"] = list(std::move(more), Row::tuple);
    }
    return string(capture(s.arms[0].second, own));
}

Value Interpreter::look_up(const std::string& name, const ScopePtr& scope) {
    for (const Scope* s = scope.get(); s; s = s->parent.get())
        if (const auto it = s->names.find(name); it != s->names.end()) return it->second;
    return missing(fmt::format("'{}' is undefined", name));
}

Value Interpreter::call(const Value& function, const Arguments& given) {
    const Entered entered(budget, budget.line);
    if (function.is(Kind::function)) return function.function().call(*this, given);
    if (function.is(Kind::loop) && function.loop().recurse) return function.loop().recurse(*this, given);
    if (function.is(Kind::loop)) fail("The loop must have the 'recursive' marker enabled.");
    if (function.is(Kind::undefined)) fail(function.text());
    fail(fmt::format("'{}' object is not callable", type_name(function)));
}

Arguments Interpreter::arguments(const Call& call, const ScopePtr& scope) {
    Arguments out;
    for (const auto& e : call.positional) out.positional.push_back(evaluate(*e, scope));
    for (const auto& [name, e] : call.named) out.named.emplace_back(name, evaluate(*e, scope));
    if (call.star)
        for (Value& v : iterate(evaluate(*call.star, scope), budget)) out.positional.push_back(std::move(v));
    if (call.star_star) {
        const Value more = evaluate(*call.star_star, scope);
        if (!more.is(Kind::dict)) fail("what follows ** is not a dict");
        for (const auto& [k, v] : more.dict().entries) {
            if (!k.is(Kind::string)) fail("keywords must be strings");
            budget.pay_bytes(int64_t(64 + k.text().size()));
            out.named.emplace_back(k.text(), v);
        }
    }
    return out;
}

// `input` is the input of the innermost filter if the chain has no object.
Value Interpreter::filtered(const Expression& e, const ScopePtr& scope, const Value* input) {
    const Entered entered(budget, e.line);
    const Filter filter = find_filter(e.name);
    if (!filter) fail(fmt::format("unknown filter '{}'", e.name));
    const Value value = !e.items[0]                             ? *input
                        : input && e.items[0]->op == Op::filter ? filtered(*e.items[0], scope, input)
                                                                : evaluate(*e.items[0], scope);
    return filter(*this, value, arguments(e.call, scope));
}

Value Interpreter::evaluate(const Expression& e, const ScopePtr& scope) {
    const Entered entered(budget, e.line);
    const auto value = [&](size_t i) { return evaluate(*e.items[i], scope); };
    const auto two = [&](auto&& combine) {
        const Value a = value(0);
        const Value b = value(1);
        return combine(a, b);
    };
    switch (e.op) {
        case Op::constant:
            return e.value;
        case Op::name:
            return look_up(e.name, scope);
        case Op::list:
        case Op::tuple: {
            std::vector<Value> items;
            for (size_t i = 0; i < e.items.size(); ++i) items.push_back(value(i));
            return list(std::move(items), e.op == Op::list ? Row::list : Row::tuple);
        }
        case Op::dict: {
            auto dict = std::make_shared<Dict>();
            int depth = 0;
            for (size_t i = 0; i < e.items.size(); i += 2) {
                const Value key = value(i);
                Value item = value(i + 1);
                depth = std::max(depth, container_depth(item));
                dict->put(key, std::move(item), budget);
            }
            dict->depth = deeper(budget, depth);
            return Value(std::move(dict));
        }
        case Op::attribute:
            return get_attribute(*this, value(0), e.name);
        case Op::item:
            return two([&](const Value& a, const Value& b) { return get_item(*this, a, b); });
        case Op::slice: {
            const auto part = [&](size_t i) { return e.items[i] ? value(i) : Value::none(); };
            const Value object = value(0), start = part(1), stop = part(2), step = part(3);
            return get_slice(*this, object, start, stop, step);
        }
        case Op::call: {
            const Value function = value(0);
            return call(function, arguments(e.call, scope));
        }
        case Op::filter:
            return filtered(e, scope, nullptr);
        case Op::test: {
            const Test test = find_test(e.name);
            if (!test) fail(fmt::format("unknown test '{}'", e.name));
            const Value object = value(0);
            return test(*this, object, arguments(e.call, scope));
        }
        case Op::conditional:
            if (truth(value(1))) return value(0);
            return e.items[2] ? value(2)
                              : missing("the inline if-expression evaluated to false and no else section was defined.");
        case Op::logical_or: {
            Value a = value(0);
            return truth(a) ? a : value(1);
        }
        case Op::logical_and: {
            Value a = value(0);
            return truth(a) ? value(1) : a;
        }
        case Op::logical_not:
            return !truth(value(0));
        case Op::negative:
            return negate(*this, value(0));
        case Op::positive: {
            const Value a = value(0);
            if (!a.is_number()) negate(*this, a);
            return a.is(Kind::boolean) ? Value(a.integer()) : a;
        }
        case Op::compare: {
            Value left = value(0);
            for (size_t i = 0; i < e.operators.size(); ++i) {
                Value right = value(i + 1);
                if (!compare(*this, e.operators[i], left, right)) return false;
                left = std::move(right);
            }
            return true;
        }
        case Op::add:
            return two([&](const Value& a, const Value& b) { return add(*this, a, b); });
        case Op::multiply:
            return two([&](const Value& a, const Value& b) { return multiply(*this, a, b); });
        case Op::subtract:
            return two([&](const Value& a, const Value& b) { return arithmetic(*this, "-", a, b); });
        case Op::divide:
            return two([&](const Value& a, const Value& b) { return arithmetic(*this, "/", a, b); });
        case Op::floor_divide:
            return two([&](const Value& a, const Value& b) { return arithmetic(*this, "//", a, b); });
        case Op::modulo:
            return two([&](const Value& a, const Value& b) { return arithmetic(*this, "%", a, b); });
        case Op::power:
            return two([&](const Value& a, const Value& b) { return arithmetic(*this, "**", a, b); });
        case Op::concat: {
            Marked out;
            for (size_t i = 0; i < e.items.size(); ++i) out += text(value(i));
            return string(std::move(out));
        }
    }
    fail("an expression of no kind");
}

}  // namespace nibble::jinja

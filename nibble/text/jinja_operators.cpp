// Operators, indexing and slices with Python's semantics.
#include "text/jinja_interpreter.h"
#include "text/jinja_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace nibble::jinja {
namespace {

void must_be_defined(Interpreter& in, const Value& a, const Value& b) {
    if (a.is(Kind::undefined)) in.fail(a.text());
    if (b.is(Kind::undefined)) in.fail(b.text());
}

[[noreturn]] void unsupported(Interpreter& in, std::string_view op, const Value& a, const Value& b) {
    must_be_defined(in, a, b);
    in.fail(fmt::format("unsupported operand type(s) for {}: '{}' and '{}'", op, type_name(a), type_name(b)));
}

[[noreturn]] void overflow(Interpreter& in) { in.fail("an integer needs more than 64 bits"); }

std::string object_name(const Value& v) { return v.is(Kind::none) ? "None" : fmt::format("{} object", type_name(v)); }

bool indexable(const Value& v) { return v.is(Kind::string) || (v.is(Kind::list) && v.list().row <= Row::range); }

}  // namespace

Value get_attribute(Interpreter& in, const Value& object, const std::string& name) {
    if (object.is(Kind::undefined)) in.fail(object.text());
    if (auto found = python_attribute(in, object, name)) return *found;
    if (object.is(Kind::dict))
        if (const Value* v = object.dict().find(std::string_view(name), in.budget)) return *v;
    return in.missing(fmt::format("'{}' has no attribute '{}'", object_name(object), name));
}

Value get_item(Interpreter& in, const Value& object, const Value& key) {
    if (object.is(Kind::undefined)) in.fail(object.text());
    if (object.is(Kind::dict) && hashable(key))
        if (const Value* v = object.dict().find(key, in.budget)) return *v;
    if (indexable(object) && key.is_integral()) {
        const int64_t size = length_of(object);
        const int64_t i = key.integer() < 0 ? key.integer() + size : key.integer();
        if (i >= 0 && i < size) {
            if (object.is(Kind::list)) return object.list().items[size_t(i)];
            in.budget.pay_steps(1 + size / 16);
            const auto at = offsets(object.text());
            const std::string_view text = object.text();
            return in.string(object.marked().part(text.substr(at[size_t(i)], at[size_t(i) + 1] - at[size_t(i)])));
        }
    }
    if (key.is(Kind::string)) {
        if (auto found = python_attribute(in, object, key.text())) return *found;
        return in.missing(fmt::format("'{}' has no attribute {}", object_name(object), repr(key, in.budget).text()));
    }
    return in.missing(fmt::format("{} has no element {}", object_name(object),
                                  key.is(Kind::undefined) ? "Undefined" : repr(key, in.budget).text()));
}

Value get_slice(Interpreter& in, const Value& object, const Value& start, const Value& stop, const Value& step) {
    if (object.is(Kind::undefined)) in.fail(object.text());
    if (!indexable(object)) in.fail(fmt::format("'{}' object cannot be sliced", type_name(object)));
    for (const Value* v : {&start, &stop, &step})
        if (!v->is(Kind::none) && !v->is_integral()) in.fail("slice indices must be integers or None");
    const int64_t size = length_of(object);
    const int64_t by =
        step.is(Kind::none) ? 1 : std::clamp<int64_t>(step.integer(), -(int64_t(1) << 40), int64_t(1) << 40);
    if (by == 0) in.fail("slice step cannot be zero");
    const int64_t low = by < 0 ? -1 : 0, high = by < 0 ? size - 1 : size;
    const auto place = [&](const Value& v, int64_t fallback) {
        if (v.is(Kind::none)) return fallback;
        const int64_t i = v.integer();
        return i < 0 ? std::max(i + size, low) : std::min(i, high);
    };
    const int64_t from = place(start, by < 0 ? high : low), to = place(stop, by < 0 ? low : high);
    in.budget.pay_steps(size / 4);
    if (object.is(Kind::string)) {
        const auto at = offsets(object.text());
        const std::string_view text = object.text();
        Marked out;
        for (int64_t i = from; by > 0 ? i < to : i > to; i += by)
            out.add(object.marked(), text.substr(at[size_t(i)], at[size_t(i) + 1] - at[size_t(i)]));
        return in.string(std::move(out));
    }
    std::vector<Value> out;
    for (int64_t i = from; by > 0 ? i < to : i > to; i += by) out.push_back(object.list().items[size_t(i)]);
    return in.list(std::move(out), object.list().row);
}

Value add(Interpreter& in, const Value& a, const Value& b) {
    if (a.is_number() && b.is_number()) return arithmetic(in, "+", a, b);
    if (a.is(Kind::string) && b.is(Kind::string)) {
        Marked out = a.marked();
        out += b.marked();
        return in.string(std::move(out));
    }
    if (a.is(Kind::list) && b.is(Kind::list) && a.list().row == b.list().row && a.list().row <= Row::tuple) {
        std::vector<Value> out = a.list().items;
        out.insert(out.end(), b.list().items.begin(), b.list().items.end());
        return in.list(std::move(out), a.list().row);
    }
    must_be_defined(in, a, b);
    if (a.is(Kind::string)) in.fail(fmt::format("can only concatenate str (not \"{}\") to str", type_name(b)));
    unsupported(in, "+", a, b);
}

Value multiply(Interpreter& in, const Value& a, const Value& b) {
    if (a.is_number() && b.is_number()) return arithmetic(in, "*", a, b);
    if (a.is_integral() && (b.is(Kind::string) || b.is(Kind::list))) return multiply(in, b, a);
    if (!b.is_integral()) unsupported(in, "*", a, b);
    const int64_t times = std::max<int64_t>(0, b.integer());
    const auto pay = [&](size_t bytes) {
        if (times > (int64_t(1) << 40) / int64_t(bytes + 1)) in.fail("the template makes too much text");
        in.budget.pay_bytes(times * int64_t(bytes));
    };
    if (a.is(Kind::string)) {
        if (a.text().empty()) return a;
        pay(size_t(a.marked().cost()) - 64);
        Marked out;
        for (int64_t i = 0; i < times; ++i) out += a.marked();
        return Value(std::move(out));
    }
    if (a.is(Kind::list) && a.list().row <= Row::tuple) {
        if (a.list().items.empty()) return a;
        pay(a.list().items.size() * sizeof(Value));
        std::vector<Value> out;
        for (int64_t i = 0; i < times; ++i) out.insert(out.end(), a.list().items.begin(), a.list().items.end());
        return in.list(std::move(out), a.list().row);
    }
    unsupported(in, "*", a, b);
}

Value negate(Interpreter& in, const Value& a) {
    if (a.is(Kind::undefined)) in.fail(a.text());
    if (a.is(Kind::real)) return -a.real();
    if (!a.is_integral()) in.fail(fmt::format("bad operand type for unary -: '{}'", type_name(a)));
    if (a.integer() == INT64_MIN) overflow(in);
    return -a.integer();
}

Value arithmetic(Interpreter& in, std::string_view op, const Value& a, const Value& b) {
    if (op == "%" && a.is(Kind::string)) return in.string(percent_format(in, a.marked(), b));
    if (!a.is_number() || !b.is_number()) unsupported(in, op, a, b);
    const bool integral = a.is_integral() && b.is_integral();
    const bool divides = op == "/" || op == "//" || op == "%";
    if (divides && b.real() == 0) in.fail("division by zero");
    if (integral && op != "/" && !(op == "**" && b.integer() < 0)) {
        const int64_t x = a.integer(), y = b.integer();
        int64_t out = 0;
        if (op == "+"   ? __builtin_add_overflow(x, y, &out)
            : op == "-" ? __builtin_sub_overflow(x, y, &out)
                        : op == "*" && __builtin_mul_overflow(x, y, &out))
            overflow(in);
        if (divides) {
            if (y == -1) return op == "%" ? Value(int64_t(0)) : negate(in, Value(x));
            const int64_t quotient = x / y - (x % y != 0 && (x < 0) != (y < 0));
            return op == "//" ? quotient : x - quotient * y;
        }
        if (op == "**") {
            out = 1;
            if (x == 0 || x == 1) return y == 0 ? out : x;
            if (x == -1) return y % 2 ? x : out;
            for (int64_t i = 0; i < y; ++i)
                if (__builtin_mul_overflow(out, x, &out)) overflow(in);
        }
        return out;
    }
    const double x = a.real(), y = b.real();
    if (op == "+") return x + y;
    if (op == "-") return x - y;
    if (op == "*") return x * y;
    if (op == "/") return x / y;
    if (op == "**") {
        if (x == 0 && y < 0) in.fail("0.0 cannot be raised to a negative power");
        if (x < 0 && y != std::floor(y)) in.fail("a negative number to a fractional power is complex");
        return std::pow(x, y);
    }
    double rest = std::fmod(x, y);
    if (rest != 0 && (rest < 0) != (y < 0)) rest += y;
    if (op == "%") return rest == 0 ? std::copysign(0.0, y) : rest;
    return std::round((x - rest) / y);
}

bool compare(Interpreter& in, std::string_view op, const Value& a, const Value& b) {
    if (op == "==") return equal(a, b, in.budget);
    if (op == "!=") return !equal(a, b, in.budget);
    if (op == "<") return less(a, b, in.budget);
    if (op == ">") return less(b, a, in.budget);
    const bool numbers = a.is_number() && b.is_number();
    if (op == "<=") return numbers ? less(a, b, in.budget) || equal(a, b, in.budget) : !less(b, a, in.budget);
    if (op == ">=") return numbers ? less(b, a, in.budget) || equal(a, b, in.budget) : !less(a, b, in.budget);
    if (op == "not in") return !compare(in, "in", a, b);
    if (b.is(Kind::string)) {
        if (!a.is(Kind::string))
            in.fail(fmt::format("'in <string>' requires string as left operand, not {}", type_name(a)));
        return in.find(b.text(), a.text()) != std::string::npos;
    }
    if (b.is(Kind::dict)) {
        if (!hashable(a)) in.fail(fmt::format("unhashable type: '{}'", type_name(a)));
        return b.dict().find(a, in.budget) != nullptr;
    }
    if (b.is(Kind::none) || b.is_number()) in.fail(fmt::format("argument of type '{}' is not iterable", type_name(b)));
    for (const Value& v : iterate(b, in.budget))
        if (equal(v, a, in.budget)) return true;
    return false;
}

}  // namespace nibble::jinja

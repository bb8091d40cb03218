#include "text/jinja_interpreter.h"
#include "text/jinja_text.h"

#include <fmt/format.h>

#include <map>

namespace nibble::jinja {
namespace {

Value other(Interpreter& in, const Arguments& args) {
    if (args.positional.size() != 1 || !args.named.empty()) in.fail("the test needs one argument");
    return args.positional[0];
}

template <Kind kind>
bool is_kind(Interpreter&, const Value& v, const Arguments&) {
    return v.is(kind);
}

template <int remainder>
bool parity(Interpreter& in, const Value& v, const Arguments&) {
    const Value rest = arithmetic(in, "%", v, int64_t(2));
    return equal(rest, int64_t(remainder), in.budget);
}

bool defined(Interpreter&, const Value& v, const Arguments&) { return !v.is(Kind::undefined); }
bool is_true(Interpreter&, const Value& v, const Arguments&) { return v.is(Kind::boolean) && v.integer(); }
bool is_false(Interpreter&, const Value& v, const Arguments&) { return v.is(Kind::boolean) && !v.integer(); }
bool number(Interpreter&, const Value& v, const Arguments&) { return v.is_number(); }
bool callable(Interpreter&, const Value& v, const Arguments&) {
    return v.is(Kind::function) || v.is(Kind::loop) || v.is(Kind::undefined);
}
bool iterable(Interpreter&, const Value& v, const Arguments&) {
    return v.is(Kind::undefined) || v.is(Kind::string) || v.is(Kind::list) || v.is(Kind::dict) || v.is(Kind::loop);
}
// Python's sequence: has a length and can be indexed.
bool sequence(Interpreter&, const Value& v, const Arguments&) {
    return v.is(Kind::undefined) || v.is(Kind::string) || v.is(Kind::dict) ||
           (v.is(Kind::list) && v.list().row <= Row::range);
}
bool is_lower(Interpreter& in, const Value& v, const Arguments&) {
    const std::string text = in.text(v).text();
    in.budget.pay_look(8 * text.size());
    return lower(text) == text && upper(text) != text;
}
bool is_upper(Interpreter& in, const Value& v, const Arguments&) {
    const std::string text = in.text(v).text();
    in.budget.pay_look(8 * text.size());
    return upper(text) == text && lower(text) != text;
}
bool divisible(Interpreter& in, const Value& v, const Arguments& args) {
    return !truth(arithmetic(in, "%", v, other(in, args)));
}
bool same(Interpreter& in, const Value& v, const Arguments& args) {
    const Value o = other(in, args);
    if (v.kind() != o.kind()) return false;
    return v.identity() ? v.identity() == o.identity() : equal(v, o, in.budget);
}
bool inside(Interpreter& in, const Value& v, const Arguments& args) { return compare(in, "in", v, other(in, args)); }
bool known_filter(Interpreter&, const Value& v, const Arguments&) {
    return v.is(Kind::string) && find_filter(v.text());
}
bool known_test(Interpreter&, const Value& v, const Arguments&) { return v.is(Kind::string) && find_test(v.text()); }
bool escaped(Interpreter&, const Value&, const Arguments&) { return false; }

enum Comparison { eq, ne, lt, le, gt, ge };
template <Comparison c>
bool compares(Interpreter& in, const Value& v, const Arguments& args) {
    constexpr std::string_view ops[]{"==", "!=", "<", "<=", ">", ">="};
    return compare(in, ops[c], v, other(in, args));
}

const std::map<std::string_view, Test>& tests() {
    static const std::map<std::string_view, Test> all{{"defined", defined},
                                                      {"undefined", is_kind<Kind::undefined>},
                                                      {"none", is_kind<Kind::none>},
                                                      {"boolean", is_kind<Kind::boolean>},
                                                      {"integer", is_kind<Kind::integer>},
                                                      {"float", is_kind<Kind::real>},
                                                      {"string", is_kind<Kind::string>},
                                                      {"mapping", is_kind<Kind::dict>},
                                                      {"true", is_true},
                                                      {"false", is_false},
                                                      {"number", number},
                                                      {"callable", callable},
                                                      {"iterable", iterable},
                                                      {"sequence", sequence},
                                                      {"odd", parity<1>},
                                                      {"even", parity<0>},
                                                      {"divisibleby", divisible},
                                                      {"sameas", same},
                                                      {"in", inside},
                                                      {"lower", is_lower},
                                                      {"upper", is_upper},
                                                      {"filter", known_filter},
                                                      {"test", known_test},
                                                      {"escaped", escaped},
                                                      {"eq", compares<eq>},
                                                      {"equalto", compares<eq>},
                                                      {"==", compares<eq>},
                                                      {"ne", compares<ne>},
                                                      {"!=", compares<ne>},
                                                      {"lt", compares<lt>},
                                                      {"lessthan", compares<lt>},
                                                      {"<", compares<lt>},
                                                      {"le", compares<le>},
                                                      {"<=", compares<le>},
                                                      {"gt", compares<gt>},
                                                      {"greaterthan", compares<gt>},
                                                      {">", compares<gt>},
                                                      {"ge", compares<ge>},
                                                      {">=", compares<ge>}};
    return all;
}

}  // namespace

Test find_test(std::string_view name) {
    const auto it = tests().find(name);
    return it == tests().end() ? nullptr : it->second;
}

std::vector<std::string_view> test_names() {
    std::vector<std::string_view> names;
    for (const auto& [name, test] : tests()) names.push_back(name);
    return names;
}

}  // namespace nibble::jinja

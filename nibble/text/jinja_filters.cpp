#include "base/html.h"
#include "text/jinja_interpreter.h"
#include "text/jinja_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>

namespace nibble::jinja {
namespace {

using In = Interpreter&;
using V = const Value&;
using A = const Arguments&;
using Bound = std::vector<std::optional<Value>>;

bool flag(const std::optional<Value>& v, bool otherwise = false) { return v ? truth(*v) : otherwise; }

int64_t integer_argument(In in, const std::optional<Value>& v, int64_t otherwise) {
    if (!v) return otherwise;
    if (!v->is_integral()) in.fail(fmt::format("expected an integer, found {}", type_name(*v)));
    return v->integer();
}

// Implements a filter by the string method of the same name.
Value method(In in, V v, const char* name, A args) {
    const Value text = v.is(Kind::string) ? v : in.string(in.text(v));
    return in.call(get_attribute(in, text, name), args);
}
Value f_trim(In in, V v, A a) {
    const Bound b = bind(in, "trim", a, {"chars"});
    return method(in, v, "strip", b[0] ? Arguments{{*b[0]}, {}} : Arguments{});
}
Value f_upper(In in, V v, A a) { return method(in, v, "upper", a); }
Value f_lower(In in, V v, A a) { return method(in, v, "lower", a); }
Value f_capitalize(In in, V v, A a) { return method(in, v, "capitalize", a); }
Value f_title(In in, V v, A a) { return method(in, v, "title", a); }
Value f_replace(In in, V v, A a) {
    Arguments text = a;
    for (size_t i = 0; i < std::min<size_t>(2, text.positional.size()); ++i)
        text.positional[i] = in.string(in.text(text.positional[i]));
    return method(in, v, "replace", text);
}
Value f_string(In in, V v, A) { return v.is(Kind::string) ? v : in.string(in.text(v)); }
Value f_same(In, V v, A) { return v; }

Value f_length(In in, V v, A) {
    const int64_t n = length_of(v);
    if (n < 0) in.fail(fmt::format("object of type '{}' has no len()", type_name(v)));
    in.budget.pay_steps(1 + (v.is(Kind::string) ? n / 64 : 0));
    return n;
}

Value f_default(In in, V v, A a) {
    const Bound b = bind(in, "default", a, {"default_value", "boolean"});
    if (v.is(Kind::undefined) || (flag(b[1]) && !truth(v))) return b[0] ? *b[0] : Value("");
    return v;
}

Value f_list(In in, V v, A) { return in.list(iterate(v, in.budget)); }
Value f_first(In in, V v, A) {
    const auto items = iterate(v, in.budget);
    return items.empty() ? in.missing("No first item, sequence was empty.") : items.front();
}
Value f_last(In in, V v, A) {
    const auto items = iterate(v, in.budget);
    return items.empty() ? in.missing("No last item, sequence was empty.") : items.back();
}
Value f_reverse(In in, V v, A) {
    if (v.is(Kind::string)) return get_slice(in, v, Value::none(), Value::none(), int64_t(-1));
    auto items = iterate(v, in.budget);
    std::reverse(items.begin(), items.end());
    return in.list(std::move(items), Row::iterator);
}
Value f_items(In in, V v, A) {
    if (v.is(Kind::undefined)) return in.list({}, Row::iterator);
    if (!v.is(Kind::dict)) in.fail("Can only get item pairs from a mapping.");
    return in.list(iterate(in.call(*python_attribute(in, v, "items"), {}), in.budget), Row::iterator);
}

// Follows a path such as "a.b.0" of attributes and indices.
Value dotted(In in, Value v, V path) {
    if (!path.is(Kind::string)) return get_item(in, v, path);
    const std::string& text = path.text();
    for (size_t at = 0; at <= text.size();) {
        const size_t end = std::min(text.find('.', at), text.size());
        const std::string part = text.substr(at, end - at);
        int64_t index = 0;
        const auto parsed = std::from_chars(part.data(), part.data() + part.size(), index);
        const bool number =
            !part.empty() && parsed.ec == std::errc{} && parsed.ptr == part.data() + part.size() && part[0] != '-';
        v = get_item(in, v, number ? Value(index) : Value(Marked::written(part)));
        at = end + 1;
    }
    return v;
}

Value f_attr(In in, V v, A a) {
    const Bound b = bind(in, "attr", a, {"name"});
    if (!b[0] || !b[0]->is(Kind::string)) in.fail("the filter 'attr' needs a name");
    if (v.is(Kind::undefined)) in.fail(v.text());
    if (auto found = python_attribute(in, v, b[0]->text())) return *found;
    return in.missing(fmt::format("'{} object' has no attribute '{}'", type_name(v), b[0]->text().substr(0, 200)));
}

Value f_join(In in, V v, A a) {
    const Bound b = bind(in, "join", a, {"d", "attribute"});
    const Marked glue = b[0] ? in.text(*b[0]) : Marked();
    Marked out;
    bool first = true;
    for (const Value& item : iterate(v, in.budget)) {
        in.budget.pay_bytes(glue.cost() - 64);
        if (!std::exchange(first, false)) out += glue;
        out += in.text(b[1] && !b[1]->is(Kind::none) ? dotted(in, item, *b[1]) : item);
    }
    return in.string(std::move(out));
}

// Returns the arguments after a leading filter or test name.
Arguments rest(A a, size_t from) {
    return {{a.positional.begin() + std::ptrdiff_t(std::min(from, a.positional.size())), a.positional.end()}, a.named};
}

Value f_map(In in, V v, A a) {
    std::vector<Value> out;
    auto items = iterate(v, in.budget);
    if (a.positional.empty()) {
        const Bound b = bind(in, "map", a, {"attribute", "default"});
        if (!b[0]) in.fail("the filter 'map' needs a filter or attribute=");
        for (const Value& item : items) {
            Value found = dotted(in, item, *b[0]);
            out.push_back(found.is(Kind::undefined) && b[1] ? *b[1] : found);
        }
    } else {
        const Filter filter = a.positional[0].is(Kind::string) ? find_filter(a.positional[0].text()) : nullptr;
        if (!filter) in.fail(fmt::format("unknown filter {}", repr(a.positional[0], in.budget).text()));
        for (const Value& item : items) out.push_back(filter(in, item, rest(a, 1)));
    }
    return in.list(std::move(out), Row::iterator);
}

Value choose(In in, V v, A a, bool by_attribute, bool keep) {
    const size_t skip = by_attribute ? 1 : 0;
    if (a.positional.size() < skip) in.fail("the filter needs the name of an attribute");
    Test test = nullptr;
    if (a.positional.size() > skip) {
        test = a.positional[skip].is(Kind::string) ? find_test(a.positional[skip].text()) : nullptr;
        if (!test) in.fail(fmt::format("unknown test {}", repr(a.positional[skip], in.budget).text()));
    }
    const Arguments more = rest(a, skip + 1);
    std::vector<Value> out;
    for (const Value& item : iterate(v, in.budget)) {
        in.budget.pay_steps(1);
        const Value looked_at = by_attribute ? dotted(in, item, a.positional[0]) : item;
        if ((test ? test(in, looked_at, more) : truth(looked_at)) == keep) out.push_back(item);
    }
    return in.list(std::move(out), Row::iterator);
}
Value f_select(In in, V v, A a) { return choose(in, v, a, false, true); }
Value f_reject(In in, V v, A a) { return choose(in, v, a, false, false); }
Value f_selectattr(In in, V v, A a) { return choose(in, v, a, true, true); }
Value f_rejectattr(In in, V v, A a) { return choose(in, v, a, true, false); }

Value sort_key(In in, V v, bool case_sensitive) {
    return v.is(Kind::string) && !case_sensitive ? in.string(v.marked().changed(lower(v.text()))) : v;
}

void sort_by(In in, std::vector<std::pair<Value, Value>>& keyed, bool reverse) {
    // Like Python, reverse=True keeps the order of equal elements.
    std::stable_sort(keyed.begin(), keyed.end(), [&](const auto& x, const auto& y) {
        return reverse ? less(y.first, x.first, in.budget) : less(x.first, y.first, in.budget);
    });
}

Value f_sort(In in, V v, A a) {
    const Bound b = bind(in, "sort", a, {"reverse", "case_sensitive", "attribute"});
    std::vector<std::pair<Value, Value>> keyed;
    for (const Value& item : iterate(v, in.budget))
        keyed.emplace_back(sort_key(in, b[2] && !b[2]->is(Kind::none) ? dotted(in, item, *b[2]) : item, flag(b[1])),
                           item);
    sort_by(in, keyed, flag(b[0]));
    std::vector<Value> out;
    for (auto& entry : keyed) out.push_back(std::move(entry.second));
    return in.list(std::move(out));
}

Value f_dictsort(In in, V v, A a) {
    const Bound b = bind(in, "dictsort", a, {"case_sensitive", "by", "reverse"});
    if (!v.is(Kind::dict)) in.fail(fmt::format("'{}' object has no attribute 'items'", type_name(v)));
    const bool by_value = b[1] && b[1]->is(Kind::string) && b[1]->text() == "value";
    std::vector<std::pair<Value, Value>> keyed;
    for (const auto& [key, value] : v.dict().entries)
        keyed.emplace_back(sort_key(in, by_value ? value : key, flag(b[0])), in.list({key, value}, Row::tuple));
    sort_by(in, keyed, flag(b[2]));
    std::vector<Value> out;
    for (auto& entry : keyed) out.push_back(std::move(entry.second));
    return in.list(std::move(out));
}

Value f_unique(In in, V v, A a) {
    const Bound b = bind(in, "unique", a, {"case_sensitive", "attribute"});
    std::vector<Value> seen, out;
    for (const Value& item : iterate(v, in.budget)) {
        const Value key = sort_key(in, b[1] && !b[1]->is(Kind::none) ? dotted(in, item, *b[1]) : item, flag(b[0]));
        if (!hashable(key)) in.fail(fmt::format("unhashable type: '{}'", type_name(key)));
        if (std::any_of(seen.begin(), seen.end(), [&](const Value& s) { return equal(s, key, in.budget); })) continue;
        seen.push_back(key);
        out.push_back(item);
    }
    return in.list(std::move(out), Row::iterator);
}

Value extreme(In in, V v, A a, bool largest) {
    const Bound b = bind(in, largest ? "max" : "min", a, {"case_sensitive", "attribute"});
    std::optional<Value> best, best_key;
    for (const Value& item : iterate(v, in.budget)) {
        const Value key = sort_key(in, b[1] && !b[1]->is(Kind::none) ? dotted(in, item, *b[1]) : item, flag(b[0]));
        if (best && !(largest ? less(*best_key, key, in.budget) : less(key, *best_key, in.budget))) continue;
        best = item;
        best_key = key;
    }
    return best ? *best : in.missing("No aggregated item, sequence was empty.");
}
Value f_min(In in, V v, A a) { return extreme(in, v, a, false); }
Value f_max(In in, V v, A a) { return extreme(in, v, a, true); }

Value f_sum(In in, V v, A a) {
    const Bound b = bind(in, "sum", a, {"attribute", "start"});
    Value total = b[1] ? *b[1] : Value(int64_t(0));
    for (const Value& item : iterate(v, in.budget))
        total = add(in, total, b[0] && !b[0]->is(Kind::none) ? dotted(in, item, *b[0]) : item);
    return total;
}

Value f_abs(In in, V v, A) {
    return v.is_number() && v.real() >= 0 ? (v.is(Kind::boolean) ? Value(v.integer()) : v) : negate(in, v);
}

Value f_int(In in, V v, A a) {
    const Bound b = bind(in, "int", a, {"default", "base"});
    const Value otherwise = b[0] ? *b[0] : Value(int64_t(0));
    if (v.is(Kind::undefined)) in.fail(v.text());
    if (v.is_integral()) return v.integer();
    double d = 0;
    if (v.is(Kind::string)) {
        in.budget.pay_look(4 * v.text().size());
        std::string text(strip(v.text()));
        std::erase(text, '_');
        int64_t base = integer_argument(in, b[1], 10);
        const char* first = text.data() + (text.starts_with('+') ? 1 : 0);
        if (base == 16 && (text.starts_with("0x") || text.starts_with("0X"))) first += 2;
        if (base < 2 || base > 36) in.fail("int() base must be from 2 to 36");
        const char* last = text.data() + text.size();
        int64_t parsed = 0;
        const auto r = std::from_chars(first, last, parsed, int(base));
        if (r.ec == std::errc{} && r.ptr == last) return parsed;
        if (r.ec == std::errc::result_out_of_range && r.ptr == last) in.fail("an integer needs more than 64 bits");
        const auto real = std::from_chars(first, last, d);
        if (real.ec != std::errc{} || real.ptr != last) return otherwise;
    } else if (v.is(Kind::real)) {
        d = v.real();
    } else {
        return otherwise;
    }
    if (!std::isfinite(d)) return otherwise;
    if (std::abs(d) >= 9.2e18) in.fail("an integer needs more than 64 bits");
    return int64_t(d);
}

Value f_float(In in, V v, A a) {
    const Bound b = bind(in, "float", a, {"default"});
    if (v.is(Kind::undefined)) in.fail(v.text());
    if (v.is_number()) return v.real();
    if (v.is(Kind::string)) {
        in.budget.pay_look(4 * v.text().size());
        const std::string_view text = strip(v.text());
        const char* first = text.data() + (text.starts_with('+') ? 1 : 0);
        double d = 0;
        const auto r = std::from_chars(first, text.data() + text.size(), d);
        if (!text.empty() && r.ec == std::errc{} && r.ptr == text.data() + text.size()) return d;
    }
    return b[0] ? *b[0] : Value(0.0);
}

// Rounds to a multiple of 10^digits, ties to even, like Python. Precondition: digits > 0.
int64_t round_integer(In in, int64_t value, int64_t digits) {
    if (digits > 19) return 0;  // half of 10^20 is beyond 64 bits
    __int128 unit = 1;
    for (int64_t i = 0; i < digits; ++i) unit *= 10;
    __int128 below = value / unit;
    if (value % unit < 0) --below;
    const __int128 twice = 2 * (value - below * unit);
    const __int128 rounded = (below + (twice > unit || (twice == unit && below % 2 != 0))) * unit;
    if (rounded > INT64_MAX || rounded < INT64_MIN) in.fail("an integer needs more than 64 bits");
    return int64_t(rounded);
}

Value f_round(In in, V v, A a) {
    const Bound b = bind(in, "round", a, {"precision", "method"});
    if (!v.is_number()) in.fail(fmt::format("type {} cannot be rounded", type_name(v)));
    const int64_t precision = integer_argument(in, b[0], 0);
    const std::string how = b[1] ? in.text(*b[1]).text() : "common";
    if (precision < -300 || precision > 300) in.fail("round: the precision is not reasonable");
    if (how == "common") {
        if (v.is_integral() && precision >= 0) return v.integer();
        if (precision < 0) {
            if (v.is_integral()) return round_integer(in, v.integer(), -precision);
            const double unit = std::pow(10.0, double(-precision));
            return std::nearbyint(v.real() / unit) * unit;
        }
        return std::strtod(fmt::format("{:.{}f}", v.real(), int(precision)).c_str(),
                           nullptr);  // correctly rounded, as Python's
    }
    const double scale = std::pow(10.0, double(precision));
    if (how == "ceil") return std::ceil(v.real() * scale) / scale;
    if (how == "floor") return std::floor(v.real() * scale) / scale;
    in.fail("method must be common, ceil or floor");
}

Value f_indent(In in, V v, A a) {
    const Bound b = bind(in, "indent", a, {"width", "first", "blank"});
    const Marked pad =
        b[0] && b[0]->is(Kind::string)
            ? b[0]->marked()
            : Marked::written(std::string(size_t(std::clamp<int64_t>(integer_argument(in, b[0], 4), 0, 10000)), ' '));
    Marked whole = in.text(v);
    whole += '\n';  // like Jinja: terminates the last line
    const std::string& text = whole.text();
    Marked out = flag(b[1]) ? pad : Marked();
    const size_t end = text.size() - 1;
    for (size_t at = 0; at < text.size();) {
        const size_t stop = text.find('\n', at);
        const std::string_view line = std::string_view(text).substr(at, stop - at);
        in.budget.pay_bytes(int64_t(pad.size() + line.size()));
        if (at > 0 && (!line.empty() || flag(b[2]))) out += pad;
        out.add(whole, line);
        if (stop < end) out.add(whole, std::string_view(text).substr(stop, 1));
        at = stop + 1;
    }
    return in.string(std::move(out));
}

Value f_escape(In in, V v, A) {
    const Marked text = in.text(v);
    std::string out;
    for (const char c : text.text()) append_html(out, c);
    return in.string(text.changed(std::move(out)));
}

Value f_format(In in, V v, A a) { return in.string(percent_format(in, in.text(v), in.list(a.positional, Row::tuple))); }

// transformers' tojson: json.dumps(ensure_ascii=False) without HTML escapes.
Value f_tojson(In in, V v, A a) {
    const Bound b = bind(in, "tojson", a, {"ensure_ascii", "indent", "separators", "sort_keys"});
    std::optional<Marked> indent;
    if (b[1] && !b[1]->is(Kind::none)) {
        if (b[1]->is(Kind::string))
            indent = b[1]->marked();
        else
            indent =
                Marked::written(std::string(size_t(std::clamp<int64_t>(integer_argument(in, b[1], 0), 0, 1000)), ' '));
    }
    Marked comma = Marked::written(indent ? "," : ", "), colon = Marked::written(": ");
    if (b[2] && !b[2]->is(Kind::none)) {
        const auto both = iterate(*b[2], in.budget);
        if (both.size() != 2) in.fail("separators must be two strings");
        comma = in.text(both[0]);
        colon = in.text(both[1]);
    }
    return in.string(to_json(v, in.budget, indent ? &*indent : nullptr, comma, colon, flag(b[0]), flag(b[3])));
}

const std::map<std::string_view, Filter>& filters() {
    static const std::map<std::string_view, Filter> all{{"abs", f_abs},
                                                        {"attr", f_attr},
                                                        {"capitalize", f_capitalize},
                                                        {"count", f_length},
                                                        {"d", f_default},
                                                        {"default", f_default},
                                                        {"dictsort", f_dictsort},
                                                        {"e", f_escape},
                                                        {"escape", f_escape},
                                                        {"first", f_first},
                                                        {"float", f_float},
                                                        {"format", f_format},
                                                        {"indent", f_indent},
                                                        {"int", f_int},
                                                        {"items", f_items},
                                                        {"join", f_join},
                                                        {"last", f_last},
                                                        {"length", f_length},
                                                        {"list", f_list},
                                                        {"lower", f_lower},
                                                        {"map", f_map},
                                                        {"max", f_max},
                                                        {"min", f_min},
                                                        {"reject", f_reject},
                                                        {"rejectattr", f_rejectattr},
                                                        {"replace", f_replace},
                                                        {"reverse", f_reverse},
                                                        {"round", f_round},
                                                        {"safe", f_same},
                                                        {"select", f_select},
                                                        {"selectattr", f_selectattr},
                                                        {"sort", f_sort},
                                                        {"string", f_string},
                                                        {"sum", f_sum},
                                                        {"title", f_title},
                                                        {"tojson", f_tojson},
                                                        {"trim", f_trim},
                                                        {"unique", f_unique},
                                                        {"upper", f_upper}};
    return all;
}

}  // namespace

Filter find_filter(std::string_view name) {
    const auto it = filters().find(name);
    return it == filters().end() ? nullptr : it->second;
}

std::vector<std::string_view> filter_names() {
    std::vector<std::string_view> names;
    for (const auto& [name, filter] : filters()) names.push_back(name);
    return names;
}

}  // namespace nibble::jinja

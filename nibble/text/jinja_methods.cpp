// Attributes and methods of Python's types, and the functions of chat templates.
#include "base/utf8.h"
#include "text/jinja_interpreter.h"
#include "text/jinja_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace nibble::jinja {

std::vector<std::optional<Value>> bind(Interpreter& in, std::string_view function, const Arguments& args,
                                       std::initializer_list<const char*> names) {
    std::vector<std::optional<Value>> out(names.size());
    if (args.positional.size() > names.size())
        in.fail(
            fmt::format("{} takes at most {} arguments ({} given)", function, names.size(), args.positional.size()));
    for (size_t i = 0; i < args.positional.size(); ++i) out[i] = args.positional[i];
    for (const auto& [name, value] : args.named) {
        const auto it = std::find(names.begin(), names.end(), std::string_view(name));
        if (it == names.end()) in.fail(fmt::format("{} got an unexpected keyword argument '{}'", function, name));
        auto& slot = out[size_t(it - names.begin())];
        if (slot) in.fail(fmt::format("{} got multiple values for argument '{}'", function, name));
        slot = value;
    }
    return out;
}

namespace {

using Bound = std::vector<std::optional<Value>>;
using Method = Value (*)(Interpreter&, const Value& self, const Arguments&);

std::string text_of(Interpreter& in, const std::optional<Value>& v, const char* what) {
    if (!v) in.fail(fmt::format("{} needs an argument", what));
    if (v->is(Kind::undefined)) in.fail(v->text());
    if (!v->is(Kind::string)) in.fail(fmt::format("{}: expected str, found {}", what, type_name(*v)));
    in.budget.pay_look(v->text().size());
    return v->text();
}

int64_t index_argument(Interpreter& in, const std::optional<Value>& v, int64_t otherwise) {
    if (!v) return otherwise;
    if (!v->is_integral()) in.fail(fmt::format("'{}' object cannot be interpreted as an integer", type_name(*v)));
    return v->integer();
}

template <Side side>
Value m_strip(Interpreter& in, const Value& self, const Arguments& args) {
    const Bound b = bind(in, "strip", args, {"chars"});
    in.budget.pay_look(4 * self.text().size());
    if (!b[0] || b[0]->is(Kind::none)) return in.string(self.marked().part(strip(self.text(), side)));
    const std::string chars = text_of(in, b[0], "strip");
    in.budget.pay_steps(int64_t(self.text().size() / 64 * chars.size()));
    const std::string_view set = chars;
    return in.string(self.marked().part(strip(self.text(), side, &set)));
}

template <bool from_right>
Value m_split(Interpreter& in, const Value& self, const Arguments& args) {
    const Bound b = bind(in, "split", args, {"sep", "maxsplit"});
    int64_t left = index_argument(in, b[1], -1);
    std::string_view text = self.text();
    std::vector<Value> out;
    const auto push = [&](std::string_view part) { out.push_back(in.string(self.marked().part(part))); };
    in.budget.pay_steps(int64_t(text.size()) / 64);
    if (b[0] && !b[0]->is(Kind::none)) {
        const std::string separator = text_of(in, b[0], "split");
        if (separator.empty()) in.fail("empty separator");
        for (; left != 0; --left) {
            const size_t at = from_right ? in.rfind(text, separator) : in.find(text, separator);
            if (at == text.npos) break;
            push(from_right ? text.substr(at + separator.size()) : text.substr(0, at));
            text = from_right ? text.substr(0, at) : text.substr(at + separator.size());
        }
        push(text);
    } else {
        for (text = strip(text, from_right ? Side::right : Side::left); !text.empty(); --left) {
            size_t at = from_right ? text.size() : 0;
            const auto space = [&](size_t i) {
                size_t next = i;
                return is_space(next_code_point(text, next));
            };
            const auto boundary = [&](size_t i) { return (static_cast<unsigned char>(text[i]) & 0xC0) != 0x80; };
            if (left == 0) {
                push(text);
                break;
            }
            if (from_right) {
                while (at > 0) {
                    size_t before = at - 1;
                    while (before > 0 && !boundary(before)) --before;
                    if (space(before)) break;
                    at = before;
                }
                push(text.substr(at));
                text = strip(text.substr(0, at), Side::right);
            } else {
                while (at < text.size() && !(boundary(at) && space(at))) ++at;
                push(text.substr(0, at));
                text = strip(text.substr(at), Side::left);
            }
        }
    }
    if (from_right) std::reverse(out.begin(), out.end());
    return in.list(std::move(out));
}

Value m_splitlines(Interpreter& in, const Value& self, const Arguments& args) {
    const Bound b = bind(in, "splitlines", args, {"keepends"});
    const bool keep = b[0] && truth(*b[0]);
    const std::string_view text = self.text();
    std::vector<Value> out;
    const auto push = [&](std::string_view part) { out.push_back(in.string(self.marked().part(part))); };
    for (size_t start = 0, i = 0; i < text.size();) {
        const size_t at = i;
        const char32_t c = next_code_point(text, i);
        const bool ends = (c >= 10 && c <= 13) || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 || c == 0x2029;
        if (ends && c == '\r' && i < text.size() && text[i] == '\n') ++i;
        if (ends)
            push(text.substr(start, (keep ? i : at) - start));
        else if (i >= text.size())
            push(text.substr(start));
        if (ends) start = i;
    }
    return in.list(std::move(out));
}

template <bool at_end>
Value m_affix(Interpreter& in, const Value& self, const Arguments& args) {
    const Bound b = bind(in, at_end ? "endswith" : "startswith", args, {"prefix"});
    const std::string_view text = self.text();
    const auto fits = [&](const Value& v) {
        const std::string affix = text_of(in, v, at_end ? "endswith" : "startswith");
        return at_end ? text.ends_with(affix) : text.starts_with(affix);
    };
    if (!b[0]) in.fail("startswith and endswith need an argument");
    if (!b[0]->is(Kind::list) || b[0]->list().row != Row::tuple) return fits(*b[0]);
    for (const Value& v : b[0]->list().items)
        if (fits(v)) return true;
    return false;
}

template <bool at_end>
Value m_remove(Interpreter& in, const Value& self, const Arguments& args) {
    const std::string affix = text_of(in, bind(in, "removeprefix", args, {"affix"})[0], "removeprefix");
    const std::string_view text = self.text();
    if (at_end ? !text.ends_with(affix) : !text.starts_with(affix)) return self;
    return in.string(
        self.marked().part(at_end ? text.substr(0, text.size() - affix.size()) : text.substr(affix.size())));
}

Value m_replace(Interpreter& in, const Value& self, const Arguments& args) {
    const Bound b = bind(in, "replace", args, {"old", "new", "count"});
    const std::string old = text_of(in, b[0], "replace");
    text_of(in, b[1], "replace");
    const Marked& fresh = b[1]->marked();
    const std::string_view text = self.text();
    int64_t left = b[2] && b[2]->is(Kind::none) ? -1 : index_argument(in, b[2], -1);
    Marked out;
    size_t at = 0;
    in.budget.pay_steps(1 + int64_t(text.size()) / 64);
    for (; left != 0; --left) {
        size_t found = old.empty() ? at : in.find(text, old, at);
        if (found == text.npos) break;
        in.budget.pay_bytes(fresh.cost() - 63);
        out.add(self.marked(), text.substr(at, found - at)) += fresh;
        at = found + old.size();
        if (old.empty()) {  // inserts between all characters and at both ends
            if (at >= text.size()) break;
            next_code_point(text, at);
            out.add(self.marked(), text.substr(found, at - found));
        }
    }
    return in.string(std::move(out.add(self.marked(), text.substr(at))));
}

template <bool from_right, bool must>
Value m_find(Interpreter& in, const Value& self, const Arguments& args) {
    const std::string what = text_of(in, bind(in, "find", args, {"sub"})[0], "find"), &text = self.text();
    in.budget.pay_look(text.size());
    const size_t at = from_right ? in.rfind(text, what) : in.find(text, what);
    if (at == text.npos && must) in.fail("substring not found");
    return at == text.npos ? int64_t(-1) : int64_t(code_points(std::string_view(text).substr(0, at)));
}

Value m_count(Interpreter& in, const Value& self, const Arguments& args) {
    const Bound b = bind(in, "count", args, {"x"});
    if (!b[0]) in.fail("count needs an argument");
    int64_t n = 0;
    if (self.is(Kind::list)) {
        for (const Value& v : self.list().items) n += equal(v, *b[0], in.budget);
        return n;
    }
    const std::string what = text_of(in, b[0], "count"), &text = self.text();
    in.budget.pay_steps(1 + int64_t(text.size()) / 64);
    if (what.empty()) return int64_t(code_points(text) + 1);
    for (size_t at = in.find(text, what); at != text.npos; at = in.find(text, what, at + what.size())) ++n;
    return n;
}

Value m_index(Interpreter& in, const Value& self, const Arguments& args) {
    const Bound b = bind(in, "index", args, {"x"});
    if (!b[0]) in.fail("index needs an argument");
    for (size_t i = 0; i < self.list().items.size(); ++i)
        if (equal(self.list().items[i], *b[0], in.budget)) return int64_t(i);
    in.fail(fmt::format("{} is not in list", repr(*b[0], in.budget).text()));
}

template <std::string (*change)(std::string_view)>
Value m_change(Interpreter& in, const Value& self, const Arguments& args) {
    bind(in, "the method", args, {});
    in.budget.pay_look(4 * self.text().size());
    return in.string(self.marked().changed(change(self.text())));
}

Value m_join(Interpreter& in, const Value& self, const Arguments& args) {
    const Bound b = bind(in, "join", args, {"iterable"});
    if (!b[0]) in.fail("join needs an argument");
    Marked out;
    bool first = true;
    for (const Value& v : iterate(*b[0], in.budget)) {
        if (!std::exchange(first, false)) out += self.marked();
        text_of(in, v, "join");
        out += v.marked();
        in.budget.pay_bytes(int64_t(self.text().size() + v.text().size()));
    }
    return in.string(std::move(out));
}

enum class Class { digit, space, alpha, alnum };
template <Class kind>
Value m_is(Interpreter& in, const Value& self, const Arguments& args) {
    bind(in, "the method", args, {});
    if (self.text().empty()) return false;
    in.budget.pay_look(2 * self.text().size());
    for (size_t i = 0; i < self.text().size();) {
        const char32_t c = next_code_point(self.text(), i);
        if (c >= 0x80 && kind != Class::space) in.fail("isdigit, isalpha and isalnum know only ASCII");
        const bool digit = c >= '0' && c <= '9', alpha = (c | 0x20) >= 'a' && (c | 0x20) <= 'z';
        if (!(kind == Class::digit   ? digit
              : kind == Class::space ? is_space(c)
              : kind == Class::alpha ? alpha
                                     : digit || alpha))
            return false;
    }
    return true;
}

template <Row row>
Value m_view(Interpreter& in, const Value& self, const Arguments& args) {
    bind(in, "the method", args, {});
    std::vector<Value> out;
    for (const auto& [key, value] : self.dict().entries)
        out.push_back(row == Row::keys ? key : row == Row::values ? value : in.list({key, value}, Row::tuple));
    return in.list(std::move(out), row);
}

Value m_get(Interpreter& in, const Value& self, const Arguments& args) {
    const Bound b = bind(in, "get", args, {"key", "default"});
    if (!b[0]) in.fail("get needs a key");
    if (!hashable(*b[0])) in.fail(fmt::format("unhashable type: '{}'", type_name(*b[0])));
    if (const Value* v = self.dict().find(*b[0], in.budget)) return *v;
    return b[1] ? *b[1] : Value::none();
}

Value m_copy(Interpreter&, const Value& self, const Arguments&) {
    return self;
}  // values are immutable: a copy is the value itself

struct Named {
    std::string_view name;
    Method method;  // null: exists in Python, but the sandbox or nibble refuses it
};

constexpr Named string_methods[]{{"strip", m_strip<Side::both>},
                                 {"lstrip", m_strip<Side::left>},
                                 {"rstrip", m_strip<Side::right>},
                                 {"split", m_split<false>},
                                 {"rsplit", m_split<true>},
                                 {"splitlines", m_splitlines},
                                 {"startswith", m_affix<false>},
                                 {"endswith", m_affix<true>},
                                 {"removeprefix", m_remove<false>},
                                 {"removesuffix", m_remove<true>},
                                 {"replace", m_replace},
                                 {"find", m_find<false, false>},
                                 {"rfind", m_find<true, false>},
                                 {"index", m_find<false, true>},
                                 {"rindex", m_find<true, true>},
                                 {"count", m_count},
                                 {"upper", m_change<upper>},
                                 {"lower", m_change<lower>},
                                 {"capitalize", m_change<capitalize>},
                                 {"title", m_change<title>},
                                 {"join", m_join},
                                 {"isdigit", m_is<Class::digit>},
                                 {"isspace", m_is<Class::space>},
                                 {"isalpha", m_is<Class::alpha>},
                                 {"isalnum", m_is<Class::alnum>},
                                 {"format", nullptr},
                                 {"format_map", nullptr},
                                 {"center", nullptr},
                                 {"ljust", nullptr},
                                 {"rjust", nullptr},
                                 {"zfill", nullptr},
                                 {"partition", nullptr},
                                 {"rpartition", nullptr},
                                 {"encode", nullptr},
                                 {"casefold", nullptr},
                                 {"swapcase", nullptr},
                                 {"expandtabs", nullptr},
                                 {"translate", nullptr},
                                 {"maketrans", nullptr},
                                 {"islower", nullptr},
                                 {"isupper", nullptr},
                                 {"istitle", nullptr},
                                 {"isnumeric", nullptr},
                                 {"isdecimal", nullptr},
                                 {"isidentifier", nullptr},
                                 {"isprintable", nullptr},
                                 {"isascii", nullptr}};
constexpr Named list_methods[]{{"index", m_index},   {"count", m_count},  {"copy", m_copy},  {"append", nullptr},
                               {"extend", nullptr},  {"insert", nullptr}, {"pop", nullptr},  {"remove", nullptr},
                               {"reverse", nullptr}, {"sort", nullptr},   {"clear", nullptr}};
constexpr Named dict_methods[]{{"get", m_get},
                               {"items", m_view<Row::items>},
                               {"keys", m_view<Row::keys>},
                               {"values", m_view<Row::values>},
                               {"copy", m_copy},
                               {"clear", nullptr},
                               {"pop", nullptr},
                               {"popitem", nullptr},
                               {"setdefault", nullptr},
                               {"update", nullptr},
                               {"fromkeys", nullptr}};

template <size_t n>
std::optional<Value> method_of(Interpreter& in, const Named (&methods)[n], const Value& self, const std::string& name) {
    for (const Named& m : methods) {
        if (m.name != name) continue;
        if (!m.method && self.is(Kind::string))
            return in.missing(fmt::format("the string method '{}' is not supported", name));
        if (!m.method)
            return in.missing(fmt::format("access to attribute '{}' of '{}' object is unsafe.", name, type_name(self)));
        auto function = std::make_shared<Function>();
        function->name = name;
        in.budget.pay_bytes(128);
        function->depth = deeper(in.budget, container_depth(self));
        function->call = [self, method = m.method](Interpreter& i, const Arguments& args) {
            return method(i, self, args);
        };
        return Value(std::move(function));
    }
    return std::nullopt;
}

std::optional<Value> loop_attribute(Interpreter& in, const Value& self, const std::string& name) {
    const Loop& loop = self.loop();
    const auto size = int64_t(loop.items->size()), at = int64_t(loop.index0);
    if (name == "index") return at + 1;
    if (name == "index0") return at;
    if (name == "revindex") return size - at;
    if (name == "revindex0") return size - at - 1;
    if (name == "length") return size;
    if (name == "first") return Value(at == 0);
    if (name == "last") return Value(at == size - 1);
    if (name == "depth") return int64_t(loop.level + 1);
    if (name == "depth0") return int64_t(loop.level);
    if (name == "previtem") return at > 0 ? (*loop.items)[size_t(at - 1)] : in.missing("there is no previous item");
    if (name == "nextitem") return at + 1 < size ? (*loop.items)[size_t(at + 1)] : in.missing("there is no next item");
    if (name != "cycle" && name != "changed") return std::nullopt;
    in.budget.pay_bytes(128);
    auto function = std::make_shared<Function>();
    function->name = name;
    if (name == "cycle")
        function->call = [at](Interpreter& i, const Arguments& args) {
            if (args.positional.empty()) i.fail("no items for cycling given");
            return args.positional[size_t(at) % args.positional.size()];
        };
    else
        function->call = [self](Interpreter& i, const Arguments& args) {
            Loop& l = self.loop();
            const Value now = i.list(args.positional, Row::tuple);
            if (l.seen && equal(l.last_changed, now, i.budget)) return Value(false);
            l.seen = true;
            l.last_changed = now;
            return Value(true);
        };
    return Value(std::move(function));
}

Value f_range(Interpreter& in, const Arguments& args) {
    const Bound b = bind(in, "range", args, {"start", "stop", "step"});
    if (!b[0]) in.fail("range needs an argument");
    const int64_t first = index_argument(in, b[0], 0), step = index_argument(in, b[2], 1);
    const int64_t start = b[1] ? first : 0, stop = b[1] ? index_argument(in, b[1], 0) : first;
    if (step == 0) in.fail("range() arg 3 must not be zero");
    const __int128 span = step > 0 ? __int128(stop) - start : __int128(start) - stop,
                   by = step > 0 ? __int128(step) : -__int128(step);
    const __int128 count = span <= 0 ? __int128(0) : (span + by - 1) / by;
    if (count > 100000) in.fail("Range too big. The sandbox blocks ranges larger than MAX_RANGE (100000).");
    std::vector<Value> out;
    for (int64_t i = 0; i < int64_t(count); ++i) out.emplace_back(int64_t(start + __int128(i) * step));
    return in.list(std::move(out), Row::range);
}

// Fills dict(...) or namespace(...): from pairs or a dict, then from named arguments.
void fill(Interpreter& in, Dict& dict, const Arguments& args) {
    int depth = 0;
    const auto put = [&](const Value& key, const Value& value) {
        depth = std::max(depth, container_depth(value));
        dict.put(key, value, in.budget);
    };
    if (args.positional.size() > 1) in.fail("at most one positional argument is allowed");
    for (const Value& from : args.positional) {
        if (from.is(Kind::dict)) {
            for (const auto& [k, v] : from.dict().entries) put(k, v);
            continue;
        }
        for (const Value& pair : iterate(from, in.budget)) {
            const auto both = iterate(pair, in.budget);
            if (both.size() != 2) in.fail("dict needs pairs");
            put(both[0], both[1]);
        }
    }
    for (const auto& [name, v] : args.named) put(in.string(Marked::from_data(name)), v);
    dict.depth = deeper(in.budget, depth);
}

Value f_dict(Interpreter& in, const Arguments& args) {
    auto dict = std::make_shared<Dict>();
    fill(in, *dict, args);
    return Value(std::move(dict));
}

Value f_namespace(Interpreter& in, const Arguments& args) {
    const Value space = in.make_space();
    fill(in, space.dict(), args);
    return space;
}

Value f_raise(Interpreter& in, const Arguments& args) {
    const Bound b = bind(in, "raise_exception", args, {"message"});
    in.fail(b[0] ? in.text(*b[0]).text() : "raise_exception without a message");
}

Value f_strftime(Interpreter& in, const Arguments& args) {
    const Bound b = bind(in, "strftime_now", args, {"format"});
    const std::string format = text_of(in, b[0], "strftime_now");
    if (!in.clock) in.fail("strftime_now: the caller gave no time");
    if (format.empty()) return Value("");
    const size_t most = format.size() * 8 + 256;  // longer results are returned as nothing
    in.budget.pay_bytes(int64_t(most));
    std::string out(most, '\0');
    const size_t n = std::strftime(out.data(), out.size(), format.c_str(), in.clock);
    out.resize(n);
    if (!utf8_valid(out)) in.fail("strftime_now: the result is not UTF-8");
    return in.string(b[0]->marked().changed(std::move(out)));  // a format may contain text between its directives
}

}  // namespace

std::optional<Value> python_attribute(Interpreter& in, const Value& object, const std::string& name) {
    if (name.starts_with("__"))
        return in.missing(
            fmt::format("access to attribute '{}' of '{}' object is unsafe.", name.substr(0, 200), type_name(object)));
    switch (object.kind()) {
        case Kind::string:
            return method_of(in, string_methods, object, name);
        case Kind::list:
            return object.list().row == Row::list || object.list().row == Row::tuple
                       ? method_of(in, list_methods, object, name)
                       : std::nullopt;
        case Kind::dict:
            return method_of(in, dict_methods, object, name);
        case Kind::loop:
            return loop_attribute(in, object, name);
        case Kind::space:
            if (const Value* v = object.dict().find(std::string_view(name), in.budget)) return *v;
            return std::nullopt;
        case Kind::function:
            if (name == "name") return Value(Marked::written(object.function().name));
            return std::nullopt;
        default:
            return std::nullopt;
    }
}

std::vector<std::string_view> method_names() {
    std::vector<std::string_view> names;
    for (const auto& method : string_methods) names.push_back(method.name);
    for (const auto& method : list_methods) names.push_back(method.name);
    for (const auto& method : dict_methods) names.push_back(method.name);
    return names;
}

std::vector<std::pair<std::string, Value>> functions(Interpreter&) {
    std::vector<std::pair<std::string, Value>> out;
    using Native = Value (*)(Interpreter&, const Arguments&);
    constexpr std::pair<const char*, Native> all[]{{"range", f_range},
                                                   {"dict", f_dict},
                                                   {"namespace", f_namespace},
                                                   {"raise_exception", f_raise},
                                                   {"strftime_now", f_strftime}};
    for (const auto& [name, call] : all) {
        auto function = std::make_shared<Function>();
        function->name = name;
        function->call = call;
        out.emplace_back(name, Value(std::move(function)));
    }
    return out;
}

// Supports %[flags][width][.precision]type, without %(name)s.
Marked percent_format(Interpreter& in, const Marked& whole, const Value& values) {
    const std::string_view format = whole.text();
    std::vector<Value> given{values};
    if (values.is(Kind::list) && values.list().row == Row::tuple) given = values.list().items;
    size_t next = 0;
    Marked out;
    for (size_t i = 0; i < format.size(); ++i) {
        if (format[i] != '%') {
            out.add(whole, format.substr(i, 1));
            continue;
        }
        if (++i >= format.size()) in.fail("incomplete format");
        if (format[i] == '%') {
            out.add(whole, format.substr(i, 1));
            continue;
        }
        std::string spec = "%";
        int digits_in_a_row =
            0;  // after the flags; limits the width, because printf would write the text before its length is checked
        while (i < format.size() && std::string_view("-+ 0#.123456789").find(format[i]) != std::string_view::npos) {
            const bool number = format[i] >= (digits_in_a_row ? '0' : '1') && format[i] <= '9';
            digits_in_a_row = number ? digits_in_a_row + 1 : 0;
            if (digits_in_a_row > 3) in.fail("a width or precision of over 999");
            spec += format[i++];
        }
        if (i >= format.size() || spec.size() > 8) in.fail("incomplete or too long format");
        if (next >= given.size()) in.fail("not enough arguments for format string");
        const Value& v = given[next++];
        char buffer[512];
        const char type = format[i];
        const auto print = [&](const std::string& how, auto number) {
            const int size = std::snprintf(buffer, sizeof buffer, how.c_str(), number);
            if (size < 0 || size >= int(sizeof buffer)) in.fail("a formatted number of over 500 characters");
            if (whole.data().empty())
                out += buffer;
            else
                out.add_data(buffer);  // data in a format chooses the signs and digits
        };
        if (type == 's' || type == 'r') {
            if (spec != "%") in.fail("a width of %s is not supported");
            out += type == 's' ? in.text(v) : repr(v, in.budget);
        } else if (std::string_view("dixX").find(type) != std::string_view::npos && v.is_number()) {
            if (v.is(Kind::real) && !(std::abs(v.real()) < 9e18)) in.fail("an integer needs more than 64 bits");
            const long long number = v.is(Kind::real) ? (long long)(v.real()) : v.integer();
            if ((type == 'x' || type == 'X') && number < 0) in.fail("%x of a negative number is not supported");
            print(spec + "ll" + (type == 'i' ? 'd' : type), number);
        } else if (std::string_view("feEgG").find(type) != std::string_view::npos && v.is_number()) {
            print(spec + type, v.real());
        } else {
            in.fail(fmt::format("the format '{}{}' does not fit a {}, or is not supported", spec, type, type_name(v)));
        }
        in.budget.pay_bytes(64);
    }
    if (next < given.size() && values.kind() != Kind::dict)
        in.fail("not all arguments converted during string formatting");
    return out;
}

}  // namespace nibble::jinja

#include "text/jinja_value.h"

#include "text/jinja_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace nibble::jinja {

namespace {

constexpr int max_container_depth = 200;

struct Level {
    Level(Budget& b) : budget(b) { budget.enter(); }
    ~Level() { budget.leave(); }
    Budget& budget;
};

}  // namespace

Value::Value(Marked text) : kind_(Kind::string), object_(std::make_shared<Text>(Text{std::move(text)})) {}
Value::Value(std::shared_ptr<List> list) : kind_(Kind::list), object_(std::move(list)) {}
Value::Value(std::shared_ptr<Dict> dict, Kind kind) : kind_(kind), object_(std::move(dict)) {}
Value::Value(std::shared_ptr<Function> function) : kind_(Kind::function), object_(std::move(function)) {}
Value::Value(std::shared_ptr<Loop> loop) : kind_(Kind::loop), object_(std::move(loop)) {}

Value Value::undefined(std::string reason) {
    Value value(Marked::written(std::move(reason)));
    value.kind_ = Kind::undefined;
    return value;
}

const Marked& Value::marked() const {
    static const Marked no_reason = Marked::written("value is undefined");
    return object_ ? static_cast<const Text*>(object_.get())->text : no_reason;
}

int container_depth(const Value& value) {
    return value.is(Kind::list)       ? value.list().depth
           : value.is(Kind::dict)     ? value.dict().depth
           : value.is(Kind::function) ? value.function().depth
                                      : 0;
}

int deeper(Budget& budget, int depth) {
    if (depth >= max_container_depth) budget.fail("lists and dicts are nested too deeply");
    return depth + 1;
}

Value make_list(Budget& budget, std::vector<Value> items, Row row) {
    budget.pay_bytes(int64_t(64 + items.size() * sizeof(Value)));
    auto list = std::make_shared<List>();
    int depth = 0;
    for (const Value& v : items) depth = std::max(depth, container_depth(v));
    list->depth = deeper(budget, depth);
    list->hashable = row == Row::tuple && std::all_of(items.begin(), items.end(), hashable);
    list->items = std::move(items);
    list->row = row;
    return list;
}

Value make_string(Budget& budget, Marked text) {
    budget.pay_bytes(text.cost());
    return Value(std::move(text));
}

const Value* Dict::find(const Value& key, Budget& budget) const {
    if (key.is(Kind::string)) return find(std::string_view(key.text()), budget);
    budget.pay_steps(1 + int64_t(entries.size()) / 16);
    for (const auto& [k, v] : entries)
        if (equal(k, key, budget)) return &v;
    return nullptr;
}

const Value* Dict::find(std::string_view key, Budget& budget) const {
    budget.pay_steps(1 + int64_t(entries.size()) / 16);
    for (const auto& [k, v] : entries) {
        if (!k.is(Kind::string) || k.text().size() != key.size()) continue;
        if (key.size() > 64) budget.pay_look(key.size());
        if (k.text() == key) return &v;
    }
    return nullptr;
}

void Dict::put(const Value& key, Value value, Budget& budget) {
    if (!hashable(key)) budget.fail(fmt::format("unhashable type: '{}'", type_name(key)));
    if (const Value* old = find(key, budget)) {
        *const_cast<Value*>(old) = std::move(value);
        return;
    }
    budget.pay_bytes(2 * sizeof(Value));
    entries.emplace_back(key, std::move(value));
}

bool truth(const Value& v) {
    switch (v.kind()) {
        case Kind::undefined:
        case Kind::none:
            return false;
        case Kind::boolean:
        case Kind::integer:
            return v.integer() != 0;
        case Kind::real:
            return v.real() != 0;
        case Kind::string:
            return !v.text().empty();
        case Kind::list:
            return v.list().row == Row::iterator || !v.list().items.empty();
        case Kind::dict:
            return !v.dict().entries.empty();
        default:
            return true;
    }
}

// Like Python: lists equal lists and tuples equal tuples; views and other kinds compare by identity.
bool equal(const Value& a, const Value& b, Budget& budget) {
    Level level(budget);
    budget.pay_steps(1);
    if (a.is_number() && b.is_number())
        return a.is_integral() && b.is_integral() ? a.integer() == b.integer() : a.real() == b.real();
    if (a.kind() != b.kind()) return false;
    switch (a.kind()) {
        case Kind::undefined:
        case Kind::none:
            return true;
        case Kind::string:
            budget.pay_look(std::min(a.text().size(), b.text().size()));
            return a.text() == b.text();
        case Kind::list: {
            if (a.identity() == b.identity()) return true;
            const List &x = a.list(), &y = b.list();
            if (x.row != y.row || x.row > Row::range || x.items.size() != y.items.size()) return false;
            for (size_t i = 0; i < x.items.size(); ++i)
                if (!equal(x.items[i], y.items[i], budget)) return false;
            return true;
        }
        case Kind::dict: {
            const Dict &x = a.dict(), &y = b.dict();
            if (x.entries.size() != y.entries.size()) return false;
            for (const auto& [k, v] : x.entries) {
                const Value* other = y.find(k, budget);
                if (!other || !equal(v, *other, budget)) return false;
            }
            return true;
        }
        default:
            return a.identity() == b.identity();
    }
}

bool less(const Value& a, const Value& b, Budget& budget) {
    Level level(budget);
    budget.pay_steps(1);
    if (a.is(Kind::undefined)) budget.fail(a.text());
    if (b.is(Kind::undefined)) budget.fail(b.text());
    if (a.is_number() && b.is_number())
        return a.is_integral() && b.is_integral() ? a.integer() < b.integer() : a.real() < b.real();
    if (a.is(Kind::string) && b.is(Kind::string)) {
        budget.pay_look(std::min(a.text().size(), b.text().size()));
        return a.text() < b.text();  // byte order of UTF-8 equals code point order
    }
    if (a.is(Kind::list) && b.is(Kind::list) && a.list().row == b.list().row && a.list().row <= Row::tuple) {
        const auto &x = a.list().items, &y = b.list().items;
        for (size_t i = 0; i < std::min(x.size(), y.size()); ++i)
            if (!equal(x[i], y[i], budget)) return less(x[i], y[i], budget);
        return x.size() < y.size();
    }
    budget.fail(fmt::format("'<' not supported between instances of '{}' and '{}'", type_name(a), type_name(b)));
}

bool hashable(const Value& v) {
    if (v.is(Kind::dict)) return false;
    return !v.is(Kind::list) || v.list().hashable;
}

const char* type_name(const Value& v) {
    switch (v.kind()) {
        case Kind::undefined:
            return "Undefined";
        case Kind::none:
            return "NoneType";
        case Kind::boolean:
            return "bool";
        case Kind::integer:
            return "int";
        case Kind::real:
            return "float";
        case Kind::string:
            return "str";
        case Kind::dict:
            return "dict";
        case Kind::space:
            return "Namespace";
        case Kind::function:
            return "function";
        case Kind::loop:
            return "LoopContext";
        case Kind::list:
            break;
    }
    constexpr const char* rows[]{"list", "tuple", "range", "dict_keys", "dict_values", "dict_items", "generator"};
    return rows[int(v.list().row)];
}

std::string real_text(double d) {
    if (std::isnan(d)) return "nan";
    if (std::isinf(d)) return d < 0 ? "-inf" : "inf";
    std::string text = fmt::format("{}", d);
    if (text.find_first_of(".e") == text.npos) text += ".0";
    return text;
}

namespace {

std::string quoted(const std::string& text) {
    const char quote = text.find('\'') != text.npos && text.find('"') == text.npos ? '"' : '\'';
    std::string out(1, quote);
    for (size_t i = 0; i < text.size();) {
        const size_t start = i;
        const char32_t c = next_code_point(text, i);
        if (c == char32_t(quote) || c == '\\')
            (out += '\\') += char(c);
        else if (c == '\n')
            out += "\\n";
        else if (c == '\r')
            out += "\\r";
        else if (c == '\t')
            out += "\\t";
        else if (c < 0x20 || (c >= 0x7F && c <= 0xA0) || c == 0xAD)
            out += fmt::format("\\x{:02x}", uint32_t(c));
        else if ((c > 0x20 && is_space(c)) || (c >= 0x200B && c <= 0x200F) || c == 0xFEFF ||
                 (c >= 0xE000 && c <= 0xF8FF))
            c == 0x20 ? out += ' ' : out += fmt::format("\\u{:04x}", uint32_t(c));
        else
            out.append(text, start, i - start);
    }
    return out += quote;
}

void write(Marked& out, const Value& v, Budget& budget, bool top) {
    Level level(budget);
    const size_t before = out.size();
    const auto row = [&](const std::vector<Value>& items, const char* open, const char* close) {
        out += open;
        for (size_t i = 0; i < items.size(); ++i) {
            if (i) out += ", ";
            write(out, items[i], budget, false);
        }
        out += close;
    };
    switch (v.kind()) {
        case Kind::undefined:
            out += top ? "" : "Undefined";
            break;
        case Kind::none:
            out += "None";
            break;
        case Kind::boolean:
            out += v.integer() ? "True" : "False";
            break;
        case Kind::integer:
            out += fmt::format("{}", v.integer());
            break;
        case Kind::real:
            out += real_text(v.real());
            break;
        case Kind::string:
            budget.pay_look(v.text().size());
            if (top)
                out += v.marked();
            else
                out += v.marked().changed(quoted(v.text()));
            break;
        case Kind::dict:
            out += '{';
            for (size_t i = 0; i < v.dict().entries.size(); ++i) {
                if (i) out += ", ";
                write(out, v.dict().entries[i].first, budget, false);
                out += ": ";
                write(out, v.dict().entries[i].second, budget, false);
            }
            out += '}';
            break;
        case Kind::list: {
            const List& l = v.list();
            if (l.row == Row::list)
                row(l.items, "[", "]");
            else if (l.row == Row::tuple)
                row(l.items, "(", l.items.size() == 1 ? ",)" : ")");
            else if (l.row == Row::keys)
                row(l.items, "dict_keys([", "])");
            else if (l.row == Row::values)
                row(l.items, "dict_values([", "])");
            else if (l.row == Row::items)
                row(l.items, "dict_items([", "])");
            else
                budget.fail(fmt::format("a {} is printed: put it through |list", type_name(v)));
            break;
        }
        default:
            budget.fail(fmt::format("a {} is printed", type_name(v)));
    }
    budget.pay_bytes(int64_t(out.size() - before) + 1);
}

}  // namespace

Marked str(const Value& value, Budget& budget) {
    Marked out;
    write(out, value, budget, true);
    return out;
}

Marked repr(const Value& value, Budget& budget) {
    Marked out;
    write(out, value, budget, false);
    return out;
}

std::vector<Value> iterate(const Value& v, Budget& budget) {
    switch (v.kind()) {
        case Kind::undefined:
            return {};
        case Kind::string: {
            const auto at = offsets(v.text());
            budget.pay_bytes(int64_t(at.size() * 160));
            std::vector<Value> out;
            const std::string_view text = v.text();
            for (size_t i = 0; i + 1 < at.size(); ++i)
                out.emplace_back(v.marked().part(text.substr(at[i], at[i + 1] - at[i])));
            return out;
        }
        case Kind::list: {
            budget.pay_bytes(int64_t(v.list().items.size() * sizeof(Value)));
            if (v.list().row == Row::iterator) return std::exchange(v.list().items, {});
            return v.list().items;
        }
        case Kind::dict: {
            budget.pay_bytes(int64_t(v.dict().entries.size() * sizeof(Value)));
            std::vector<Value> out;
            for (const auto& entry : v.dict().entries) out.push_back(entry.first);
            return out;
        }
        default:
            budget.fail(fmt::format("'{}' object is not iterable", type_name(v)));
    }
}

int64_t length_of(const Value& v) {
    switch (v.kind()) {
        case Kind::undefined:
            return 0;
        case Kind::string:
            return int64_t(code_points(v.text()));
        case Kind::list:
            return v.list().row == Row::iterator ? -1 : int64_t(v.list().items.size());
        case Kind::dict:
            return int64_t(v.dict().entries.size());
        case Kind::loop:
            return int64_t(v.loop().items->size());
        default:
            return -1;
    }
}

}  // namespace nibble::jinja

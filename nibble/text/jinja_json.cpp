// tojson: prints like Python's json.dumps.
#include "text/jinja_text.h"
#include "text/jinja_value.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace nibble::jinja {
namespace {

struct Writer {
    Budget& budget;
    const Marked* indent;
    const Marked &comma, &colon;
    bool ascii, sort_keys;
    Marked out;

    void put(const Marked& text) {
        budget.pay_bytes(text.cost() - 64);
        out += text;
    }

    // Pays before it creates the string.
    std::string quoted(const std::string& text, bool ascii) {
        budget.pay_bytes(int64_t(text.size()));
        std::string out = "\"";
        for (size_t i = 0; i < text.size();) {
            const size_t start = i;
            const char32_t c = next_code_point(text, i);
            if (c == '"' || c == '\\')
                (out += '\\') += char(c);
            else if (c == '\n')
                out += "\\n";
            else if (c == '\r')
                out += "\\r";
            else if (c == '\t')
                out += "\\t";
            else if (c == '\b')
                out += "\\b";
            else if (c == '\f')
                out += "\\f";
            else if (c < 0x20 || (ascii && c >= 0x7F && c < 0x10000 && c != 0x7F))
                out += fmt::format("\\u{:04x}", uint32_t(c));
            else if (ascii && c >= 0x10000)
                out += fmt::format("\\u{:04x}\\u{:04x}", 0xD800 + ((uint32_t(c) - 0x10000) >> 10),
                                   0xDC00 + (uint32_t(c) & 0x3FF));
            else
                out.append(text, start, i - start);
        }
        return out += '"';
    }

    std::string scalar(const Value& v) {
        if (v.is(Kind::none)) return "null";
        if (v.is(Kind::boolean)) return v.integer() ? "true" : "false";
        if (v.is(Kind::integer)) return fmt::format("{}", v.integer());
        if (std::isnan(v.real())) return "NaN";
        if (std::isinf(v.real())) return v.real() < 0 ? "-Infinity" : "Infinity";
        return real_text(v.real());
    }

    void new_line(int level) {
        if (!indent) return;
        out += '\n';
        for (int i = 0; i < level; ++i) put(*indent);
    }

    void write(const Value& v, int level) {
        budget.pay_bytes(16);
        if (v.is(Kind::string)) {
            out += v.marked().changed(quoted(v.text(), ascii));
        } else if (v.is(Kind::none) || v.is_number()) {
            out += scalar(v);
        } else if (v.is(Kind::list) && v.list().row <= Row::tuple) {
            out += '[';
            bool first = true;
            for (const Value& item : v.list().items) {
                if (!std::exchange(first, false)) put(comma);
                new_line(level + 1);
                write(item, level + 1);
            }
            if (!first) new_line(level);
            out += ']';
        } else if (v.is(Kind::dict)) {
            budget.pay_bytes(int64_t(v.dict().entries.size() * sizeof(v.dict().entries[0])));
            auto entries = v.dict().entries;
            if (sort_keys)
                std::stable_sort(entries.begin(), entries.end(),
                                 [&](const auto& a, const auto& b) { return less(a.first, b.first, budget); });
            out += '{';
            bool first = true;
            for (const auto& [key, item] : entries) {
                if (!std::exchange(first, false)) put(comma);
                new_line(level + 1);
                if (key.is(Kind::string))
                    out += key.marked().changed(quoted(key.text(), ascii));
                else if (key.is(Kind::none) || key.is_number())
                    out += quoted(scalar(key), ascii);
                else
                    budget.fail(fmt::format("keys must be str, int, float, bool or None, not {}", type_name(key)));
                put(colon);
                write(item, level + 1);
            }
            if (!first) new_line(level);
            out += '}';
        } else {
            budget.fail(fmt::format("Object of type {} is not JSON serializable", type_name(v)));
        }
    }
};

}  // namespace

Marked to_json(const Value& value, Budget& budget, const Marked* indent, const Marked& comma, const Marked& colon,
               bool ascii, bool sort_keys) {
    Writer writer{budget, indent, comma, colon, ascii, sort_keys, {}};
    writer.write(value, 0);
    return std::move(writer.out);
}

}  // namespace nibble::jinja

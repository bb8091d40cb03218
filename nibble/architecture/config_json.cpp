#include "architecture/config_json.h"

#include "base/mapped_file.h"

#include <cmath>

namespace nibble {
namespace {

// Appends `value` in the JSON library's format, except that numbers that are not finite become Python's bare tokens.
void append_json(const Json& value, int indent, int depth, std::string& out) {
    const auto new_line = [&](int level) { out.append("\n").append(static_cast<size_t>(indent * level), ' '); };
    if (value.is_number_float() && !std::isfinite(value.get<double>())) {
        const double number = value.get<double>();
        out += std::isnan(number) ? "NaN" : number < 0 ? "-Infinity" : "Infinity";
    } else if (value.is_structured() && !value.empty()) {
        out += value.is_object() ? '{' : '[';
        bool first = true;
        for (const auto& item : value.items()) {
            if (!first) out += ',';
            first = false;
            new_line(depth + 1);
            if (value.is_object()) out.append(Json(item.key()).dump()).append(": ");
            append_json(item.value(), indent, depth + 1, out);
        }
        new_line(depth);
        out += value.is_object() ? '}' : ']';
    } else {
        out += value.dump();
    }
}

}  // namespace

Result<Json> parse_config(std::string_view text) { return parse_json(text, {.python_constants = true}); }

Result<Json> read_config(const std::filesystem::path& path) {
    NIBBLE_TRY(const auto text, read_text_file(path));
    return parse_config(text).within(path.string());
}

Result<std::string> config_text(const Json& config, int indent) {
    std::string text;
    try {
        append_json(config, indent, 0, text);
    } catch (const Json::exception&) {
        return fail("the configuration holds text that is not UTF-8");
    }
    return text + "\n";
}

Json tag_special_floats(Json value) {
    if (value.is_number_float() && !std::isfinite(value.get<double>())) {
        const double number = value.get<double>();
        return Json::object({{"__float__", std::isnan(number) ? "NaN" : number < 0 ? "-Infinity" : "Infinity"}});
    }
    if (value.is_structured())
        for (Json& item : value) item = tag_special_floats(std::move(item));
    return value;
}

void append_member(Json& object, std::string key, Json value) {
    auto& members = object.get_ref<Json::object_t&>();
    static_cast<Json::object_t::Container&>(members).emplace_back(std::move(key), std::move(value));
}

Result<std::vector<std::string>> read_names(const Json& object, const char* key) {
    std::vector<std::string> names;
    const auto at = object.find(key);
    if (at == object.end() || at->is_null()) return names;
    if (!at->is_array()) return fail("{}: must be a list, found {}", key, show_value(*at));
    for (const Json& item : *at) {
        if (!item.is_string()) return fail("{}: must hold names, found {}", key, show_value(item));
        names.push_back(item.get<std::string>());
    }
    return names;
}

std::string show_value(const Json& value) {
    return tag_special_floats(value).dump(-1, ' ', true, Json::error_handler_t::replace).substr(0, 80);
}

}  // namespace nibble

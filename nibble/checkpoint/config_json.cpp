#include "checkpoint/config_json.h"

#include "base/mapped_file.h"

#include <algorithm>
#include <array>

namespace nibble {
namespace {

constexpr std::array<std::string_view, 3> tokens{"-Infinity", "Infinity", "NaN"};

bool is_token(std::string_view text) { return std::ranges::find(tokens, text) != tokens.end(); }

// Calls `visit(begin, end)` for each string literal of the text, quotes excluded. Escapes stay as they are.
template <class Visit>
void for_each_string(std::string_view text, Visit visit) {
    for (size_t i = 0; i < text.size(); ++i) {
        if (text[i] != '"') continue;
        const size_t begin = ++i;
        while (i < text.size() && text[i] != '"') i += text[i] == '\\' ? 2 : 1;
        visit(begin, std::min(i, text.size()));
    }
}

}  // namespace

Result<Json> parse_config(std::string_view text) {
    bool quoted_token = false;
    for_each_string(text, [&](size_t begin, size_t end) { quoted_token |= is_token(text.substr(begin, end - begin)); });
    if (quoted_token)
        return fail(
            "a string is spelled \"Infinity\", \"-Infinity\" or \"NaN\": nibble could not tell it from the bare "
            "token; write the token without quotes");
    return parse_json(text, {.python_constants = true});
}

Result<Json> read_config(const std::filesystem::path& path) {
    NIBBLE_TRY(const auto text, read_text_file(path));
    return parse_config(text).within(path.string());
}

Result<std::string> config_text(const Json& config, int indent) {
    std::string text;
    try {
        text = config.dump(indent);
    } catch (const Json::exception&) {
        return fail("the configuration holds text that is not UTF-8");
    }
    std::string out;
    out.reserve(text.size() + 1);
    size_t copied = 0;
    for_each_string(text, [&](size_t begin, size_t end) {
        if (!is_token(std::string_view(text).substr(begin, end - begin))) return;
        out.append(text, copied, begin - 1 - copied);  // without the quotes
        out.append(text, begin, end - begin);
        copied = end + 1;
    });
    out.append(text, copied);
    out += '\n';
    return out;
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
    return value.dump(-1, ' ', true, Json::error_handler_t::replace).substr(0, 80);
}

}  // namespace nibble

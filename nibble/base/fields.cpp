#include "base/fields.h"

#include "base/nearest.h"
#include "base/utf8.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>

namespace nibble {
namespace {

constexpr size_t longest_key = 100, longest_value = 60;

std::string value_text(const Json& object, std::string_view key) {
    const auto at = object.find(key);
    if (at == object.end()) return "absent";
    if (at->is_number_float() && std::isnan(at->get<double>())) return "NaN";
    if (at->is_number_float() && std::isinf(at->get<double>())) return *at > 0 ? "Infinity" : "-Infinity";
    std::string text = at->dump(-1, ' ', true, Json::error_handler_t::replace);
    if (text.size() > longest_value) text = text.substr(0, longest_value - 3) + "...";
    return text;
}

}  // namespace

const Json* Fields::find(std::string_view key) {
    read_.emplace(key);
    const auto found = object_->find(key);
    return found == object_->end() || found->is_null() ? nullptr : &*found;
}

void Fields::ignore(std::initializer_list<std::string_view> keys) {
    for (const std::string_view key : keys) read_.emplace(key);
}

Result<const Json*> Fields::need(std::string_view key) {
    if (!object_->is_object())
        return fail("{}expected an object with '{}'", subject_.empty() ? "" : subject_ + ": ", key);
    read_.emplace(key);
    const auto found = object_->find(key);
    if (found == object_->end()) return missing(key);
    return &*found;
}

Result<const Json*> Fields::object(std::string_view key) {
    NIBBLE_TRY(const Json* field, need(key));
    if (!field->is_object()) return bad(key, "expected an object");
    return field;
}

Result<const Json*> Fields::array(std::string_view key) {
    NIBBLE_TRY(const Json* field, need(key));
    if (!field->is_array()) return bad(key, "expected a list");
    return field;
}

Status Fields::must_be(std::string_view key, const Json& value) {
    const Json* field = find(key);
    if (field && *field != value) return bad(key, fmt::format("only {} is supported", value.dump()));
    return Ok{};
}

Status Fields::all_read() const {
    for (const auto& [key, value] : object_->items()) {
        if (value.is_null() || read_.contains(key) || std::ranges::count(policy_.ignorable, key)) continue;
        const std::vector<std::string> known(read_.begin(), read_.end());
        return bad(key, std::string(policy_.unknown) + did_you_mean(key, known));
    }
    return Ok{};
}

std::string Fields::head(std::string_view key) const {
    blamed_ = printable(key, longest_key);
    return fmt::format("{}{}'{}'", subject_, subject_.empty() ? "" : ": ", blamed_);
}

Error Fields::bad(std::string_view key, std::string_view why) const {
    std::string text = head(key);
    if (policy_.shows_values) text += " is " + value_text(*object_, key);
    return fail("{}: {}", text, why);
}

Error Fields::missing(std::string_view key) const { return fail("{} is missing", head(key)); }

}  // namespace nibble

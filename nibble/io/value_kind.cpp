#include "io/value_kind.h"

#include "base/nearest.h"

#include <nlohmann/json.hpp>

#include <algorithm>

namespace nibble {

ValueKind<bool> flag_kind() {
    return {.text = "true or false",
            .read = [](const YamlNode& node, const std::string& name) { return as_bool(node, name); },
            .json = [](bool value) -> Json { return value; }};
}

ValueKind<int64_t> count_kind(int64_t least) {
    return {.text = fmt::format("whole number, at least {}", least),
            .read = [least](const YamlNode& node, const std::string& name) -> Result<int64_t> {
                NIBBLE_TRY(const int64_t value, as_int64(node, name));
                if (value < least) return fail("{}: {} must be at least {}, not {}", node.where(), name, least, value);
                return value;
            },
            .json = [least](int64_t value) -> Json { return value < least ? Json() : Json(value); }};
}

ValueKind<uint64_t> seed_kind() {
    const ValueKind<int64_t> count = count_kind(0);
    return {.text = count.text,
            .read = [read = count.read](const YamlNode& node, const std::string& name) -> Result<uint64_t> {
                NIBBLE_TRY(const int64_t value, read(node, name));
                return static_cast<uint64_t>(value);
            },
            .json = [](uint64_t value) -> Json { return value; }};
}

ValueKind<double> number_kind(double least, double most) {
    const std::string range = most >= 1e30     ? fmt::format("number, at least {}", least)
                              : least <= -1e30 ? fmt::format("number, at most {}", most)
                                               : fmt::format("number from {} to {}", least, most);
    return {.text = least <= -1e30 && most >= 1e30 ? "number" : range,
            .read = [=](const YamlNode& node, const std::string& name) -> Result<double> {
                NIBBLE_TRY(const double value, as_number(node, name));
                if (!(value >= least && value <= most))
                    return fail("{}: {} must be from {} to {}, not {}", node.where(), name, least, most, value);
                return value;
            },
            .json = [](double value) -> Json { return value; }};
}

ValueKind<std::string> text_kind() {
    return {.text = "text",
            .read = [](const YamlNode& node, const std::string& name) { return as_text(node, name); },
            .json = [](const std::string& value) -> Json { return value.empty() ? Json() : Json(value); }};
}

ValueKind<std::string> lines_kind() {
    return {.text = "text",
            .read = [](const YamlNode& node, const std::string& name) { return as_lines(node, name); },
            .json = [](const std::string& value) -> Json { return value; }};
}

ValueKind<std::filesystem::path> path_kind() {
    return {.text = "path",
            .read = [](const YamlNode& node, const std::string& name) -> Result<std::filesystem::path> {
                NIBBLE_TRY(std::string text, as_text(node, name));
                return std::filesystem::path(std::move(text));
            },
            .json = [](const std::filesystem::path& value) -> Json {
                if (value.empty()) return nullptr;
                const std::filesystem::path normal = value.lexically_normal();
                return (normal.has_filename() || normal == normal.root_path() ? normal : normal.parent_path()).string();
            }};
}

Result<size_t> word_position(const YamlNode& node, const std::string& name, const std::vector<std::string>& words) {
    NIBBLE_TRY(const std::string word, as_text(node, name));
    const auto found = std::ranges::find(words, word);
    if (found != words.end()) return static_cast<size_t>(found - words.begin());
    return fail("{}: {} must be {}, not '{}'{}", node.where(), name, words_text(words), word,
                did_you_mean(word, words));
}

std::string words_text(const std::vector<std::string>& words) {
    std::string text;
    for (size_t i = 0; i < words.size(); ++i) text += (i == 0 ? "" : i + 1 == words.size() ? " or " : ", ") + words[i];
    return text;
}

std::string default_text(const Json& value) {
    if (value.is_null()) return "none";
    if (!value.is_string()) return value.dump();
    const std::string text = value.get<std::string>();
    return text.empty() ? "none" : text;
}

}  // namespace nibble

// Kinds of configuration values: how a value is parsed, written as JSON, and described.
#pragma once

#include "base/json.h"
#include "io/yaml.h"

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace nibble {

template <class T>
struct ValueKind {
    std::string text;  // for the reference: "at least 1"
    // Parses a value. Error: "file:line: NAME must be ..., not 'text'".
    std::function<Result<T>(const YamlNode& node, const std::string& name)> read;
    // Returns the value as JSON, the same for all spellings; null: no value.
    std::function<Json(const T& value)> json;
};

ValueKind<bool> flag_kind();
ValueKind<int64_t> count_kind(int64_t least);  // a smaller value in a field stands for "not set"
ValueKind<uint64_t> seed_kind();               // at least 0
ValueKind<double> number_kind(double least, double most);
ValueKind<std::string> text_kind();   // one line, not empty
ValueKind<std::string> lines_kind();  // any text
// Paths are stored in normal form without a trailing slash: "x" for "./x/".
ValueKind<std::filesystem::path> path_kind();

// One of these words. Several words may have the same value; the first one is its name.
template <class T>
ValueKind<T> word_kind(std::vector<std::pair<std::string_view, T>> words);
// One of these words, which name the values of an enumeration in order.
template <class Enum>
ValueKind<Enum> enum_kind(std::span<const std::string_view> names);
// The given kind, or null for no value.
template <class T>
ValueKind<std::optional<T>> optional_kind(ValueKind<T> kind);
// A list of at least `least` values of the kind. `of`: name of the items in messages: "names".
template <class T>
ValueKind<std::vector<T>> list_kind(ValueKind<T> kind, std::string of, size_t least = 0);

// Returns the index of the node's word in `words`. Error: it is not among them; suggests the nearest one.
Result<size_t> word_position(const YamlNode& node, const std::string& name, const std::vector<std::string>& words);
// Returns "a, b or c".
std::string words_text(const std::vector<std::string>& words);
// Returns the text of a default for the reference: "none" for null, texts without quotes.
std::string default_text(const Json& value);

template <class T>
ValueKind<T> word_kind(std::vector<std::pair<std::string_view, T>> words) {
    std::vector<std::string> names;
    for (const auto& [name, value] : words) names.emplace_back(name);
    return {.text = words_text(names),
            .read = [=](const YamlNode& node, const std::string& name) -> Result<T> {
                NIBBLE_TRY(const size_t i, word_position(node, name, names));
                return words[i].second;
            },
            .json = [=](const T& value) -> Json {
                for (const auto& [name, one] : words)
                    if (one == value) return std::string(name);
                return nullptr;
            }};
}

template <class Enum>
ValueKind<Enum> enum_kind(std::span<const std::string_view> names) {
    std::vector<std::pair<std::string_view, Enum>> words;
    for (const std::string_view name : names) words.emplace_back(name, static_cast<Enum>(words.size()));
    return word_kind<Enum>(std::move(words));
}

template <class T>
ValueKind<std::optional<T>> optional_kind(ValueKind<T> kind) {
    return {.text = kind.text,
            .read = [read = kind.read](const YamlNode& node, const std::string& name) -> Result<std::optional<T>> {
                if (node.is_null()) return std::optional<T>();
                NIBBLE_TRY(T value, read(node, name));
                return std::optional<T>(std::move(value));
            },
            .json = [json = kind.json](const std::optional<T>& value) { return value ? json(*value) : Json(); }};
}

template <class T>
ValueKind<std::vector<T>> list_kind(ValueKind<T> kind, std::string of, size_t least) {
    return {
        .text = "list of " + of,
        .read = [read = kind.read, of, least](const YamlNode& node, const std::string& name) -> Result<std::vector<T>> {
            std::vector<T> list;
            if (node.is_null() && least == 0) return list;
            if (!node.is_list() || node.items.size() < least)
                return fail("{}: {} must be a list of {}", node.where(), name, of);
            for (const YamlNode& item : node.items) {
                NIBBLE_TRY(T value, read(item, name));
                list.push_back(std::move(value));
            }
            return list;
        },
        .json = [json = kind.json](const std::vector<T>& list) -> Json {
            if (list.empty()) return nullptr;
            Json out = Json::array();
            for (const T& value : list) out.push_back(json(value));
            return out;
        }};
}

}  // namespace nibble

// Parses YAML into a tree in which every node has its file and line. The input is untrusted: size, depth and the number
// of nodes after expanding aliases are limited. Duplicate keys, tags and merge keys are errors.
#pragma once

#include "base/json.h"

#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace nibble {

struct YamlEntry;

struct YamlNode {
    enum class Kind : uint8_t { null, scalar, list, map } kind = Kind::null;
    std::string text;     // text of a scalar
    bool quoted = false;  // a quoted scalar is never a number, a boolean or null
    std::vector<YamlNode> items;
    std::vector<YamlEntry> entries;
    std::shared_ptr<const std::string> file;
    int line = 0;  // starts at 1

    bool is_map() const { return kind == Kind::map; }
    bool is_list() const { return kind == Kind::list; }
    bool is_null() const { return kind == Kind::null; }
    const YamlNode* find(std::string_view key) const;
    YamlNode* find(std::string_view key);
    std::string where() const;  // returns "file:line", or "file" if the line is 0
    size_t node_count() const;
};

struct YamlEntry {
    std::string key;
    YamlNode value;
};

constexpr size_t max_yaml_bytes = 256 * 1024;
constexpr size_t max_yaml_nodes = 100'000;
constexpr size_t max_yaml_depth = 32;
constexpr size_t max_yaml_documents = 8;

// Parses all documents of a file. Errors start with file and line.
Result<std::vector<YamlNode>> parse_yaml(std::string_view text, const std::string& file);

// Parses a document that is one map of keys. Errors: those of parse_yaml(); several documents, another value.
Result<YamlNode> parse_config_map(std::string_view text, const std::string& file);

// Returns the tree of a JSON value, without lines. A JSON string is treated like a plain scalar, because earlier
// versions stored scalars of runs as strings.
YamlNode yaml_from_json(const Json& json, const std::string& file);

// Return the value as a type. Error: "file:line: WHAT must be ..., not 'text'".
Result<bool> as_bool(const YamlNode& node, std::string_view what);
Result<int> as_int(const YamlNode& node, std::string_view what);
Result<int64_t> as_int64(const YamlNode& node, std::string_view what);
Result<double> as_number(const YamlNode& node, std::string_view what);
Result<std::string> as_text(const YamlNode& node, std::string_view what);   // one line, not empty
Result<std::string> as_lines(const YamlNode& node, std::string_view what);  // any text, including line ends

// Error: a key of the map is not among `known`, which the message lists.
Status check_keys(const YamlNode& map, std::string_view what, std::initializer_list<std::string_view> known);

}  // namespace nibble

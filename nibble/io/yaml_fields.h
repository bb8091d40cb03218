// Reads the keys of one YAML map into the fields of a config; the first error is kept. A key that is not there leaves
// its field as it is.
#pragma once

#include "io/yaml.h"

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace nibble {

class YamlFields {
public:
    // `what` names the map in errors; empty: the whole file.
    YamlFields(const YamlNode& map, std::string what) : map_(map), what_(std::move(what)) {}

    void text(std::string_view key, std::string& to);
    void path(std::string_view key, std::filesystem::path& to);
    void flag(std::string_view key, bool& to);
    void count(std::string_view key, int64_t least, int64_t& to);
    void number(std::string_view key, double least, double most, double& to);
    // null: none.
    void number(std::string_view key, double least, double most, std::optional<double>& to);

    // A word that `parse` (of type Result<T>(std::string_view)) makes a value of.
    template <class T, class Parse>
    void named(std::string_view key, const Parse& parse, T& to) {
        read(key, [&](const YamlNode& node, const std::string& name) -> Status {
            NIBBLE_TRY(const std::string word, as_text(node, name));
            NIBBLE_TRY(to, parse(word).within(node.where() + ": " + name));
            return Ok{};
        });
    }
    // `value` (of type Status(const YamlNode&, const std::string& name)) reads the key's node.
    template <class Read>
    void read(std::string_view key, const Read& value) {
        const YamlNode* node = map_.find(key);
        if (!node || !status_.ok()) return;
        status_ = value(*node, what_.empty() ? std::string(key) : what_ + "." + std::string(key));
    }
    // An error if the key is given though nothing reads its field: "has no effect {why}".
    void no_effect(std::string_view key, std::string_view why);
    // A map whose keys are `known`; `fields` (of type void(YamlFields&)) reads them.
    template <class Fields>
    void map(std::string_view key, std::initializer_list<std::string_view> known, const Fields& fields) {
        read(key, [&](const YamlNode& node, const std::string& name) -> Status {
            if (!node.is_map()) return fail("{}: {} must be a map", node.where(), name);
            NIBBLE_CHECK(check_keys(node, name, known));
            YamlFields inner(node, name);
            fields(inner);
            return inner.status();
        });
    }
    const Status& status() const { return status_; }

private:
    const YamlNode& map_;
    std::string what_;
    Status status_ = Ok{};
};

}  // namespace nibble

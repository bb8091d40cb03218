// The keys of a configuration as one table: name, member, kind of value, help, and whether the key affects the bits of
// a run. The table gives the parser (errors name file, line and key), overrides of single keys, the identity of a run
// by value, and the reference of the keys.
//
//     Schema<Config> s;
//     s.key("optimizer.clip", number_kind(0, 1e30), at(&Config::optimizer, &Optimizer::clip), "largest norm; 0: none");
#pragma once

#include "base/json.h"
#include "io/value_kind.h"

#include <deque>
#include <map>
#include <set>
#include <vector>

namespace nibble {

// Sets one key from a place other than the file. `source` takes the place of file and line in messages: "--steps".
struct KeyOverride {
    std::string key, value, source;
};
// From "key=value". Error: no '='.
Result<KeyOverride> key_override(std::string_view text, std::string source);
Result<std::vector<KeyOverride>> key_overrides(const std::vector<std::string>& texts, const std::string& source);

// The keys that a document gives.
class GivenKeys {
public:
    bool has(std::string_view key) const { return node(key) != nullptr; }
    bool has_group(std::string_view group) const { return groups_.find(group) != groups_.end(); }
    // Null: not given.
    const YamlNode* node(std::string_view key) const {
        const auto found = nodes_.find(key);
        return found == nodes_.end() ? nullptr : found->second;
    }
    // "file:line" of a given key.
    std::string where(std::string_view key) const { return node(key)->where(); }

private:
    friend class SchemaNames;
    std::map<std::string, const YamlNode*, std::less<>> nodes_;
    std::set<std::string, std::less<>> groups_;
};

// The names of a table's keys: "a.b" is the key b of the group a. `root` of all functions: the document's map.
class SchemaNames {
public:
    // A group may be given as one value, which is then that of its key `key`: "precision: nvfp4".
    void shorthand(std::string group, std::string key) { shorthands_[std::move(group)] = std::move(key); }
    // Sets keys in `root`. Errors: a key that is none; a value that is no YAML.
    Status set(YamlNode& root, const std::vector<KeyOverride>& overrides) const;

protected:
    void add(const std::string& name);
    const std::map<std::string, std::string, std::less<>>& shorthands() const { return shorthands_; }
    // Errors: a key that is none (with the nearest one), a group that is not a map.
    Status collect(const YamlNode& map, const std::string& prefix, GivenKeys& given) const;

private:
    Status set(YamlNode& root, const KeyOverride& to) const;
    bool is_group(const std::string& name) const { return children_.contains(name); }
    Error unknown(const YamlNode& at, const std::string& group, const std::string& word) const;

    std::set<std::string, std::less<>> names_;
    std::map<std::string, std::vector<std::string>, std::less<>> children_;  // of each group, in order; "": the top
    std::map<std::string, std::string, std::less<>> shorthands_;
};

// A row of the reference.
struct KeyText {
    std::string name, kind, usual, help;  // usual: the default
    bool bits = true;
};
std::string keys_as_text(const std::vector<KeyText>& keys);      // for a terminal
std::string keys_as_markdown(const std::vector<KeyText>& keys);  // a table

// Sets the value at "a.b" of a JSON object.
void set_json_key(Json& object, std::string_view name, Json value);

// Follows pointers to members: at(&A::b, &B::c) of an `a` is a.b.c.
template <class... Members>
auto at(Members... members) {
    return [=](auto& object) -> auto& { return (object.*....*members); };
}

template <class Config>
class Schema : public SchemaNames {
public:
    struct Key {
        std::string name, kind, help;
        std::optional<std::string> usual;  // what the reference says of the default, instead of its value
        bool bits = true;
        std::function<Status(const YamlNode&, const std::string& name, Config&)> read;
        std::function<Json(const Config&)> json;
        std::function<bool(const Config&)> counts;  // empty: always
        // Why the key has no effect, as the end of a sentence; empty: it has one.
        std::vector<std::function<std::string(const Config&)>> conditions;

        // The bits of a run do not depend on this key, so a run may resume with another value.
        Key& keeps_bits() {
            bits = false;
            return *this;
        }
        Key& says(std::string text) {
            usual = std::move(text);
            return *this;
        }
        // The value decides bits only where `holds`; to give it elsewhere is no error.
        Key& bits_where(std::function<bool(const Config&)> holds) {
            counts = std::move(holds);
            return *this;
        }
        // The key has an effect only where `holds`; else giving it is an error, "has no effect {otherwise}".
        template <class Holds>
        Key& needs(Holds holds, std::string otherwise) {
            return refuses([=](const Config& c) { return holds(c) ? std::string() : "has no effect " + otherwise; });
        }
        // `why`: empty, or what the error says after the key's name.
        Key& refuses(std::function<std::string(const Config&)> why) {
            conditions.push_back(std::move(why));
            return *this;
        }
        std::string refusal(const Config& config) const {
            for (const auto& condition : conditions)
                if (std::string why = condition(config); !why.empty()) return why;
            return "";
        }
    };

    template <class T, class Access>
    Key& key(const std::string& name, ValueKind<T> kind, Access access, std::string help) {
        add(name);
        Key& k = keys_.emplace_back();
        k.name = name, k.kind = kind.text, k.help = std::move(help);
        k.read = [read = std::move(kind.read), access](const YamlNode& node, const std::string& at,
                                                       Config& c) -> Status {
            NIBBLE_TRY(access(c), read(node, at));
            return Ok{};
        };
        k.json = [json = std::move(kind.json), access](const Config& c) { return json(access(c)); };
        return k;
    }
    // All keys of another table as those of the group `name`.
    template <class Part, class Access>
    void group(const std::string& name, const Schema<Part>& part, Access access) {
        for (const typename Schema<Part>::Key& of : part.keys()) {
            const std::string whole = name + "." + of.name;
            add(whole);
            Key& k = keys_.emplace_back();
            k.name = whole, k.kind = of.kind, k.help = of.help, k.usual = of.usual, k.bits = of.bits;
            k.read = [read = of.read, access](const YamlNode& node, const std::string& at, Config& c) {
                return read(node, at, access(c));
            };
            k.json = [json = of.json, access](const Config& c) { return json(access(c)); };
            if (of.counts) k.counts = [counts = of.counts, access](const Config& c) { return counts(access(c)); };
            for (const auto& condition : of.conditions)
                k.conditions.push_back([condition, access](const Config& c) { return condition(access(c)); });
        }
        for (const auto& [inner, key] : part.group_shorthands())
            shorthand(inner.empty() ? name : name + "." + inner, key);
    }
    const std::deque<Key>& keys() const { return keys_; }
    const std::map<std::string, std::string, std::less<>>& group_shorthands() const { return shorthands(); }

    // Reads `root` into `config`, keys in the table's order, so that a later key may refine an earlier one. Keys that
    // are not given keep their value. Errors: a key that is none (with the nearest one); a value of another kind or
    // outside its range; a key without effect. `root` outlives what is returned.
    Result<GivenKeys> read(const YamlNode& root, Config& config) const {
        NIBBLE_TRY(GivenKeys given, read_values(root, config, true));
        for (const Key& k : keys_)
            if (given.has(k.name))
                if (const std::string why = k.refusal(config); !why.empty())
                    return fail("{}: {} {}", given.where(k.name), k.name, why);
        return given;
    }
    // The same from values that a run stored: nulls and empty texts are no values, and keys without effect no errors.
    Result<GivenKeys> read_stored(const YamlNode& root, Config& config) const {
        return read_values(root, config, false);
    }
    // The values of all keys that affect bits and have an effect, as nested objects.
    Json identity(const Config& config) const {
        Json out = Json::object();
        for (const Key& k : keys_) {
            if (!k.bits || (k.counts && !k.counts(config)) || !k.refusal(config).empty()) continue;
            if (Json value = k.json(config); !value.is_null()) set_json_key(out, k.name, std::move(value));
        }
        return out;
    }
    // The reference; defaults are those of Config{}.
    std::vector<KeyText> reference() const {
        const Config usual{};
        std::vector<KeyText> out;
        for (const Key& k : keys_)
            out.push_back({k.name, k.kind, k.usual ? *k.usual : default_text(k.json(usual)), k.help, k.bits});
        return out;
    }

private:
    Result<GivenKeys> read_values(const YamlNode& root, Config& config, bool all) const {
        GivenKeys given;
        NIBBLE_CHECK(collect(root, "", given));
        for (const Key& k : keys_) {
            const YamlNode* node = given.node(k.name);
            if (!node || (!all && is_no_value(*node))) continue;
            NIBBLE_CHECK(k.read(*node, k.name, config));
        }
        return given;
    }

    static bool is_no_value(const YamlNode& node) {
        return node.is_null() || (node.kind == YamlNode::Kind::scalar && node.text.empty());
    }

    std::deque<Key> keys_;
};

}  // namespace nibble

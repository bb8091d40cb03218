// The keys of a configuration as a table: name, member, kind of value, help, and whether the key affects the bits of a
// run. The table provides the parser (errors name file, line and key), overrides of single keys, the identity of a run
// by value, and the reference documentation of the keys.
//
// Schema<Config> s;
// s.key("optimizer.clip", number_kind(0, 1e30), at(&Config::optimizer, &Optimizer::clip), "largest norm; 0: none");
#pragma once

#include "base/json.h"
#include "io/value_kind.h"

#include <deque>
#include <map>
#include <set>
#include <vector>

namespace nibble {

// Sets one key from outside the file. `source` replaces file and line in messages: "--steps".
struct KeyOverride {
    std::string key, value, source;
};
// Parses "key=value". Error: there is no '='.
Result<KeyOverride> key_override(std::string_view text, std::string source);
Result<std::vector<KeyOverride>> key_overrides(const std::vector<std::string>& texts, const std::string& source);

// The keys that a document contains.
class GivenKeys {
public:
    bool has(std::string_view key) const { return node(key) != nullptr; }
    bool has_group(std::string_view group) const { return groups_.find(group) != groups_.end(); }
    // Returns the node of a key; null: the document does not contain it.
    const YamlNode* node(std::string_view key) const {
        const auto found = nodes_.find(key);
        return found == nodes_.end() ? nullptr : found->second;
    }
    // Returns "file:line" of a key that the document contains.
    std::string where(std::string_view key) const { return node(key)->where(); }

private:
    friend class SchemaNames;
    std::map<std::string, const YamlNode*, std::less<>> nodes_;
    std::set<std::string, std::less<>> groups_;
};

// The names of a table's keys: "a.b" is the key b of the group a. `root` of all functions: the document's map.
class SchemaNames {
public:
    // Permits to write a group as one value, which sets its key `key`: "precision: nvfp4".
    void shorthand(std::string group, std::string key) { shorthands_[std::move(group)] = std::move(key); }
    // Sets keys in `root`. Errors: an unknown key, a value that is not YAML.
    Status set(YamlNode& root, const std::vector<KeyOverride>& overrides) const;

protected:
    void add(const std::string& name);
    const std::map<std::string, std::string, std::less<>>& shorthands() const { return shorthands_; }
    // Collects the keys of a document. Errors: an unknown key (with the nearest one), a group that is not a map.
    Status collect(const YamlNode& map, const std::string& prefix, GivenKeys& given) const;

private:
    Status set(YamlNode& root, const KeyOverride& to) const;
    bool is_group(const std::string& name) const { return children_.contains(name); }
    Error unknown(const YamlNode& at, const std::string& group, const std::string& word) const;

    std::set<std::string, std::less<>> names_;
    std::map<std::string, std::vector<std::string>, std::less<>> children_;  // children of each group, in order; "":
                                                                             // the top level
    std::map<std::string, std::string, std::less<>> shorthands_;
};

// A row of the reference documentation.
struct KeyText {
    std::string name, kind, usual, help;  // usual: the default value
    bool bits = true;
};
std::string keys_as_text(const std::vector<KeyText>& keys);  // for a terminal

// Sets the value of "a.b" in a JSON object.
void set_json_key(Json& object, std::string_view name, Json value);

// Returns a function that follows pointers to members: at(&A::b, &B::c) maps `a` to a.b.c.
template <class... Members>
auto at(Members... members) {
    return [=](auto& object) -> auto& { return (object.*....*members); };
}

template <class Config>
class Schema : public SchemaNames {
public:
    struct Key {
        std::string name, kind, help;
        std::optional<std::string> usual;  // text about the default in the reference, instead of its value
        bool bits = true;
        std::function<Status(const YamlNode&, const std::string& name, Config&)> read;
        std::function<Json(const Config&)> json;
        std::function<bool(const Config&)> counts;  // empty: always true
        // Each returns why the key has no effect, as the end of a sentence; empty: it has an effect.
        std::vector<std::function<std::string(const Config&)>> conditions;

        // Marks a key that does not affect bits, so that a run may be resumed with another value.
        Key& keeps_bits() {
            bits = false;
            return *this;
        }
        Key& says(std::string text) {
            usual = std::move(text);
            return *this;
        }
        // The value affects bits only if `holds`. It is not an error to set it otherwise.
        Key& bits_where(std::function<bool(const Config&)> holds) {
            counts = std::move(holds);
            return *this;
        }
        // The key has an effect only if `holds`. Setting it otherwise is an error: "has no effect {otherwise}".
        template <class Holds>
        Key& needs(Holds holds, std::string otherwise) {
            return refuses([=](const Config& c) { return holds(c) ? std::string() : "has no effect " + otherwise; });
        }
        // `why` returns the text of the error after the key's name; empty: no error.
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
    // Adds all keys of another table to the group `name`.
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

    // Reads `root` into `config` in the order of the table, so that a later key may refine an earlier one. Keys that
    // are absent keep their value. `root` must outlive the result. Errors: an unknown key (with the nearest one), a
    // value of another kind or out of range, a key without effect.
    Result<GivenKeys> read(const YamlNode& root, Config& config) const {
        NIBBLE_TRY(GivenKeys given, read_values(root, config, true));
        for (const Key& k : keys_)
            if (given.has(k.name))
                if (const std::string why = k.refusal(config); !why.empty())
                    return fail("{}: {} {}", given.where(k.name), k.name, why);
        return given;
    }
    // Reads values that a run stored: nulls and empty texts are ignored, and keys without effect are accepted.
    Result<GivenKeys> read_stored(const YamlNode& root, Config& config) const {
        return read_values(root, config, false);
    }
    // Returns the values of all keys that affect bits and have an effect, as nested objects.
    Json identity(const Config& config) const {
        Json out = Json::object();
        for (const Key& k : keys_) {
            if (!k.bits || (k.counts && !k.counts(config)) || !k.refusal(config).empty()) continue;
            if (Json value = k.json(config); !value.is_null()) set_json_key(out, k.name, std::move(value));
        }
        return out;
    }
    // Returns the reference documentation with the defaults of Config{}.
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

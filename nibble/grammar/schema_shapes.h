// A JSON schema as a union of shapes, each of one JSON type: what all keywords together leave of it. Schemas of members
// and items stay schemas, so that recursion ends.
#pragma once

#include "base/json.h"
#include "grammar/dfa.h"
#include "grammar/json_number.h"
#include "grammar/schema_ids.h"

#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace nibble {

// Schemas that a value satisfies all of; none: any value.
using SchemaSet = std::vector<const Json*>;

struct JsonShape {
    enum class Kind : uint8_t { null, boolean, number, string, array, object };
    Kind kind = Kind::null;

    bool yes = true, no = true;  // the booleans

    NumberBounds bounds;
    std::optional<std::vector<Json>> numbers;  // only these

    struct Language {
        std::string pattern;
        bool search = true, negated = false;
        bool operator==(const Language&) const = default;
    };
    std::optional<std::vector<std::string>> texts;  // only these
    std::vector<std::string> excluded;
    std::vector<Language> languages;

    size_t least = 0, most = SIZE_MAX;  // characters, items or members

    SchemaSet layers;  // schemas whose keywords for arrays or objects hold
    std::vector<std::string> required;
    bool unconstrained() const;
};

// Turns schemas of one document into shapes.
class SchemaShapes {
public:
    SchemaShapes(const Json& root, bool open_objects, GrammarBudget& budget);

    // No shapes: no value.
    Result<std::vector<JsonShape>> of(const SchemaSet& set);

    // What a member of an object of the shape satisfies.
    Result<SchemaSet> member(const JsonShape& shape, const std::string& name);
    // Beside those that match a pattern: what the layers say of other members. `patterns`: bit i: patterns_of()[i]
    // matches.
    struct MemberPattern {
        const Json* layer = nullptr;
        std::string pattern;
        const Json* schema = nullptr;
    };
    std::vector<MemberPattern> patterns_of(const JsonShape& shape) const;
    SchemaSet other_member(const JsonShape& shape, const std::vector<MemberPattern>& patterns, uint32_t matching) const;
    SchemaSet item(const JsonShape& shape, size_t index) const;
    static size_t prefix_items(const JsonShape& shape);

    // The strings of a shape, spelled as in JSON without the quotes; no calls.
    Result<Dfa> strings(const JsonShape& shape, Spelling spelling);
    // The listed strings of a shape that satisfy its other keywords.
    Result<std::vector<std::string>> listed(const JsonShape& shape);

    // Whether it is certain that no value has the shape.
    Result<bool> empty(const JsonShape& shape, int depth = 0);
    Error at(const Json* schema, std::string_view keyword, const Error& error) const;

private:
    // Whether an object of the shape has only members that it names, though no layer says so (SchemaOptions).
    bool closed(const JsonShape& shape) const;
    Result<std::vector<JsonShape>> of_schema(const Json* schema);
    Result<std::vector<JsonShape>> keywords(const Json& schema);
    Result<std::vector<JsonShape>> values(const Json& list, const Json& schema, std::string_view keyword);
    Result<std::vector<JsonShape>> both(const std::vector<JsonShape>& a, const std::vector<JsonShape>& b);
    Result<std::vector<JsonShape>> one_of(const Json& schema);
    Result<std::vector<JsonShape>> conditional(const Json& schema);
    Result<std::vector<JsonShape>> none_of(const Json& schema);
    Result<std::vector<JsonShape>> dependent(const Json& schema, std::string_view keyword);
    Status number_keywords(const Json& schema, JsonShape& shape);
    Status string_keywords(const Json& schema, JsonShape& shape);
    Status array_keywords(const Json& schema, JsonShape& shape);
    Status object_keywords(const Json& schema, JsonShape& shape);
    Status check_keywords(const Json& schema);
    Result<const Json*> child(const Json& schema, std::string_view keyword, const Json& value, std::string_view part);
    Result<const Json*> target(const Json& schema, const std::string& reference);
    Result<const Json*> made(Json schema, const Json& where);
    Result<size_t> count(const Json& schema, std::string_view keyword, size_t otherwise);

    const Json& root_;
    SchemaIds ids_;
    bool ids_read_ = false;
    bool open_objects_;
    GrammarBudget& budget_;
    std::deque<Json> made_;
    std::set<const Json*> made_places_;  // of made_
    std::map<const Json*, std::string> where_;
    std::map<const Json*, std::vector<JsonShape>> known_;
    std::set<const Json*> open_;
    std::map<std::pair<std::string, bool>, Dfa> languages_;  // (pattern, search), plain spelling
};

}  // namespace nibble

// Represents a JSON schema as a union of shapes, each of one JSON type, that combine all keywords. Schemas of members
// and items are not expanded, so recursion ends.
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

// Schemas that a value must all satisfy; empty: any value.
using SchemaSet = std::vector<const Json*>;

struct JsonShape {
    enum class Kind : uint8_t { null, boolean, number, string, array, object };
    Kind kind = Kind::null;

    bool yes = true, no = true;  // allowed booleans

    NumberBounds bounds;
    std::optional<std::vector<Json>> numbers;  // if set, only these values

    struct Language {
        std::string pattern;
        bool search = true, negated = false;
        bool operator==(const Language&) const = default;
    };
    std::optional<std::vector<std::string>> texts;  // if set, only these values
    std::vector<std::string> excluded;
    std::vector<Language> languages;

    size_t least = 0, most = SIZE_MAX;  // number of characters, items or members

    SchemaSet layers;  // schemas whose array or object keywords apply
    std::vector<std::string> required;
    bool unconstrained() const;
};

// Converts schemas of one document to shapes.
class SchemaShapes {
public:
    SchemaShapes(const Json& root, bool open_objects, GrammarBudget& budget);

    // Returns the shapes of values that satisfy all schemas; none: no value does.
    Result<std::vector<JsonShape>> of(const SchemaSet& set);

    // Returns the schemas for member `name` of an object of the shape.
    Result<SchemaSet> member(const JsonShape& shape, const std::string& name);
    // Schemas for members that no layer names. Bit i of `matching`: the name matches patterns_of()[i].
    struct MemberPattern {
        const Json* layer = nullptr;
        std::string pattern;
        const Json* schema = nullptr;
    };
    std::vector<MemberPattern> patterns_of(const JsonShape& shape) const;
    SchemaSet other_member(const JsonShape& shape, const std::vector<MemberPattern>& patterns, uint32_t matching) const;
    SchemaSet item(const JsonShape& shape, size_t index) const;
    static size_t prefix_items(const JsonShape& shape);

    // Returns the strings of a shape in the given spelling, without quotes. The automaton has no calls.
    Result<Dfa> strings(const JsonShape& shape, Spelling spelling);
    // Returns the listed strings of a shape that satisfy its other keywords.
    Result<std::vector<std::string>> listed(const JsonShape& shape);

    // Returns true if certainly no value has the shape.
    Result<bool> empty(const JsonShape& shape, int depth = 0);
    Error at(const Json* schema, std::string_view keyword, const Error& error) const;

private:
    // Returns true if an object of the shape may have only the members it names although no layer requires that
    // (SchemaOptions).
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
    std::set<const Json*> made_places_;  // positions in the schema for made_
    std::map<const Json*, std::string> where_;
    std::map<const Json*, std::vector<JsonShape>> known_;
    std::set<const Json*> open_;
    std::map<std::pair<std::string, bool>, Dfa> languages_;  // (pattern, search), plain spelling
};

}  // namespace nibble

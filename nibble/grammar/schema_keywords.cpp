// The keywords of JSON Schema, each as a function.
#include "base/utf8.h"
#include "grammar/json_format.h"
#include "grammar/regex_parser.h"
#include "grammar/schema_shapes.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <functional>

namespace nibble {
namespace {

using Kind = JsonShape::Kind;

const std::pair<std::string_view, Kind> kind_names[]{
    {"object", Kind::object},  {"array", Kind::array},     {"string", Kind::string}, {"number", Kind::number},
    {"integer", Kind::number}, {"boolean", Kind::boolean}, {"null", Kind::null}};

std::string pointer_part(std::string_view name) {
    std::string out;
    for (const char c : name) out += c == '~' ? "~0" : c == '/' ? "~1" : std::string(1, c);
    return out;
}

// Returns true if an unenforced keyword has no effect in this schema.
bool restricts_nothing(const Json& schema, std::string_view keyword, const Json& value) {
    if (keyword == "minContains" || keyword == "maxContains") return !schema.contains("contains");
    return keyword == "unevaluatedItems" && value == true;
}

bool has_any(const Json& schema, std::initializer_list<const char*> keys) {
    return std::any_of(keys.begin(), keys.end(), [&](const char* key) { return schema.contains(key); });
}

}  // namespace

Result<const Json*> SchemaShapes::made(Json schema, const Json& where) {
    made_.push_back(std::move(schema));
    made_places_.insert(&made_.back());
    where_[&made_.back()] = where_[&where];
    NIBBLE_CHECK(ids_.read_copy(made_.back(), where, budget_));
    return &made_.back();
}

Result<const Json*> SchemaShapes::child(const Json& schema, std::string_view keyword, const Json& value,
                                        std::string_view part) {
    where_.try_emplace(&value,
                       fmt::format("{}/{}{}{}", where_[&schema], keyword, part.empty() ? "" : "/", pointer_part(part)));
    if (!value.is_object() && !value.is_boolean()) return at(&value, "", fail("a schema is an object, true or false"));
    return &value;
}

Status SchemaShapes::check_keywords(const Json& schema) {
    // Keywords of some draft that restrict documents and that a grammar does not enforce. Keywords that JSON Schema
    // does not define are annotations (core specification, 6.5).
    static constexpr std::array refused{"contains",         "minContains", "maxContains",
                                        "unevaluatedItems", "$dynamicRef", "$recursiveRef",
                                        "extends",          "disallow",    "divisibleBy"};
    for (const char* key : refused)
        if (const auto it = schema.find(key); it != schema.end() && !restricts_nothing(schema, key, *it))
            return at(&schema, "", fail("the keyword '{}' is not supported", key));
    if (const auto it = schema.find("unevaluatedProperties"); it != schema.end()) {
        if (has_any(schema, {"allOf", "anyOf", "oneOf", "$ref", "if", "then", "else", "dependentSchemas",
                             "additionalProperties"}))
            return at(&schema, "unevaluatedProperties",
                      fail("is not supported together with allOf, anyOf, oneOf, $ref, "
                           "dependentSchemas and additionalProperties"));
        NIBBLE_CHECK(child(schema, "unevaluatedProperties", *it, ""));
    }
    if (const auto it = schema.find("uniqueItems"); it != schema.end() && *it != Json(false))
        return at(&schema, "uniqueItems", fail("a grammar cannot compare items"));
    return Ok{};
}

Result<std::vector<JsonShape>> SchemaShapes::keywords(const Json& schema) {
    if (!ids_read_) NIBBLE_CHECK(ids_.read(root_, budget_));
    ids_read_ = true;
    NIBBLE_CHECK(check_keywords(schema));
    NIBBLE_CHECK(budget_.pay_work(100));
    std::vector<JsonShape> shapes;
    // Combines each type with the keywords that apply to it.
    std::vector<std::string> types;
    if (const auto it = schema.find("type"); it != schema.end()) {
        if (it->is_string()) types.push_back(it->get<std::string>());
        if (it->is_array())
            for (const Json& one : *it) types.push_back(one.is_string() ? one.get<std::string>() : "");
        if (types.empty()) return at(&schema, "type", fail("a name or a list of names of types"));
    } else {
        types = {"object", "array", "string", "number", "boolean", "null"};
    }
    if (std::find(types.begin(), types.end(), "number") != types.end()) std::erase(types, "integer");
    for (const std::string& name : types) {
        const auto kind = std::find_if(std::begin(kind_names), std::end(kind_names),
                                       [&](const auto& entry) { return entry.first == name; });
        if (kind == std::end(kind_names)) return at(&schema, "type", fail("there is no type '{}'", name));
        JsonShape shape{.kind = kind->second};
        shape.bounds.whole = name == "integer";
        if (shape.kind == Kind::number) NIBBLE_CHECK(number_keywords(schema, shape));
        if (shape.kind == Kind::string) NIBBLE_CHECK(string_keywords(schema, shape));
        if (shape.kind == Kind::array) NIBBLE_CHECK(array_keywords(schema, shape));
        if (shape.kind == Kind::object) NIBBLE_CHECK(object_keywords(schema, shape));
        shapes.push_back(std::move(shape));
    }
    NIBBLE_TRY(const auto all, of(SchemaSet{}));
    NIBBLE_TRY(shapes, both(shapes, all));  // drops shapes that bounds made empty
    const auto limit = [&](Result<std::vector<JsonShape>> more) -> Status {
        if (!more.ok()) return std::move(more).error();
        NIBBLE_TRY(shapes, both(shapes, *more));
        return Ok{};
    };
    if (const auto it = schema.find("enum"); it != schema.end()) {
        if (!it->is_array() || it->empty()) return at(&schema, "enum", fail("a list with at least one value"));
        NIBBLE_CHECK(limit(values(*it, schema, "enum")));
    }
    if (const auto it = schema.find("const"); it != schema.end())
        NIBBLE_CHECK(limit(values(Json::array({*it}), schema, "const")));
    if (const auto it = schema.find("$ref"); it != schema.end()) {
        if (!it->is_string()) return at(&schema, "$ref", fail("a text"));
        NIBBLE_TRY(const Json* to, target(schema, it->get<std::string>()));
        NIBBLE_CHECK(limit(of_schema(to)));
    }
    for (const char* keyword : {"allOf", "anyOf", "oneOf"}) {
        const auto it = schema.find(keyword);
        if (it == schema.end()) continue;
        if (!it->is_array() || it->empty()) return at(&schema, keyword, fail("a list with at least one schema"));
        for (size_t i = 0; i < it->size(); ++i) NIBBLE_CHECK(child(schema, keyword, (*it)[i], std::to_string(i)));
    }
    if (const auto it = schema.find("allOf"); it != schema.end())
        for (const Json& one : *it) NIBBLE_CHECK(limit(of_schema(&one)));
    if (const auto it = schema.find("anyOf"); it != schema.end()) {
        std::vector<JsonShape> any;
        for (const Json& one : *it) {
            NIBBLE_TRY(auto found, of_schema(&one));
            for (JsonShape& shape : found) any.push_back(std::move(shape));
        }
        NIBBLE_CHECK(limit(std::move(any)));
    }
    if (schema.contains("oneOf")) NIBBLE_CHECK(limit(one_of(schema)));
    if (const auto it = schema.find("not"); it != schema.end()) {
        NIBBLE_TRY(const Json* excluded, child(schema, "not", *it, ""));
        NIBBLE_CHECK(limit(none_of(*excluded)));
    }
    if (schema.contains("if")) NIBBLE_CHECK(limit(conditional(schema)));
    for (const char* keyword : {"dependentRequired", "dependentSchemas", "dependencies"})
        if (schema.contains(keyword)) NIBBLE_CHECK(limit(dependent(schema, keyword)));
    // OpenAPI 3.0: null is allowed too.
    const auto is_null = [](const JsonShape& shape) { return shape.kind == Kind::null; };
    if (const auto it = schema.find("nullable");
        it != schema.end() && *it == true && std::ranges::none_of(shapes, is_null))
        shapes.push_back({.kind = Kind::null});
    return shapes;
}

// Values equal to one of a list.
Result<std::vector<JsonShape>> SchemaShapes::values(const Json& list, const Json& schema, std::string_view keyword) {
    std::vector<JsonShape> out;
    JsonShape texts{.kind = Kind::string}, numbers{.kind = Kind::number};
    texts.texts.emplace();
    numbers.numbers.emplace();
    for (const Json& value : list) {
        NIBBLE_CHECK(budget_.pay_work(10));
        if (value.is_string()) {
            if (!utf8_valid(value.get_ref<const std::string&>())) return at(&schema, keyword, fail("is not UTF-8"));
            texts.texts->push_back(value.get<std::string>());
        } else if (value.is_number()) {
            numbers.numbers->push_back(value);
        } else if (value.is_boolean()) {
            out.push_back({.kind = Kind::boolean, .yes = value.get<bool>(), .no = !value.get<bool>()});
        } else if (value.is_null()) {
            out.push_back({.kind = Kind::null});
        } else {
            // Treated as a separate schema.
            Json same = Json::object();
            if (value.is_array()) {
                same["type"] = "array";
                same["prefixItems"] = Json::array();
                for (const Json& item : value) same["prefixItems"].push_back({{"const", item}});
                if (value.empty()) same.erase("prefixItems");
                same["minItems"] = same["maxItems"] = value.size();
            } else {
                same["type"] = "object";
                Json properties = Json::object(), required = Json::array();
                for (const auto& [key, item] : value.items()) {
                    properties[key] = {{"const", item}};
                    required.push_back(key);
                }
                same["properties"] = std::move(properties);
                same["required"] = std::move(required);
                same["additionalProperties"] = false;
            }
            NIBBLE_TRY(const Json* alone, made(std::move(same), schema));
            NIBBLE_TRY(auto shapes, of_schema(alone));
            for (JsonShape& shape : shapes) out.push_back(std::move(shape));
        }
    }
    if (!texts.texts->empty()) out.push_back(std::move(texts));
    if (!numbers.numbers->empty()) out.push_back(std::move(numbers));
    return out;
}

Result<std::vector<JsonShape>> SchemaShapes::one_of(const Json& schema) {
    std::vector<std::vector<JsonShape>> choices;
    for (const Json& one : schema["oneOf"]) {
        NIBBLE_TRY(auto shapes, of_schema(&one));
        for (size_t i = 0; i < choices.size(); ++i) {
            NIBBLE_TRY(const auto overlap, both(choices[i], shapes));
            for (const JsonShape& shape : overlap) {
                NIBBLE_TRY(const bool none, empty(shape));
                if (!none)
                    return at(&schema, "oneOf",
                              fail("a document may match choices {} and {} at once, which a grammar cannot exclude; "
                                   "write anyOf, or make them differ in a required member with a const",
                                   i, choices.size()));
            }
        }
        choices.push_back(std::move(shapes));
    }
    std::vector<JsonShape> out;
    for (auto& choice : choices)
        for (JsonShape& shape : choice) out.push_back(std::move(shape));
    return out;
}

// Values that match "if" and "then", or do not match "if" and match "else".
Result<std::vector<JsonShape>> SchemaShapes::conditional(const Json& schema) {
    NIBBLE_TRY(const Json* condition, child(schema, "if", schema["if"], ""));
    NIBBLE_TRY(auto out, of_schema(condition));
    if (const auto it = schema.find("then"); it != schema.end()) {
        NIBBLE_TRY(const Json* then, child(schema, "then", *it, ""));
        NIBBLE_TRY(const auto more, of_schema(then));
        NIBBLE_TRY(out, both(out, more));
    }
    NIBBLE_TRY(auto others, none_of(*condition));
    if (const auto it = schema.find("else"); it != schema.end()) {
        NIBBLE_TRY(const Json* otherwise, child(schema, "else", *it, ""));
        NIBBLE_TRY(const auto more, of_schema(otherwise));
        NIBBLE_TRY(others, both(others, more));
    }
    for (JsonShape& shape : others) out.push_back(std::move(shape));
    return out;
}

// Values that do not match `schema`, if it is simple enough.
Result<std::vector<JsonShape>> SchemaShapes::none_of(const Json& schema) {
    NIBBLE_TRY(const auto shapes, of_schema(&schema));
    NIBBLE_TRY(auto out, of(SchemaSet{}));
    const auto refuse = [&] {
        return at(&schema, "",
                  fail("the opposite of this schema is not supported: 'not' and 'if' accept types, texts, "
                       "patterns, bounds, required and listed members"));
    };
    for (const JsonShape& shape : shapes) {
        std::vector<JsonShape> rest;  // values of this type without the shape
        for (const Kind kind : {Kind::object, Kind::array, Kind::string, Kind::number, Kind::boolean, Kind::null})
            if (kind != shape.kind) rest.push_back({.kind = kind});
        JsonShape other{.kind = shape.kind};
        if (shape.unconstrained()) {
        } else if (shape.kind == Kind::boolean) {
            other.yes = !shape.yes;
            other.no = !shape.no;
            rest.push_back(other);
        } else if (shape.kind == Kind::string && shape.texts && shape.languages.empty() && shape.excluded.empty()) {
            NIBBLE_TRY(other.excluded, listed(shape));
            rest.push_back(other);
        } else if (shape.kind == Kind::string && !shape.texts && shape.languages.size() == 1 && shape.least == 0 &&
                   shape.most == SIZE_MAX && shape.excluded.empty()) {
            other.languages = shape.languages;
            other.languages[0].negated = !other.languages[0].negated;
            rest.push_back(other);
        } else if (shape.kind == Kind::number && !shape.numbers && !shape.bounds.whole) {
            JsonShape below = other;
            below.bounds.most = shape.bounds.least;
            below.bounds.most_open = !shape.bounds.least_open;
            other.bounds.least = shape.bounds.most;
            other.bounds.least_open = !shape.bounds.most_open;
            if (below.bounds.most) rest.push_back(below);
            if (other.bounds.least) rest.push_back(other);
        } else if (shape.kind == Kind::object && shape.least == 0 && shape.most == SIZE_MAX &&
                   std::all_of(shape.layers.begin(), shape.layers.end(), [](const Json* layer) {
                       return !has_any(*layer, {"patternProperties", "additionalProperties", "propertyNames",
                                                "unevaluatedProperties"});
                   })) {
            for (const std::string& name : shape.required) {
                NIBBLE_TRY(const Json* lacks, made({{"type", "object"}, {"properties", {{name, false}}}}, schema));
                NIBBLE_TRY(auto without, of_schema(lacks));
                for (JsonShape& one : without) rest.push_back(std::move(one));
            }
            for (const Json* layer : shape.layers)
                if (const auto members = layer->find("properties"); members != layer->end())
                    for (const auto& [name, member] : members->items()) {
                        Json other_value{{"type", "object"}, {"required", Json::array({name})}};
                        other_value["properties"][name]["not"] = member;
                        NIBBLE_TRY(const Json* differs, made(std::move(other_value), schema));
                        NIBBLE_TRY(auto wrong, of_schema(differs));
                        for (JsonShape& one : wrong) rest.push_back(std::move(one));
                    }
        } else {
            return refuse();
        }
        NIBBLE_TRY(out, both(out, rest));
    }
    return out;
}

Result<std::vector<JsonShape>> SchemaShapes::dependent(const Json& schema, std::string_view keyword) {
    const Json& map = schema[std::string(keyword)];
    if (!map.is_object()) return at(&schema, keyword, fail("an object"));
    NIBBLE_TRY(auto out, of(SchemaSet{}));
    for (const auto& [name, value] : map.items()) {
        Json with{{"required", Json::array({name})}};
        const bool lists = keyword == "dependentRequired" || (keyword == "dependencies" && value.is_array());
        if (lists) {
            if (!value.is_array()) return at(&schema, keyword, fail("lists of names"));
            for (const Json& one : value) with["required"].push_back(one);
        }
        NIBBLE_TRY(const Json* has, made(std::move(with), schema));
        NIBBLE_TRY(auto shapes, of_schema(has));
        if (!lists) {
            NIBBLE_TRY(const Json* then, child(schema, keyword, value, name));
            NIBBLE_TRY(const auto more, of_schema(then));
            NIBBLE_TRY(shapes, both(shapes, more));
        }
        Json none = Json::object();
        none["properties"][name] = false;
        NIBBLE_TRY(const Json* lacks, made(std::move(none), schema));
        NIBBLE_TRY(auto without, of_schema(lacks));
        // Values of other types are in both sets.
        std::erase_if(without, [](const JsonShape& shape) { return shape.kind != Kind::object; });
        for (JsonShape& shape : without) shapes.push_back(std::move(shape));
        NIBBLE_TRY(out, both(out, shapes));
    }
    return out;
}

Status SchemaShapes::number_keywords(const Json& schema, JsonShape& shape) {
    const auto bound = [&](const char* keyword, bool is_least, bool open) -> Status {
        const auto it = schema.find(keyword);
        if (it == schema.end()) return Ok{};
        // Draft 4 and OpenAPI 3.0: "exclusiveMinimum": true makes "minimum" exclusive.
        if (open && it->is_boolean()) {
            if (is_least ? shape.bounds.least.has_value() : shape.bounds.most.has_value())
                (is_least ? shape.bounds.least_open : shape.bounds.most_open) |= it->get<bool>();
            return Ok{};
        }
        if (!it->is_number()) return at(&schema, keyword, fail("a number"));
        const double value = it->get<double>();
        if (is_least ? value <= -1e18 : value >= 1e18) return Ok{};  // no printed number exceeds it
        const auto fixed = fixed_number(*it);
        if (!fixed.ok()) return at(&schema, keyword, fixed.error());
        auto& to = is_least ? shape.bounds.least : shape.bounds.most;
        bool& to_open = is_least ? shape.bounds.least_open : shape.bounds.most_open;
        if (!to || (is_least ? *fixed > *to : *fixed < *to) || (*fixed == *to && open)) {
            to = *fixed;
            to_open = open;
        }
        return Ok{};
    };
    NIBBLE_CHECK(bound("minimum", true, false));
    NIBBLE_CHECK(bound("exclusiveMinimum", true, true));
    NIBBLE_CHECK(bound("maximum", false, false));
    NIBBLE_CHECK(bound("exclusiveMaximum", false, true));
    if (const auto it = schema.find("multipleOf"); it != schema.end()) {
        const double value = it->is_number() ? it->get<double>() : 0;
        if (!(value >= 1) || value > 1000 || value != double(int64_t(value)))
            return at(&schema, "multipleOf", fail("only integers from 1 to 1000 are supported"));
        shape.bounds.whole = true;
        shape.bounds.multiple = int64_t(value);
    }
    return Ok{};
}

Result<size_t> SchemaShapes::count(const Json& schema, std::string_view keyword, size_t otherwise) {
    const auto it = schema.find(keyword);
    if (it == schema.end()) return otherwise;
    const double value = it->is_number() ? it->get<double>() : -1;
    if (value > 1e15) return otherwise == SIZE_MAX ? SIZE_MAX : size_t(1e15);
    if (!(value >= 0) || value != double(int64_t(value))) return at(&schema, keyword, fail("an integer from 0"));
    return size_t(value);
}

Status SchemaShapes::string_keywords(const Json& schema, JsonShape& shape) {
    NIBBLE_TRY(shape.least, count(schema, "minLength", 0));
    NIBBLE_TRY(shape.most, count(schema, "maxLength", SIZE_MAX));
    for (const char* keyword : {"pattern", "format"}) {
        const auto it = schema.find(keyword);
        if (it == schema.end()) continue;
        if (!it->is_string()) return at(&schema, keyword, fail("a text"));
        JsonShape::Language language{it->get<std::string>(), true, false};
        if (keyword[0] == 'f') {
            language = {std::string(format_pattern(it->get_ref<const std::string&>())), false, false};
            if (language.pattern.empty()) continue;  // an annotation
        }
        const auto parsed = parse_regex(language.pattern, {Spelling::plain, language.search}, budget_);
        if (!parsed.ok()) return at(&schema, keyword, parsed.error());
        shape.languages.push_back(std::move(language));
    }
    return Ok{};
}

Status SchemaShapes::array_keywords(const Json& schema, JsonShape& shape) {
    NIBBLE_TRY(shape.least, count(schema, "minItems", 0));
    NIBBLE_TRY(shape.most, count(schema, "maxItems", SIZE_MAX));
    const auto list = [&](const char* keyword, const Json& schemas) -> Status {
        for (size_t i = 0; i < schemas.size(); ++i) NIBBLE_CHECK(child(schema, keyword, schemas[i], std::to_string(i)));
        return Ok{};
    };
    const auto prefix = schema.find("prefixItems"), items = schema.find("items");
    if (prefix != schema.end()) {
        if (!prefix->is_array()) return at(&schema, "prefixItems", fail("a list of schemas"));
        NIBBLE_CHECK(list("prefixItems", *prefix));
    }
    if (items != schema.end() && items->is_array()) {  // before draft 2020-12
        if (prefix != schema.end()) return at(&schema, "items", fail("a schema, since there are prefixItems"));
        NIBBLE_CHECK(list("items", *items));
        if (const auto it = schema.find("additionalItems"); it != schema.end())
            NIBBLE_CHECK(child(schema, "additionalItems", *it, ""));
    } else if (items != schema.end()) {
        NIBBLE_CHECK(child(schema, "items", *items, ""));
    }
    if (has_any(schema, {"items", "prefixItems"})) shape.layers.push_back(&schema);
    return Ok{};
}

Status SchemaShapes::object_keywords(const Json& schema, JsonShape& shape) {
    NIBBLE_TRY(shape.least, count(schema, "minProperties", 0));
    NIBBLE_TRY(shape.most, count(schema, "maxProperties", SIZE_MAX));
    for (const char* keyword : {"properties", "patternProperties"}) {
        const auto it = schema.find(keyword);
        if (it == schema.end()) continue;
        if (!it->is_object()) return at(&schema, keyword, fail("an object of schemas"));
        for (const auto& [name, value] : it->items()) {
            NIBBLE_CHECK(child(schema, keyword, value, name));
            if (!utf8_valid(name)) return at(&schema, keyword, fail("a name is not UTF-8"));
            if (keyword[0] == 'p' && keyword[1] == 'r') continue;
            const auto parsed = parse_regex(name, {Spelling::plain, true}, budget_);
            if (!parsed.ok()) return at(&value, "", parsed.error());
        }
    }
    for (const char* keyword : {"additionalProperties", "propertyNames"})
        if (const auto it = schema.find(keyword); it != schema.end()) NIBBLE_CHECK(child(schema, keyword, *it, ""));
    if (const auto it = schema.find("required"); it != schema.end()) {
        if (!it->is_array()) return at(&schema, "required", fail("a list of names"));
        for (const Json& name : *it) {
            if (!name.is_string() || !utf8_valid(name.get_ref<const std::string&>()))
                return at(&schema, "required", fail("a list of names"));
            shape.required.push_back(name.get<std::string>());
        }
    }
    if (has_any(schema,
                {"properties", "patternProperties", "additionalProperties", "propertyNames", "unevaluatedProperties"}))
        shape.layers.push_back(&schema);
    return Ok{};
}

Result<const Json*> SchemaShapes::target(const Json& schema, const std::string& reference) {
    auto found = ids_.find(schema, reference, budget_);
    if (!found.ok()) return at(&schema, "$ref", fail("'{}' {}", reference, found.error().message()));
    where_.try_emplace(found->schema, found->place);
    return found->schema;
}

}  // namespace nibble

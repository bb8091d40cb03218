// JSON schemas as grammars. Python's jsonschema validates random documents of the schemas in tests/data/grammar
// (tests/oracles/schema_walks.py, which runs the test SchemaWalks for its documents).
#include "base/mapped_file.h"
#include "grammar/walks.h"
#include "support/files.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <fstream>

using namespace nibble;
using namespace nibble::test;

namespace {

Json json_of(std::string_view text) {
    auto parsed = parse_json(text);
    EXPECT_TRUE(parsed.ok()) << text;
    return parsed.ok() ? *std::move(parsed) : Json();
}

bool takes(std::string_view schema, std::string_view document, const SchemaOptions& options = {}) {
    const auto made = Grammar::from_json_schema(json_of(schema), options);
    EXPECT_TRUE(made.ok()) << schema << ": " << made.error().message();
    return made.ok() && (*made)->matches(document);
}

std::string schema_error(const Json& schema, const GrammarLimits& limits = {}) {
    const auto made = Grammar::from_json_schema(schema, {}, limits);
    return made.ok() ? "" : made.error().message();
}
std::string text_error(std::string_view schema) { return schema_error(json_of(schema)); }

std::vector<std::string> schema_lines() {
    std::ifstream in(std::string(NIBBLE_SOURCE_DIR) + "/tests/data/grammar/schemas.jsonl");
    std::vector<std::string> lines;
    for (std::string line; std::getline(in, line);) lines.push_back(line);
    return lines;
}

}  // namespace

// Every random walk ends in a document that parses. With NIBBLE_WALKS the documents are written to that path.
TEST(SchemaWalks, EndInDocuments) {
    const auto lines = schema_lines();
    ASSERT_GT(lines.size(), 60u);
    std::ofstream out;
    if (const char* path = std::getenv("NIBBLE_WALKS")) out.open(path);
    Dice dice(11);
    const auto vocabulary = small_vocabulary();
    for (size_t i = 0; i < lines.size(); ++i) {
        const auto made = Grammar::from_json_schema(json_of(lines[i]));
        ASSERT_TRUE(made.ok()) << lines[i] << ": " << made.error().message();
        const auto tokens = std::make_shared<const GrammarTokens>(*made, vocabulary);
        int complete = 0;
        for (int n = 0; n < 30; ++n) {
            const Walk walk = random_walk(tokens, dice, 900, 3, false);
            ASSERT_FALSE(HasFailure()) << lines[i];
            if (!walk.complete) continue;
            ++complete;
            const auto parsed = parse_json(walk.text);
            // Members that a schema does not list may occur twice, which this parser rejects.
            if (!parsed.ok()) {
                EXPECT_NE(parsed.error().message().find("duplicate key"), std::string::npos)
                    << lines[i] << ": " << walk.text << ": " << parsed.error().message();
            }
            EXPECT_TRUE((*made)->matches(walk.text)) << walk.text;
            if (out.is_open()) out << i << '\t' << Json(walk.text).dump() << '\n';
        }
        EXPECT_GT(complete, 2) << lines[i];
    }
}

TEST(SchemaWalks, MasksAreThoseOfTheSlowTwin) {
    Dice dice(12);
    for (const std::string& line : schema_lines()) {
        const auto made = Grammar::from_json_schema(json_of(line));
        ASSERT_TRUE(made.ok()) << line;
        const auto tokens = std::make_shared<const GrammarTokens>(*made, small_vocabulary());
        random_walk(tokens, dice, 14, 4, true);
        ASSERT_FALSE(HasFailure()) << line;
    }
}

TEST(JsonSchema, DocumentsThatModelsWriteAreTaken) {
    const std::string person =
        R"({"type":"object","properties":{"name":{"type":"string"},"age":{"type":"integer","minimum":0}},)"
        R"("required":["name","age"],"additionalProperties":false})";
    for (const char* document : {R"({"name": "Ann", "age": 3})", R"({"name":"Ann","age":3})",
                                 "{\n  \"name\": \"Ann\",\n  \"age\": 30\n}", R"({"name": "\u0001\n\"", "age": 0})"})
        EXPECT_TRUE(takes(person, document)) << document;
    for (const char* document :
         {R"({"age": 3, "name": "Ann"})", R"({"name": "Ann"})", R"({"name": "Ann", "age": -1})",
          R"({"name": 1, "age": 1})", R"({"name": "Ann", "age": 3, "x": 1})", R"({"name": "Ann", "age": 3)",
          R"({"name": "Ann", "age": 03})", "{}", " {}", R"({"name": "Ann" , "age": 3})"})
        EXPECT_FALSE(takes(person, document)) << document;
    EXPECT_FALSE(takes(person, R"({"name": "Ann","age":3})", {.space = JsonSpace::none}));
    EXPECT_TRUE(takes(person, R"({"name":"Ann","age":3})", {.space = JsonSpace::none}));
    EXPECT_TRUE(takes("{}", R"([{"a": [true, null, -1.5e3, "x"]}, {}])"));
    EXPECT_TRUE(takes(R"({"properties":{"a":{"type":"null"}}})", R"({"a": null, "b": 1})"));
    EXPECT_FALSE(takes(R"({"properties":{"a":{"type":"null"}}})", R"({"a": null, "b": 1})", {.open_objects = false}));
}

// Keywords that JSON Schema does not define are annotations, and so are formats that are not enforced.
TEST(JsonSchema, AnnotationsChangeNothing) {
    const char* const annotations[] = {R"("nullable":false)",
                                       R"("nullable":"yes")",
                                       R"("propertyOrdering":["b"])",
                                       R"("errorMessage":"e")",
                                       R"("errorMessage":{"a":1})",
                                       R"("markdownDescription":"m")",
                                       R"("enumDescriptions":[])",
                                       R"("enumNames":["x"])",
                                       R"("id":"a")",
                                       R"("xml":{"name":"x"})",
                                       R"("externalDocs":{})",
                                       R"("isOptional":false)",
                                       R"("startsWith":"z")",
                                       R"("contentSchema":{})",
                                       R"("contentEncoding":"base64")",
                                       R"("format":"color")",
                                       R"("format":"int32")",
                                       R"("format":"iri")",
                                       R"("x-order":1)",
                                       R"("example":3)",
                                       R"("examples":[3])",
                                       R"("deprecated":true)",
                                       R"("readOnly":true)",
                                       R"("discriminator":{"propertyName":"k"})",
                                       R"("title":"t")",
                                       R"("$comment":"c")",
                                       R"("default":[])",
                                       R"("$schema":"http://json-schema.org/draft-07/schema#")",
                                       R"("minContains":2)",
                                       R"("$dynamicAnchor":"n")",
                                       R"("unevaluatedItems":true)",
                                       R"("dependencies":{})",
                                       R"("additionalItems":false)",
                                       R"("kind":"thing")",
                                       R"("strict":true)"};
    for (const char* annotation : annotations) {
        const std::string member = fmt::format(R"({{"type":"string","maxLength":2,{}}})", annotation);
        for (const std::string& schema :
             {fmt::format(R"({{"type":"object","properties":{{"a":{}}},"required":["a"],{}}})", member, annotation),
              fmt::format(R"({{"type":"array","items":{},"minItems":1}})", member)}) {
            const bool object = schema.find("properties") != schema.npos;
            EXPECT_TRUE(takes(schema, object ? R"({"a": "xy"})" : R"(["xy"])")) << schema;
            EXPECT_FALSE(takes(schema, object ? R"({"a": "xyz"})" : R"(["xyz"])")) << schema;
            EXPECT_FALSE(takes(schema, object ? R"({"a": null})" : "[null]")) << schema;
        }
    }
}

TEST(JsonSchema, NullableOfOpenApiAlsoTakesNull) {
    const std::pair<const char*, std::vector<const char*>> cases[] = {
        {R"({"type":"string","maxLength":1,"nullable":true})", {"null", "\"a\""}},
        {R"({"type":"string","enum":["a"],"nullable":true})", {"null", "\"a\""}},
        {R"({"allOf":[{"$ref":"#/$defs/n"}],"nullable":true,"$defs":{"n":{"type":"integer"}}})", {"null", "1"}},
        {R"({"type":["integer","null"],"nullable":true})", {"null", "1"}},
        {R"({"type":"object","properties":{"a":{"type":"boolean"}},"nullable":true})", {"null", "{\"a\": true}"}},
        {R"({"anyOf":[{"type":"integer"},{"type":"null"}],"nullable":true})", {"null", "1"}}};
    for (const auto& [schema, documents] : cases) {
        for (const char* document : documents) EXPECT_TRUE(takes(schema, document)) << schema << document;
        EXPECT_FALSE(takes(schema, "[]")) << schema;
    }
    EXPECT_TRUE(takes(R"({"type":"integer","minimum":3,"exclusiveMinimum":true})", "4"));
    EXPECT_FALSE(takes(R"({"type":"integer","minimum":3,"exclusiveMinimum":true})", "3"));
    EXPECT_TRUE(takes(R"({"type":"integer","maximum":3,"exclusiveMaximum":false})", "3"));
}

// Like xgrammar and llama.cpp, requests' objects have only the members that the schema names.
TEST(JsonSchema, SchemasOfRequestsCloseObjectsThatListProperties) {
    struct Case {
        const char* schema;
        std::vector<const char*> yes, no;
    };
    const Case cases[] = {
        {R"({"type":"object","properties":{"a":{"type":"integer"}}})",
         {"{}", R"({"a": 1})"},
         {R"({"b": 1})", R"({"a": 1, "b": 1})", R"({"a": "x"})"}},
        {R"({"properties":{"a":{"type":"integer"}}})", {R"({"a": 1})", "[2]"}, {R"({"a": 1, "b": 1})"}},
        {R"({"type":"object","properties":{}})", {"{}"}, {R"({"a": 1})"}},
        {R"({"type":"object"})", {"{}", R"({"a": 1})"}, {}},
        {R"({"type":"object","required":["a"]})", {R"({"a": 1, "b": 2})"}, {"{}"}},
        {R"({"type":"object","properties":{"a":{"type":"integer"}},"required":["a","b"]})",
         {R"({"a": 1, "b": [2]})"},
         {R"({"a": 1})", R"({"a": 1, "b": 1, "c": 1})"}},
        {R"({"type":"object","properties":{"a":{"type":"integer"}},"additionalProperties":true})",
         {R"({"a": 1, "b": 2})"},
         {}},
        {R"({"type":"object","properties":{"a":{"type":"integer"}},"additionalProperties":{"type":"null"}})",
         {R"({"a": 1, "b": null})"},
         {R"({"a": 1, "b": 2})"}},
        {R"({"type":"object","properties":{"a":{"type":"integer"}},"unevaluatedProperties":true})",
         {R"({"a": 1, "b": 2})"},
         {}},
        {R"({"type":"object","properties":{"a":{"type":"integer"}},"patternProperties":{"^x":{"type":"null"}}})",
         {R"({"a": 1, "x1": null})"},
         {R"({"a": 1, "x1": 1})", R"({"b": null})"}},
        {R"({"allOf":[{"type":"object","properties":{"a":{"type":"integer"}}},{"properties":{"b":{"type":"null"}}}]})",
         {R"({"a": 1, "b": null})", R"({"b": null})"},
         {R"({"c": 1})"}},
        {R"({"type":"object","properties":{"a":{"type":"integer"}},"anyOf":[{"required":["b"]},{"required":["c"]}]})",
         {R"({"a": 1, "b": 2})", R"({"c": 3})"},
         {R"({"a": 1})", R"({"a": 1, "b": 1, "d": 1})"}},
        {R"({"type":"object","properties":{"k":{"enum":["x","y"]}},"required":["k"],"if":{"properties":{"k":{"const":"x"}}},)"
         R"("then":{"properties":{"n":{"type":"integer"}},"required":["n"]}})",
         {R"({"k": "x", "n": 1})", R"({"k": "y"})"},
         {R"({"k": "x"})", R"({"k": "y", "z": 1})"}},
        {R"({"type":"object","not":{"required":["a"]}})", {R"({"b": 1})"}, {R"({"a": 1})"}},
        {R"({"type":"object","properties":{"a":{"type":"integer"}},"minProperties":2})", {R"({"a": 1, "b": 2})"}, {}},
        {R"({"type":"object","properties":{"o":{"type":"object","properties":{"a":{"type":"null"}}}}})",
         {R"({"o": {"a": null}})"},
         {R"({"o": {"b": null}})"}}};
    for (const Case& c : cases) {
        for (const char* document : c.yes)
            EXPECT_TRUE(takes(c.schema, document, answer_schema)) << c.schema << document;
        for (const char* document : c.no)
            EXPECT_FALSE(takes(c.schema, document, answer_schema)) << c.schema << document;
    }
}

TEST(JsonSchema, NumbersWithinBounds) {
    const auto within = [](const char* bounds, const std::string& text) {
        return takes(fmt::format("{{\"type\":\"number\",{}}}", bounds), text);
    };
    for (const char* yes : {"0", "0.5", "1", "0.25", "1.0", "0.000"})
        EXPECT_TRUE(within("\"minimum\":0,\"maximum\":1", yes)) << yes;
    for (const char* no : {"-0.5", "1.1", "2", "10", "1.01", "-0", "00", "1e0", ".5"})
        EXPECT_FALSE(within("\"minimum\":0,\"maximum\":1", no)) << no;
    EXPECT_FALSE(within("\"exclusiveMinimum\":0", "0.0"));
    EXPECT_TRUE(within("\"exclusiveMinimum\":0", "0.000001"));
    EXPECT_TRUE(within("\"maximum\":-3.75", "-3.75"));
    EXPECT_TRUE(within("\"maximum\":-3.75", "-3.750"));
    EXPECT_TRUE(within("\"maximum\":-3.75", "-4"));
    EXPECT_FALSE(within("\"maximum\":-3.75", "-3.7"));
    // All integers of a range, and no others.
    for (const auto& [low, high] :
         std::vector<std::pair<int, int>>{{-120, 37}, {5, 5}, {99, 1001}, {-7, -3}, {0, 10}}) {
        const auto made = Grammar::from_json_schema({{"type", "integer"}, {"minimum", low}, {"maximum", high}});
        ASSERT_TRUE(made.ok());
        for (int i = -1300; i <= 1300; ++i)
            ASSERT_EQ((*made)->matches(std::to_string(i)), i >= low && i <= high) << i << " in " << low << " " << high;
    }
    for (int i = -100; i <= 100; ++i)
        EXPECT_EQ(takes(R"({"type":"integer","multipleOf":7})", std::to_string(i)), i % 7 == 0) << i;
}

TEST(JsonSchema, StringLengthsCountCharacters) {
    for (const auto& [least, most] :
         std::vector<std::pair<size_t, size_t>>{{0, 3}, {2, 2}, {60, 300}, {300, 300}, {257, 640}}) {
        const auto made = Grammar::from_json_schema({{"type", "string"}, {"minLength", least}, {"maxLength", most}});
        ASSERT_TRUE(made.ok());
        for (size_t n = 0; n < 700; ++n) {
            std::string text = "\"";
            for (size_t i = 0; i < n; ++i) text += i % 3 == 0 ? "é" : i % 3 == 1 ? "\\n" : "x";
            ASSERT_EQ((*made)->matches(text + "\""), n >= least && n <= most) << n << " in " << least << " " << most;
        }
    }
}

TEST(JsonSchema, UnsupportedKeywordsAreNamed) {
    EXPECT_EQ(text_error(R"({"properties":{"a":{"contains":{}}}})"),
              "#/properties/a: the keyword 'contains' is not supported");
    EXPECT_EQ(text_error(R"x({"properties":{"a":{"pattern":"(?=x)"}}})x"),
              "#/properties/a/pattern: character 1: look-ahead is not supported");
    EXPECT_EQ(text_error(R"({"type":"strin"})"), "#/type: there is no type 'strin'");
    EXPECT_EQ(text_error(R"({"$ref":"other.json"})"),
              "#/$ref: 'other.json' is not part of the schema: no subschema has this $id");
    EXPECT_EQ(text_error(R"({"anyOf":[{"$ref":"#/$defs/x"}]})"),
              "#/anyOf/0/$ref: '#/$defs/x' points to no part of the schema");
    EXPECT_EQ(text_error(R"({"oneOf":[{"type":"integer"},{"minimum":3}]})")
                  .find("#/oneOf: a document may match choices 0 and 1"),
              0u);
    EXPECT_NE(text_error(R"({"allOf":[{"$ref":"#"}]})").find("refers to itself"), std::string::npos);
    for (const char* schema : {R"({"uniqueItems":true})",
                               R"({"contains":{}})",
                               R"({"unevaluatedItems":false})",
                               R"({"$dynamicRef":"#n"})",
                               R"({"$recursiveRef":"#"})",
                               R"({"contains":{},"minContains":1})",
                               R"({"multipleOf":0.01})",
                               R"({"minLength":-1})",
                               R"({"required":"a"})",
                               R"({"enum":[]})",
                               R"({"properties":{"a":3}})",
                               R"({"items":[{}],"prefixItems":[{}]})",
                               R"({"items":[3]})",
                               R"({"items":[{}],"additionalItems":3})",
                               R"({"dependencies":{"a":3}})",
                               R"(3)",
                               R"({"type":[]})",
                               R"({"minimum":"1"})",
                               R"({"not":{"multipleOf":3}})",
                               R"({"anyOf":[]})",
                               R"({"pattern":3})",
                               R"({"properties":{"a":{"$id":"x"},"b":{"$ref":"y"}}})",
                               R"({"enum":[{"$id":"x"}],"$ref":"x"})",
                               R"({"type":"object","minProperties":3})",
                               R"({"minimum":2e18,"type":"integer"})"})
        EXPECT_NE(text_error(schema), "") << schema;
    for (const char* schema :
         {"false", R"({"type":"string","enum":[1]})", R"({"type":"object","properties":{"a":false},"required":["a"]})",
          R"({"type":"integer","minimum":3,"maximum":2})",
          R"({"$defs":{"a":{"type":"array","items":{"$ref":"#/$defs/a"},"minItems":1}},"$ref":"#/$defs/a"})",
          R"({"type":"string","pattern":"^a$","minLength":2})"})
        EXPECT_NE(text_error(schema).find("no text of finite length satisfies"), std::string::npos)
            << schema << text_error(schema);
}

// Tuples in the form before draft 2020-12, and dependencies of draft 7.
TEST(JsonSchema, ItemsMayBeAList) {
    const char* const pair = R"({"type":"array","items":[{"type":"integer"},{"type":"string"}]})";
    for (const char* document : {"[]", "[1]", R"([1, "a"])", R"([1, "a", null])"}) EXPECT_TRUE(takes(pair, document));
    for (const char* document : {R"(["a"])", "[1, 2]"}) EXPECT_FALSE(takes(pair, document));
    const char* const closed =
        R"({"type":"array","items":[{"type":"integer"},{"type":"string"}],"additionalItems":false,"minItems":2})";
    EXPECT_TRUE(takes(closed, R"([1, "a"])"));
    for (const char* document : {"[1]", R"([1, "a", null])"}) EXPECT_FALSE(takes(closed, document));
    const char* const more = R"({"type":"array","items":[{"const":1}],"additionalItems":{"type":"null"}})";
    EXPECT_TRUE(takes(more, "[1, null, null]"));
    EXPECT_FALSE(takes(more, "[1, 1]"));
    // Has no effect without a list of items.
    EXPECT_TRUE(takes(R"({"type":"array","items":{"const":1},"additionalItems":false})", "[1, 1]"));
    EXPECT_TRUE(takes(R"({"type":"array","additionalItems":false})", "[1, 1]"));
    const char* const depends = R"({"type":"object","properties":{"a":{},"b":{}},"additionalProperties":false,)"
                                R"("dependencies":{"a":["b"]}})";
    EXPECT_TRUE(takes(depends, R"({"b": 1})"));
    EXPECT_TRUE(takes(depends, R"({"a": 1, "b": 1})"));
    EXPECT_FALSE(takes(depends, R"({"a": 1})"));
}

// References by $id, resolved against the nearest schema that has one. tests/data/grammar/suite.jsonl has more.
TEST(JsonSchema, SchemasAreFoundByTheirId) {
    struct Reference {
        const char *what, *schema;
        bool found;
    };
    const Reference cases[]{
        {"absolute", R"({"$ref":"http://x/a/item.json","$defs":{"i":{"$id":"http://x/a/item.json","const":5}}})", true},
        {"relative", R"({"$id":"http://x/a/list.json","$ref":"item.json","$defs":{"i":{"$id":"item.json","const":5}}})",
         true},
        {"without a base", R"({"$ref":"item","$defs":{"i":{"$id":"item","const":5}}})", true},
        {"path", R"({"$id":"http://x/a/b.json","$ref":"/c.json","$defs":{"i":{"$id":"http://x/c.json","const":5}}})",
         true},
        {"dots", R"({"$id":"http://x/a/b.json","$ref":"../c.json","$defs":{"i":{"$id":"http://x/c.json","const":5}}})",
         true},
        {"urn", R"({"$id":"urn:a:b","$ref":"urn:a:b#/$defs/i","$defs":{"i":{"const":5}}})", true},
        {"path inside", R"({"$ref":"item#/$defs/v","$defs":{"i":{"$id":"item","$defs":{"v":{"const":5}}}}})", true},
        {"base inside", R"({"$ref":"item","$defs":{"i":{"$id":"item","$ref":"#/$defs/v","$defs":{"v":{"const":5}}}}})",
         true},
        {"anchor inside", R"({"$ref":"item#v","$defs":{"i":{"$id":"item","$defs":{"v":{"$anchor":"v","const":5}}}}})",
         true},
        {"anchor of draft 7", R"({"$ref":"#v","definitions":{"i":{"$id":"#v","const":5}}})", true},
        {"copied into not",
         R"({"const":5,"$defs":{"i":{"$id":"http://x/i","$defs":{"v":{"const":6}},"type":"object",)"
         R"("properties":{"a":{"$ref":"#/$defs/v"}}}},"not":{"$ref":"http://x/i"}})",
         true},
        {"anchor of another", R"({"$ref":"#v","$defs":{"i":{"$id":"item","$defs":{"v":{"$anchor":"v","const":5}}}}})",
         false},
        {"data", R"({"$ref":"item","default":{"$id":"item"}})", false},
        {"other host", R"({"$id":"http://x/a","$ref":"http://y/a"})", false}};
    for (const auto& [what, schema, found] : cases) {
        if (!found) {
            EXPECT_NE(text_error(schema).find("$ref"), std::string::npos) << what << text_error(schema);
            continue;
        }
        EXPECT_TRUE(takes(schema, "5")) << what;
        EXPECT_FALSE(takes(schema, "6")) << what;
    }
}

// Hostile schemas end in bounded time and memory.
TEST(JsonSchema, BombsAreErrors) {
    Json wide = Json::array();
    for (int i = 0; i < 12; ++i)
        wide.push_back({{"anyOf", {{{"minLength", i}}, {{"maxLength", 100 + i}}, {{"pattern", "a"}}}}});
    EXPECT_NE(schema_error({{"allOf", wide}}), "");
    Json deep = true;
    for (int i = 0; i < 5000; ++i) deep = Json{{"not", std::move(deep)}};
    EXPECT_NE(schema_error(deep), "");
    EXPECT_NE(schema_error({{"type", "array"}, {"minItems", 1'000'000'000}}), "");
    EXPECT_NE(schema_error({{"type", "string"}, {"maxLength", 1'000'000'000}}), "");
    EXPECT_NE(schema_error({{"type", "string"}, {"pattern", "^([ab]*a[ab]{30}){30}$"}}), "");
    EXPECT_NE(schema_error({{"type", "object"}, {"maxProperties", 1'000'000'000}}), "");
    Json doubling = {{"$defs", Json::object()}};
    for (int i = 0; i < 40; ++i) {
        const Json next = {{"$ref", fmt::format("#/$defs/d{}", i + 1)}};
        doubling["$defs"][fmt::format("d{}", i)] = {{"anyOf", {next, next}}};
    }
    doubling["$defs"]["d40"] = true;
    doubling["$ref"] = "#/$defs/d0";
    EXPECT_NE(schema_error(doubling), "");
    Json many = {{"type", "object"}};
    for (int i = 0; i < 30'000; ++i) many["required"].push_back(fmt::format("n{}", i));
    EXPECT_NE(schema_error(many), "");
    EXPECT_NE(schema_error({{"description", std::string(300'000, 'x')}}), "");
}

TEST(JsonObject, AnyObjectAndNothingElse) {
    const auto made = Grammar::json_object();
    ASSERT_TRUE(made.ok());
    for (const char* yes : {"{}", R"({"a": {"b": [1, 2.5, "x", null, true, {}]}})", "{\n  \"a\": []\n}"})
        EXPECT_TRUE((*made)->matches(yes)) << yes;
    for (const char* no : {"[]", "1", "", "{", "{}}", R"({"a"})", "{\"a\": \"\n\"}"})
        EXPECT_FALSE((*made)->matches(no)) << no;
}

// Near the depth limit only tokens are allowed whose nesting can still be closed: no walk reaches a dead end.
TEST(JsonObject, TheDeepestNestingIsNoDeadEnd) {
    GrammarLimits limits;
    limits.max_stack = 6;
    const auto made = Grammar::json_object({}, limits);
    ASSERT_TRUE(made.ok());
    const auto tokens = std::make_shared<const GrammarTokens>(*made, small_vocabulary());
    Dice dice(13);
    for (int i = 0; i < 40; ++i) {
        random_walk(tokens, dice, 150, 0, i < 2);
        ASSERT_FALSE(HasFailure());
    }
}

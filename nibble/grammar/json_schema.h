// Translates JSON Schema (draft 2020-12) into rules of a grammar. Every text of the grammar is a document of the
// schema.
//
// Supported: true, false, type, enum, const; properties, patternProperties (at most four patterns in one object),
// additionalProperties, propertyNames, required, dependentRequired, dependentSchemas, minProperties, maxProperties;
// items, prefixItems, minItems, maxItems; minLength, maxLength, pattern, format (date, time, date-time, duration,
// email, hostname, ipv4, ipv6, uri, uuid, json-pointer); minimum, maximum, exclusiveMinimum, exclusiveMaximum,
// multipleOf with an integer; allOf, anyOf, oneOf if no document can match two of its choices; not, and if, then, else,
// if they exclude types, texts, patterns, bounds, required members, or members by these means; $ref, $defs, definitions
// and $anchor inside the document, including recursion; OpenAPI 3.0's "nullable": true. Other keywords of JSON Schema
// that restrict documents are errors, so a finished answer always validates. Keywords that JSON Schema does not define
// and formats that are not listed are annotations without effect.
//
// A grammar accepts a subset of the schema's documents: properties in the order of the schema, unlisted ones after
// them, numbers with at most 18 digits, strings with necessary escapes only, bounded white space.
#pragma once

#include "base/json.h"
#include "grammar/dfa.h"
#include "grammar/grammar.h"

#include <string>
#include <vector>

namespace nibble {

// Adds rules and returns an expression for one document. `schema` is used during the call only. Errors name the
// position: "#/properties/a/pattern: ...". With `tagged`, the document is an object in that encoding. Its values then
// never contain a closing tag, and a listed name that does not fit in a tag is an error.
Result<ExprPtr> schema_rules(const Json& schema, const SchemaOptions& options, GrammarBudget& budget,
                             std::vector<ExprPtr>& rules, std::vector<std::string>& names,
                             const TaggedObject* tagged = nullptr);

}  // namespace nibble

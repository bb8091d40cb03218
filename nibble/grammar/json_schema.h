// Translates JSON Schema (draft 2020-12) into rules of a grammar. Every text of the grammar is a document of the
// schema.
//
// Supported: true, false, type, enum, const; properties, patternProperties (at most four patterns in one object),
// additionalProperties, propertyNames, required, dependentRequired, dependentSchemas, minProperties, maxProperties;
// items, prefixItems, items as a list with additionalItems (before draft 2020-12), minItems, maxItems; minLength,
// maxLength, pattern, format (date, time, date-time, duration, email, hostname, ipv4, ipv6, uri, uuid, json-pointer);
// minimum, maximum, exclusiveMinimum, exclusiveMaximum, multipleOf with an integer; allOf, anyOf, oneOf where no
// document can match two of the choices; not, and if, then, else, where what is excluded are types, texts, patterns,
// bounds, required members or members that are excluded so; $ref, $defs, definitions, $id and $anchor inside of the
// document, recursion included; dependencies of draft 7; "nullable": true of OpenAPI 3.0. Other keywords of JSON Schema
// that restrict documents are errors, so that an answer that ends validates. Keywords that JSON Schema does not define
// and formats that are not listed here are annotations and have no effect.
//
// A grammar accepts a subset of the schema's documents: properties in the order of the schema, unlisted ones after
// them, numbers with at most 18 digits, strings with necessary escapes only, bounded white space.
#pragma once

#include "base/json.h"
#include "grammar/dfa.h"
#include "grammar/expression.h"
#include "grammar/schema_options.h"

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

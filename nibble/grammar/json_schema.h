// JSON Schema (draft 2020-12) as rules of a grammar whose every text is a document of the schema.
//
// Taken: true, false, type, enum, const; properties, patternProperties (up to four patterns beside each other),
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
// A grammar is a part of what the schema takes: properties come in the order of the schema and those that it does not
// list behind them, numbers have at most 18 digits, strings escape only what they must, and white space is bounded.
#pragma once

#include "base/json.h"
#include "grammar/dfa.h"
#include "grammar/expression.h"
#include "grammar/schema_options.h"

#include <string>
#include <vector>

namespace nibble {

// Adds rules; the expression returned is one document. `schema` is used during the call only. Errors name the place:
// "#/properties/a/pattern: ...". `tagged`: the document is an object that is written so; a text with a closing tag
// is no value of it, and a listed name that cannot stand in a tag an error.
Result<ExprPtr> schema_rules(const Json& schema, const SchemaOptions& options, GrammarBudget& budget,
                             std::vector<ExprPtr>& rules, std::vector<std::string>& names,
                             const TaggedObject* tagged = nullptr);

}  // namespace nibble

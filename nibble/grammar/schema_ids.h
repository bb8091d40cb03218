// Finds the schemas of one document by URI (from $id) and by anchor. References are resolved by RFC 3986, within the
// document only.
#pragma once

#include "base/json.h"
#include "grammar/dfa.h"

#include <map>
#include <string>
#include <string_view>

namespace nibble {

struct FoundSchema {
    const Json* schema = nullptr;
    std::string place;  // position: "#/properties/a", or its URI and the path in it
};

class SchemaIds {
public:
    // Records all schemas below `root`, which must outlive this object. Error: a limit of the budget.
    Status read(const Json& root, GrammarBudget& budget);
    // Records a copy of a part of the document. Its references are resolved like those of `like`.
    Status read_copy(const Json& copy, const Json& like, GrammarBudget& budget);
    // Returns the schema that `reference` in schema `from` refers to. The error continues a message after the
    // reference: "is outside of the schema".
    Result<FoundSchema> find(const Json& from, const std::string& reference, GrammarBudget& budget);

private:
    const std::string& base_of(const Json& schema) const;
    Status note(const Json& root, const std::string& base, const std::string& place, bool named, GrammarBudget& budget);

    std::map<const Json*, std::string> bases_;             // base URI of each schema
    std::map<std::string, FoundSchema, std::less<>> ids_;  // by URI, and by URI with an anchor's fragment
};

// Resolves `reference` against the URI `base`. Returns a URI without a fragment.
std::string resolved_uri(std::string_view base, std::string_view reference);

}  // namespace nibble

// Where the schemas of one document stand: their URIs, from $id, and their anchors. References are resolved as RFC 3986
// says, inside of the document only.
#pragma once

#include "base/json.h"
#include "grammar/dfa.h"

#include <map>
#include <string>
#include <string_view>

namespace nibble {

struct FoundSchema {
    const Json* schema = nullptr;
    std::string place;  // "#/properties/a", or its URI and the path in it
};

class SchemaIds {
public:
    // Notes all schemas below `root`, which outlives this object. Error: the budget is spent.
    Status read(const Json& root, GrammarBudget& budget);
    // Notes a copy of a part of the document: its references are resolved like those of `like`.
    Status read_copy(const Json& copy, const Json& like, GrammarBudget& budget);
    // Returns what `reference`, which stands in `from`, refers to. Errors say why there is nothing, to be written after
    // the reference: "is outside of the schema".
    Result<FoundSchema> find(const Json& from, const std::string& reference, GrammarBudget& budget);

private:
    const std::string& base_of(const Json& schema) const;
    Status note(const Json& root, const std::string& base, const std::string& place, bool named, GrammarBudget& budget);

    std::map<const Json*, std::string> bases_;             // of each schema
    std::map<std::string, FoundSchema, std::less<>> ids_;  // URIs, and URIs with the fragment of an anchor
};

// Returns the URI that `reference` means in a document of the URI `base`, without a fragment.
std::string resolved_uri(std::string_view base, std::string_view reference);

}  // namespace nibble

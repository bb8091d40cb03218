#include "grammar/schema_ids.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <vector>

namespace nibble {
namespace {

// Keywords whose value is a schema or a list of schemas, and those whose value is an object of schemas. Values of other
// keywords are not schemas.
constexpr std::array schema_keywords{"allOf",
                                     "anyOf",
                                     "oneOf",
                                     "not",
                                     "if",
                                     "then",
                                     "else",
                                     "items",
                                     "prefixItems",
                                     "additionalItems",
                                     "contains",
                                     "unevaluatedItems",
                                     "additionalProperties",
                                     "propertyNames",
                                     "unevaluatedProperties"};
constexpr std::array schema_map_keywords{"properties",  "patternProperties", "$defs",
                                         "definitions", "dependentSchemas",  "dependencies"};

std::string escaped_name(std::string_view name) {
    std::string out;
    for (const char c : name) out += c == '~' ? "~0" : c == '/' ? "~1" : std::string(1, c);
    return out;
}

int hex_digit(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    const char lower = static_cast<char>(c | 32);
    return lower >= 'a' && lower <= 'f' ? lower - 'a' + 10 : -1;
}

std::string without_percent_signs(std::string_view text) {
    std::string out;
    for (size_t i = 0; i < text.size(); ++i) {
        if (text[i] == '%' && i + 2 < text.size() && hex_digit(text[i + 1]) >= 0 && hex_digit(text[i + 2]) >= 0) {
            out += static_cast<char>(hex_digit(text[i + 1]) * 16 + hex_digit(text[i + 2]));
            i += 2;
        } else {
            out += text[i];
        }
    }
    return out;
}

std::string_view without_fragment(std::string_view uri) { return uri.substr(0, uri.find('#')); }

// Returns the end of "scheme:"; 0 if there is no scheme.
size_t scheme_end(std::string_view uri) {
    const size_t colon = uri.find_first_of(":/?#");
    return colon == uri.npos || uri[colon] != ':' ? 0 : colon + 1;
}

// Returns the end of "scheme://authority".
size_t authority_end(std::string_view uri) {
    const size_t scheme = scheme_end(uri);
    if (!uri.substr(scheme).starts_with("//")) return scheme;
    return std::min(uri.find_first_of("/?#", scheme + 2), uri.size());
}

std::string without_dot_segments(std::string_view path) {
    std::vector<std::string_view> kept;
    bool folder = false;  // true if the path ends with a folder
    for (size_t from = 0; from <= path.size();) {
        const size_t end = std::min(path.find('/', from), path.size());
        const std::string_view part = path.substr(from, end - from);
        folder = part == "." || part == "..";
        if (part == ".." && kept.size() > 1) kept.pop_back();
        if (!folder) kept.push_back(part);
        from = end + 1;
    }
    std::string out;
    for (size_t i = 0; i < kept.size(); ++i) (out += i ? "/" : "") += kept[i];
    return folder ? out + "/" : out;
}

// Returns the value at a path "/a/0/b" below `root`; null if there is none.
const Json* at_path(const Json& root, const std::string& path) {
    const Json* found = &root;
    for (size_t from = 0; found && from < path.size();) {
        const size_t end = std::min(path.find('/', from + 1), path.size());
        std::string name;
        for (size_t i = from + 1; i < end; ++i) {
            if (path[i] == '~' && i + 1 < end && (path[i + 1] == '0' || path[i + 1] == '1'))
                name += path[++i] == '0' ? '~' : '/';
            else
                name += path[i];
        }
        if (found->is_object()) {
            const auto it = found->find(name);
            found = it == found->end() ? nullptr : &*it;
        } else {
            const bool number = !name.empty() && name.size() < 10 && name.find_first_not_of("0123456789") == name.npos;
            const auto index = static_cast<size_t>(number ? std::atol(name.c_str()) : 0);
            found = found->is_array() && number && index < found->size() ? &(*found)[index] : nullptr;
        }
        from = end;
    }
    return found;
}

}  // namespace

std::string resolved_uri(std::string_view base, std::string_view reference) {
    base = without_fragment(base);
    reference = without_fragment(reference);
    if (reference.empty()) return std::string(base);
    if (scheme_end(reference) > 0) return std::string(reference);
    if (reference.starts_with("//")) return std::string(base.substr(0, scheme_end(base))).append(reference);
    const size_t authority = authority_end(base);
    std::string_view path = base.substr(authority, base.find('?', authority) - authority);
    std::string joined(reference);
    if (reference[0] == '?')
        joined = std::string(path).append(reference);
    else if (reference[0] != '/')
        joined = std::string(path.substr(0, path.rfind('/') + 1)).append(reference);
    const size_t query = std::min(joined.find('?'), joined.size());
    return std::string(base.substr(0, authority)) + without_dot_segments(joined.substr(0, query)) +
           joined.substr(query);
}

const std::string& SchemaIds::base_of(const Json& schema) const {
    static const std::string none;
    const auto found = bases_.find(&schema);
    return found == bases_.end() ? none : found->second;
}

Status SchemaIds::read(const Json& root, GrammarBudget& budget) {
    ids_[""] = {&root, "#"};
    return note(root, "", "#", true, budget);
}

Status SchemaIds::read_copy(const Json& copy, const Json& like, GrammarBudget& budget) {
    return note(copy, base_of(like), "", false, budget);
}

// `named`: records the schemas' $id and anchors, by which they are found.
Status SchemaIds::note(const Json& root, const std::string& base, const std::string& place, bool named,
                       GrammarBudget& budget) {
    struct Waiting {
        const Json* schema;
        std::string base, place;
    };
    std::vector<Waiting> waiting{{&root, base, place}};
    while (!waiting.empty()) {
        Waiting one = std::move(waiting.back());
        waiting.pop_back();
        NIBBLE_CHECK(budget.pay_work(1 + one.place.size() / 64));
        const Json& schema = *one.schema;
        if (!schema.is_object()) continue;
        const auto text = [&](const char* key) {
            const auto it = schema.find(key);
            return it != schema.end() && it->is_string() ? it->get<std::string>() : std::string();
        };
        std::string id = text("$id");
        if (const size_t hash = id.find('#'); named && hash != id.npos && hash + 1 < id.size())  // draft 7's anchors
            ids_.try_emplace(resolved_uri(one.base, id) + id.substr(hash), FoundSchema{&schema, one.place});
        if (!without_fragment(id).empty()) {
            one.base = resolved_uri(one.base, id);
            if (named) ids_.try_emplace(one.base, FoundSchema{&schema, one.place});
        }
        for (const char* key : {"$anchor", "$dynamicAnchor"})
            if (const std::string anchor = text(key); named && !anchor.empty())
                ids_.try_emplace(one.base + "#" + anchor, FoundSchema{&schema, one.place});
        if (!bases_.try_emplace(&schema, one.base).second) continue;
        for (const char* key : schema_keywords) {
            const auto it = schema.find(key);
            if (it == schema.end()) continue;
            const std::string below = one.place + "/" + key;
            if (it->is_array())
                for (size_t i = 0; i < it->size(); ++i)
                    waiting.push_back({&(*it)[i], one.base, below + "/" + std::to_string(i)});
            else
                waiting.push_back({&*it, one.base, below});
        }
        for (const char* key : schema_map_keywords)
            if (const auto it = schema.find(key); it != schema.end() && it->is_object())
                for (const auto& [name, inner] : it->items())
                    waiting.push_back({&inner, one.base, one.place + "/" + key + "/" + escaped_name(name)});
    }
    return Ok{};
}

Result<FoundSchema> SchemaIds::find(const Json& from, const std::string& reference, GrammarBudget& budget) {
    const std::string uri = resolved_uri(base_of(from), reference);
    const size_t hash = reference.find('#');
    const std::string fragment =
        hash == reference.npos ? std::string() : without_percent_signs(std::string_view(reference).substr(hash + 1));
    const auto resource = ids_.find(uri);
    if (resource == ids_.end()) return fail("is not part of the schema: no subschema has this $id");
    if (fragment.empty()) return resource->second;
    if (fragment[0] != '/') {
        const auto anchor = ids_.find(uri + "#" + fragment);
        if (anchor == ids_.end()) return fail("the schema has no such $anchor");
        return anchor->second;
    }
    const FoundSchema found{at_path(*resource->second.schema, fragment), resource->second.place + fragment};
    if (!found.schema) return fail("points to no part of the schema");
    // No keyword of schemas leads to this position.
    if (!bases_.contains(found.schema)) NIBBLE_CHECK(note(*found.schema, uri, found.place, false, budget));
    return found;
}

}  // namespace nibble

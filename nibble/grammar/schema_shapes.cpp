#include "grammar/schema_shapes.h"

#include "base/utf8.h"
#include "grammar/regex_parser.h"

#include <algorithm>
#include <numeric>

namespace nibble {
namespace {

using Kind = JsonShape::Kind;

template <class T>
void append(std::vector<T>& to, const std::vector<T>& from) {
    for (const T& item : from)
        if (std::find(to.begin(), to.end(), item) == to.end()) to.push_back(item);
}

template <class T>
void keep_common(std::optional<std::vector<T>>& to, const std::optional<std::vector<T>>& other) {
    if (!other) return;
    if (!to) {
        to = other;
        return;
    }
    std::erase_if(*to, [&](const T& item) { return std::find(other->begin(), other->end(), item) == other->end(); });
}

// Greater multiples are rejected (number_texts) and no representable number is one.
constexpr int64_t most_multiple = 1'000'000;

void narrow(NumberBounds& to, const NumberBounds& other) {
    to.whole |= other.whole;
    to.multiple = std::min(std::lcm(to.multiple, other.multiple), most_multiple);
    if (other.least && (!to.least || *other.least > *to.least || (*other.least == *to.least && other.least_open))) {
        to.least = other.least;
        to.least_open = other.least_open;
    }
    if (other.most && (!to.most || *other.most < *to.most || (*other.most == *to.most && other.most_open))) {
        to.most = other.most;
        to.most_open = other.most_open;
    }
}

// Intersects two shapes. Precondition: equal kinds.
JsonShape common(JsonShape a, const JsonShape& b) {
    a.yes &= b.yes;
    a.no &= b.no;
    narrow(a.bounds, b.bounds);
    keep_common(a.numbers, b.numbers);
    keep_common(a.texts, b.texts);
    append(a.excluded, b.excluded);
    append(a.languages, b.languages);
    a.least = std::max(a.least, b.least);
    a.most = std::min(a.most, b.most);
    append(a.layers, b.layers);
    append(a.required, b.required);
    return a;
}

size_t characters_of(std::string_view text) {
    size_t n = 0;
    for (size_t at = 0; at < text.size(); ++n) at += utf8_step(text, at).size;
    return n;
}

const Json anything(true), nothing(false);

const Json* find(const Json& object, const std::string& key) {
    const auto it = object.find(key);
    return it == object.end() ? nullptr : &*it;
}

// The schemas of a layer's first items, one each; null: there are none. Before draft 2020-12 they are a list in
// "items".
const Json* first_items(const Json& layer) {
    if (const Json* prefix = find(layer, "prefixItems")) return prefix;
    const Json* items = find(layer, "items");
    return items && items->is_array() ? items : nullptr;
}

// The schema of all items after them; null: they are free.
const Json* further_items(const Json& layer) {
    const Json* items = find(layer, "items");
    return items && items->is_array() ? find(layer, "additionalItems") : items;
}

// The schema that a layer applies to members it does not name; null: none.
const Json* others_of(const Json& layer) {
    const Json* others = find(layer, "additionalProperties");
    return others ? others : find(layer, "unevaluatedProperties");
}

}  // namespace

bool JsonShape::unconstrained() const {
    return yes && no && bounds.free() && !bounds.whole && !numbers && !texts && excluded.empty() && languages.empty() &&
           least == 0 && most == SIZE_MAX && layers.empty() && required.empty();
}

SchemaShapes::SchemaShapes(const Json& root, bool open_objects, GrammarBudget& budget)
    : root_(root), open_objects_(open_objects), budget_(budget) {
    where_[&root] = "#";
}

Error SchemaShapes::at(const Json* schema, std::string_view keyword, const Error& error) const {
    const auto it = where_.find(schema);
    std::string place = it == where_.end() ? "#" : it->second;
    if (!keyword.empty()) place += "/" + std::string(keyword);
    return fail("{}: {}", place, error.message());
}

Result<std::vector<JsonShape>> SchemaShapes::of(const SchemaSet& set) {
    NIBBLE_TRY(auto shapes, of_schema(&anything));
    for (const Json* schema : set) {
        NIBBLE_TRY(const auto more, of_schema(schema));
        NIBBLE_TRY(shapes, both(shapes, more));
    }
    return shapes;
}

Result<std::vector<JsonShape>> SchemaShapes::of_schema(const Json* schema) {
    if (const auto it = known_.find(schema); it != known_.end()) return it->second;
    std::vector<JsonShape> shapes;
    if (schema->is_boolean()) {
        if (schema->get<bool>())
            for (const Kind kind : {Kind::object, Kind::array, Kind::string, Kind::number, Kind::boolean, Kind::null})
                shapes.push_back({.kind = kind});
    } else if (!schema->is_object()) {
        return at(schema, "", fail("a schema is an object, true or false"));
    } else {
        if (open_.size() > size_t(budget_.limits.max_depth) * 8)
            return at(schema, "", fail("schemas are nested too deeply"));
        if (!open_.insert(schema).second)
            return at(schema, "", fail("the schema refers to itself, and no member or item lies between"));
        auto found = keywords(*schema);
        open_.erase(schema);
        if (!found.ok()) return found;
        shapes = *std::move(found);
    }
    known_[schema] = shapes;
    return shapes;
}

Result<std::vector<JsonShape>> SchemaShapes::both(const std::vector<JsonShape>& a, const std::vector<JsonShape>& b) {
    std::vector<JsonShape> out;
    for (const JsonShape& x : a)
        for (const JsonShape& y : b) {
            if (x.kind != y.kind) continue;
            NIBBLE_CHECK(budget_.pay_work(50 + 10 * (x.layers.size() + x.required.size() + y.required.size()) +
                                          (x.texts ? x.texts->size() * (y.texts ? y.texts->size() : 1) : 0)));
            JsonShape shape = common(x, y);
            if (shape.kind == Kind::boolean && !shape.yes && !shape.no) continue;
            if (shape.kind == Kind::number && shape.bounds.empty()) continue;
            if (shape.least > shape.most || (shape.texts && shape.texts->empty()) ||
                (shape.numbers && shape.numbers->empty()))
                continue;
            out.push_back(std::move(shape));
        }
    if (out.size() > 4096) return fail("the choices of the schema have more than 4096 combinations");
    return out;
}

bool SchemaShapes::closed(const JsonShape& shape) const {
    if (open_objects_) return false;
    std::set<std::string_view> listed(shape.required.begin(), shape.required.end());
    bool written = false;
    for (const Json* layer : shape.layers) {
        if (others_of(*layer)) return false;
        const Json* properties = find(*layer, "properties");
        if (!properties) continue;
        written |= !made_places_.contains(layer);
        for (const auto& [name, schema] : properties->items()) listed.insert(name);
    }
    return written && shape.least <= listed.size();
}

Result<SchemaSet> SchemaShapes::member(const JsonShape& shape, const std::string& name) {
    SchemaSet out;
    bool is_listed = std::ranges::find(shape.required, name) != shape.required.end();
    for (const Json* layer : shape.layers) {
        bool named = false;
        if (const Json* properties = find(*layer, "properties"))
            if (const Json* schema = find(*properties, name)) {
                append(out, {schema});
                named = true;
            }
        if (const Json* patterns = find(*layer, "patternProperties"))
            for (const auto& [pattern, schema] : patterns->items()) {
                JsonShape text{.kind = Kind::string};
                text.texts = {name};
                text.languages.push_back({pattern, true, false});
                NIBBLE_TRY(const auto matching, listed(text));
                if (matching.empty()) continue;
                append(out, {&schema});
                named = true;
            }
        is_listed |= named;
        if (const Json* others = others_of(*layer); others && !named) append(out, {others});
        if (const Json* names = find(*layer, "propertyNames")) {
            NIBBLE_TRY(const auto shapes, of_schema(names));
            bool fits = false;
            for (JsonShape one : shapes) {
                if (one.kind != Kind::string) continue;
                keep_common(one.texts, std::optional(std::vector<std::string>{name}));
                NIBBLE_TRY(const auto matching, listed(one));
                fits |= !matching.empty();
            }
            if (!fits) append(out, {&nothing});
        }
    }
    if (!is_listed && closed(shape)) append(out, {&nothing});
    return out;
}

std::vector<SchemaShapes::MemberPattern> SchemaShapes::patterns_of(const JsonShape& shape) const {
    std::vector<MemberPattern> out;
    for (const Json* layer : shape.layers)
        if (const Json* patterns = find(*layer, "patternProperties"))
            for (const auto& [pattern, schema] : patterns->items()) out.push_back({layer, pattern, &schema});
    return out;
}

SchemaSet SchemaShapes::other_member(const JsonShape& shape, const std::vector<MemberPattern>& patterns,
                                     uint32_t matching) const {
    SchemaSet out;
    for (const Json* layer : shape.layers) {
        bool named = false;
        for (size_t i = 0; i < patterns.size(); ++i)
            if (patterns[i].layer == layer && (matching >> i & 1)) {
                append(out, {patterns[i].schema});
                named = true;
            }
        if (const Json* others = others_of(*layer); others && !named) append(out, {others});
    }
    if (matching == 0 && closed(shape)) append(out, {&nothing});
    return out;
}

SchemaSet SchemaShapes::item(const JsonShape& shape, size_t index) const {
    SchemaSet out;
    for (const Json* layer : shape.layers) {
        const Json* prefix = first_items(*layer);
        const Json* items = further_items(*layer);
        if (prefix && index < prefix->size())
            append(out, {&(*prefix)[index]});
        else if (items)
            append(out, {items});
    }
    return out;
}

size_t SchemaShapes::prefix_items(const JsonShape& shape) {
    size_t n = 0;
    for (const Json* layer : shape.layers)
        if (const Json* prefix = first_items(*layer)) n = std::max(n, prefix->size());
    return n;
}

Result<std::vector<std::string>> SchemaShapes::listed(const JsonShape& shape) {
    std::vector<std::string> out;
    for (const std::string& text : *shape.texts) {
        const size_t length = characters_of(text);
        bool fits = length >= shape.least && length <= shape.most &&
                    std::find(shape.excluded.begin(), shape.excluded.end(), text) == shape.excluded.end();
        for (const JsonShape::Language& language : shape.languages) {
            if (!fits) break;
            const auto key = std::pair(language.pattern, language.search);
            auto it = languages_.find(key);
            if (it == languages_.end()) {
                NIBBLE_TRY(const auto parsed,
                           parse_regex(language.pattern, {Spelling::plain, language.search}, budget_));
                NIBBLE_TRY(Dfa dfa, Dfa::of(*parsed, budget_));
                it = languages_.emplace(key, std::move(dfa)).first;
            }
            NIBBLE_CHECK(budget_.pay_work(text.size()));
            fits = it->second.matches(text) != language.negated;
        }
        if (fits) out.push_back(text);
    }
    return out;
}

Result<Dfa> SchemaShapes::strings(const JsonShape& shape, Spelling spelling) {
    if (shape.texts) {
        NIBBLE_TRY(const auto texts, listed(shape));
        std::vector<ExprPtr> items;
        for (const std::string& text : texts) items.push_back(expression::characters(text, spelling));
        return Dfa::of(*expression::choice(std::move(items)), budget_);
    }
    const ExprPtr any = expression::set(CodeSet::all(), spelling);
    NIBBLE_TRY(Dfa out, Dfa::of(*expression::repeat(any, shape.least, shape.most), budget_));
    for (const JsonShape::Language& language : shape.languages) {
        NIBBLE_TRY(const auto parsed, parse_regex(language.pattern, {spelling, language.search}, budget_));
        NIBBLE_TRY(const Dfa other, Dfa::of(*parsed, budget_));
        NIBBLE_TRY(out, language.negated ? Dfa::minus(out, other, budget_) : Dfa::both(out, other, budget_));
    }
    if (!shape.excluded.empty()) {
        std::vector<ExprPtr> items;
        for (const std::string& text : shape.excluded) items.push_back(expression::characters(text, spelling));
        NIBBLE_TRY(const Dfa other, Dfa::of(*expression::choice(std::move(items)), budget_));
        NIBBLE_TRY(out, Dfa::minus(out, other, budget_));
    }
    return out;
}

Result<bool> SchemaShapes::empty(const JsonShape& shape, int depth) {
    switch (shape.kind) {
        case Kind::null:
            return false;
        case Kind::boolean:
            return !shape.yes && !shape.no;
        case Kind::number: {
            if (shape.numbers)
                return std::none_of(shape.numbers->begin(), shape.numbers->end(),
                                    [&](const Json& number) { return shape.bounds.has(number); });
            return shape.bounds.empty();
        }
        case Kind::string: {
            if (shape.languages.empty() && !shape.texts) return shape.least > shape.most;
            NIBBLE_TRY(const Dfa dfa, strings(shape, Spelling::plain));
            return dfa.empty();
        }
        case Kind::array:
            return shape.least > shape.most;
        case Kind::object:
            break;
    }
    if (shape.least > shape.most) return true;
    if (depth > 8) return false;
    for (const std::string& name : shape.required) {
        NIBBLE_TRY(const SchemaSet set, member(shape, name));
        // Skips a member that is already being checked: recursion adds no new information.
        if (std::any_of(set.begin(), set.end(), [&](const Json* s) { return open_.contains(s); })) continue;
        NIBBLE_TRY(const auto shapes, of(set));
        bool all = true;
        for (const JsonShape& one : shapes) {
            NIBBLE_TRY(const bool none, empty(one, depth + 1));
            all &= none;
        }
        if (all) return true;
    }
    return false;
}

}  // namespace nibble

#include "grammar/json_schema.h"

#include "grammar/regex_parser.h"
#include "grammar/schema_shapes.h"

#include <fmt/format.h>

#include <algorithm>

namespace nibble {
namespace {

using Kind = JsonShape::Kind;
constexpr uint32_t begin_node = 0, end_node = 1;

ExprPtr nothing_matches() { return expression::choice(std::vector<ExprPtr>{}); }

class SchemaRules {
public:
    SchemaRules(const Json& schema, const SchemaOptions& options, GrammarBudget& budget, std::vector<ExprPtr>& rules,
                std::vector<std::string>& names, const TaggedObject* tagged)
        : shapes_(schema, options.open_objects, budget),
          budget_(budget),
          rules_(rules),
          names_(names),
          flexible_(options.space == JsonSpace::flexible),
          tagged_(tagged),
          notation_(tagged ? tagged->notation : ValueNotation()) {}

    Result<ExprPtr> run(const Json& schema) {
        space_ = space();
        const SchemaSet set = schema == Json(true) ? SchemaSet{} : SchemaSet{&schema};
        NIBBLE_TRY(ExprPtr root, tagged_ ? tagged_document(set) : value(set));
        while (!waiting_.empty()) {
            const auto [rule, set] = waiting_.back();
            waiting_.pop_back();
            NIBBLE_TRY(const auto shapes, shapes_of(set));
            NIBBLE_TRY(rules_[rule], all(shapes));
        }
        return root;
    }

private:
    uint32_t add_rule(ExprPtr body, std::string name) {
        rules_.push_back(std::move(body));
        names_.push_back(std::move(name));
        return uint32_t(rules_.size() - 1);
    }

    // White space between parts: none, one space, or line ends with indentation.
    ExprPtr space() {
        if (!flexible_) return expression::text("");
        const ExprPtr end = expression::set({{'\n', '\n'}}), blank = expression::set({{' ', ' '}, {'\t', '\t'}});
        const ExprPtr lines = expression::sequence({expression::repeat(end, 1, 2), expression::repeat(blank, 0, 40)});
        return expression::optional(
            expression::choice({expression::text(" "), expression::rule(add_rule(lines, "white space"))}));
    }

    Result<std::vector<JsonShape>> shapes_of(const SchemaSet& set) {
        auto shapes = shapes_.of(set);
        if (!shapes.ok() && !shapes.error().message().starts_with('#'))
            return shapes_.at(set.empty() ? nullptr : set[0], "", shapes.error());
        return shapes;
    }

    // Returns an expression for a value that satisfies all schemas: a call of its rule, or the expression itself if it
    // is small.
    Result<ExprPtr> value(const SchemaSet& set) {
        if (const auto it = rule_of_.find(set); it != rule_of_.end()) return expression::rule(it->second);
        NIBBLE_TRY(const auto shapes, shapes_of(set));
        size_t items = 0;
        const bool small = std::all_of(shapes.begin(), shapes.end(), [&](const JsonShape& shape) {
            items += shape.texts ? shape.texts->size() : shape.numbers ? shape.numbers->size() : 1;
            return shape.kind == Kind::null || shape.kind == Kind::boolean || shape.texts || shape.numbers;
        });
        if (small && items <= 16) return all(shapes);
        if (shapes.size() == 1 && (shapes[0].kind == Kind::string || shapes[0].kind == Kind::number))
            return shared(shapes[0]);
        if (rules_.size() >= budget_.limits.max_rules)
            return fail("the schema is too large: it needs more than {} rules", budget_.limits.max_rules);
        const uint32_t rule = add_rule(nothing_matches(), "the schema");
        rule_of_[set] = rule;
        waiting_.emplace_back(rule, set);
        return expression::rule(rule);
    }

    // Identical strings and numbers share one rule and thus one set of masks. Precondition: the shape lists no values.
    Result<ExprPtr> shared(const JsonShape& shape) {
        const std::string key = key_of(shape);
        if (const auto it = shared_.find(key); it != shared_.end()) return expression::rule(it->second);
        NIBBLE_TRY(ExprPtr body, one(shape));
        return expression::rule(shared_[key] = add_rule(std::move(body), "a value"));
    }

    static std::string key_of(const JsonShape& shape) {
        const NumberBounds& b = shape.bounds;
        const auto text = [](const std::optional<FixedNumber>& v, bool open) {
            return v ? fmt::format("{}:{}:{}", int64_t(*v / 1'000'000'000'000'000), int64_t(*v % 1'000'000'000'000'000),
                                   open)
                     : "-";
        };
        std::string key = fmt::format("{} {} {} {} {} {} {}", int(shape.kind), shape.least, shape.most, b.whole,
                                      b.multiple, text(b.least, b.least_open), text(b.most, b.most_open));
        for (const auto& language : shape.languages)
            key += fmt::format(" {} {} {}:{}", language.search, language.negated, language.pattern.size(),
                               language.pattern);
        for (const auto& excluded : shape.excluded) key += fmt::format(" {}:{}", excluded.size(), excluded);
        return key;
    }

    Result<ExprPtr> all(const std::vector<JsonShape>& shapes) {
        std::vector<ExprPtr> ways;
        for (const JsonShape& shape : shapes) {
            NIBBLE_TRY(ExprPtr way, shapes.size() > 1 && (shape.kind == Kind::string || shape.kind == Kind::number) &&
                                            !shape.texts && !shape.numbers
                                        ? shared(shape)
                                        : one(shape));
            ways.push_back(std::move(way));
        }
        return expression::choice(std::move(ways));
    }

    Result<ExprPtr> one(const JsonShape& shape) {
        switch (shape.kind) {
            case Kind::null:
                return expression::text(notation_.null);
            case Kind::boolean: {
                std::vector<ExprPtr> ways;
                if (shape.yes) ways.push_back(expression::text(notation_.yes));
                if (shape.no) ways.push_back(expression::text(notation_.no));
                return expression::choice(std::move(ways));
            }
            case Kind::number: {
                if (!shape.numbers) return number_texts(shape.bounds, budget_);
                std::vector<ExprPtr> ways;
                for (const Json& number : *shape.numbers)
                    if (shape.bounds.has(number)) ways.push_back(expression::text(number.dump()));
                return expression::choice(std::move(ways));
            }
            case Kind::string:
                return string(shape);
            case Kind::array:
                return array(shape);
            case Kind::object:
                return object(shape, json_frame());
        }
        return fail("a shape of no kind");
    }

    Result<ExprPtr> string(const JsonShape& shape) {
        if (!notation_.quote.empty()) {
            NIBBLE_TRY(Dfa dfa, shapes_.strings(shape, Spelling::plain));
            NIBBLE_TRY(const Dfa* sayable, sayable_texts(true));
            NIBBLE_TRY(dfa, Dfa::both(dfa, *sayable, budget_));
            const ExprPtr mark = expression::text(notation_.quote);
            return dfa.empty() ? nothing_matches()
                               : expression::sequence({mark, expression::automaton(std::move(dfa)), mark});
        }
        const ExprPtr quote = expression::text("\"");
        if (!shape.texts && shape.languages.empty() && shape.excluded.empty())
            return expression::sequence({quote, lengths(shape.least, shape.most), quote});
        if (shape.texts) {
            NIBBLE_TRY(const auto texts, shapes_.listed(shape));
            std::vector<ExprPtr> ways;
            for (const std::string& text : texts) ways.push_back(expression::characters(text, Spelling::json));
            return expression::sequence({quote, expression::choice(std::move(ways)), quote});
        }
        NIBBLE_TRY(Dfa dfa, shapes_.strings(shape, Spelling::json));
        return expression::sequence({quote, expression::automaton(std::move(dfa)), quote});
    }

    // Strings with `least` to `most` characters. Long ones call runs of 64 characters, which keeps the number of states
    // small.
    ExprPtr lengths(size_t least, size_t most) {
        const ExprPtr any = expression::set(CodeSet::all(), Spelling::json);
        constexpr size_t run = 64, few = 256;
        const size_t more = most == SIZE_MAX ? SIZE_MAX : most - least;
        if (least <= few && (most == SIZE_MAX || most <= few)) return expression::repeat(any, least, most);
        const auto runs = [&](size_t n_least, size_t n_most) {
            if (!run_rule_) run_rule_ = add_rule(expression::repeat(any, run, run), "a string");
            return expression::repeat(expression::rule(*run_rule_), n_least, n_most);
        };
        std::vector<ExprPtr> parts{runs(least / run, least / run), expression::repeat(any, least % run, least % run)};
        if (more == SIZE_MAX) {
            parts.push_back(expression::repeat(any, 0));
        } else {
            // Either n full runs and fewer than 64 characters, or all full runs and the remainder.
            const ExprPtr tail = expression::repeat(any, 0, run - 1);
            const size_t full = more / run, left = more % run;
            std::vector<ExprPtr> ways{expression::sequence({runs(full, full), expression::repeat(any, 0, left)})};
            if (full > 0) ways.push_back(expression::sequence({runs(0, full - 1), tail}));
            parts.push_back(expression::choice(std::move(ways)));
        }
        return expression::sequence(std::move(parts));
    }

    ExprPtr comma() const { return expression::sequence({expression::text(","), space_}); }

    Result<ExprPtr> array(const JsonShape& shape) {
        const size_t prefix = SchemaShapes::prefix_items(shape);
        NIBBLE_TRY(const ExprPtr rest, value(shapes_.item(shape, SIZE_MAX)));
        const bool bounded = shape.most != SIZE_MAX;
        const size_t positions = bounded ? shape.most : std::max(prefix, shape.least);
        NIBBLE_CHECK(budget_.pay_work(positions * 4));
        if (positions > budget_.limits.max_states)
            return fail("arrays of more than {} items are not supported", budget_.limits.max_states);
        // Node 2 + n: after n items.
        std::vector<GrammarExpression::Arc> arcs{
            {begin_node, 2, expression::sequence({expression::text("["), space_})}};
        const auto close = [&](size_t n) {
            arcs.push_back({uint32_t(2 + n), end_node, expression::sequence({space_, expression::text("]")})});
        };
        for (size_t n = 0; n < positions; ++n) {
            ExprPtr item = rest;
            if (n < prefix) {
                NIBBLE_TRY(item, value(shapes_.item(shape, n)));
            }
            if (n > 0) item = expression::sequence({comma(), item});
            arcs.push_back({uint32_t(2 + n), uint32_t(3 + n), item});
            if (n >= shape.least && n > 0) close(n);
        }
        auto nodes = uint32_t(3 + positions);
        if (shape.least == 0) arcs.push_back({begin_node, end_node, expression::text("[]")});
        if (positions > 0) close(positions);
        if (!bounded && positions == 0) {
            arcs.push_back({2, 3, rest});
            close(1);
            arcs.push_back({3, 3, expression::sequence({comma(), rest})});
            nodes = 4;
        } else if (!bounded) {
            arcs.push_back({uint32_t(2 + positions), uint32_t(2 + positions), expression::sequence({comma(), rest})});
        }
        return expression::graph(nodes, std::move(arcs));
    }

    struct Member {
        ExprPtr text;
        bool required = false;
    };

    // The text around and between the members of an object. `tagged`: members are encoded according to tagged_.
    struct Frame {
        ExprPtr open, between, close, none;
        const TaggedObject* tagged = nullptr;
        bool bare = false;  // names have no quotes
        Spelling names() const { return bare ? Spelling::plain : Spelling::json; }
    };
    Frame json_frame() const {
        return {expression::sequence({expression::text("{"), space_}),
                comma(),
                expression::sequence({space_, expression::text("}")}),
                expression::text("{}"),
                nullptr,
                notation_.bare_keys};
    }

    // Returns null if no value can be encoded this way.
    Result<ExprPtr> member(const Frame& frame, ExprPtr key, const SchemaSet& set, bool is_text) {
        if (!frame.tagged) {
            NIBBLE_TRY(const ExprPtr content, value(set));
            if (frame.bare) return expression::sequence({std::move(key), expression::text(":"), space_, content});
            return expression::sequence(
                {expression::text("\""), std::move(key), expression::text("\":"), space_, content});
        }
        NIBBLE_TRY(const ExprPtr content,
                   tagged_->text_name_end.empty() ? tagged_value(set, is_text) : marked_value(set));
        if (!content) return ExprPtr();
        return expression::sequence({expression::text(tagged_->name_begin), std::move(key), content});
    }

    Result<ExprPtr> tagged_document(const SchemaSet& set) {
        NIBBLE_TRY(const auto shapes, shapes_of(set));
        const ExprPtr none = expression::text("");
        std::vector<ExprPtr> ways;
        for (const JsonShape& shape : shapes) {
            if (shape.kind != Kind::object) continue;
            NIBBLE_TRY(ExprPtr way,
                       object(shape, {none, expression::text(tagged_->between), none, none, tagged_, true}));
            ways.push_back(std::move(way));
        }
        return expression::choice(std::move(ways));
    }

    // The rest of a member after its name, consistent with the reader described at TaggedObject.
    Result<ExprPtr> tagged_value(const SchemaSet& set, bool is_text) {
        NIBBLE_TRY(const auto shapes, shapes_of(set));
        std::vector<ExprPtr> ways;
        if ((!is_text || tagged_->no_plain_texts) && !shapes.empty()) {
            NIBBLE_TRY(const ExprPtr json, value(set));
            ways.push_back(expression::sequence({json, expression::text(tagged_->value_end)}));
        }
        for (const JsonShape& shape : shapes) {
            if (shape.kind != Kind::string || tagged_->no_plain_texts) continue;
            NIBBLE_TRY(const ExprPtr text, plain_text(shape, is_text));
            if (text) ways.push_back(text);
        }
        if (ways.empty()) return ExprPtr();
        return expression::sequence({expression::text(tagged_->name_end), expression::choice(std::move(ways))});
    }

    // Like tagged_value(), for tags that state whether the value is a text.
    Result<ExprPtr> marked_value(const SchemaSet& set) {
        NIBBLE_TRY(const auto shapes, shapes_of(set));
        std::vector<ExprPtr> ways;
        std::vector<JsonShape> others;
        for (const JsonShape& shape : shapes) {
            if (shape.kind != Kind::string) {
                others.push_back(shape);
                continue;
            }
            NIBBLE_TRY(const ExprPtr text, plain_text(shape, true));
            if (text) ways.push_back(expression::sequence({expression::text(tagged_->text_name_end), text}));
        }
        if (!others.empty()) {
            NIBBLE_TRY(const ExprPtr json, others.size() == shapes.size() ? value(set) : all(others));
            ways.push_back(expression::sequence(
                {expression::text(tagged_->name_end), json, expression::text(tagged_->value_end)}));
        }
        return ways.empty() ? ExprPtr() : expression::choice(std::move(ways));
    }

    // A literal string with its end tag. It is one deterministic rule, so its masks decide all tokens.
    Result<ExprPtr> plain_text(const JsonShape& shape, bool is_text) {
        const std::string key = fmt::format("plain {} {}", is_text, key_of(shape));
        if (const auto it = shared_.find(key); it != shared_.end() && !shape.texts) return expression::rule(it->second);
        NIBBLE_TRY(Dfa dfa, shapes_.strings(shape, Spelling::plain));
        NIBBLE_TRY(const Dfa* sayable, sayable_texts(is_text));
        NIBBLE_TRY(dfa, Dfa::both(dfa, *sayable, budget_));
        if (dfa.empty()) return ExprPtr();
        const uint32_t rule = add_rule(
            expression::sequence({expression::automaton(std::move(dfa)), expression::text(tagged_->value_end)}),
            "a text");
        if (!shape.texts) shared_[key] = rule;
        return expression::rule(rule);
    }

    // Texts without closing tags. For values that are not read as texts, also excludes texts that are JSON: everything
    // that begins like an object, list or string, and numbers or texts that resemble them.
    Result<const Dfa*> sayable_texts(bool is_text) {
        std::optional<Dfa>& out = sayable_[is_text];
        if (out) return &*out;
        const ExprPtr any = expression::repeat(expression::set(CodeSet::all()), 0);
        std::vector<ExprPtr> ways;
        for (const std::string& tag : tagged_->closing)
            ways.push_back(expression::sequence({any, expression::text(tag), any}));
        if (!is_text) {
            NIBBLE_TRY(ExprPtr json,
                       parse_regex(R"([ \t\r\n]*([\[{"][\s\S]*|(-?[0-9][-+.eE0-9]*|true|false|null)[ \t\r\n]*))", {},
                                   budget_));
            ways.push_back(std::move(json));
        }
        NIBBLE_TRY(const Dfa all, Dfa::of(*any, budget_));
        NIBBLE_TRY(const Dfa others, Dfa::of(*expression::choice(std::move(ways)), budget_));
        NIBBLE_TRY(out, Dfa::minus(all, others, budget_));
        return &*out;
    }

    // Names that fit in a tag: without the end of the tag and without surrounding blanks, which are not part of a name.
    Result<Dfa> taggable_names() {
        const CodeSet blank{{'\t', '\n'}, {'\r', '\r'}, {' ', ' '}};
        CodeSet end;
        end.add(char32_t(tagged_->name_end[0]), char32_t(tagged_->name_end[0]));
        // Names without quotes contain no character of the notation.
        if (tagged_->no_plain_texts)
            for (const char c : std::string_view(" \t\n\r:=,(){}[]<>|\"'\\")) end.add(char32_t(c), char32_t(c));
        const CodeSet inner = end.inverse(), outer = inner.both(blank.inverse());
        const ExprPtr side = expression::set(outer);
        return Dfa::of(*expression::optional(
                           expression::sequence({side, expression::optional(expression::sequence(
                                                           {expression::repeat(expression::set(inner), 0), side}))})),
                       budget_);
    }

    Result<ExprPtr> object(const JsonShape& shape, const Frame& frame) {
        std::vector<std::string> names;
        std::set<std::string> seen;
        const auto name_of = [&](const std::string& name) {
            if (seen.insert(name).second) names.push_back(name);
        };
        for (const Json* layer : shape.layers)
            if (const auto it = layer->find("properties"); it != layer->end())
                for (const auto& [name, schema] : it->items()) name_of(name);
        for (const std::string& name : shape.required) name_of(name);
        const std::set<std::string> required(shape.required.begin(), shape.required.end());

        std::optional<Dfa> taggable;
        if (frame.bare) {
            NIBBLE_TRY(taggable, taggable_names());
        }
        std::vector<Member> members;
        for (const std::string& name : names) {
            if (taggable && !taggable->matches(name))
                return shapes_.at(shape.layers.empty() ? nullptr : shape.layers[0], "properties",
                                  fail("the name '{}' cannot be written in a tag", name));
            NIBBLE_TRY(const SchemaSet set, shapes_.member(shape, name));
            NIBBLE_TRY(const auto shapes, shapes_of(set));
            if (shapes.empty() && required.contains(name)) return nothing_matches();
            if (shapes.empty()) continue;
            NIBBLE_TRY(const ExprPtr text, member(frame, expression::characters(name, frame.names()), set,
                                                  frame.tagged && frame.tagged->is_text(name)));
            if (!text && required.contains(name)) return nothing_matches();
            if (text) members.push_back({text, required.contains(name)});
        }
        NIBBLE_TRY(const ExprPtr others, other_members(shape, names, frame, taggable));
        return joined(shape, members, others, frame);
    }

    // Members other than the listed ones; null: none are allowed.
    Result<ExprPtr> other_members(const JsonShape& shape, const std::vector<std::string>& names, const Frame& frame,
                                  const std::optional<Dfa>& taggable) {
        const auto patterns = shapes_.patterns_of(shape);
        if (patterns.size() > 4)
            return shapes_.at(shape.layers[0], "patternProperties", fail("more than four patterns are not supported"));
        std::vector<ExprPtr> ways;
        for (uint32_t matching = 0; matching < 1u << patterns.size(); ++matching) {
            const SchemaSet set = shapes_.other_member(shape, patterns, matching);
            NIBBLE_TRY(const auto shapes, shapes_of(set));
            if (shapes.empty()) continue;
            std::vector<JsonShape> keys{JsonShape{.kind = Kind::string}};
            keys[0].excluded = names;
            for (size_t i = 0; i < patterns.size(); ++i)
                keys[0].languages.push_back({patterns[i].pattern, true, (matching >> i & 1) == 0});
            for (const Json* layer : shape.layers) {
                const auto it = layer->find("propertyNames");
                if (it == layer->end()) continue;
                NIBBLE_TRY(const auto allowed, shapes_of({&*it}));
                std::vector<JsonShape> both;
                for (const JsonShape& key : keys)
                    for (const JsonShape& other : allowed) {
                        if (other.kind != Kind::string) continue;
                        JsonShape made = key;
                        made.languages.insert(made.languages.end(), other.languages.begin(), other.languages.end());
                        made.excluded.insert(made.excluded.end(), other.excluded.begin(), other.excluded.end());
                        made.least = std::max(made.least, other.least);
                        made.most = std::min(made.most, other.most);
                        if (other.texts && made.texts)
                            std::erase_if(*made.texts, [&](const std::string& text) {
                                return std::find(other.texts->begin(), other.texts->end(), text) == other.texts->end();
                            });
                        else if (other.texts)
                            made.texts = other.texts;
                        if (made.least <= made.most) both.push_back(std::move(made));
                    }
                keys = std::move(both);
            }
            for (const JsonShape& key : keys) {
                NIBBLE_TRY(Dfa dfa, shapes_.strings(key, frame.names()));
                if (taggable) {
                    NIBBLE_TRY(dfa, Dfa::both(dfa, *taggable, budget_));
                }
                if (dfa.empty()) continue;
                NIBBLE_TRY(const ExprPtr text, member(frame, expression::automaton(std::move(dfa)), set,
                                                      frame.tagged && frame.tagged->others_are_texts));
                if (text) ways.push_back(text);
            }
        }
        return ways.empty() ? ExprPtr() : expression::choice(std::move(ways));
    }

    // Returns the expression of an object: the listed members in order, then other members, with at least shape.least
    // and at most shape.most members. Other members may repeat a name. So each counts towards `most`, but all of them
    // together count as one towards `least`.
    Result<ExprPtr> joined(const JsonShape& shape, const std::vector<Member>& members, const ExprPtr& others,
                           const Frame& frame) {
        const bool counted = shape.least > 0 || shape.most != SIZE_MAX;
        if (others && shape.least > members.size() + 1)
            return fail("minProperties above the number of listed properties is not supported");
        const size_t most = std::min(shape.most, members.size() + (others ? 1 : 0));
        // State: number of members so far, exact up to `top`.
        const size_t top = !counted ? 1 : std::max<size_t>(1, std::max(shape.least, shape.most == SIZE_MAX ? 0 : most));
        const size_t rows = members.size() + 1;
        NIBBLE_CHECK(budget_.pay_work(rows * (top + 1) * 4));
        std::vector<GrammarExpression::Arc> arcs;
        uint32_t nodes = 2;
        const auto node = [&](size_t row, size_t count) {
            return uint32_t(2 + row * (top + 1) + std::min(count, top));
        };
        nodes += uint32_t(rows * (top + 1));
        arcs.push_back({begin_node, node(0, 0), frame.open});
        const auto with_comma = [&](size_t count, const ExprPtr& text) {
            return count == 0 ? text : expression::sequence({frame.between, text});
        };
        for (size_t row = 0; row < members.size(); ++row)
            for (size_t count = 0; count <= std::min(top, row); ++count) {
                if (!members[row].required)
                    arcs.push_back({node(row, count), node(row + 1, count), expression::text("")});
                if (counted && shape.most != SIZE_MAX && count >= shape.most) continue;
                arcs.push_back({node(row, count), node(row + 1, count + 1), with_comma(count, members[row].text)});
            }
        const size_t last = members.size();
        for (size_t count = 0; count <= std::min(top, last); ++count) {
            if (count >= shape.least && count <= shape.most) {
                if (count > 0) arcs.push_back({node(last, count), end_node, frame.close});
                if (count == 0) {
                    const bool all_optional =
                        std::none_of(members.begin(), members.end(), [](const Member& m) { return m.required; });
                    if (all_optional) arcs.push_back({begin_node, end_node, frame.none});
                }
            }
            if (!others || count + 1 < shape.least) continue;
            const size_t room = shape.most == SIZE_MAX ? SIZE_MAX : shape.most - std::min(shape.most, count);
            if (room == 0) continue;
            // Other members: a separate chain per count.
            const size_t copies = room == SIZE_MAX ? 1 : room;
            NIBBLE_CHECK(budget_.pay_work(copies * 4));
            if (copies > budget_.limits.max_states)
                return fail("objects of more than {} members are not supported", budget_.limits.max_states);
            uint32_t from = node(last, count);
            for (size_t i = 0; i < copies; ++i) {
                arcs.push_back({from, nodes, with_comma(count + i, others)});
                arcs.push_back({nodes, end_node, frame.close});
                from = nodes++;
            }
            if (room == SIZE_MAX) arcs.push_back({from, from, with_comma(1, others)});
        }
        return expression::graph(nodes, std::move(arcs));
    }

    SchemaShapes shapes_;
    GrammarBudget& budget_;
    std::vector<ExprPtr>& rules_;
    std::vector<std::string>& names_;
    bool flexible_;
    const TaggedObject* tagged_;  // encoding of the document; null: JSON
    ValueNotation notation_;
    std::optional<Dfa> sayable_[2];  // index: whether the value is read as text
    ExprPtr space_;
    std::map<SchemaSet, uint32_t> rule_of_;
    std::map<std::string, uint32_t> shared_;
    std::optional<uint32_t> run_rule_;
    std::vector<std::pair<uint32_t, SchemaSet>> waiting_;
};

}  // namespace

Result<ExprPtr> schema_rules(const Json& schema, const SchemaOptions& options, GrammarBudget& budget,
                             std::vector<ExprPtr>& rules, std::vector<std::string>& names, const TaggedObject* tagged) {
    return SchemaRules(schema, options, budget, rules, names, tagged).run(schema);
}

}  // namespace nibble

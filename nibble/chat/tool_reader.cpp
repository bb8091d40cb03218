#include "chat/tool_reader.h"

#include "base/utf8.h"

#include <algorithm>
#include <optional>

namespace nibble {
namespace {

constexpr std::string_view spaces = " \t\r\n";

std::string_view trimmed(std::string_view text) {
    const size_t first = text.find_first_not_of(spaces);
    if (first == text.npos) return {};
    return text.substr(first, text.find_last_not_of(spaces) + 1 - first);
}

size_t after_spaces(std::string_view text, size_t at, std::string_view skipped = spaces) {
    return std::min(text.find_first_not_of(skipped, at), text.size());
}

// Returns true if the text may be the beginning of `tag`.
bool may_become(std::string_view text, std::string_view tag) {
    return text.size() < tag.size() && tag.starts_with(text);
}

// Returns the number of bytes at the end of `text` that may be the beginning of `tag`.
size_t begun_at_end(std::string_view text, std::string_view tag) {
    for (size_t n = std::min(text.size(), tag.size() - 1); n > 0; --n)
        if (text.ends_with(tag.substr(0, n))) return n;
    return 0;
}

// Returns f of "PREFIXf:3".
std::string_view without_number(std::string_view name, std::string_view prefix) {
    const size_t colon = name.rfind(':');
    const bool numbered =
        colon != name.npos && colon + 1 < name.size() && name.find_first_not_of("0123456789", colon + 1) == name.npos;
    if (numbered) name = name.substr(0, colon);
    if (name.starts_with(prefix)) name.remove_prefix(prefix.size());
    return name;
}

bool holds_arguments(std::string_view key) { return key == "arguments" || key == "parameters"; }

std::string unquoted(std::string_view json) {
    const auto text = parse_json(json);
    return text.ok() && text->is_string() ? text->get<std::string>() : "";
}

std::string dumped(const Json& value) { return value.dump(-1, ' ', false, Json::error_handler_t::replace); }

// Parses {"name", "arguments" or "parameters"} in any order, with arguments as an object or as its text.
std::optional<ToolCall> whole_call(std::string_view text) {
    const auto parsed = parse_json(text);
    if (!parsed.ok() || !parsed->is_object()) return std::nullopt;
    const auto name = parsed->find("name");
    if (name == parsed->end() || !name->is_string()) return std::nullopt;
    ToolCall call{.name = name->get<std::string>(), .arguments = "{}"};
    for (const char* key : {"arguments", "parameters"}) {
        const auto value = parsed->find(key);
        if (value == parsed->end() || value->is_null()) continue;
        call.arguments = value->is_string() ? value->get<std::string>() : dumped(*value);
        break;
    }
    return call;
}

// Returns the schema of a tool's parameters; null: there is none.
Json parameters_of(const Json& tools, std::string_view tool) {
    if (!tools.is_array()) return {};
    for (const Json& one : tools) {
        const Json function = one.value("function", Json::object());
        if (function.value("name", "") == tool) return function.value("parameters", Json());
    }
    return {};
}

bool is_of_names(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           std::string_view("_-.:/").find(c) != std::string_view::npos;
}

// Returns a literal of Python (True, ['a', None]) as JSON.
std::optional<std::string> python_value(std::string_view value) {
    LiteralReader reader({.name_end = "=", .close = ")", .python = true});
    const std::string text = "v=" + std::string(value) + ")";
    std::string json = "{";
    const size_t read = reader.read(text, true, json);
    const auto parsed = parse_json(json);
    if (!reader.ended() || read != text.size() || !parsed.ok() || parsed->size() != 1) return std::nullopt;
    return dumped(parsed->begin().value());
}

constexpr size_t cut = std::string_view::npos - 1;

// Returns the end of `written` at the beginning of `text`, white space aside; cut: the text is too short; npos: it
// differs.
size_t end_of_tag(std::string_view text, std::string_view written) {
    size_t at = 0;
    for (const char c : written) {
        if (spaces.find(c) != spaces.npos) continue;
        size_t next = after_spaces(text, at);
        if (next == text.size()) return cut;
        if (text[next] != c) return text.npos;
        at = next + 1;
    }
    return at;
}

}  // namespace

void JsonScanner::step(char c) {
    if (quoted_) {
        if (escaped_)
            escaped_ = false;
        else if (c == '\\')
            escaped_ = true;
        else if (c == '"')
            quoted_ = false;
        return;
    }
    if (c == '"') quoted_ = true;
    if (c == '{' || c == '[') ++depth_;
    if ((c == '}' || c == ']') && --depth_ == 0) ended_ = true;
}

ToolCallReader::ToolCallReader(const ToolFormat& format, Json tools) : format_(format), tools_(std::move(tools)) {}

ToolCallReader::Outcome ToolCallReader::read(std::string& text, bool last, std::vector<AnswerPart>& parts) {
    parts_ = &parts;
    Step next = Step::on;
    while (next == Step::on) next = step(text, last);
    if (next == Step::none && calls_ == 0) return Outcome::none;
    if (calls_ > 0) {
        text.erase(0, at_);
        scanned_ -= std::min(scanned_, at_);
        string_ -= std::min(string_, at_);
        at_ = 0;
    }
    return next == Step::more ? Outcome::more : Outcome::over;
}

ToolCallReader::Step ToolCallReader::step(std::string_view text, bool last) {
    switch (place_) {
        case Place::open:
            return go(Place::between, format_.begin.size());
        case Place::between:
            return between(text, last);
        case Place::head:
            return head(text, last);
        case Place::arguments:
            return arguments(text, last);
        case Place::tail:
            return tail(text, last);
        case Place::parameters:
            return parameters(text, last);
        case Place::value:
            return is_text_ ? text_value(text, last) : other_value(text, last);
        case Place::literals:
            return literals(text, last);
    }
    return Step::none;
}

ToolCallReader::Step ToolCallReader::head(std::string_view text, bool last) {
    switch (style()) {
        case CallHead::object:
            return object_head(text, last);
        case CallHead::named:
            return named_head(text, last);
        case CallHead::block:
            return block_head(text, last);
        case CallHead::tagged:
            return tagged_head(text, last);
        case CallHead::literal:
            return literal_head(text, last);
        case CallHead::message:
            break;  // ChannelReader parses them
    }
    return Step::none;
}

ToolCallReader::Step ToolCallReader::go(Place place, size_t at) {
    place_ = place;
    at_ = at;
    return Step::on;
}

ToolCallReader::Step ToolCallReader::head_of(const CallForm& form, size_t at) {
    form_ = &form;
    scanner_ = {};
    scanned_ = at;
    member_ = Member::key;
    whole_ = false;
    key_.clear(), name_.clear();
    return go(Place::head, at);
}

ToolCallReader::Step ToolCallReader::between(std::string_view text, bool last) {
    const bool listed = style() == CallHead::object || style() == CallHead::literal;
    at_ = after_spaces(text, at_, listed ? " \t\r\n,;]" : spaces);
    const std::string_view rest = text.substr(at_);
    if (rest.empty()) return last ? ended() : Step::more;
    const auto is = [&](std::string_view tag) { return rest.starts_with(tag); };
    const auto waits = [&](std::string_view tag) { return !last && may_become(rest, tag); };
    if (!format_.end.empty()) {
        if (is(format_.end)) {
            at_ += calls_ > 0 ? format_.end.size() : 0;
            return ended();
        }
        if (waits(format_.end)) return Step::more;
    }
    for (const CallHead head : {CallHead::block, CallHead::tagged})
        if (const CallForm* form = format_.form(head)) {
            if (is(form->opening)) return head_of(*form, at_ + form->opening.size());
            if (waits(form->opening)) return Step::more;
        }
    if (!format_.lead.empty() && calls_ == 0) {
        if (is(format_.lead)) return go(Place::between, at_ + format_.lead.size());
        if (waits(format_.lead)) return Step::more;
    }
    if (const CallForm* object = format_.form(CallHead::object)) {
        if (is("{")) return head_of(*object, at_);
        if (calls_ == 0 && !list_ && is("[")) {
            list_ = true;
            return go(Place::between, at_ + 1);
        }
    }
    if (const CallForm* literal = format_.form(CallHead::literal)) {
        if (is(literal->opening)) return head_of(*literal, at_ + literal->opening.size());
        return waits(literal->opening) ? Step::more : ended();
    }
    // The first one follows the tag that all calls begin with.
    const CallForm* named = format_.form(CallHead::named);
    if (!named || list_) return ended();
    if (calls_ == 0) return head_of(*named, at_);
    if (is(named->opening)) return head_of(*named, at_ + named->opening.size());
    return waits(named->opening) ? Step::more : ended();
}

ToolCallReader::Step ToolCallReader::object_head(std::string_view text, bool last) {
    for (; scanned_ < text.size(); ++scanned_) {
        const char c = text[scanned_];
        const bool quoted = scanner_.quoted(), blank = spaces.find(c) != spaces.npos;
        if (!quoted && !closing().empty() && c == closing()[0]) {
            if (text.substr(scanned_).starts_with(closing())) return ended();
            if (!last && may_become(text.substr(scanned_), closing())) return Step::more;
        }
        if (!quoted && scanner_.depth() == 1 && !blank) {
            if (member_ == Member::value) {
                if (holds_arguments(key_) && !whole_) {
                    if (c == '{' && !name_.empty()) return begin_arguments(name_, scanned_);
                    whole_ = true;
                }
                member_ = Member::comma;
            } else if (member_ == Member::colon && c == ':') {
                member_ = Member::value;
            } else if (member_ == Member::comma && c == ',') {
                member_ = Member::key;
            }
        }
        if (!quoted && c == '"') string_ = scanned_;
        scanner_.step(c);
        if (scanner_.ended()) {
            const auto call = whole_call(text.substr(at_, scanned_ + 1 - at_));
            if (!call) return ended();
            begin(call->name);
            say(call->arguments);
            end();
            return go(Place::between, scanned_ + 1);
        }
        if (!quoted || scanner_.quoted() || scanner_.depth() != 1) continue;
        std::string string = unquoted(text.substr(string_, scanned_ + 1 - string_));
        if (member_ == Member::key) {
            key_ = std::move(string);
            member_ = Member::colon;
        } else if (key_ == "name") {
            name_ = std::move(string);
        }
    }
    if (!last) return Step::more;
    return name_.empty() ? ended() : broken(text, name_);
}

// Parses name{...}, name[ARGS]{...} or name[CALL_ID]id[ARGS]{...}.
ToolCallReader::Step ToolCallReader::named_head(std::string_view text, bool last) {
    const std::string_view rest = text.substr(at_);
    const size_t brace = rest.find('{');
    const std::string_view name = trimmed(rest.substr(0, rest.find_first_of("[{")));
    if (!std::ranges::all_of(name, is_of_names)) return ended();
    if (brace == rest.npos && !last) return Step::more;
    // there is no name, or only a part of it
    if (name.empty() || rest.find_first_of("[{") == rest.npos) return ended();
    return brace == rest.npos ? broken(text, name) : begin_arguments(name, at_ + brace);
}

// f<separator>{...}, or function<separator>f and a block of JSON
ToolCallReader::Step ToolCallReader::block_head(std::string_view text, bool last) {
    constexpr std::string_view fence = "```json";
    const size_t separator = text.find(form_->separator, at_);
    if (separator == text.npos) return last ? ended() : Step::more;
    std::string_view name = trimmed(text.substr(at_, separator - at_));
    if (!form_->prefix.empty()) name = without_number(name, form_->prefix);
    size_t brace = after_spaces(text, separator + form_->separator.size());
    if (brace == text.size()) return !last ? Step::more : name.empty() ? ended() : broken(text, name);
    if (text[brace] != '{') {
        const size_t from = brace, block = text.find(fence, from);
        if (block == text.npos) return last ? ended() : Step::more;
        name = trimmed(text.substr(from, block - from));
        brace = after_spaces(text, block + fence.size());
        if (brace == text.size()) return !last ? Step::more : name.empty() ? ended() : broken(text, name);
    }
    return name.empty() || text[brace] != '{' ? ended() : begin_arguments(name, brace);
}

// f<separator>; a tag also ends the name
ToolCallReader::Step ToolCallReader::tagged_head(std::string_view text, bool last) {
    const size_t separator = text.find(form_->separator, at_);
    const size_t end = std::min({separator, text.find(form_->tags.begin, at_), text.find(closing(), at_)});
    if (end == text.npos && !last) return Step::more;
    name_ = trimmed(text.substr(at_, std::min(end, text.size()) - at_));
    if (end == text.npos || name_.empty()) return ended();
    begin(name_);
    say("{");
    reading_ = tagged_parameters(*form_, parameters_of(tools_, name_));
    given_.clear();
    return go(Place::parameters, end == separator ? end + form_->separator.size() : end);
}

// f<separator>
ToolCallReader::Step ToolCallReader::literal_head(std::string_view text, bool last) {
    const size_t separator = text.find(form_->separator, at_);
    const std::string_view name = trimmed(text.substr(at_, std::min(separator, text.size()) - at_));
    if (!std::ranges::all_of(name, is_of_names)) return ended();
    if (separator == text.npos) return last ? ended() : Step::more;
    if (name.empty()) return ended();
    begin(name);
    say("{");
    literal_.emplace(form_->notation);
    return go(Place::literals, separator + form_->separator.size());
}

ToolCallReader::Step ToolCallReader::literals(std::string_view text, bool last) {
    std::string json;
    at_ += literal_->read(text.substr(at_), last, json);
    say(std::move(json));
    if (!literal_->ended() && !last) return Step::more;
    end();
    if (literal_->ended()) return go(Place::between, at_);
    at_ = text.size();
    return Step::over;
}

ToolCallReader::Step ToolCallReader::begin_arguments(std::string_view name, size_t at) {
    begin(name);
    scanner_ = {};
    return go(Place::arguments, at);
}

// Handles an answer that ends between the name and the arguments.
ToolCallReader::Step ToolCallReader::broken(std::string_view text, std::string_view name) {
    begin(name);
    end();
    at_ = text.size();
    return Step::over;
}

ToolCallReader::Step ToolCallReader::arguments(std::string_view text, bool last) {
    size_t i = at_;
    bool closed = false;
    for (; i < text.size() && !scanner_.ended(); ++i) {
        if (!scanner_.quoted() && !closing().empty() && text[i] == closing()[0]) {
            closed = text.substr(i).starts_with(closing());
            if (closed || (!last && may_become(text.substr(i), closing()))) break;
        }
        scanner_.step(text[i]);
    }
    say(std::string(text.substr(at_, i - at_)));
    at_ = i;
    if (!scanner_.ended() && !closed && !last) return Step::more;
    const bool whole = scanner_.ended();
    end();
    if (!whole && !closed) return Step::over;
    scanner_ = {};
    if (style() == CallHead::object) scanner_.step('{');
    return go(style() == CallHead::named ? Place::between : Place::tail, at_);
}

// Parses the rest of a call after its arguments.
ToolCallReader::Step ToolCallReader::tail(std::string_view text, bool last) {
    for (; at_ < text.size(); ++at_) {
        const std::string_view rest = text.substr(at_);
        if (!scanner_.quoted() && !closing().empty() && rest[0] == closing()[0]) {
            if (rest.starts_with(closing()))
                return go(Place::between, at_ + (style() == CallHead::block ? closing().size() : 0));
            if (!last && may_become(rest, closing())) return Step::more;
        }
        if (style() == CallHead::block) continue;
        scanner_.step(rest[0]);
        if (scanner_.ended()) return go(Place::between, at_ + 1);
    }
    return last ? Step::over : Step::more;
}

ToolCallReader::Step ToolCallReader::parameters(std::string_view text, bool last) {
    const std::string_view opening = form_->tags.begin;
    for (; (at_ = std::min(text.find('<', at_), text.size())) < text.size(); ++at_) {
        const std::string_view rest = text.substr(at_);
        const auto waits = [&](std::string_view tag) { return !last && may_become(rest, tag); };
        const bool ends = rest.starts_with(format_.end);
        if (rest.starts_with(closing()) || ends) {
            say("}");
            end();
            return go(Place::between, at_ + (ends ? 0 : closing().size()));
        }
        if (rest.starts_with(opening)) {
            const Step next = parameter_name(text, at_ + opening.size());
            if (next != Step::none) return next;
            if (!last) return Step::more;
            break;
        }
        if (waits(closing()) || waits(format_.end) || waits(opening)) break;
    }
    if (!last) return Step::more;
    end();
    at_ = text.size();
    return Step::over;
}

// Parses the name of a parameter, which begins at `from`. none: the text ends before the value begins.
ToolCallReader::Step ToolCallReader::parameter_name(std::string_view text, size_t from) {
    const ArgumentTags& tags = form_->tags;
    for (size_t at = from; (at = text.find(tags.name_end[0], at)) != text.npos; ++at) {
        const size_t other = end_of_tag(text.substr(at), tags.name_end);
        const size_t literal = tags.text_name_end.empty() ? text.npos : end_of_tag(text.substr(at), tags.text_name_end);
        if (other == cut || literal == cut) return Step::none;
        if (other == text.npos && literal == text.npos) continue;
        key_ = trimmed(text.substr(from, at - from));
        is_text_ = tags.text_name_end.empty() ? reading_.is_text(key_) : literal != text.npos;
        repeated_ = given_.contains(key_);
        begun_ = false;
        return go(Place::value, at + (other == text.npos ? literal : other));
    }
    return Step::none;
}

size_t ToolCallReader::first_close(std::string_view text) const {
    return std::min(text.find(form_->tags.value_close(), at_), text.find(closing(), at_));
}

// Returns where a value that may be JSON ends; npos: not yet known. A tag inside a JSON string does not close the
// value. A string that contains a line end, or never ends, is not JSON, so the first tag closes it.
size_t ToolCallReader::json_close(std::string_view text, bool last) const {
    const size_t first = first_close(text);
    if (first == text.npos) return first;
    JsonScanner scanner;
    for (size_t at = at_; at < text.size(); ++at) {
        if (scanner.quoted() && text[at] == '\n') return first;
        const std::string_view rest = text.substr(at);
        if (!scanner.quoted() && (rest.starts_with(form_->tags.value_close()) || rest.starts_with(closing())))
            return at;
        scanner.step(text[at]);
    }
    return last ? first : text.npos;
}

// Returns a text value as it arrives, without the line break before the closing tag. The beginning of a closing tag at
// the end of the answer is not a part of the value.
ToolCallReader::Step ToolCallReader::text_value(std::string_view text, bool last) {
    const std::string_view tag = form_->tags.value_close();
    const bool lines = form_->tags.lines();
    if (!begun_) {
        if (at_ == text.size() && !last) return Step::more;
        begun_ = true;
        if (lines && text.substr(at_).starts_with('\n')) ++at_;
        say_value("\"");
    }
    const size_t close = first_close(text);
    std::string_view piece = text.substr(at_, close == text.npos ? close : close - at_);
    if (close == text.npos) piece.remove_suffix(std::max(begun_at_end(piece, tag), begun_at_end(piece, closing())));
    if (lines && piece.ends_with('\n')) piece.remove_suffix(1);
    if (close == text.npos) {  // no partial character
        size_t whole = 0;
        for (Utf8Step s; whole < piece.size() && !(s = utf8_step(piece, whole)).cut;) whole += s.size;
        piece = piece.substr(0, whole);
    }
    const std::string quoted = dumped(piece);
    if (!repeated_) say(quoted.substr(1, quoted.size() - 2));
    if (close == text.npos) {
        at_ = last ? text.size() : at_ + piece.size();
        if (!last) return Step::more;
        end();
        return Step::over;
    }
    if (!repeated_) say("\"");
    return after_value(text, close);
}

// Returns a value when it is complete: JSON unchanged, literals of Python as JSON if the type excludes strings, other
// text as a string. An incomplete value is left out.
ToolCallReader::Step ToolCallReader::other_value(std::string_view text, bool last) {
    const size_t close = json_close(text, last);
    if (close == text.npos) {
        if (!last) return Step::more;
        end();
        at_ = text.size();
        return Step::over;
    }
    std::string_view value = text.substr(at_, close - at_);
    const bool lines = form_->tags.lines();
    if (lines && value.starts_with('\n')) value.remove_prefix(1);
    if (lines && value.ends_with('\n')) value.remove_suffix(1);
    // The JSON library skips a byte order mark, which is not valid JSON.
    const bool json = Json::accept(value) && !value.starts_with("\xEF\xBB\xBF");
    const auto literal = !json && reading_.never_texts.contains(key_) ? python_value(value) : std::nullopt;
    say_value(json ? std::string(value) : literal ? *literal : dumped(value));
    return after_value(text, close);
}

ToolCallReader::Step ToolCallReader::after_value(std::string_view text, size_t close) {
    const std::string_view tag = form_->tags.value_close();
    return go(Place::parameters, close + (text.substr(close).starts_with(tag) ? tag.size() : 0));
}

// Appends the value of key_, or the quote with which it begins.
void ToolCallReader::say_value(std::string text) {
    if (repeated_) return;
    say((given_.empty() ? "" : ",") + dumped(key_) + ":" + std::move(text));
    given_.insert(key_);
}

void ToolCallReader::begin(std::string_view name) {
    parts_->push_back({.kind = AnswerPart::Kind::tool_begin, .index = calls_++, .name = std::string(name)});
}

void ToolCallReader::say(std::string arguments) {
    if (arguments.empty()) return;
    // Joins successive pieces into one part.
    if (!parts_->empty() && parts_->back().kind == AnswerPart::Kind::tool_arguments) {
        parts_->back().text += arguments;
        return;
    }
    parts_->push_back({.kind = AnswerPart::Kind::tool_arguments, .text = std::move(arguments), .index = calls_ - 1});
}

void ToolCallReader::end() { parts_->push_back({.kind = AnswerPart::Kind::tool_end, .index = calls_ - 1}); }

}  // namespace nibble

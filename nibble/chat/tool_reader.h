// Parses tool calls while their text arrives. A call begins as soon as its name and the first brace of its arguments
// are known; every further piece of the arguments is returned at once.
#pragma once

#include "chat/answer_parser.h"
#include "chat/literal_reader.h"
#include "chat/tool_format.h"

#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace nibble {

// Tracks nesting and strings of JSON text that arrives in pieces.
class JsonScanner {
public:
    void step(char c);
    int depth() const { return depth_; }     // number of open braces and brackets
    bool quoted() const { return quoted_; }  // inside a string
    bool ended() const { return ended_; }    // the outermost object or list has ended

private:
    int depth_ = 0;
    bool quoted_ = false, escaped_ = false, ended_ = false;
};

class ToolCallReader {
public:
    enum class Outcome : uint8_t {
        more,  // more text is needed
        over,  // the calls ended; `text` is the rest after them
        none,  // this is not a call; `text` is unchanged
    };

    // `format` must outlive the reader. `tools` (may be null): determine which tagged parameters are not texts
    // (tagged_parameters). Of several parameters with one name, the first counts.
    ToolCallReader(const ToolFormat& format, Json tools);

    // Appends the parts that `text` adds and removes the parsed prefix of `text`. In the first call `text` begins with
    // the format's opening tag; in later calls with the rest of the previous call, followed by new text. `last`: no
    // more text follows; an incomplete call then keeps its arguments so far, and the result is never `more`. Calls are
    // numbered from 0. They get no ids here, because ids written by the model may repeat.
    Outcome read(std::string& text, bool last, std::vector<AnswerPart>& parts);

private:
    enum class Place : uint8_t { open, between, head, arguments, tail, parameters, value, literals };
    enum class Member : uint8_t { key, colon, value, comma };  // next element of an object
    enum class Step : uint8_t { on, more, over, none };

    Step step(std::string_view text, bool last);
    Step between(std::string_view text, bool last);
    Step head(std::string_view text, bool last);
    Step object_head(std::string_view text, bool last);
    Step named_head(std::string_view text, bool last);
    Step block_head(std::string_view text, bool last);
    Step tagged_head(std::string_view text, bool last);
    Step literal_head(std::string_view text, bool last);
    Step literals(std::string_view text, bool last);
    Step arguments(std::string_view text, bool last);
    Step tail(std::string_view text, bool last);
    Step parameters(std::string_view text, bool last);
    Step parameter_name(std::string_view text, size_t from);
    size_t first_close(std::string_view text) const;
    size_t json_close(std::string_view text, bool last) const;
    Step text_value(std::string_view text, bool last);
    Step other_value(std::string_view text, bool last);
    Step after_value(std::string_view text, size_t close);

    Step go(Place place, size_t at);
    Step head_of(const CallForm& form, size_t at);
    Step begin_arguments(std::string_view name, size_t at);
    Step broken(std::string_view text, std::string_view name);
    Step ended() const { return calls_ > 0 ? Step::over : Step::none; }
    CallHead style() const { return form_ ? form_->head : CallHead::object; }
    std::string_view closing() const { return form_ ? form_->closing : std::string_view(); }

    void begin(std::string_view name);
    void say(std::string arguments);
    void say_value(std::string text);
    void end();

    const ToolFormat& format_;
    Json tools_;
    std::vector<AnswerPart>* parts_ = nullptr;
    Place place_ = Place::open;
    const CallForm* form_ = nullptr;  // form of the current or the last call
    size_t at_ = 0;                   // how far the text is read
    size_t calls_ = 0;                // begun
    bool list_ = false;
    JsonScanner scanner_;

    // State of the head of an object.
    Member member_ = Member::key;
    size_t scanned_ = 0;  // bytes passed to walk_
    size_t string_ = 0;   // start of its last string
    bool whole_ = false;  // the call is parsed when its object is complete
    std::string key_, name_;

    std::optional<LiteralReader> literal_;

    // State of tagged parameters.
    TaggedObject reading_;
    std::set<std::string, std::less<>> given_;
    bool is_text_ = false, begun_ = false, repeated_ = false;
};

}  // namespace nibble

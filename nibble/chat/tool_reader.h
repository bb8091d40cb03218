// Reads tool calls while their text comes: a call begins as soon as its name and the first brace of its arguments are
// there, and every further piece of the arguments is given at once.
#pragma once

#include "chat/answer_parser.h"
#include "chat/tool_format.h"

#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace nibble {

// A walk over JSON text that comes in pieces.
class JsonWalk {
public:
    void step(char c);
    int depth() const { return depth_; }     // open braces and brackets
    bool quoted() const { return quoted_; }  // inside of a string
    bool ended() const { return ended_; }    // behind the end of the outermost object or list

private:
    int depth_ = 0;
    bool quoted_ = false, escaped_ = false, ended_ = false;
};

class ToolCallReader {
public:
    enum class Outcome : uint8_t {
        more,  // text is needed
        over,  // the calls ended, and `text` is what follows them
        none,  // this is no call, and `text` is as it was
    };

    // `format` outlives the reader; `tools` (may be null) say which parameters of <parameter=p> are not texts
    // (tagged_parameters). Of parameters of one name the first counts.
    ToolCallReader(const ToolFormat& format, Json tools);

    // Gives the parts that `text` adds, and takes from its front what is done with. `text` begins with the format's
    // opening tag, and in later calls with what the one before left and what came behind it. `last`: no more comes; a
    // call that is not complete keeps the arguments that it has, and the outcome is not `more`.
    // Calls are counted from 0. They have no ids here; what a model writes as an id may repeat.
    Outcome read(std::string& text, bool last, std::vector<AnswerPart>& parts);

private:
    enum class Place : uint8_t { open, between, head, arguments, tail, parameters, value };
    enum class Style : uint8_t { object, named, deepseek, tagged };
    enum class Member : uint8_t { key, colon, value, comma };  // what comes next in an object
    enum class Step : uint8_t { on, more, over, none };

    Step step(std::string_view text, bool last);
    Step between(std::string_view text, bool last);
    Step head(std::string_view text, bool last);
    Step object_head(std::string_view text, bool last);
    Step named_head(std::string_view text, bool last);
    Step deepseek_head(std::string_view text, bool last);
    Step tagged_head(std::string_view text, bool last);
    Step arguments(std::string_view text, bool last);
    Step tail(std::string_view text, bool last);
    Step parameters(std::string_view text, bool last);
    Step text_value(std::string_view text, bool last);
    Step other_value(std::string_view text, bool last);
    Step behind_value(std::string_view text, size_t close);

    Step go(Place place, size_t at);
    Step head_of(Style style, size_t at);
    Step begin_arguments(std::string_view name, size_t at);
    Step broken(std::string_view text, std::string_view name);
    Step ended() const { return calls_ > 0 ? Step::over : Step::none; }
    std::string_view closing() const;  // the tag that ends a call, wherever it stands outside of a string

    void begin(std::string_view name);
    void say(std::string arguments);
    void say_value(std::string text);
    void end();

    const ToolFormat& format_;
    Json tools_;
    std::vector<AnswerPart>* parts_ = nullptr;
    Place place_ = Place::open;
    Style style_ = Style::object;
    size_t at_ = 0;     // how far the text is read
    size_t calls_ = 0;  // begun
    bool list_ = false;
    JsonWalk walk_;

    // Of the head of an object.
    Member member_ = Member::key;
    size_t scanned_ = 0;  // how far the text is walked
    size_t string_ = 0;   // where its last string begins
    bool whole_ = false;  // the call is read when its object is complete
    std::string key_, name_;

    // Of tagged parameters.
    TaggedObject reading_;
    std::set<std::string, std::less<>> given_;
    bool is_text_ = false, begun_ = false, repeated_ = false;
};

}  // namespace nibble

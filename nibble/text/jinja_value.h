// The values of a template, with Python's semantics: what is true, equal, ordered, and how str() and repr() print it.
// Values are immutable (as in the immutable sandbox of transformers) except namespaces, so copies share.
// Integers are 64-bit; a result outside is an error, never wrapped. Strings are valid UTF-8.
#pragma once

#include "text/jinja_marked.h"
#include "text/meter.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace nibble::jinja {

// Thrown inside the engine only; ChatTemplate turns it into an Error at the door.
struct Failure {
    int line;
    std::string message;
};

// The rendering's meter, and the line that a failure names. Every loop over data pays steps, every string or list that
// is made pays bytes, every nested evaluation a level.
struct Budget {
    Meter& meter;
    int line = 1;  // of the node being evaluated

    void pay_steps(int64_t n) {
        if (!meter.pay_steps(n)) stop();
    }
    void pay_bytes(int64_t n) {
        if (!meter.pay_bytes(n)) stop();
    }
    // For bytes that are only read.
    void pay_look(size_t size) {
        if (!meter.pay_look(size)) stop();
    }
    void enter() {
        if (!meter.enter()) stop();
    }
    void leave() { meter.leave(); }
    [[noreturn]] void stop() const { fail(meter.error().message()); }
    [[noreturn]] void fail(std::string message) const { throw Failure{line, std::move(message)}; }
};

enum class Kind : uint8_t { undefined, none, boolean, integer, real, string, list, dict, space, function, loop };
// Python's types that are all a row of values here. An iterator (result of map, select, ...) can be read once.
enum class Row : uint8_t { list, tuple, range, keys, values, items, iterator };

class Value;
class Interpreter;

struct Arguments {
    std::vector<Value> positional;
    std::vector<std::pair<std::string, Value>> named;
};

struct Text;
struct List;
struct Dict;
struct Function;
struct Loop;

class Value {
public:
    Value() = default;  // undefined, without a reason
    static Value undefined(std::string reason);
    static Value none() { return Value(Kind::none); }
    Value(bool b) : kind_(Kind::boolean) { number_.integer = b; }
    Value(int64_t i) : kind_(Kind::integer) { number_.integer = i; }
    Value(double d) : kind_(Kind::real) { number_.real = d; }
    Value(Marked text);
    Value(const char* text) : Value(Marked::written(text)) {}
    Value(std::shared_ptr<List> list);
    Value(std::shared_ptr<Dict> dict, Kind kind = Kind::dict);  // or Kind::space
    Value(std::shared_ptr<Function> function);
    Value(std::shared_ptr<Loop> loop);

    Kind kind() const { return kind_; }
    bool is(Kind k) const { return kind_ == k; }
    bool is_number() const { return is(Kind::boolean) || is(Kind::integer) || is(Kind::real); }
    bool is_integral() const { return is(Kind::boolean) || is(Kind::integer); }
    // Preconditions: the kind.
    int64_t integer() const { return number_.integer; }
    double real() const { return is(Kind::real) ? number_.real : double(number_.integer); }
    const Marked& marked() const;  // of a string, or an undefined value's reason
    const std::string& text() const { return marked().text(); }
    List& list() const { return *static_cast<List*>(object_.get()); }
    Dict& dict() const { return *static_cast<Dict*>(object_.get()); }
    const Function& function() const { return *static_cast<const Function*>(object_.get()); }
    Loop& loop() const { return *static_cast<Loop*>(object_.get()); }
    const void* identity() const { return object_.get(); }

private:
    explicit Value(Kind kind) : kind_(kind) {}

    Kind kind_ = Kind::undefined;
    union {
        int64_t integer;
        double real;
    } number_{0};
    std::shared_ptr<void> object_;
};

struct Text {
    Marked text;
};

struct List {
    std::vector<Value> items;
    Row row = Row::list;
    int depth = 1;  // levels of containers; bounded, so that destructors and comparisons may recurse
    bool hashable = false;
};

// Insertion order, as Python's dict; keys of any hashable kind. Also the body of a namespace.
struct Dict {
    std::vector<std::pair<Value, Value>> entries;
    int depth = 1;

    const Value* find(const Value& key, Budget& budget) const;
    const Value* find(std::string_view key, Budget& budget) const;
    void put(const Value& key, Value value, Budget& budget);
};

struct Function {
    std::string name;
    std::function<Value(Interpreter&, const Arguments&)> call;
    int depth = 0;  // of the value that a method belongs to
};

// The `loop` variable. The interpreter keeps all of them until it ends, as it keeps namespaces: they change, so they
// may hold one another in chains and circles of any length.
struct Loop {
    std::shared_ptr<const std::vector<Value>> items;
    size_t index0 = 0;
    int level = 0;
    bool seen = false;
    Value last_changed;
    std::function<Value(Interpreter&, const Arguments&)> recurse;  // empty unless `recursive`
};

Value make_list(Budget& budget, std::vector<Value> items, Row row = Row::list);
Value make_string(Budget& budget, Marked text);
int container_depth(const Value& value);
// Fails when `depth` of the inner values is at the limit; returns depth + 1.
int deeper(Budget& budget, int depth);

bool truth(const Value& value);
bool equal(const Value& a, const Value& b, Budget& budget);
// Python's a < b; fails for kinds without an order.
bool less(const Value& a, const Value& b, Budget& budget);
bool hashable(const Value& value);
const char* type_name(const Value& value);  // as Python names it: "str", "dict", "NoneType"
Marked str(const Value& value, Budget& budget);
Marked repr(const Value& value, Budget& budget);
std::string real_text(double value);

// What `for` sees: characters, items, keys. An iterator is read, and empty from then on.
std::vector<Value> iterate(const Value& value, Budget& budget);
// Python's len(); -1 where there is none.
int64_t length_of(const Value& value);

// `indent` may be null. Separators and indentation may be data, too.
Marked to_json(const Value& value, Budget& budget, const Marked* indent, const Marked& comma, const Marked& colon,
               bool ascii, bool sort_keys);

}  // namespace nibble::jinja

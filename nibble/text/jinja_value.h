// The values of a template with Python's semantics: truth, equality, order, str() and repr(). Values are immutable (as
// in transformers' immutable sandbox) except namespaces, so copies share data. Integers have 64 bits; a result outside
// is an error. Strings are valid UTF-8.
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

// Thrown inside the engine only; ChatTemplate converts it to an Error.
struct Failure {
    int line;
    std::string message;
};

// The meter of a rendering, and the line for error messages. Every loop over data pays steps, every created string or
// list pays bytes, every nested evaluation pays a level.
struct Budget {
    Meter& meter;
    int line = 1;  // line of the node being evaluated

    void pay_steps(int64_t n) {
        if (!meter.pay_steps(n)) stop();
    }
    void pay_bytes(int64_t n) {
        if (!meter.pay_bytes(n)) stop();
    }
    // Pays for bytes that are only read.
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
// Python's sequence types, which share one representation. An iterator (result of map, select, ...) can be read once.
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
    // Preconditions: the value has that kind.
    int64_t integer() const { return number_.integer; }
    double real() const { return is(Kind::real) ? number_.real : double(number_.integer); }
    const Marked& marked() const;  // text of a string, or the reason of an undefined value
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
    int depth = 1;  // levels of nested containers; bounded, so destructors and comparisons may recurse
    bool hashable = false;
};

// Keeps insertion order like Python's dict; keys may be of any hashable kind. Also holds a namespace's entries.
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
    int depth = 0;  // container depth of the value that a method belongs to
};

// The `loop` variable. The interpreter keeps all loops, like namespaces, until it ends: they are mutable and may refer
// to each other in chains and cycles of any length.
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
// Returns depth + 1; fails if `depth` is at the limit.
int deeper(Budget& budget, int depth);

bool truth(const Value& value);
bool equal(const Value& a, const Value& b, Budget& budget);
// Python's a < b. Fails for kinds without an order.
bool less(const Value& a, const Value& b, Budget& budget);
bool hashable(const Value& value);
const char* type_name(const Value& value);  // Python's name: "str", "dict", "NoneType"
Marked str(const Value& value, Budget& budget);
Marked repr(const Value& value, Budget& budget);
std::string real_text(double value);

// Returns the elements that `for` visits: characters, items or keys. Reading an iterator empties it.
std::vector<Value> iterate(const Value& value, Budget& budget);
// Python's len(); -1 if the value has none.
int64_t length_of(const Value& value);

// `indent` may be null. Separators and indentation may be data.
Marked to_json(const Value& value, Budget& budget, const Marked* indent, const Marked& comma, const Marked& colon,
               bool ascii, bool sort_keys);

}  // namespace nibble::jinja

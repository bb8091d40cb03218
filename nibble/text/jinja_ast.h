// The syntax tree of a template. The parser bounds its depth, so visiting and freeing it may recurse.
#pragma once

#include "text/jinja_value.h"

namespace nibble::jinja {

struct Expression;
struct Statement;
using ExpressionPtr = std::unique_ptr<Expression>;
using Body = std::vector<Statement>;

struct Call {
    std::vector<ExpressionPtr> positional;
    std::vector<std::pair<std::string, ExpressionPtr>> named;
    ExpressionPtr star, star_star;  // *args, **kwargs
};

enum class Op : uint8_t {
    constant,
    name,
    list,
    tuple,
    dict,  // items are key, value, key, value
    attribute,
    item,
    slice,  // items are object, start, stop, step; null if omitted
    call,
    filter,
    test,         // items[0] is the object; a filter block's first filter has none
    conditional,  // items are value, condition, other (may be null)
    logical_or,
    logical_and,
    logical_not,
    negative,
    positive,
    compare,  // items are a, b, c ...; `operators` are those between them
    add,
    subtract,
    multiply,
    divide,
    floor_divide,
    modulo,
    power,
    concat,
};

struct Expression {
    Op op;
    int line;
    int depth = 1;
    std::string name;  // name of a variable, attribute, filter or test
    Value value;       // value of a constant
    std::vector<ExpressionPtr> items;
    std::vector<std::string> operators;
    Call call;
};

struct Parameter {
    std::string name;
    ExpressionPtr fallback;  // may be null
};

struct Macro {
    std::string name;
    std::vector<Parameter> parameters;
    bool varargs = false, kwargs = false;  // the body uses varargs or kwargs
    bool caller = false;
};

enum class Do : uint8_t {
    text,
    print,
    branch,
    loop,
    set,
    set_block,
    macro,
    call_block,
    filter_block,
    scope,
    stop,
    next
};

// Fields per kind. branch: arms of (condition or null, body). loop: target, items[0] the iterable, items[1] the filter
// or null, arms[0] the body, arms[1] the else. set: target = items[0]. scope ({% with %}, {% generation %}): targets =
// items, then the body.
struct Statement {
    Do what;
    int line;
    std::string text;
    std::vector<ExpressionPtr> targets;  // a name, an attribute of a namespace, or a tuple of names
    std::vector<ExpressionPtr> items;
    std::vector<std::pair<ExpressionPtr, Body>> arms;
    std::shared_ptr<Macro> macro;
    bool recursive = false;
};

}  // namespace nibble::jinja

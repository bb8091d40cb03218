// Filters, tests, methods and functions under their names in Jinja and Python.
#pragma once

#include "text/jinja_value.h"

#include <optional>

namespace nibble::jinja {

using Filter = Value (*)(Interpreter&, const Value& input, const Arguments&);
using Test = bool (*)(Interpreter&, const Value& input, const Arguments&);

// Return null for an unknown name.
Filter find_filter(std::string_view name);
Test find_test(std::string_view name);

// All names, so that tests can cover the whole tables.
std::vector<std::string_view> filter_names();
std::vector<std::string_view> test_names();
std::vector<std::string_view> method_names();  // Returns the names of the methods of strings, lists and dicts.

// Returns object.name if it is a method of a string, list or dict, or an attribute of `loop` or a namespace; nullopt if
// `object` has no such attribute. Attributes that Python has but the sandbox refuses are undefined values with that
// reason.
std::optional<Value> python_attribute(Interpreter&, const Value& object, const std::string& name);
// Evaluate object.name and object[key] in a template; undefined if missing.
Value get_attribute(Interpreter&, const Value& object, const std::string& name);
Value get_item(Interpreter&, const Value& object, const Value& key);
Value get_slice(Interpreter&, const Value& object, const Value& start, const Value& stop, const Value& step);

Value add(Interpreter&, const Value& a, const Value& b);
Value multiply(Interpreter&, const Value& a, const Value& b);
// Operators - / // % **; `op` is the operator's text.
Value arithmetic(Interpreter&, std::string_view op, const Value& a, const Value& b);
Value negate(Interpreter&, const Value& a);
// Operators == != < <= > >= in "not in".
bool compare(Interpreter&, std::string_view op, const Value& a, const Value& b);
// Formats "format" % values like Python, for d i s r f e g x c and %%.
Marked percent_format(Interpreter&, const Marked& format, const Value& values);

// range, dict, namespace, raise_exception, strftime_now.
std::vector<std::pair<std::string, Value>> functions(Interpreter&);

// Binds arguments by position or name; omitted ones are nullopt. Fails for too many, unknown or repeated arguments.
std::vector<std::optional<Value>> bind(Interpreter&, std::string_view function, const Arguments&,
                                       std::initializer_list<const char*> names);

}  // namespace nibble::jinja

// Filters, tests, methods and functions, by the names Jinja and Python give them.
#pragma once

#include "text/jinja_value.h"

#include <optional>

namespace nibble::jinja {

using Filter = Value (*)(Interpreter&, const Value& input, const Arguments&);
using Test = bool (*)(Interpreter&, const Value& input, const Arguments&);

// Null: there is none of that name.
Filter find_filter(std::string_view name);
Test find_test(std::string_view name);

// All names, for tests over the whole tables.
std::vector<std::string_view> filter_names();
std::vector<std::string_view> test_names();
std::vector<std::string_view> method_names();  // of strings, lists and dicts

// object.name where it is a method of a string, list or dict, or what `loop` and namespaces hold; nullopt where
// `object` has no such attribute. Attributes that Python has but the sandbox refuses are undefined values that say so.
std::optional<Value> python_attribute(Interpreter&, const Value& object, const std::string& name);
// object.name and object[key] of a template: an undefined value where there is nothing.
Value get_attribute(Interpreter&, const Value& object, const std::string& name);
Value get_item(Interpreter&, const Value& object, const Value& key);
Value get_slice(Interpreter&, const Value& object, const Value& start, const Value& stop, const Value& step);

Value add(Interpreter&, const Value& a, const Value& b);
Value multiply(Interpreter&, const Value& a, const Value& b);
// - / // % **; `op` is the operator's text.
Value arithmetic(Interpreter&, std::string_view op, const Value& a, const Value& b);
Value negate(Interpreter&, const Value& a);
// == != < <= > >= in "not in"
bool compare(Interpreter&, std::string_view op, const Value& a, const Value& b);
// "format" % values, as Python's for d i s r f e g x c and %%.
Marked percent_format(Interpreter&, const Marked& format, const Value& values);

// range, dict, namespace, raise_exception, strftime_now.
std::vector<std::pair<std::string, Value>> functions(Interpreter&);

// Arguments by position or name; fails for too many, unknown and doubled ones. Left out: nullopt.
std::vector<std::optional<Value>> bind(Interpreter&, std::string_view function, const Arguments&,
                                       std::initializer_list<const char*> names);

}  // namespace nibble::jinja

// The options of jobs by name, for callers that give them as JSON: the C interface and the Python package. Names and
// defaults are those of the public headers.
#pragma once

#include "base/fields.h"
#include "base/json.h"
#include "nibble/error.h"

#include <algorithm>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace nibble {

// One option: a member of the options, or a member of a part of them.
template <class Options>
struct OptionField {
    std::string name;
    std::function<bool(Options&, const Json&)> set;  // false: the type does not fit
    std::function<Json(const Options&)> get;
};

template <class T>
bool json_option(const Json& json, T& out) {
    return json_value(json, out);
}
template <class T>
bool json_option(const Json& json, std::optional<T>& out) {
    if (json.is_null()) {
        out.reset();
        return true;
    }
    return json_value(json, out.emplace());
}
template <class T>
Json option_json(const T& value) {
    return value;
}
template <class T>
Json option_json(const std::optional<T>& value) {
    return value ? Json(*value) : Json();
}

// option("calib_file", &QuantizeOptions::calib, &CalibrationText::file)
template <class Options, class First, class... More>
OptionField<Options> option(std::string name, First Options::*first, More... more) {
    const auto in = [=](auto& options) -> auto& { return ((options.*first).*....*more); };
    return {std::move(name), [in](Options& o, const Json& value) { return json_option(value, in(o)); },
            [in](const Options& o) { return option_json(in(o)); }};
}

// Returns options with the given values. Errors of kind usage name the job and the option: an unknown name, another
// type.
template <class Options>
Result<Options> options_of(const Json& values, const std::vector<OptionField<Options>>& fields, std::string_view job) {
    Options options;
    if (!values.is_object()) return fail(ErrorKind::usage, "{}: the options are not a JSON object", job);
    for (const auto& [name, value] : values.items()) {
        const auto found = std::ranges::find(fields, name, &OptionField<Options>::name);
        if (found == fields.end()) return fail(ErrorKind::usage, "{}: there is no option '{}'", job, name);
        if (!found->set(options, value))
            return fail(ErrorKind::usage, "{}: {} has a value of a wrong type: {}", job, name,
                        value.dump(-1, ' ', false, Json::error_handler_t::replace));
    }
    return options;
}

template <class Options>
Json defaults_of(const std::vector<OptionField<Options>>& fields) {
    Json out = Json::object();
    const Options options;
    for (const OptionField<Options>& field : fields) out[field.name] = field.get(options);
    return out;
}

}  // namespace nibble

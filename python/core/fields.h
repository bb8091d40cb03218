// Options of jobs from keywords of Python, by the names of the C++ structures: one list of names and defaults.
#pragma once

#include "core/errors.h"

#include <fmt/format.h>
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <functional>
#include <string>
#include <vector>

namespace nibble::python {

namespace nb = nanobind;

template <class Options>
struct Field {
    std::string name;
    std::function<void(Options&, nb::handle)> set;  // throws std::bad_cast where the type does not fit
    std::function<nb::object(const Options&)> get;
};

template <class Options, class T>
Field<Options> field(const char* name, T Options::*member) {
    return {name, [member](Options& o, nb::handle value) { o.*member = nb::cast<T>(value); },
            [member](const Options& o) { return nb::cast(o.*member); }};
}

// The fields of a part of the options, under names with a prefix.
template <class Options, class Part>
void add_fields(std::vector<Field<Options>>& to, const char* prefix, Part Options::*member,
                const std::vector<Field<Part>>& fields) {
    for (const Field<Part>& f : fields)
        to.push_back({prefix + f.name, [member, f](Options& o, nb::handle value) { f.set(o.*member, value); },
                      [member, f](const Options& o) { return f.get(o.*member); }});
}

// Sets the fields that the dictionary has. Unknown names and wrong types are errors that name them.
template <class Options>
Options options_from(nb::dict values, const std::vector<Field<Options>>& fields, const char* job) {
    Options options;
    for (const auto [key, value] : values) {
        const std::string name = nb::cast<std::string>(key);
        bool known = false;
        for (const Field<Options>& f : fields) {
            if (f.name != name) continue;
            known = true;
            try {
                f.set(options, value);
                continue;
            } catch (const std::bad_cast&) {
            } catch (nb::python_error&) {
            }
            raise("UsageError", fmt::format("{}: {} has a value of a wrong type: {}", job, name,
                                            nb::cast<std::string>(nb::repr(value))));
        }
        if (!known) raise("UsageError", fmt::format("{}: there is no option '{}'", job, name));
    }
    return options;
}

template <class Options>
nb::dict defaults_of(const std::vector<Field<Options>>& fields) {
    nb::dict out;
    const Options options;
    for (const Field<Options>& f : fields) out[f.name.c_str()] = f.get(options);
    return out;
}

}  // namespace nibble::python

// Selects from a table of kernels, fastest first: the first entry that this CPU supports, or the named one.
#pragma once

#include "base/error.h"

#include <span>
#include <string>
#include <string_view>

namespace nibble {

template <class Entry>
Result<const Entry*> select_entry(std::span<const Entry> entries, std::string_view what, std::string_view force) {
    std::string choices;
    for (const Entry& entry : entries) {
        const bool supported = entry.supported();
        if (supported && (force.empty() || force == entry.name)) return &entry;
        if (supported) choices += fmt::format("{}{}", choices.empty() ? "" : ", ", entry.name);
    }
    return fail("{} kernels '{}': unknown or not supported by this CPU, choose one of: {}", what, force, choices);
}

}  // namespace nibble

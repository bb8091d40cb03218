// Appends members to large objects in constant time; object[key] = value searches all existing keys.
#pragma once

#include "base/json.h"

#include <string>
#include <utility>

namespace nibble {

// Precondition: `object` is an object without this key.
inline void append_member(Json& object, std::string key, Json value) {
    static_cast<Json::object_t::Container&>(object.get_ref<Json::object_t&>())
        .emplace_back(std::move(key), std::move(value));
}

}  // namespace nibble

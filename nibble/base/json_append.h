// Members of large objects in linear time: object[key] = value looks at every key before it.
#pragma once

#include "base/json.h"

#include <string>
#include <utility>

namespace nibble {

// Preconditions: an object that has no such key.
inline void append_member(Json& object, std::string key, Json value) {
    static_cast<Json::object_t::Container&>(object.get_ref<Json::object_t&>())
        .emplace_back(std::move(key), std::move(value));
}

}  // namespace nibble

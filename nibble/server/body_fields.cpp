#include "server/body_fields.h"

#include "base/nearest.h"
#include "base/utf8.h"

#include <fmt/format.h>

namespace nibble {

const Json* BodyFields::find(std::string_view name) {
    read_.emplace(name);
    const auto found = body_->find(name);
    return found == body_->end() || found->is_null() ? nullptr : &*found;
}

void BodyFields::ignore(std::initializer_list<std::string_view> names) {
    for (const std::string_view name : names) read_.emplace(name);
}

Status BodyFields::only(std::string_view name, const Json& neutral) {
    const Json* field = find(name);
    if (!field || *field == neutral) return Ok{};
    return bad(name, "is not supported");
}

Status BodyFields::all_read() const {
    for (const auto& [name, value] : body_->items()) {
        if (read_.contains(name) || value.is_null()) continue;
        const std::vector<std::string> known(read_.begin(), read_.end());
        return bad(name, "is not a parameter of this route" + did_you_mean(name, known));
    }
    return Ok{};
}

Error BodyFields::bad(std::string_view name, std::string_view why) const {
    blamed_ = printable(name, 100);
    return fail("'{}': {}", blamed_, why);
}

}  // namespace nibble

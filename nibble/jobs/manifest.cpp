#include "jobs/manifest.h"

namespace nibble {

std::string to_text(const Manifest& m) {
    Json json{{"made_by", "nibble"}, {"version", NIBBLE_VERSION}, {"command", m.command_line}};
    if (!m.recipe.empty()) json["recipe"] = m.recipe;
    if (!m.settings.empty()) json["settings"] = m.settings;
    if (!m.tensors.empty()) json["tensors"] = m.tensors;
    return json.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";  // paths need not be UTF-8
}

}  // namespace nibble

#include "run/identity.h"

#include <nlohmann/json.hpp>

#include <map>

namespace nibble {
namespace {

// Returns values by path, so that the order of members does not matter.
std::map<std::string, Json> facts_of(const Json& object) {
    std::map<std::string, Json> facts;
    const Json flat = object.flatten();
    for (const auto& [path, value] : flat.items()) facts.emplace(path.substr(path.empty() ? 0 : 1), value);
    return facts;
}

std::string fact_differences(const Json& there, const Json& now) {
    const auto of_there = facts_of(there), of_now = facts_of(now);
    const std::string none = "not set";
    std::string out;
    const auto add = [&](const std::string& key, const std::string& a, const std::string& b) {
        out += fmt::format("{}{}: {} in the checkpoint, {} now", out.empty() ? "" : "; ", key, a, b);
    };
    for (const auto& [key, value] : of_there) {
        const auto other = of_now.find(key);
        if (other == of_now.end())
            add(key, value.dump(), none);
        else if (other->second != value)
            add(key, value.dump(), other->second.dump());
    }
    for (const auto& [key, value] : of_now)
        if (!of_there.contains(key)) add(key, none, value.dump());
    return out;
}

}  // namespace

std::string identity_differences(const RunIdentity& now, const std::string& stored) {
    if (stored == now.text) return "";
    const auto there = parse_json(stored), here = parse_json(now.text);
    if (!there.ok() || !here.ok() || !there->is_object() || !here->is_object())
        return fmt::format("{} in the checkpoint, {} now", stored, now.text);
    if (!now.restate) return fact_differences(*there, *here);
    const auto restated = now.restate(*there);
    if (!restated.ok()) return fmt::format("{}; {}", fact_differences(*there, *here), restated.error().message());
    return fact_differences(*restated, *here);
}

}  // namespace nibble

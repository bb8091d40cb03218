#include "io/yaml_fields.h"

namespace nibble {
namespace {

Result<double> number_within(const YamlNode& node, const std::string& name, double least, double most) {
    NIBBLE_TRY(const double value, as_number(node, name));
    if (!(value >= least && value <= most))
        return fail("{}: {} must be from {} to {}, not {}", node.where(), name, least, most, value);
    return value;
}

}  // namespace

void YamlFields::text(std::string_view key, std::string& to) {
    read(key, [&](const YamlNode& node, const std::string& name) -> Status {
        NIBBLE_TRY(to, as_text(node, name));
        return Ok{};
    });
}

void YamlFields::path(std::string_view key, std::filesystem::path& to) {
    std::string name = to.string();
    text(key, name);
    to = name;
}

void YamlFields::flag(std::string_view key, bool& to) {
    read(key, [&](const YamlNode& node, const std::string& name) -> Status {
        NIBBLE_TRY(to, as_bool(node, name));
        return Ok{};
    });
}

void YamlFields::count(std::string_view key, int64_t least, int64_t& to) {
    read(key, [&](const YamlNode& node, const std::string& name) -> Status {
        NIBBLE_TRY(const int value, as_int(node, name));
        if (value < least) return fail("{}: {} must be at least {}, not {}", node.where(), name, least, value);
        to = value;
        return Ok{};
    });
}

void YamlFields::number(std::string_view key, double least, double most, double& to) {
    read(key, [&](const YamlNode& node, const std::string& name) -> Status {
        NIBBLE_TRY(to, number_within(node, name, least, most));
        return Ok{};
    });
}

void YamlFields::number(std::string_view key, double least, double most, std::optional<double>& to) {
    read(key, [&](const YamlNode& node, const std::string& name) -> Status {
        if (node.is_null()) {
            to.reset();
            return Ok{};
        }
        NIBBLE_TRY(to, number_within(node, name, least, most));
        return Ok{};
    });
}

void YamlFields::no_effect(std::string_view key, std::string_view why) {
    read(key, [&](const YamlNode& node, const std::string& name) -> Status {
        return fail("{}: {} has no effect {}", node.where(), name, why);
    });
}

}  // namespace nibble

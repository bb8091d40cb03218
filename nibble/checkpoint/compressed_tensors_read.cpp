// compressed-tensors checkpoints: which group a module belongs to.
#include "checkpoint/compressed_tensors_config.h"
#include "checkpoint/config_json.h"
#include "checkpoint/hf_catalog.h"
#include "io/json_events.h"

#include <algorithm>
#include <set>

namespace nibble {
namespace {

struct Group {
    std::string name;
    CompressedTensorsScheme scheme;
    ModuleTargets targets;
};

Result<std::vector<Group>> parse_groups(const Json& section) {
    const auto groups = section.find("config_groups");
    if (groups == section.end() || !groups->is_object() || groups->empty())
        return fail("config_groups: must be an object with at least one group");
    const Json outer = section.contains("format") ? section["format"] : Json();
    std::vector<Group> parsed;
    for (const auto& [name, group] : groups->items()) {
        const std::string where = fmt::format("config_groups: {}", show_name(name));
        NIBBLE_TRY(const auto scheme, parse_group(group, outer).within(where));
        NIBBLE_TRY(const auto list, read_names(group, "targets").within(where));
        if (list.empty()) return fail("{}: targets: is empty", where);
        NIBBLE_TRY(auto targets, ModuleTargets::make(list).within(where));
        // A name without a dot is a module at the top (lm_head) or a class nibble does not know; the tensors tell
        // later.
        parsed.push_back({name, scheme, std::move(targets)});
    }
    return parsed;
}

// Members of the section that ask for work at run time, or say that the weights are not in their final form.
Status check_section(const Json& section) {
    for (const char* key : {"sparsity_config", "transform_config"})
        if (section.contains(key) && !section[key].is_null() && !section[key].empty() &&
            !(section[key].is_object() && section[key].value("format", Json()) == "dense"))
            return fail("{}: {} is not known to nibble", key, show_value(section[key]));
    if (section.contains("quantization_status") && section["quantization_status"] != "compressed")
        return fail("quantization_status: {}, only \"compressed\" holds quantized weights",
                    show_value(section["quantization_status"]));
    return Ok{};
}

Result<KvFormat> parse_kv(const Json& section) {
    const auto at = section.find("kv_cache_scheme");
    if (at == section.end() || at->is_null()) return KvFormat::none;
    if (!at->is_object()) return fail("kv_cache_scheme: must be an object, found {}", show_value(*at));
    const auto is = [&](const char* key, const Json& want, bool required) {
        return at->contains(key) ? (*at)[key] == want : !required;
    };
    if (is("num_bits", 8, true) && is("type", "float", true) && is("strategy", "tensor", true) &&
        is("dynamic", false, false) && is("symmetric", true, false))
        return KvFormat::fp8;
    return fail("kv_cache_scheme: {} is not known, only 8-bit float, one static scale per layer", show_value(*at));
}

}  // namespace

Result<ListedModule> read_compressed_tensors(const Json& quantization, Catalog& catalog) {
    const std::string where = "config.json: quantization_config";
    NIBBLE_CHECK(check_section(quantization).within(where));
    NIBBLE_TRY(auto groups, parse_groups(quantization).within(where));
    NIBBLE_TRY(const auto ignore, read_names(quantization, "ignore").within(where));
    NIBBLE_TRY(auto ignored, ModuleTargets::make(ignore).within(where + ": ignore"));
    NIBBLE_TRY(const KvFormat kv, parse_kv(quantization).within(where));

    const auto modules = catalog.quantized_modules();
    for (const std::string& module : modules) {
        NIBBLE_TRY(const auto exception, ignored.match(module).within(where + ": ignore"));
        if (exception < ModuleTargets::by_class)
            return fail("{}: ignore: names {}, which is quantized", where, show_name(module));
        const Group* group = nullptr;
        auto best = ModuleTargets::not_meant;
        for (const Group& g : groups) {
            NIBBLE_TRY(const auto kind, g.targets.match(module).within(where));
            if (kind >= best) continue;
            best = kind;
            group = &g;
        }
        if (!group) return fail("{}: no group's targets mean {}, which is quantized", where, show_name(module));
        const std::string says = fmt::format("{} (format {})", show_name(group->name), group->scheme.format);
        NIBBLE_CHECK(catalog.take_quantized(module, group->scheme.scheme, group->scheme.format, says));
    }
    const std::set<std::string_view> quantized(modules.begin(), modules.end());
    for (const Group& g : groups)
        for (const std::string& name : g.targets.names())
            if (!quantized.contains(name))
                return fail(
                    "{}: {}: target {}: no quantized module has this name, and \"Linear\" is the only class "
                    "known",
                    where, show_name(g.name), show_name(name));
    NIBBLE_CHECK(catalog.take_kv_scales(kv));
    // A module that no group means stays unquantized without being listed.
    const auto asked = [](const std::vector<Group>& all, std::string_view module) -> Result<bool> {
        for (const Group& g : all) {
            NIBBLE_TRY(const auto kind, g.targets.match(module));
            if (kind != ModuleTargets::not_meant) return true;
        }
        return false;
    };
    // Patterns that take too many steps are found here, by the names of the files; below they mean nothing.
    for (const std::string_view module : catalog.modules()) {
        if (quantized.contains(module)) continue;
        NIBBLE_CHECK(ignored.match(module).within(where + ": ignore"));
        NIBBLE_CHECK(asked(groups, module).within(where));
    }
    struct Lists {
        std::vector<Group> groups;
        ModuleTargets ignored;
    };
    const auto lists = std::make_shared<const Lists>(std::move(groups), std::move(ignored));
    return ListedModule([lists, asked](std::string_view module) {
        const auto wanted = asked(lists->groups, module), named = lists->ignored.means(module);
        return (wanted.ok() && !*wanted) || (named.ok() && *named);
    });
}

}  // namespace nibble

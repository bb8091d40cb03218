#include "quant/named_modules.h"

#include <fmt/format.h>

#include <map>

namespace nibble {

Result<std::set<std::string_view>> modules_named(std::string_view text, std::span<const Module> modules) {
    NIBBLE_TRY(const ModulePattern pattern, ModulePattern::make(text));
    std::set<std::string_view> names;
    for (const Module& m : modules) {
        NIBBLE_TRY(const bool matched, pattern.matches(m.name));
        if (matched) names.insert(m.name);
    }
    return names;
}

Result<std::string> take_named_linears(std::span<const std::string> patterns, std::vector<Module>& modules) {
    std::map<std::string, int64_t> kinds;
    for (const std::string& text : patterns) {
        NIBBLE_TRY(const auto names, modules_named(text, modules).within("--linear " + text));
        bool found = false;
        for (Module& m : modules) {
            if (!names.contains(m.name)) continue;
            found |= m.kind == ModuleKind::linear || m.kind == ModuleKind::matrix;
            if (m.kind != ModuleKind::matrix) continue;
            m.kind = ModuleKind::linear;
            m.parent_class = "nn.Linear";
            m.why.clear();
            ++kinds[module_kind_name(m.name)];
        }
        if (!found) return fail("--linear {}: matches no matrix that could be a linear layer", text);
    }
    std::string list;
    for (const auto& [kind, count] : kinds) list += fmt::format("{}'{}' ({})", list.empty() ? "" : ", ", kind, count);
    return list.empty() ? list : fmt::format("--linear makes these matrices linear layers: {}", list);
}

}  // namespace nibble

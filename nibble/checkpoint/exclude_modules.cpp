#include "checkpoint/exclude_modules.h"

#include "checkpoint/modules.h"

#include <algorithm>

namespace nibble {
namespace {

std::string run_time_name(std::string_view name) {
    constexpr std::string_view stored = "backbone.";
    return name.starts_with(stored) ? "model." + std::string(name.substr(stored.size())) : std::string(name);
}

bool any_starts_with(const std::vector<std::string_view>& sorted, std::string_view prefix) {
    const auto at = std::ranges::lower_bound(sorted, prefix);
    return at != sorted.end() && at->starts_with(prefix);
}

}  // namespace

std::vector<std::string> compress_exclude_modules(std::span<const std::string> unquantized,
                                                  std::span<const std::string> quantized) {
    std::vector<std::string_view> sorted(quantized.begin(), quantized.end());
    std::ranges::sort(sorted);
    const auto candidate = [&](const std::string& name) -> std::string {
        for (size_t dot = name.find('.'); dot != std::string::npos; dot = name.find('.', dot + 1)) {
            const std::string p = name.substr(0, dot);
            if (!any_starts_with(sorted, p)) return p + "*";
            if (!std::ranges::binary_search(sorted, p) && !any_starts_with(sorted, p + ".")) return p + ".*";
        }
        return name;
    };
    std::set<std::pair<std::string, std::string>> found;
    for (const std::string& name : unquantized) {
        std::string c = candidate(name);
        std::string key = run_time_name(c);
        found.emplace(std::move(key), std::move(c));
    }
    std::vector<std::string> out;
    for (const auto& [key, pattern] : found) out.push_back(pattern);
    return out;
}

std::vector<std::string> loader_names(std::string_view module) {
    std::vector<std::string> names{std::string(module)};
    const auto add = [&](std::string name) {
        if (std::ranges::find(names, name) == names.end()) names.push_back(std::move(name));
    };
    const size_t dot = module.rfind('.');
    const std::string parent(dot == module.npos ? "" : module.substr(0, dot + 1));
    const std::string_view leaf = dot == module.npos ? module : module.substr(dot + 1);
    for (const FusedGroup& group : fused_group_table())
        if (!group.engine_name.empty() && std::ranges::find(group.members, leaf) != group.members.end())
            add(parent + std::string(group.engine_name));
    if (leaf == "gate") add(parent + "router");
    if (leaf == "router") add(parent + "gate");
    constexpr std::string_view granite = "router.layer";  // engines and Model Optimizer have one module for both parts
    if (module.ends_with("." + std::string(granite))) {
        const std::string block(module.substr(0, module.size() - granite.size()));
        add(block + "router");
        add(block + "gate");
    }
    constexpr std::string_view experts = ".experts.";
    if (const size_t at = module.find(experts); at != module.npos)
        add(std::string(module.substr(0, at + experts.size() - 1)));
    constexpr std::string_view root = "model.";
    constexpr std::pair<std::string_view, std::string_view> roots[]{{"model.language_model.", "language_model.model."},
                                                                    {"language_model.model.", "model.language_model."}};
    for (size_t i = 0, own = names.size(); i < own; ++i) {
        const std::string name = names[i];
        for (const auto& [from, to] : roots)
            if (name.starts_with(from)) add(std::string(to) + name.substr(from.size()));
        add(name.starts_with(root) ? name.substr(root.size()) : std::string(root) + name);
    }
    return names;
}

ModulePatterns::ModulePatterns(std::span<const std::string> patterns) {
    for (const std::string& p : patterns) {
        const size_t first = p.find_first_of("*?[");
        if (first == p.npos)
            exact_.insert(p);
        else if (first + 1 == p.size() && p.back() == '*')
            prefixes_.push_back(p.substr(0, p.size() - 1));
        else
            wildcards_.emplace_back(p);
    }
}

bool ModulePatterns::matches(std::string_view module) const {
    return exact_.contains(module) ||
           std::ranges::any_of(prefixes_, [&](const std::string& p) { return module.starts_with(p); }) ||
           std::ranges::any_of(wildcards_, [&](const NamePattern& p) { return p.matches(module); });
}

bool ModulePatterns::names(std::string_view module) const {
    return std::ranges::any_of(loader_names(module), [&](const std::string& name) { return matches(name); });
}

}  // namespace nibble

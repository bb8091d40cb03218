#include "checkpoint/exclude_modules.h"

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

ModulePatterns::ModulePatterns(std::span<const std::string> patterns) {
    for (const std::string& p : patterns) {
        if (p.ends_with('*'))
            prefixes_.push_back(p.substr(0, p.size() - 1));
        else
            exact_.insert(p);
    }
}

bool ModulePatterns::matches(std::string_view module) const {
    return exact_.contains(module) ||
           std::ranges::any_of(prefixes_, [&](const std::string& p) { return module.starts_with(p); });
}

}  // namespace nibble

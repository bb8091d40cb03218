#include "quant/left_alone.h"

#include <fmt/format.h>

namespace nibble {
namespace {

constexpr size_t most_kinds = 24;  // most kinds in one line

std::string counted(int64_t count, std::string_view one, std::string_view many) {
    return fmt::format("{} {}", count, count == 1 ? one : many);
}

}  // namespace

void LeftAlone::keep(const Module& module, DType dtype) {
    if (module.kind != ModuleKind::conv) dtypes_.insert(dtype);
    ++(module.kind == ModuleKind::conv ? convolutions_ : matrices_)[module_kind_name(module.name)];
}

void LeftAlone::refuse(const Module& module, std::string why, std::string rule) {
    Refused first{std::move(why), std::move(rule)};
    ++refused_.try_emplace(module_kind_name(module.name), std::move(first)).first->second.count;
}

std::vector<std::string> LeftAlone::notes() const {
    std::vector<std::string> lines;
    for (const auto& [kind, count] : convolutions_)
        lines.push_back(fmt::format("{} '{}' {} unquantized, as in Model Optimizer",
                                    counted(count, "convolution", "convolutions"), kind,
                                    count == 1 ? "stays" : "stay"));
    if (matrices_.empty()) return lines;
    std::string names;
    size_t shown = 0;
    for (const auto& [kind, count] : matrices_) {
        if (shown++ == most_kinds) break;
        names += fmt::format("{}'{}' ({})", names.empty() ? "" : ", ", kind, count);
    }
    if (matrices_.size() > most_kinds) names += fmt::format(" and {} more", matrices_.size() - most_kinds);
    const std::string as = dtypes_.size() == 1 ? std::string(dtype_name(*dtypes_.begin())) : "unquantized";
    const auto kinds = matrices_.size();
    lines.push_back(
        kinds == 1
            ? fmt::format("1 kind of matrix is not known as a linear layer and stays {} (--linear quantizes it): {}",
                          as, names)
            : fmt::format("{} kinds of matrices are not known as linear layers and stay {} (--linear quantizes them): "
                          "{}",
                          kinds, as, names));
    return lines;
}

Status LeftAlone::refused() const {
    if (refused_.empty()) return Ok{};
    std::string what, flags;
    size_t shown = 0;
    for (const auto& [kind, found] : refused_) {
        if (shown++ == most_kinds) break;
        what += fmt::format("{}'{}' ({}): {}", what.empty() ? "" : "; ", kind, found.count, found.why);
        flags += fmt::format(" --ignore '{}'", kind);
    }
    if (refused_.size() > most_kinds) what += fmt::format("; and {} more kinds", refused_.size() - most_kinds);
    return fail("{} quantizes what cannot be quantized: {}. To keep it unquantized, add{}",
                refused_.begin()->second.rule, what, flags);
}

}  // namespace nibble

#include "checkpoint/module_pattern.h"

namespace nibble {

constexpr std::string_view regex_mark = "re:";

bool is_regex_pattern(std::string_view text) { return text.starts_with(regex_mark); }

Result<ModulePattern> ModulePattern::make(std::string_view text) {
    ModulePattern pattern(text);
    if (is_regex_pattern(text)) {
        NIBBLE_TRY(pattern.regex_, PythonRegex::compile(text.substr(regex_mark.size())));
    }
    return pattern;
}

Result<bool> ModulePattern::matches(std::string_view module) const {
    return regex_ ? regex_->match(module) : Result<bool>(names_.matches(module));
}

}  // namespace nibble

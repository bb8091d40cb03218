#include "cli/rl_from_nemo.h"

#include "checkpoint/output_place.h"
#include "io/atomic_file.h"
#include "rl/nemo_config.h"

#include <fmt/format.h>

#include <cstdio>

namespace nibble {

Result<Outcome> run_from_nemo(const std::string& recipe, const std::string& output) {
    if (!output.empty() && std::filesystem::exists(std::filesystem::symlink_status(output)))
        return fail("{}: exists already; choose another output", output);
    if (!output.empty()) NIBBLE_CHECK(check_output_file(output));
    NIBBLE_TRY(const NemoTranslation translation, translate_nemo_recipe(recipe));
    if (output.empty())
        fmt::print("{}", translation.yaml);
    else
        NIBBLE_CHECK(write_file_atomically(output, translation.yaml));
    for (const std::string& line : translation.dropped) fmt::print(stderr, "not mapped: {}\n", line);
    for (const std::string& line : translation.defaults) fmt::print(stderr, "default: {}\n", line);
    return Outcome{};
}

}  // namespace nibble

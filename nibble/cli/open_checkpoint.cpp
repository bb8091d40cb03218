#include "cli/open_checkpoint.h"

#include "base/utf8.h"
#include "cli/terminal.h"

namespace nibble {

Result<std::unique_ptr<Checkpoint>> open_checkpoint(const std::filesystem::path& path, bool quiet,
                                                    ScaleReading scales) {
    NIBBLE_TRY(auto checkpoint, Checkpoint::open(path, scales));
    if (quiet) return checkpoint;
    for (const std::string& note : checkpoint->notes())
        say(fmt::format("nibble: {}: {}", printable(path.string()), printable(note)));
    return checkpoint;
}

}  // namespace nibble

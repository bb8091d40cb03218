#include "cli/open_checkpoint.h"

#include "cli/terminal.h"

namespace nibble {

Result<std::unique_ptr<Checkpoint>> open_checkpoint(const std::filesystem::path& path, ScaleReading scales) {
    NIBBLE_TRY(auto checkpoint, Checkpoint::open(path, scales));
    for (const std::string& note : checkpoint->notes()) say(fmt::format("nibble: {}: {}", path.string(), note));
    return checkpoint;
}

}  // namespace nibble

#include "jobs/open_checkpoint.h"

namespace nibble {

Result<std::unique_ptr<Checkpoint>> open_checkpoint(const std::filesystem::path& path, const JobHooks& hooks,
                                                    ScaleReading scales) {
    NIBBLE_TRY(auto checkpoint, Checkpoint::open(path, scales));
    for (const std::string& note : checkpoint->notes()) hooks.emit_note(fmt::format("{}: {}", path.string(), note));
    return checkpoint;
}

std::string quantized_text(const Checkpoint& checkpoint) {
    int64_t quantized = 0;
    std::string_view type;
    for (const CheckpointTensor& t : checkpoint.tensors()) {
        const auto stored = dtype_from_name(t.stored_type);
        if (!t.quantized() && (checkpoint.dialect() != Dialect::gguf || (stored && is_plain_float(*stored)))) continue;
        if (quantized++ == 0) type = t.stored_type;
    }
    if (quantized == 0) return {};
    return fmt::format("is quantized already ({} tensors, the first in {})", quantized, type);
}

}  // namespace nibble

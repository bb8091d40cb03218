#include "jobs/open_checkpoint.h"

#include "checkpoint/side_files.h"
#include "model/missing_weights.h"

namespace nibble {

Result<std::unique_ptr<Checkpoint>> open_checkpoint(const std::filesystem::path& path, const JobHooks& hooks,
                                                    ScaleReading scales, StackReading stacks) {
    NIBBLE_TRY(auto checkpoint, Checkpoint::open(path, scales, stacks));
    for (const std::string& note : checkpoint->notes()) hooks.emit_note(fmt::format("{}: {}", path.string(), note));
    return checkpoint;
}

Status check_weights_present(const Checkpoint& checkpoint, bool partial, const JobHooks& hooks) {
    const std::string missing = find_missing_weights(checkpoint).text();
    if (missing.empty()) return Ok{};
    const std::string line = fmt::format("{}: {}", checkpoint.path().string(), missing);
    if (!partial)
        return fail(ErrorKind::checkpoint,
                    "{}; get the files that hold them (model.safetensors.index.json lists the files of a model), or "
                    "pass --partial to work on the weights that are there",
                    line);
    hooks.emit_note(line);
    return Ok{};
}

void note_outside_links(const Checkpoint& checkpoint, std::span<const Checkpoint::SideFile> files,
                        const JobHooks& hooks) {
    const std::string note = outside_links_note(checkpoint.path(), files);
    if (!note.empty()) hooks.emit_note(fmt::format("{}: {}", checkpoint.path().string(), note));
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

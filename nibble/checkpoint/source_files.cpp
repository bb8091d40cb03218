#include "checkpoint/source_files.h"

#include "base/map_faults.h"
#include "io/file_fingerprint.h"

#include <algorithm>
#include <set>

namespace nibble {

namespace fs = std::filesystem;

Result<JobIdentity> source_files(const Checkpoint& source) {
    std::set<std::string> names;
    for (const CheckpointTensor& tensor : source.tensors())
        if (!tensor.file.empty()) names.insert(tensor.file);  // else it lies in memory
    JobIdentity files;
    std::error_code ignored;
    // A GGUF file may have its other parts beside it.
    const fs::path folder = fs::is_directory(source.path(), ignored) ? source.path() : source.path().parent_path();
    for (const std::string& name : names) {
        NIBBLE_TRY(std::string fingerprint, file_fingerprint(folder / name));
        files.emplace_back("source file " + name, std::move(fingerprint));
    }
    return files;
}

Status check_source_unchanged(const Checkpoint& source, const JobIdentity& before) {
    NIBBLE_CHECK(check_maps());
    NIBBLE_TRY(const JobIdentity now, source_files(source));
    for (const auto& fact : now)
        if (std::ranges::find(before, fact) == before.end())
            return fail("{}: {} changed while it was read; what was made of it is worthless: remove it and start over",
                        source.path().string(), fact.first);
    return Ok{};
}

}  // namespace nibble

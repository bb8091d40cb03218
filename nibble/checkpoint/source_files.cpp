#include "checkpoint/source_files.h"

#include "base/map_faults.h"
#include "base/mapped_file.h"
#include "io/file_fingerprint.h"

#include <algorithm>
#include <map>

namespace nibble {

namespace fs = std::filesystem;

namespace {

// Returns paths by name; tensors in memory have no file.
std::map<std::string, fs::path> files_of(const Checkpoint& source) {
    std::error_code ignored;
    // A split GGUF file has its other parts in the same folder.
    const fs::path folder = fs::is_directory(source.path(), ignored) ? source.path() : source.path().parent_path();
    std::map<std::string, fs::path> files;
    for (const CheckpointTensor& tensor : source.tensors())
        if (!tensor.file.empty()) files.emplace(tensor.file, folder / tensor.file);
    return files;
}

}  // namespace

Result<JobIdentity> source_files(const Checkpoint& source) {
    JobIdentity files;
    for (const auto& [name, path] : files_of(source)) {
        NIBBLE_TRY(std::string fingerprint, file_fingerprint(path));
        files.emplace_back("source file " + name, std::move(fingerprint));
    }
    return files;
}

Result<std::string> source_hash(const Checkpoint& source) {
    std::string hashes;
    for (const auto& [name, path] : files_of(source)) {
        NIBBLE_TRY(const MappedFile file, MappedFile::open(path));
        hashes +=
            name + " " + hash_text({reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()}) + "\n";
    }
    NIBBLE_CHECK(check_maps());
    return hash_text(hashes);
}

Status check_source_unchanged(const Checkpoint& source, const JobIdentity& before) {
    NIBBLE_CHECK(check_maps());
    NIBBLE_TRY(const JobIdentity now, source_files(source));
    for (const auto& fact : now)
        if (std::ranges::find(before, fact) == before.end())
            return fail(ErrorKind::file,
                        "{}: {} changed while it was read, so the output is invalid: remove the output and start over",
                        source.path().string(), fact.first);
    return Ok{};
}

}  // namespace nibble

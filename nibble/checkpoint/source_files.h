// Detects changes to the files from which a job reads its weights.
#pragma once

#include "checkpoint/checkpoint.h"
#include "io/journal.h"

namespace nibble {

// Returns "source file NAME" and the fingerprint (io/file_fingerprint.h) of every file with weights. Error: a file
// cannot be read.
Result<JobIdentity> source_files(const Checkpoint& source);
// Returns a hash of the bytes of all these files, independent of paths and times. Reads the files completely.
Result<std::string> source_hash(const Checkpoint& source);

// Error: a file differs from its fingerprint in `before` (source_files() at the start of the job), or became shorter
// while it was read.
Status check_source_unchanged(const Checkpoint& source, const JobIdentity& before);

}  // namespace nibble

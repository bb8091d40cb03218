// The files that a job reads its weights from, and whether they are still what they were.
#pragma once

#include "checkpoint/checkpoint.h"
#include "io/journal.h"

namespace nibble {

// "source file NAME" and its fingerprint (io/file_fingerprint.h), for every file with weights.
Result<JobIdentity> source_files(const Checkpoint& source);
// Hash of the bytes of all these files, wherever they lie and whenever they were written. Reads them whole.
Result<std::string> source_hash(const Checkpoint& source);

// Error: one of `before`, of source_files() when the job began, is another file now, or became shorter while it was
// read.
Status check_source_unchanged(const Checkpoint& source, const JobIdentity& before);

}  // namespace nibble

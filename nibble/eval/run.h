// Runs tasks on a subject, item by item, with progress and a journal.
#pragma once

#include "base/progress.h"
#include "eval/task.h"
#include "io/journal.h"

#include <memory>

namespace nibble {

// Runs the tasks on a subject and returns their results. `journal` (may be nullptr) provides results of an earlier run
// and records new ones; `subject_number` and `first_task`, the number of tasks[0], identify items in it. Errors: those
// of a task; "stopped on request", which states what is kept.
Result<std::vector<TaskResult>> run_tasks(const Subject& subject, int64_t subject_number,
                                          std::span<const std::unique_ptr<Task>> tasks, int64_t first_task,
                                          Journal* journal, const JobHooks& hooks);

}  // namespace nibble

// Runs tasks on a subject, item by item, with progress and a journal.
#pragma once

#include "base/progress.h"
#include "eval/task.h"
#include "io/journal.h"

#include <memory>

namespace nibble {

// Results of a subject's tasks. `journal` (may be nullptr) is asked for what an earlier run finished and told what this
// one did; `subject_number` and `first_task`, the number of tasks[0], tell items apart in it. Errors: a task's own;
// "stopped on request", with what is kept.
Result<std::vector<TaskResult>> run_tasks(const Subject& subject, int64_t subject_number,
                                          std::span<const std::unique_ptr<Task>> tasks, int64_t first_task,
                                          Journal* journal, const JobHooks& hooks);

}  // namespace nibble

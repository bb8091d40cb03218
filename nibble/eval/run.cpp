#include "eval/run.h"

#include <fmt/format.h>

namespace nibble {
namespace {

// Returns the journal's unit number for a subject, task and item.
int64_t unit(int64_t subject, int64_t task, int64_t item) { return (subject << 48) + (task << 40) + item; }

}  // namespace

Result<std::vector<TaskResult>> run_tasks(const Subject& subject, int64_t subject_number,
                                          std::span<const std::unique_ptr<Task>> tasks, int64_t first_task,
                                          Journal* journal, const JobHooks& hooks) {
    std::vector<TaskResult> results;
    for (size_t t = 0; t < tasks.size(); ++t) {
        Task& task = *tasks[t];
        const int64_t number = first_task + static_cast<int64_t>(t);
        NIBBLE_CHECK(task.prepare(subject).within(subject.name));
        const int64_t items = task.items();
        std::vector<Json> found(static_cast<size_t>(items));
        const std::string phase = fmt::format("{} {}", subject.name, task.name());
        for (int64_t item = 0; item < items;) {
            if (hooks.should_stop())
                return fail(ErrorKind::cancelled, "stopped on request after {} of {} items of {}{}", item, items,
                            task.name(), journal ? "; the same command continues" : "");
            if (auto kept = journal ? journal->finished(unit(subject_number, number, item)) : std::nullopt) {
                found[static_cast<size_t>(item++)] = std::move(*kept);
                continue;
            }
            int64_t end = item + 1;
            while (end < std::min(items, item + task.batch()) &&
                   !(journal && journal->holds(unit(subject_number, number, end))))
                ++end;
            NIBBLE_TRY(std::vector<Json> batch, task.run(subject, item, end).within(subject.name));
            for (Json& json : batch) {
                if (journal) NIBBLE_CHECK(journal->append(unit(subject_number, number, item), json));
                found[static_cast<size_t>(item++)] = std::move(json);
            }
            if (hooks.progress) hooks.progress({phase, {}, item, items, "items"});
        }
        NIBBLE_TRY(TaskResult result, task.summarize(found).within(subject.name));
        results.push_back(std::move(result));
    }
    return results;
}

}  // namespace nibble

// The folder of a run:
//   train.jsonl     the log (run/log.h)
//   report.html     the page of RunView, updated while the run continues
//   events/         TensorBoard event files
//   checkpoints/    states for resuming (run/checkpoints.h)
//   model/          the trained model, written by the caller at the end
// Only one process may use a folder. If a file cannot be written (a full disk), `warn` reports it and training
// continues; the last good checkpoint stays.
#pragma once

#include "checkpoint/work_folder.h"
#include "data/batch_source.h"
#include "run/checkpoints.h"
#include "run/event_file.h"
#include "run/history.h"
#include "run/log.h"

#include <chrono>
#include <functional>

namespace nibble {

// Presents the log of a folder.
struct RunView {
    // Fields of a step's line with their TensorBoard tags. Missing fields are left out.
    std::vector<std::pair<std::string, std::string>> scalars;
    // Renders the page (HTML) from the folder's files. `reload_seconds`: argument of document() (page/html.h).
    std::function<Result<std::string>(const std::filesystem::path& folder, int reload_seconds)> page;
};
RunView train_view();

struct RunFolderOptions {
    std::filesystem::path folder;
    bool resume = false;  // false: the folder must not contain a run
    int64_t steps = 0;    // steps of the run; 0: unknown, so any number of completed steps is accepted
    RunIdentity identity;
    // starts from this checkpoint, or the newest of this run's folder, if `folder` has no checkpoint yet
    std::filesystem::path fork;
    // Advice to the user if the folder's checkpoint belongs to another run; appended to that error.
    std::string another_run;
    Json about = Json::object();  // in the log's first line; pages use "name" and "group"
    TrainSaving saving;
    RunView view = train_view();
    double page_seconds = 10;  // minimum time between updates of the page
    std::function<void(std::string_view)> warn;
};

class RunFolder {
public:
    // Creates the folder, or resumes: reads the newest checkpoint into trainer and data. Without a checkpoint the run
    // starts again. Errors: a folder with a run (without `resume`); another process uses the folder; a damaged
    // checkpoint or one of another run; no checkpoint but the log of another run.
    static Result<std::unique_ptr<RunFolder>> open(const RunFolderOptions& options, TrainEngine& trainer,
                                                   BatchSource& data);

    // Checks that `result`, a folder in `folder`, can be written at the end and that there is room for `bytes_needed`
    // in total. resume: a finished run with checkpoints continues, and its result is replaced at the end. Errors: the
    // result exists (`next_step`: advice to the user); another process writes it; the location is not writable.
    static Status check_result(const std::filesystem::path& folder, const std::filesystem::path& result, bool resume,
                               int64_t bytes_needed, std::string_view next_step);
    // The same for `codes`, the folder of a run's quantized export, which is written at the end, before the model. If
    // `folder` contains an unfinished run, `codes` may be left from a killed process; open() decides whether the run
    // continues.
    static Status check_codes(const std::filesystem::path& folder, const std::filesystem::path& codes, bool resume);
    // Call it before a model or codes are written. If the run continues, it removes the result of an earlier process.
    // Otherwise it removes nothing.
    static Status clear_export(const std::filesystem::path& out, bool resumed);
    // Returns true if `result` (folder of a model or an adapter) is the complete result of a run.
    static bool has_result(const std::filesystem::path& result);

    // Returns the steps completed by the checkpoint, or by the run that it was forked from.
    int64_t first_step() const { return first_step_; }
    // Returns the file with that state, for the other ranks; empty: the run starts without a checkpoint.
    const std::filesystem::path& began_with() const { return began_with_; }
    bool forked() const { return forked_; }  // that file belongs to another run
    bool saves() const { return options_.saving.keep > 0; }

    // Returns the log's line of step first_step() - 1 if the log has it and it lacks `key`: a stopped run still has to
    // add it with amend().
    std::optional<Json> line_without(std::string_view key) const;
    void amend(const Json& line);
    // Call it after a step: logs it, and saves a checkpoint when one is due. `line`: at least the fields that
    // run/history.h reads.
    void after_step(const Json& line, TrainEngine& trainer, BatchSource& data);
    // Writes a file next to the log, before the step's checkpoint, completely or not at all. A failure is reported by
    // `warn`.
    void write_file(std::string_view name, std::string_view content);
    // Call it after the last of `steps` steps, or before a stop: saves unless this state is saved, and waits. Error:
    // the state cannot be written.
    Status finish(int64_t steps, TrainEngine& trainer, BatchSource& data);

private:
    explicit RunFolder(RunFolderOptions options) : options_(std::move(options)) {}
    Status restore(TrainEngine& trainer, BatchSource& data);
    Status check_log() const;
    Status fork(TrainEngine& trainer, BatchSource& data);
    Status open_files();
    void warn(const Error& error);
    void note(const Json& line);
    void save(int64_t steps, TrainEngine& trainer, BatchSource& data);
    Status write_page(int reload_seconds) const;

    RunFolderOptions options_;
    WorkFolder::Lock lock_;
    std::unique_ptr<RunCheckpoints> checkpoints_;
    std::optional<RunLog> log_;
    std::optional<EventFile> events_;
    std::filesystem::path began_with_;
    bool forked_ = false;
    std::optional<Json> last_line_;  // last line of the resumed log
    int64_t first_step_ = 0, saved_ = -1, last_step_ = 0;
    std::string warned_;  // last warning
    std::chrono::steady_clock::time_point page_written_;
};

}  // namespace nibble

// The folder of a run:
//   train.jsonl     the log (run/log.h)
//   report.html     what RunView draws; written anew while it goes on
//   events/         TensorBoard's event files
//   checkpoints/    states to go on from (run/checkpoints.h)
//   model/          the trained model, at the end; whoever opened the folder writes it
// One process at a time. What cannot be written (a full disk) is told by `warn` and training goes on; the last good
// checkpoint stays.
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

// What a folder shows of its log.
struct RunView {
    // Fields of a step's line and their tags in TensorBoard; a field that a line lacks is left out.
    std::vector<std::pair<std::string, std::string>> scalars;
    // The page (HTML), from the folder's files. `reload_seconds`: document()'s (page/html.h).
    std::function<Result<std::string>(const std::filesystem::path& folder, int reload_seconds)> page;
};
RunView train_view();

struct RunFolderOptions {
    std::filesystem::path folder;
    bool resume = false;  // false: the folder must not hold a run
    int64_t steps = 0;    // that the run makes; 0: not known, and no number of made steps is too many
    RunIdentity identity;
    std::filesystem::path fork;  // a checkpoint, or another run's folder: its newest; where this one has none yet
    // What the user can do where the folder's checkpoint is of another run; ends that error.
    std::string another_run;
    Json about = Json::object();  // of the log's first line; "name" and "group" for pages
    TrainSaving saving;
    RunView view = train_view();
    double page_seconds = 10;  // at most so often while it goes on
    std::function<void(std::string_view)> warn;
};

class RunFolder {
public:
    // Makes the folder, or goes on: the newest checkpoint is read into trainer and data; none, and the run begins anew.
    // Errors: a folder that holds a run already, another process in it, a checkpoint that is damaged or of another run,
    // no checkpoint and the log of another run.
    static Result<std::unique_ptr<RunFolder>> open(const RunFolderOptions& options, TrainEngine& trainer,
                                                   BatchSource& data);

    // Whether `result`, a folder in `folder`, can be written at the end, with room for `bytes_needed` in all. resume: a
    // finished run with checkpoints goes on, and its result is replaced at the end. Errors: it is there already
    // (`next_step`: what the user can do then); another process writes it; a place that cannot be written.
    static Status check_result(const std::filesystem::path& folder, const std::filesystem::path& result, bool resume,
                               int64_t bytes_needed, std::string_view next_step);
    // The same of `codes`, the folder of a run's quantized export, which is written at the end, before the model. Where
    // `folder` holds an unfinished run, `codes` may be what a killed process left: open() says whether the run goes on.
    static Status check_codes(const std::filesystem::path& folder, const std::filesystem::path& codes, bool resume);
    // Before a model or codes are written: what an earlier process wrote there is removed if the run goes on, and
    // nothing else ever is.
    static Status clear_export(const std::filesystem::path& out, bool resumed);
    // Whether `result` (a model's folder, or an adapter's) is what a run left at its end.
    static bool has_result(const std::filesystem::path& result);

    // Steps that the checkpoint, or the run it was forked from, had made.
    int64_t first_step() const { return first_step_; }
    // The file with that state, for the other ranks; empty: from the start.
    const std::filesystem::path& began_with() const { return began_with_; }
    bool forked() const { return forked_; }  // that file is another run's
    bool saves() const { return options_.saving.keep > 0; }

    // The line of the step before first_step(), where the log has it and it lacks `key`: a run that was stopped then
    // owes it, and adds it by amend().
    std::optional<Json> line_without(std::string_view key) const;
    void amend(const Json& line);
    // After a step: notes it, saves where it is due. `line`: at least what run_history.h reads.
    void after_step(const Json& line, TrainEngine& trainer, BatchSource& data);
    // Beside the log, before the step's checkpoint: written whole or not at all; that it could not be is told by
    // `warn`.
    void write_beside(std::string_view name, std::string_view content);
    // Behind `steps` steps, the last one or the one before a stop: saves unless that is done, and waits. Error: the
    // state could not be written.
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
    std::optional<Json> last_line_;  // of the log that is continued
    int64_t first_step_ = 0, saved_ = -1, last_step_ = 0;
    std::string warned_;  // last
    std::chrono::steady_clock::time_point page_written_;
};

}  // namespace nibble

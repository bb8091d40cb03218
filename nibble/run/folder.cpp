#include "run/folder.h"

#include "checkpoint/output_place.h"
#include "io/atomic_file.h"
#include "io/journal.h"

#include <algorithm>
#include <cmath>
#include <system_error>

namespace nibble {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view page_name = "report.html", checkpoints_name = "checkpoints", events_name = "events";

double seconds_since_1970() {
    return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

std::optional<double> number_of(const Json& line, std::string_view key) {
    const auto found = line.find(key);
    if (found == line.end() || !found->is_number()) return {};
    return found->get<double>();
}

std::vector<EventScalar> scalars_of(const Json& line, const RunView& view) {
    std::vector<EventScalar> scalars;
    for (const auto& [key, tag] : view.scalars)
        if (const auto value = number_of(line, key)) scalars.push_back({tag, static_cast<float>(*value)});
    return scalars;
}

}  // namespace

RunView train_view() {
    return {.scalars = {{"loss", "train/loss"},
                        {"gradient_norm", "train/gradient_norm"},
                        {"learning_rate", "train/learning_rate"},
                        {"tokens_per_second", "train/tokens_per_second"},
                        {"validation", "validation/loss"}},
            .page = [](const fs::path& folder, int reload_seconds) -> Result<std::string> {
                NIBBLE_TRY(const RunHistory history, read_run_history(folder));
                return run_page({history}, reload_seconds);
            }};
}

Result<std::unique_ptr<RunFolder>> RunFolder::open(const RunFolderOptions& options, TrainEngine& trainer,
                                                   BatchSource& data) {
    std::error_code error;
    fs::create_directories(options.folder, error);
    if (error) return fail("{}: cannot create: {}", options.folder.string(), error.message());
    std::unique_ptr<RunFolder> run(new RunFolder(options));
    NIBBLE_TRY(run->lock_, WorkFolder::Lock::take(options.folder));
    if (!options.resume && fs::exists(options.folder / run_log_name, error))
        return fail("{}: already has a run; resume it with --resume, remove it or choose another output",
                    options.folder.string());
    NIBBLE_TRY(run->checkpoints_, RunCheckpoints::open(options.folder / checkpoints_name, options.saving));
    NIBBLE_CHECK(run->restore(trainer, data));
    NIBBLE_CHECK(run->open_files());
    return run;
}

// The configuration is written last, or the complete folder is renamed last; so its existence shows a complete result.
bool RunFolder::has_result(const fs::path& result) {
    std::error_code ignored;
    return fs::exists(result / "config.json", ignored) || fs::exists(result / "adapter_config.json", ignored);
}

Status RunFolder::check_result(const fs::path& folder, const fs::path& result, bool resume, int64_t bytes_needed,
                               std::string_view next_step) {
    NIBBLE_CHECK(check_output_folder(folder, bytes_needed));
    std::error_code ignored;
    const bool run = fs::exists(folder / run_log_name, ignored);
    if (run && has_result(result)) {
        NIBBLE_CHECK(WorkFolder::Lock::take(folder));
        // Removes the lock of a process that was killed after it had published the result.
        static_cast<void>(WorkFolder::check(result, ExportMode::create, 0).ok());
        if (!resume) return fail("{}: has a finished run; {}", folder.string(), next_step);
        NIBBLE_TRY(const auto checkpoints, list_checkpoints(folder / checkpoints_name));
        if (!checkpoints.empty()) return Ok{};
        return fail("{}: has a finished run without a checkpoint; choose another output", folder.string());
    }
    const bool begun_adapter = run && fs::exists(result / "adapter_model.safetensors", ignored);
    return begun_adapter ? Status(Ok{}) : WorkFolder::check(result, ExportMode::create, 0);
}

Status RunFolder::check_codes(const fs::path& folder, const fs::path& codes, bool resume) {
    if (fs::exists(folder / run_log_name) && (resume || !has_result(folder / "model"))) return Ok{};
    return WorkFolder::check(codes, ExportMode::create, 0);
}

// The old folder is renamed first, so that a killed process leaves it complete or not at all under its name.
Status RunFolder::clear_export(const fs::path& out, bool resumed) {
    if (!resumed) return Ok{};
    fs::path replaced = out;
    replaced += ".replaced";
    std::error_code failed;
    fs::remove_all(replaced, failed);
    if (!failed && fs::exists(out)) fs::rename(out, replaced, failed);
    if (!failed) fs::remove_all(replaced, failed);
    if (failed) return fail("{}: {}", out.string(), failed.message());
    return Ok{};
}

Status RunFolder::restore(TrainEngine& trainer, BatchSource& data) {
    NIBBLE_TRY(const auto found, list_checkpoints(checkpoints_->folder()));
    if (found.empty()) {
        NIBBLE_CHECK(check_log());
        return fork(trainer, data);
    }
    const fs::path& file = found.back().file;
    NIBBLE_TRY(const RunPlace place, read_state(file, options_.identity, trainer, options_.another_run));
    NIBBLE_CHECK(data.set_place(place.source).within(file.string()));
    if (options_.steps > 0 && place.step > options_.steps)
        return fail("{}: has already completed {} steps, but this run has {}; give more steps",
                    options_.folder.string(), place.step, options_.steps);
    first_step_ = saved_ = place.step;
    began_with_ = file;
    return checkpoints_->remove_old();  // a killed process may not have done this
}

// Without a checkpoint a run and its log start again, but not over the log of another run.
Status RunFolder::check_log() const {
    const fs::path file = options_.folder / run_log_name;
    std::error_code ignored;
    if (!fs::exists(file, ignored)) return Ok{};
    NIBBLE_TRY(const auto lines, read_run_log(file));
    if (lines.size() < 2 || !lines[0].contains("run") || !lines[0]["run"].contains("identity")) return Ok{};
    if (lines[0]["run"]["identity"] == hash_text(options_.identity.text)) return Ok{};
    return fail(
        "{}: has {} lines of a run with another config or data, and no checkpoint of it; remove it or choose another "
        "output",
        options_.folder.string(), lines.size() - 1);
}

Status RunFolder::fork(TrainEngine& trainer, BatchSource& data) {
    if (options_.fork.empty()) return Ok{};
    fs::path file = options_.fork;
    std::error_code ignored;
    if (fs::is_directory(file, ignored)) {
        NIBBLE_TRY(const auto found, list_checkpoints(file / checkpoints_name));
        if (found.empty()) return fail("fork: {}: has no checkpoint", (file / checkpoints_name).string());
        file = found.back().file;
    }
    NIBBLE_TRY(const RunPlace place, read_fork(file, trainer).within("fork"));
    if (options_.steps > 0 && place.step >= options_.steps)
        return fail("fork: {}: has already completed {} steps, but this run has {}; give more steps", file.string(),
                    place.step, options_.steps);
    NIBBLE_CHECK(data.set_place(place.source).within("fork: " + file.string()));
    first_step_ = place.step;
    began_with_ = file;
    forked_ = true;
    return Ok{};
}

Status RunFolder::open_files() {
    Json about = options_.about;
    about["resumed_at"] = first_step_;
    about["identity"] = hash_text(options_.identity.text);
    NIBBLE_TRY(RunLog log, RunLog::resume(options_.folder / run_log_name, {{"run", about}}, first_step_ - 1));
    log_.emplace(std::move(log));
    NIBBLE_TRY(const auto lines, read_run_log(options_.folder / run_log_name));
    if (const auto step = number_of(lines.back(), "step"); step && *step == static_cast<double>(first_step_ - 1))
        last_line_ = lines.back();
    // Each process writes a file of its own; TensorBoard shows the files of a folder as one run.
    NIBBLE_TRY(EventFile events, EventFile::create(options_.folder / events_name, fmt::format("{:08}", first_step_),
                                                   seconds_since_1970()));
    events_.emplace(std::move(events));
    return Ok{};
}

void RunFolder::warn(const Error& error) {
    if (error.message() == warned_) return;  // a full disk would repeat the message at every step
    warned_ = error.message();
    if (options_.warn) options_.warn(error.message());
    // Writing the log may be what failed, so errors are ignored here.
    static_cast<void>(log_->add({{"step", last_step_}, {"warning", error.message()}}).ok());
}

void RunFolder::note(const Json& line) {
    if (const Status done = log_->add(line); !done.ok()) warn(done.error());
    const std::vector<EventScalar> scalars = scalars_of(line, options_.view);
    const Status done = events_->add(seconds_since_1970(), last_step_, scalars);
    if (!done.ok()) warn(done.error());
}

std::optional<Json> RunFolder::line_without(std::string_view key) const {
    return last_line_ && !last_line_->contains(key) ? last_line_ : std::nullopt;
}

void RunFolder::amend(const Json& line) {
    last_step_ = first_step_ - 1;
    if (const Status done = log_->replace_last(line); !done.ok()) return warn(done.error());
    const std::vector<EventScalar> scalars = scalars_of(line, options_.view);
    if (const Status done = events_->add(seconds_since_1970(), last_step_, scalars); !done.ok()) warn(done.error());
}

void RunFolder::save(int64_t steps, TrainEngine& trainer, BatchSource& data) {
    if (options_.saving.keep == 0) return;
    if (const Status before = checkpoints_->wait(); !before.ok()) warn(before.error());
    checkpoints_->save(trainer, {.step = steps, .source = data.place(), .identity = options_.identity.text});
    saved_ = steps;
}

void RunFolder::after_step(const Json& line, TrainEngine& trainer, BatchSource& data) {
    last_step_ = static_cast<int64_t>(number_of(line, "step").value_or(0));
    note(line);
    if (const Status saved = checkpoints_->look(); !saved.ok()) warn(saved.error());
    const int64_t every = options_.saving.every, steps = last_step_ + 1;
    if (every > 0 && steps % every == 0) save(steps, trainer, data);
    const auto now = std::chrono::steady_clock::now();
    if (std::chrono::duration<double>(now - page_written_).count() < options_.page_seconds) return;
    // The page reloads as often as it is written, but at most every 10 seconds so that it can be read.
    const int reload = std::max(10, static_cast<int>(std::ceil(options_.page_seconds)));
    if (const Status page = write_page(reload); !page.ok()) warn(page.error());
    page_written_ = now;
}

Status RunFolder::finish(int64_t steps, TrainEngine& trainer, BatchSource& data) {
    if (saved_ == steps) {
        // The last save() was of this state and may have failed; then it is repeated.
        const Status before = checkpoints_->wait();
        if (!before.ok()) {
            warn(before.error());
            saved_ = -1;
        }
    }
    if (saved_ != steps) save(steps, trainer, data);
    NIBBLE_CHECK(checkpoints_->wait());
    if (const Status page = write_page(0); !page.ok()) warn(page.error());
    return Ok{};
}

void RunFolder::write_file(std::string_view name, std::string_view content) {
    const Status done = write_file_atomically(options_.folder / name, content);
    if (!done.ok()) warn(done.error());
}

Status RunFolder::write_page(int reload_seconds) const {
    NIBBLE_TRY(const std::string page, options_.view.page(options_.folder, reload_seconds));
    return write_file_atomically(options_.folder / page_name, page);
}

}  // namespace nibble

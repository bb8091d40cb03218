#include "run/checkpoints.h"

#include <algorithm>
#include <charconv>
#include <system_error>

namespace nibble {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view checkpoint_prefix = "step_", checkpoint_ending = ".safetensors";
constexpr std::string_view partial_ending = ".safetensors.partial";

std::optional<int64_t> step_of(std::string_view name) {
    if (!name.starts_with(checkpoint_prefix) || !name.ends_with(checkpoint_ending)) return {};
    name.remove_prefix(checkpoint_prefix.size());
    name.remove_suffix(checkpoint_ending.size());
    int64_t step = 0;
    const auto end = std::from_chars(name.data(), name.data() + name.size(), step);
    if (end.ec != std::errc() || end.ptr != name.data() + name.size() || step < 0) return {};
    return step;
}

}  // namespace

Result<std::vector<RunCheckpoint>> list_checkpoints(const fs::path& folder) {
    std::vector<RunCheckpoint> found;
    std::error_code error;
    if (!fs::exists(folder, error)) return found;
    for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error))
        if (const auto step = step_of(it->path().filename().string())) found.push_back({*step, it->path()});
    if (error) return fail("{}: cannot list: {}", folder.string(), error.message());
    std::ranges::sort(found, {}, &RunCheckpoint::step);
    return found;
}

Result<std::unique_ptr<RunCheckpoints>> RunCheckpoints::open(const fs::path& folder, const TrainSaving& saving) {
    if (saving.keep < 0) return fail("saving.keep: {}: must be at least 0", saving.keep);
    std::error_code error;
    fs::create_directories(folder, error);
    if (error) return fail("{}: cannot create: {}", folder.string(), error.message());
    std::vector<fs::path> abandoned;
    for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error))
        if (it->path().filename().string().ends_with(partial_ending)) abandoned.push_back(it->path());
    for (const fs::path& file : abandoned) fs::remove(file, error);
    return std::unique_ptr<RunCheckpoints>(new RunCheckpoints(folder, saving));
}

RunCheckpoints::~RunCheckpoints() {
    if (thread_.joinable()) thread_.join();
}

Status RunCheckpoints::remove_old() const {
    NIBBLE_TRY(const auto all, list_checkpoints(folder_));
    for (size_t i = 0; i + static_cast<size_t>(saving_.keep) < all.size(); ++i) {
        if (saving_.keep_every > 0 && all[i].step % saving_.keep_every == 0) continue;
        std::error_code error;
        fs::remove(all[i].file, error);
        if (error) return fail("{}: cannot remove: {}", all[i].file.string(), error.message());
    }
    return Ok{};
}

Status RunCheckpoints::write(const RunState& state) const {
    const std::string name = fmt::format("{}{:08}{}", checkpoint_prefix, state.place.step, checkpoint_ending);
    NIBBLE_CHECK(write_state(folder_ / name, state));
    return remove_old();
}

void RunCheckpoints::save(TrainEngine& trainer, RunPlace place) {
    if (thread_.joinable()) thread_.join();
    failure_.reset();
    auto copied = copy_state(trainer, std::move(place));
    if (!copied.ok()) {
        failure_ = std::move(copied).error();
        return;
    }
    written_ = false;
    thread_ = std::thread([this, state = *std::move(copied)] {
        if (Status done = write(state); !done.ok()) failure_ = std::move(done).error();
        written_ = true;
    });
}

Status RunCheckpoints::look() { return written_ ? wait() : Status(Ok{}); }

Status RunCheckpoints::wait() {
    if (thread_.joinable()) thread_.join();
    if (!failure_) return Ok{};
    Error failure = *std::move(failure_);
    failure_.reset();
    return failure;
}

}  // namespace nibble

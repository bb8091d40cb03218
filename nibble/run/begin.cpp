#include "run/begin.h"

#include "parallel/rank_group.h"

namespace nibble {
namespace {

Result<std::string> share_text(RankGroup& ranks, const std::string& text) {
    const auto* bytes = reinterpret_cast<const std::byte*>(text.data());
    NIBBLE_TRY(const RankBytes shared, ranks.share({bytes, bytes + text.size()}));
    return std::string(reinterpret_cast<const char*>(shared.data()), shared.size());
}

// Makes the other processes read the file that the first process started from. All of them read it with the same calls,
// because reading exchanges numbers between ranks.
Status begin_as_first(const RunFolderOptions& options, RankGroup& ranks, TrainEngine& trainer, BatchSource& data,
                      RunBegin& run) {
    NIBBLE_TRY(const std::string identity, share_text(ranks, options.identity.text));
    if (identity != options.identity.text)
        return fail("this rank has another job than rank 0: {} here, {} in rank 0", options.identity.text, identity);
    NIBBLE_TRY(const std::string file, share_text(ranks, run.folder ? run.folder->began_with().string() : ""));
    NIBBLE_TRY(const std::string forked, share_text(ranks, run.folder && run.folder->forked() ? "forked" : ""));
    if (ranks.rank() == 0 || file.empty()) return Ok{};
    NIBBLE_TRY(const RunPlace place,
               forked.empty() ? read_state(file, options.identity, trainer) : read_fork(file, trainer));
    run.first_step = place.step;
    return data.set_place(place.source).within(file);
}

}  // namespace

std::string begin_text(const std::filesystem::path& folder, bool resume, int64_t first_step) {
    if (first_step > 0) return fmt::format("resuming after {} steps", first_step);
    return resume ? fmt::format("{}: nothing to resume, the run starts from the beginning", folder.string()) : "";
}

std::string ended_text(const std::filesystem::path& result, int64_t steps) {
    return fmt::format("{}: the run has already completed its {} steps", result.string(), steps);
}

Result<RunBegin> begin_run(const RunFolderOptions& options, const std::filesystem::path& result, RankGroup* ranks,
                           TrainEngine& trainer, BatchSource& data) {
    RunBegin run;
    if (!ranks || ranks->rank() == 0) {
        NIBBLE_TRY(run.folder, RunFolder::open(options, trainer, data));
        run.first_step = run.folder->first_step();
    }
    if (ranks) NIBBLE_CHECK(begin_as_first(options, *ranks, trainer, data, run));
    NIBBLE_TRY(run.ended, trainer.any(run.folder && run.first_step == options.steps && RunFolder::has_result(result)));
    return run;
}

}  // namespace nibble

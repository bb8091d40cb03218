#include "cli/rank_flags.h"

#include "cli/version.h"
#include "run/rank_device.h"

namespace nibble {

std::vector<CLI::Option*> RankFlags::add(CLI::App& command, const std::string& text) {
    CLI::Option* ranks = command.add_option("--ranks", ranks_, text)->check(CLI::Range(1, 4096));
    CLI::Option* gpus = command.add_option("--gpus", gpus_, "number of processes, one per GPU")
                            ->check(CLI::Range(1, 4096))
                            ->excludes(ranks);
    return {ranks, gpus};
}

void RankFlags::choose_device(std::string& device) const {
    if (gpus_ > 0 && device == "cpu") device = "cuda";
}

Status RankFlags::choose_gpu(DeviceChoice& device) {
    NIBBLE_TRY(place_, rank_place());
    return device.cuda ? choose_rank_device(wanted(), place_, device) : Status(Ok{});
}

Result<JobRanks> RankFlags::join(const std::string& job, const DeviceChoice& device,
                                 std::chrono::milliseconds patience) const {
    NIBBLE_TRY(JobRanks ranks,
               JobRanks::join(wanted(), {.identity = version_text() + "\n" + job, .patience = patience}));
    NIBBLE_CHECK(check_own_devices(device, ranks.group()));
    return ranks;
}

}  // namespace nibble

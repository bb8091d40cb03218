#include "run/ranks.h"

#include "base/child_process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>
#include <thread>

namespace nibble {
namespace {

namespace fs = std::filesystem;

constexpr const char* started_here = "NIBBLE_RANKS_OF_ONE_MACHINE";

// Returns this program and the arguments of this process.
std::vector<std::string> own_program() {
    std::ifstream in("/proc/self/cmdline", std::ios::binary);
    std::vector<std::string> list;
    for (std::string one; std::getline(in, one, '\0');) list.push_back(one);
    if (!list.empty()) list[0] = "/proc/self/exe";
    return list;
}

Result<fs::path> meeting_folder() {
    const char* base = std::getenv("TMPDIR");
    std::string name = fmt::format("{}/nibble-ranks-XXXXXX", base && *base ? base : "/tmp");
    if (!::mkdtemp(name.data())) return fail("{}: {}", name, std::strerror(errno));
    return fs::path(name);
}

// Starts this program as rank `rank` with standard output discarded.
Result<pid_t> start_rank(const RankPlace& place, int rank) {
    std::vector<std::string> variables;
    for (char** v = environ; *v; ++v)
        if (!std::string_view(*v).starts_with("NIBBLE_RANK") && !std::string_view(*v).starts_with("NIBBLE_LOCAL_RANK"))
            variables.push_back(*v);
    for (const char* local : {"", "LOCAL_"}) {  // all ranks are on one machine
        variables.push_back(fmt::format("NIBBLE_{}RANK={}", local, rank));
        variables.push_back(fmt::format("NIBBLE_{}RANKS={}", local, place.size));
    }
    variables.push_back("NIBBLE_ADDRESS=" + place.address);
    variables.push_back(std::string(started_here) + "=1");
    // A rank notices the end of another at its connection and prints which one it was, so nothing must kill it first.
    const auto id = start_child({.words = own_program(),
                                 .redirections = {{0, ChildProgram::null_device}, {1, ChildProgram::null_device}},
                                 .variables = std::move(variables),
                                 .ends_with_parent = false});
    if (!id.ok()) return fail("rank {} cannot be started: {}", rank, id.error().message());
    return *id;
}

}  // namespace

JobRanks::JobRanks(JobRanks&&) noexcept = default;

Result<JobRanks> JobRanks::join(int wanted, const RankGroup::Options& options) {
    JobRanks job;
    NIBBLE_TRY(RankPlace place, rank_place());
    if (!place.alone() && wanted > 0 && wanted != place.size)
        return fail("--ranks {}, but the launcher started {}", wanted, place.size);
    job.of_one_machine_ = std::getenv(started_here) != nullptr;
    if (place.alone() && wanted > 1) {
        place.size = wanted;
        NIBBLE_TRY(job.folder_, meeting_folder());
        place.address = "unix:" + (job.folder_ / "meet").string();
        job.of_one_machine_ = true;
        NIBBLE_CHECK(job.start(place));
    }
    if (place.alone()) return job;
    NIBBLE_CHECK(need_address(place));
    NIBBLE_TRY(job.group_, RankGroup::meet(place, options));
    return job;
}

Status JobRanks::start(const RankPlace& place) {
    for (int rank = 1; rank < place.size; ++rank) {
        NIBBLE_TRY(const pid_t id, start_rank(place, rank));
        started_.push_back(id);
    }
    return Ok{};
}

JobRanks::~JobRanks() {
    group_.reset();
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    for (const pid_t id : started_) {
        while (::waitpid(id, nullptr, WNOHANG) == 0) {
            if (std::chrono::steady_clock::now() > end) {
                ::kill(id, SIGKILL);
                ::waitpid(id, nullptr, 0);
                break;
            }
            std::this_thread::sleep_for(std::chrono::milliseconds(5));
        }
    }
    std::error_code ignored;
    if (!folder_.empty()) fs::remove_all(folder_, ignored);
}

int JobRanks::threads(int wanted) const {
    if (wanted > 0 || !of_one_machine_) return wanted;
    return std::max(1, static_cast<int>(std::thread::hardware_concurrency()) / size());
}

}  // namespace nibble

#include "parallel/rank_place.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <optional>
#include <string_view>

namespace nibble {
namespace {

std::string_view variable(const char* name) {
    const char* value = std::getenv(name);
    return value ? value : "";
}

Result<int> number_of(const char* name) {
    const std::string_view text = variable(name);
    int value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size() || value < 0)
        return fail("{}={}: not a number of ranks", name, text);
    return value;
}

std::optional<int> number_if_set(const char* name) {
    if (variable(name).empty()) return {};
    const auto number = number_of(name);
    return number.ok() ? std::optional(*number) : std::nullopt;
}

// Names of a launcher's variables; "": the launcher does not set one.
struct Launcher {
    const char *rank, *size, *local_rank, *local_size;
    bool in_slurm_step = false;  // counts only inside a Slurm step
};

// The first launcher that sets rank and size wins: a launcher started by another one sees the other's variables.
constexpr Launcher launchers[] = {
    {"NIBBLE_RANK", "NIBBLE_RANKS", "NIBBLE_LOCAL_RANK", "NIBBLE_LOCAL_RANKS"},
    {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"},
    {"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"},
    {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"},
    {"SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "", true},
    {"SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "", true},
    {"PMIX_RANK", "NIBBLE_RANKS", "NIBBLE_LOCAL_RANK", "NIBBLE_LOCAL_RANKS"},
    {"JOB_COMPLETION_INDEX", "NIBBLE_RANKS", "NIBBLE_LOCAL_RANK", "NIBBLE_LOCAL_RANKS"},
};

bool in_slurm_step() { return !variable("SLURM_STEP_ID").empty(); }

// Parses Slurm's tasks per node: "2(x2),1" means two, two and one. Returns nothing if the list is malformed or too
// short.
std::optional<int> slurm_tasks_on(std::string_view list, int node) {
    while (!list.empty()) {
        const std::string_view item = list.substr(0, list.find(','));
        int tasks = 0, nodes = 1;
        const char* const end = item.data() + item.size();
        auto read = std::from_chars(item.data(), end, tasks);
        if (read.ec != std::errc()) return {};
        if (read.ptr != end) {
            if (!std::string_view(read.ptr, end).starts_with("(x")) return {};
            read = std::from_chars(read.ptr + 2, end, nodes);
            if (read.ec != std::errc() || std::string_view(read.ptr, end) != ")") return {};
        }
        if (node < nodes) return tasks;
        node -= nodes;
        list.remove_prefix(std::min(list.size(), item.size() + 1));
    }
    return {};
}

// With srun --mpi=pmi2 the ranks are PMI's and the local numbers Slurm's. SLURM_NTASKS_PER_NODE belongs to the job and
// is set only on request.
void read_local(const Launcher& launcher, RankPlace& place) {
    place.local_rank = number_if_set(launcher.local_rank);
    place.local_size = number_if_set(launcher.local_size);
    const bool by_slurm = launcher.in_slurm_step || std::string_view(launcher.rank) == "PMI_RANK";
    if (!by_slurm || !in_slurm_step()) return;
    if (!place.local_rank) place.local_rank = number_if_set("SLURM_LOCALID");
    const int node = number_if_set("SLURM_NODEID").value_or(0);
    if (!place.local_size) place.local_size = slurm_tasks_on(variable("SLURM_STEP_TASKS_PER_NODE"), node);
    if (!place.local_size) place.local_size = number_if_set("SLURM_NTASKS_PER_NODE");
}

// The launcher's own name of the running job; "": it gives none.
std::string job_name() {
    std::string name(variable("PMIX_NAMESPACE"));
    if (name.empty() && in_slurm_step())
        name = fmt::format("{}.{}", variable("SLURM_JOB_ID"), variable("SLURM_STEP_ID"));
    std::ranges::replace_if(
        name, [](char c) { return c == '/' || c == ':'; }, '_');
    return name;
}

std::string address_of(const RankPlace& place) {
    if (const std::string_view own = variable("NIBBLE_ADDRESS"); !own.empty()) return std::string(own);
    if (!variable("MASTER_ADDR").empty()) {
        const auto port = number_if_set("MASTER_PORT");
        // torchrun's own process listens at its port.
        if (port)
            return fmt::format("{}:{}", variable("MASTER_ADDR"),
                               *port + (variable("TORCHELASTIC_USE_AGENT_STORE") == "True"));
    }
    const std::string job = job_name();
    if (!place.on_one_machine() || job.empty()) return {};
    const std::string_view folder = variable("TMPDIR");
    return fmt::format("unix:{}/nibble-ranks-{}-{}", folder.empty() ? "/tmp" : folder, ::getuid(), job);
}

}  // namespace

Result<RankPlace> rank_place() {
    RankPlace place;
    const auto given = [](const Launcher& l) {
        return !variable(l.rank).empty() && !variable(l.size).empty() && (!l.in_slurm_step || in_slurm_step());
    };
    const auto launcher = std::ranges::find_if(launchers, given);
    if (launcher == std::end(launchers)) return place;
    NIBBLE_TRY(place.rank, number_of(launcher->rank));
    NIBBLE_TRY(place.size, number_of(launcher->size));
    if (place.rank >= place.size)
        return fail("{}={} is not below {}={}", launcher->rank, place.rank, launcher->size, place.size);
    if (place.alone()) return place;
    read_local(*launcher, place);
    place.address = address_of(place);
    return place;
}

Status need_address(const RankPlace& place) {
    if (place.alone() || !place.address.empty()) return Ok{};
    return fail("{} ranks need the address of rank 0: set NIBBLE_ADDRESS=HOST:PORT", place.size);
}

std::string machine_name() {
    std::array<char, 256> host{};
    ::gethostname(host.data(), host.size() - 1);
    std::string boot;
    std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
    return fmt::format("{} {}", host.data(), boot);
}

}  // namespace nibble

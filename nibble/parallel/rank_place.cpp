#include "parallel/rank_group.h"

#include <unistd.h>

#include <array>
#include <charconv>
#include <cstdlib>
#include <fstream>
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

}  // namespace

Result<RankPlace> rank_place() {
    // Slurm sets its variables in every step of a job, a single process included.
    constexpr std::pair<const char*, const char*> pairs[] = {{"NIBBLE_RANK", "NIBBLE_RANKS"},
                                                             {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
                                                             {"PMI_RANK", "PMI_SIZE"},
                                                             {"RANK", "WORLD_SIZE"},
                                                             {"SLURM_PROCID", "SLURM_NTASKS"}};
    RankPlace place;
    for (const auto& [rank, size] : pairs) {
        if (variable(rank).empty() || variable(size).empty()) continue;
        NIBBLE_TRY(place.rank, number_of(rank));
        NIBBLE_TRY(place.size, number_of(size));
        if (place.rank >= place.size) return fail("{}={} is not below {}={}", rank, place.rank, size, place.size);
        break;
    }
    if (place.alone()) return place;
    place.address = variable("NIBBLE_ADDRESS");
    if (place.address.empty() && !variable("MASTER_ADDR").empty() && !variable("MASTER_PORT").empty())
        place.address = fmt::format("{}:{}", variable("MASTER_ADDR"), variable("MASTER_PORT"));
    if (place.address.empty())
        return fail("{} ranks need a place to meet: NIBBLE_ADDRESS=HOST:PORT of rank 0's machine", place.size);
    return place;
}

namespace {

std::optional<int> first_number(std::initializer_list<const char*> names) {
    for (const char* name : names)
        if (!variable(name).empty())
            if (const auto number = number_of(name); number.ok()) return *number;
    return {};
}

}  // namespace

std::optional<int> local_rank() {
    return first_number({"OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID", "LOCAL_RANK"});
}
std::optional<int> local_ranks() {
    return first_number({"OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", "SLURM_NTASKS_PER_NODE", "LOCAL_WORLD_SIZE"});
}

std::string machine_name() {
    std::array<char, 256> host{};
    ::gethostname(host.data(), host.size() - 1);
    std::string boot;
    std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
    return fmt::format("{} {}", host.data(), boot);
}

}  // namespace nibble

#include "parallel/rank_place.h"

#include <gtest/gtest.h>

#include <unistd.h>

#include <cstdlib>
#include <vector>

namespace nibble {
namespace {

// Clears the variables of all launchers except the given ones.
class RankPlaces : public testing::Test {
protected:
    using Variables = std::vector<std::pair<std::string, std::string>>;
    static Result<RankPlace> place(const Variables& given) {
        for (const char* name : {"NIBBLE_RANK",
                                 "NIBBLE_RANKS",
                                 "NIBBLE_LOCAL_RANK",
                                 "NIBBLE_LOCAL_RANKS",
                                 "NIBBLE_ADDRESS",
                                 "OMPI_COMM_WORLD_RANK",
                                 "OMPI_COMM_WORLD_SIZE",
                                 "OMPI_COMM_WORLD_LOCAL_RANK",
                                 "OMPI_COMM_WORLD_LOCAL_SIZE",
                                 "PMI_RANK",
                                 "PMI_SIZE",
                                 "MPI_LOCALRANKID",
                                 "MPI_LOCALNRANKS",
                                 "RANK",
                                 "WORLD_SIZE",
                                 "LOCAL_RANK",
                                 "LOCAL_WORLD_SIZE",
                                 "SLURM_PROCID",
                                 "SLURM_NTASKS",
                                 "SLURM_STEP_ID",
                                 "SLURM_STEP_NUM_TASKS",
                                 "SLURM_LOCALID",
                                 "SLURM_NODEID",
                                 "SLURM_NTASKS_PER_NODE",
                                 "SLURM_STEP_TASKS_PER_NODE",
                                 "PMIX_RANK",
                                 "JOB_COMPLETION_INDEX",
                                 "MASTER_ADDR",
                                 "MASTER_PORT",
                                 "TORCHELASTIC_USE_AGENT_STORE",
                                 "PMIX_NAMESPACE",
                                 "SLURM_JOB_ID",
                                 "TMPDIR"})
            ::unsetenv(name);
        for (const auto& [name, value] : given) ::setenv(name.c_str(), value.c_str(), 1);
        auto found = rank_place();
        for (const auto& [name, value] : given) ::unsetenv(name.c_str());
        return found;
    }
};

TEST_F(RankPlaces, ComeFromTheLauncher) {
    EXPECT_TRUE(place({})->alone());
    const auto torch = place({{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "h"}, {"MASTER_PORT", "12"}});
    EXPECT_EQ(torch->address, "h:12");
    for (const auto& wrong : {place({{"RANK", "2"}, {"WORLD_SIZE", "2"}, {"NIBBLE_ADDRESS", "x:1"}}),
                              place({{"RANK", "x"}, {"WORLD_SIZE", "2"}, {"NIBBLE_ADDRESS", "x:1"}})})
        EXPECT_FALSE(wrong.ok());
    const auto nowhere = place({{"RANK", "0"}, {"WORLD_SIZE", "2"}});
    ASSERT_TRUE(nowhere.ok());
    EXPECT_FALSE(need_address(*nowhere).ok());
    EXPECT_TRUE(need_address(*torch).ok());
    EXPECT_TRUE(need_address(RankPlace{}).ok());
}

TEST_F(RankPlaces, TheAddressComesFromTheLauncherWhereItCan) {
    EXPECT_EQ(place({{"RANK", "1"},
                     {"WORLD_SIZE", "2"},
                     {"MASTER_ADDR", "h"},
                     {"MASTER_PORT", "12"},
                     {"TORCHELASTIC_USE_AGENT_STORE", "True"}})
                  ->address,
              "h:13");
    const std::string user = std::to_string(::getuid());
    const RankPlaces::Variables mpi = {{"OMPI_COMM_WORLD_RANK", "1"},       {"OMPI_COMM_WORLD_SIZE", "2"},
                                       {"OMPI_COMM_WORLD_LOCAL_RANK", "1"}, {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                                       {"PMIX_NAMESPACE", "prterun/7"},     {"TMPDIR", "/scratch"}};
    EXPECT_EQ(place(mpi)->address, "unix:/scratch/nibble-ranks-" + user + "-prterun_7");
    RankPlaces::Variables two_nodes = mpi;
    two_nodes[3].second = "1";
    EXPECT_EQ(place(two_nodes)->address, "");
    EXPECT_EQ(place({{"SLURM_STEP_ID", "3"},
                     {"SLURM_JOB_ID", "42"},
                     {"SLURM_PROCID", "0"},
                     {"SLURM_STEP_NUM_TASKS", "2"},
                     {"SLURM_LOCALID", "0"},
                     {"SLURM_NODEID", "0"},
                     {"SLURM_STEP_TASKS_PER_NODE", "2"}})
                  ->address,
              "unix:/tmp/nibble-ranks-" + user + "-42.3");
}

// Every launcher's variables, and the place that they mean.
TEST_F(RankPlaces, EveryLauncherIsUnderstood) {
    struct Case {
        const char* launcher;
        Variables variables;
        int rank, size;
        std::optional<int> local_rank, local_size;
    };
    const std::optional<int> unknown;
    const Case cases[] = {
        {"nibble's own",
         {{"NIBBLE_RANK", "1"}, {"NIBBLE_RANKS", "3"}, {"NIBBLE_LOCAL_RANK", "1"}, {"NIBBLE_LOCAL_RANKS", "3"}},
         1,
         3,
         1,
         3},
        {"by hand", {{"NIBBLE_RANK", "2"}, {"NIBBLE_RANKS", "4"}}, 2, 4, unknown, unknown},
        {"Open MPI",
         {{"OMPI_COMM_WORLD_RANK", "2"},
          {"OMPI_COMM_WORLD_SIZE", "4"},
          {"OMPI_COMM_WORLD_LOCAL_RANK", "0"},
          {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}},
         2,
         4,
         0,
         2},
        {"MPICH",
         {{"PMI_RANK", "3"}, {"PMI_SIZE", "4"}, {"MPI_LOCALRANKID", "1"}, {"MPI_LOCALNRANKS", "2"}},
         3,
         4,
         1,
         2},
        {"torchrun", {{"RANK", "5"}, {"WORLD_SIZE", "8"}, {"LOCAL_RANK", "1"}, {"LOCAL_WORLD_SIZE", "4"}}, 5, 8, 1, 4},
        {"srun -N2 -n4",
         {{"SLURM_STEP_ID", "0"},
          {"SLURM_PROCID", "3"},
          {"SLURM_NTASKS", "4"},
          {"SLURM_STEP_NUM_TASKS", "4"},
          {"SLURM_LOCALID", "1"},
          {"SLURM_NODEID", "1"},
          {"SLURM_STEP_TASKS_PER_NODE", "2(x2)"}},
         3,
         4,
         1,
         2},
        {"srun -N2 -n4, uneven",
         {{"SLURM_STEP_ID", "0"},
          {"SLURM_PROCID", "3"},
          {"SLURM_NTASKS", "4"},
          {"SLURM_STEP_NUM_TASKS", "4"},
          {"SLURM_LOCALID", "0"},
          {"SLURM_NODEID", "1"},
          {"SLURM_STEP_TASKS_PER_NODE", "3,1"}},
         3,
         4,
         0,
         1},
        {"srun on four nodes",
         {{"SLURM_STEP_ID", "0"},
          {"SLURM_PROCID", "6"},
          {"SLURM_STEP_NUM_TASKS", "7"},
          {"SLURM_LOCALID", "0"},
          {"SLURM_NODEID", "3"},
          {"SLURM_STEP_TASKS_PER_NODE", "2(x3),1"}},
         6,
         7,
         0,
         1},
        {"a step smaller than its job",
         {{"SLURM_STEP_ID", "1"},
          {"SLURM_PROCID", "1"},
          {"SLURM_NTASKS", "8"},
          {"SLURM_NTASKS_PER_NODE", "8"},
          {"SLURM_STEP_NUM_TASKS", "2"},
          {"SLURM_LOCALID", "1"},
          {"SLURM_NODEID", "0"},
          {"SLURM_STEP_TASKS_PER_NODE", "2"}},
         1,
         2,
         1,
         2},
        {"srun --ntasks-per-node, an old Slurm",
         {{"SLURM_STEP_ID", "0"},
          {"SLURM_PROCID", "3"},
          {"SLURM_NTASKS", "4"},
          {"SLURM_LOCALID", "1"},
          {"SLURM_NTASKS_PER_NODE", "2"}},
         3,
         4,
         1,
         2},
        {"srun without a list of tasks",
         {{"SLURM_STEP_ID", "0"}, {"SLURM_PROCID", "3"}, {"SLURM_STEP_NUM_TASKS", "4"}, {"SLURM_LOCALID", "1"}},
         3,
         4,
         1,
         unknown},
        {"srun --mpi=pmi2",
         {{"PMI_RANK", "2"},
          {"PMI_SIZE", "3"},
          {"SLURM_STEP_ID", "0"},
          {"SLURM_PROCID", "2"},
          {"SLURM_STEP_NUM_TASKS", "3"},
          {"SLURM_LOCALID", "0"},
          {"SLURM_NODEID", "1"},
          {"SLURM_STEP_TASKS_PER_NODE", "2,1"}},
         2,
         3,
         0,
         1},
        {"srun --mpi=pmix",
         {{"PMIX_RANK", "1"},
          {"SLURM_STEP_ID", "0"},
          {"SLURM_PROCID", "1"},
          {"SLURM_STEP_NUM_TASKS", "2"},
          {"SLURM_LOCALID", "1"},
          {"SLURM_NODEID", "0"},
          {"SLURM_STEP_TASKS_PER_NODE", "2"}},
         1,
         2,
         1,
         2},
        {"a PMIx launcher other than Open MPI and Slurm",
         {{"PMIX_RANK", "2"}, {"NIBBLE_RANKS", "4"}},
         2,
         4,
         unknown,
         unknown},
        {"a Kubernetes job with completionMode Indexed",
         {{"JOB_COMPLETION_INDEX", "3"}, {"NIBBLE_RANKS", "4"}, {"KUBERNETES_SERVICE_HOST", "10.0.0.1"}},
         3,
         4,
         unknown,
         unknown},
        {"an indexed job whose pods are jobs of their own", {{"JOB_COMPLETION_INDEX", "3"}}, 0, 1, unknown, unknown},
        {"torchrun in a pod of an indexed job",
         {{"JOB_COMPLETION_INDEX", "1"},
          {"RANK", "3"},
          {"WORLD_SIZE", "4"},
          {"LOCAL_RANK", "1"},
          {"LOCAL_WORLD_SIZE", "2"}},
         3,
         4,
         1,
         2},
        {"torchrun in a step of one task a node",
         {{"RANK", "3"},
          {"WORLD_SIZE", "4"},
          {"LOCAL_RANK", "1"},
          {"LOCAL_WORLD_SIZE", "2"},
          {"SLURM_STEP_ID", "0"},
          {"SLURM_PROCID", "1"},
          {"SLURM_STEP_NUM_TASKS", "2"},
          {"SLURM_LOCALID", "0"},
          {"SLURM_STEP_TASKS_PER_NODE", "1(x2)"}},
         3,
         4,
         1,
         2},
        {"a batch script without srun",
         {{"SLURM_JOB_ID", "7"},
          {"SLURM_PROCID", "0"},
          {"SLURM_NTASKS", "4"},
          {"SLURM_LOCALID", "0"},
          {"SLURM_NODEID", "0"},
          {"SLURM_NTASKS_PER_NODE", "4"}},
         0,
         1,
         unknown,
         unknown},
        {"srun -n1",
         {{"SLURM_STEP_ID", "0"}, {"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "1"}, {"SLURM_STEP_NUM_TASKS", "1"}},
         0,
         1,
         unknown,
         unknown},
    };
    for (const Case& c : cases) {
        Variables variables = c.variables;
        variables.emplace_back("NIBBLE_ADDRESS", "a:77");
        const auto found = place(variables);
        ASSERT_TRUE(found.ok()) << c.launcher << ": " << found.error().message();
        EXPECT_EQ(found->rank, c.rank) << c.launcher;
        EXPECT_EQ(found->size, c.size) << c.launcher;
        EXPECT_EQ(found->local_rank, c.local_rank) << c.launcher;
        EXPECT_EQ(found->local_size, c.local_size) << c.launcher;
        EXPECT_EQ(found->address, found->alone() ? "" : "a:77") << c.launcher;
        EXPECT_EQ(found->on_one_machine(), c.size == c.local_size.value_or(1)) << c.launcher;
    }
}

}  // namespace
}  // namespace nibble

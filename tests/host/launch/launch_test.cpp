#include "host/launch/launch.hpp"

#include <gtest/gtest.h>

#include <map>

#include "host/base/error.hpp"
#include "tests/support/expect_has.hpp"

namespace chassis {
namespace {

using Variables = std::map<std::string, std::string>;

Environment environment(const Variables& variables) {
  return [variables](const std::string& name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    return found == variables.end() ? std::nullopt : std::optional(found->second);
  };
}
Launch discover(const Variables& variables) { return discover_launch(environment(variables)); }

std::string refusal(const Variables& variables) {
  try {
    discover(variables);
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ExitCode::kConfig);
    return e.what();
  }
  return "accepted";
}

Variables with(Variables variables, const Variables& changes) {
  for (const auto& [name, value] : changes) variables[name] = value;
  return variables;
}
Variables without(Variables variables, const std::string& name) {
  variables.erase(name);
  return variables;
}

const Variables kTorchrun = {{"TORCHELASTIC_RUN_ID", "none"},
                             {"TORCHELASTIC_RESTART_COUNT", "2"},
                             {"TORCHELASTIC_USE_AGENT_STORE", "True"},
                             {"GROUP_WORLD_SIZE", "2"},
                             {"RANK", "5"},
                             {"WORLD_SIZE", "8"},
                             {"LOCAL_RANK", "1"},
                             {"LOCAL_WORLD_SIZE", "4"},
                             {"MASTER_ADDR", "host0"},
                             {"MASTER_PORT", "29500"}};
const Variables kByHand = {{"RANK", "1"},
                           {"WORLD_SIZE", "2"},
                           {"LOCAL_RANK", "1"},
                           {"LOCAL_WORLD_SIZE", "2"},
                           {"MASTER_ADDR", "127.0.0.1"},
                           {"MASTER_PORT", "29500"}};
const Variables kOpenMpi = {{"OMPI_COMM_WORLD_RANK", "3"},
                            {"OMPI_COMM_WORLD_SIZE", "4"},
                            {"OMPI_COMM_WORLD_LOCAL_RANK", "3"},
                            {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"},
                            {"OMPI_MCA_ess_base_jobid", "1744896001"}};
const Variables kSlurm = {{"SLURM_JOB_ID", "4711"},
                          {"SLURM_STEP_ID", "0"},
                          {"SLURM_STEP_NUM_TASKS", "7"},
                          {"SLURM_NTASKS", "7"},
                          {"SLURM_PROCID", "4"},
                          {"SLURM_LOCALID", "1"},
                          {"SLURM_NODEID", "1"},
                          {"SLURM_STEP_TASKS_PER_NODE", "3(x2),1"},
                          {"SLURM_STEP_NODELIST", "gpu[03-05]"}};

TEST(Launch, WithoutALauncherTheProcessIsAlone) {
  const Launch launch = discover({{"PATH", "/bin"}, {"MASTER_ADDR", "host0"}});
  EXPECT_TRUE(launch.alone());
  EXPECT_EQ(launch.source, "");
}

TEST(Launch, TorchrunServesTheStore) {
  const Launch launch = discover(kTorchrun);
  EXPECT_EQ(launch.source, "torchrun");
  EXPECT_EQ(launch.rank, 5);
  EXPECT_EQ(launch.world_size, 8);
  EXPECT_EQ(launch.local_rank, 1);
  EXPECT_EQ(launch.local_world_size, 4);
  EXPECT_EQ(launch.master_address, "host0");
  EXPECT_EQ(launch.master_port, 29500);
  EXPECT_TRUE(launch.store_is_elsewhere);
  EXPECT_NE(launch.store_prefix, discover(with(kTorchrun, {{"TORCHELASTIC_RESTART_COUNT", "3"}})).store_prefix);
  EXPECT_FALSE(discover(with(kTorchrun, {{"TORCHELASTIC_USE_AGENT_STORE", "False"}})).store_is_elsewhere);
}

TEST(Launch, RanksMayBeStartedByHandInTheSameWay) {
  const Launch launch = discover(kByHand);
  EXPECT_EQ(launch.source, "RANK and WORLD_SIZE");
  EXPECT_EQ(launch.rank, 1);
  EXPECT_FALSE(launch.store_is_elsewhere);
}

TEST(Launch, OpenMpiOnOneMachineNeedsNoAddressAndPort) {
  const Launch launch = discover(kOpenMpi);
  EXPECT_EQ(launch.source, "OpenMPI");
  EXPECT_EQ(launch.rank, 3);
  EXPECT_EQ(launch.world_size, 4);
  EXPECT_EQ(launch.master_address, "127.0.0.1");
  EXPECT_FALSE(launch.store_is_elsewhere);
  EXPECT_GE(launch.master_port, 20000);
  EXPECT_LT(launch.master_port, 32000);
  EXPECT_EQ(launch.master_port, discover(with(kOpenMpi, {{"OMPI_COMM_WORLD_RANK", "0"}})).master_port);
  EXPECT_NE(launch.master_port, discover(with(kOpenMpi, {{"OMPI_MCA_ess_base_jobid", "1744961537"}})).master_port);
  const Variables version5 =
      with(without(kOpenMpi, "OMPI_MCA_ess_base_jobid"), {{"PMIX_NAMESPACE", "prterun-host-42@1"}});
  EXPECT_GE(discover(version5).master_port, 20000);
  const Launch chosen = discover(with(kOpenMpi, {{"MASTER_ADDR", "host1"}, {"MASTER_PORT", "30000"}}));
  EXPECT_EQ(chosen.master_address, "host1");
  EXPECT_EQ(chosen.master_port, 30000);
}

TEST(Launch, OpenMpiOnSeveralMachinesNeedsTheAddress) {
  const Variables two_machines =
      with(kOpenMpi, {{"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}, {"OMPI_COMM_WORLD_LOCAL_RANK", "1"}});
  const std::string text = refusal(two_machines);
  EXPECT_HAS(text, "2 of 4 ranks on this one");
  EXPECT_HAS(text, "MASTER_ADDR is not set");
  EXPECT_EQ(discover(with(two_machines, {{"MASTER_ADDR", "host1"}})).local_world_size, 2);
  EXPECT_HAS(refusal(without(kOpenMpi, "OMPI_MCA_ess_base_jobid")), "neither MASTER_PORT nor PMIX_NAMESPACE");
}

TEST(Launch, SlurmNamesItsNodesAndRanks) {
  const Launch launch = discover(kSlurm);
  EXPECT_EQ(launch.source, "SLURM");
  EXPECT_EQ(launch.rank, 4);
  EXPECT_EQ(launch.world_size, 7);
  EXPECT_EQ(launch.local_rank, 1);
  EXPECT_EQ(launch.local_world_size, 3);
  EXPECT_EQ(launch.master_address, "gpu03");
  EXPECT_EQ(launch.store_prefix, "4711.0");
  EXPECT_NE(launch.master_port, discover(with(kSlurm, {{"SLURM_STEP_ID", "1"}})).master_port);
  EXPECT_EQ(discover(with(kSlurm, {{"SLURM_NODEID", "2"}, {"SLURM_LOCALID", "0"}})).local_world_size, 1);
  EXPECT_EQ(discover(with(kSlurm, {{"MASTER_PORT", "31000"}})).master_port, 31000);
  Variables older =
      without(without(without(kSlurm, "SLURM_STEP_TASKS_PER_NODE"), "SLURM_STEP_NODELIST"), "SLURM_STEP_NUM_TASKS");
  older = with(older, {{"SLURM_NTASKS_PER_NODE", "2"}, {"SLURM_NODELIST", "a,b"}});
  EXPECT_EQ(discover(older).local_world_size, 2);
  EXPECT_EQ(discover(older).master_address, "a");
}

TEST(Launch, TheFirstNodeOfASlurmListIsFound) {
  const std::pair<const char*, const char*> cases[] = {
      {"node1", "node1"},
      {"node1,node2", "node1"},
      {"node[03-05,7]", "node03"},
      {"node[7,9]", "node7"},
      {"node[12],other", "node12"},
      {"rack[1-2]n[3-4]", "rack1n3"},
      {"a-b[001-128].x", "a-b001.x"},
  };
  for (const auto& [list, first] : cases)
    EXPECT_EQ(discover(with(kSlurm, {{"SLURM_STEP_NODELIST", list}})).master_address, first) << list;
  for (const char* list : {"node[03-05", "node[]"})
    EXPECT_HAS(refusal(with(kSlurm, {{"SLURM_STEP_NODELIST", list}})), std::string("SLURM_STEP_NODELIST is '") + list);
}

TEST(Launch, ASlurmJobWithoutAStepIsNotALauncher) {
  EXPECT_TRUE(discover(without(kSlurm, "SLURM_STEP_ID")).alone()) << "the script of a job";
  EXPECT_TRUE(discover(with(kSlurm, {{"SLURM_STEP_NUM_TASKS", "1"}, {"SLURM_PROCID", "0"}})).alone()) << "a shell";
  const Launch mpirun = discover(with(without(kSlurm, "SLURM_STEP_ID"), kOpenMpi));
  EXPECT_EQ(mpirun.source, "OpenMPI");
}

TEST(Launch, RanksOfNprocAreOnOneMachine) {
  const Launch launch = discover({{"CHASSIS_RANK", "1"}, {"CHASSIS_WORLD_SIZE", "3"}, {"CHASSIS_STORE_PORT", "40000"}});
  EXPECT_EQ(launch.source, "chassis --nproc");
  EXPECT_EQ(launch.local_rank, 1);
  EXPECT_EQ(launch.local_world_size, 3);
  EXPECT_EQ(launch.master_port, 40000);
  EXPECT_TRUE(launch.store_is_elsewhere);
}

TEST(Launch, TheInnermostOfNestedLaunchersCounts) {
  const Variables one_task_per_node = {{"SLURM_STEP_NUM_TASKS", "2"},
                                       {"SLURM_PROCID", "1"},
                                       {"SLURM_LOCALID", "0"},
                                       {"SLURM_STEP_TASKS_PER_NODE", "1(x2)"}};
  EXPECT_EQ(discover(with(with(kSlurm, one_task_per_node), kTorchrun)).source, "torchrun") << "srun torchrun …";
  EXPECT_EQ(discover(with(with(kSlurm, one_task_per_node), kOpenMpi)).source, "OpenMPI") << "the daemons of mpirun";
  const Variables two_torchruns = {{"OMPI_COMM_WORLD_RANK", "1"},
                                   {"OMPI_COMM_WORLD_SIZE", "2"},
                                   {"OMPI_COMM_WORLD_LOCAL_RANK", "0"},
                                   {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}};
  EXPECT_EQ(discover(with(with(kOpenMpi, two_torchruns), kTorchrun)).source, "torchrun") << "mpirun torchrun …";
  const Variables by_hand = {{"RANK", "4"},
                             {"WORLD_SIZE", "7"},
                             {"LOCAL_RANK", "1"},
                             {"LOCAL_WORLD_SIZE", "3"},
                             {"MASTER_ADDR", "gpu03"},
                             {"MASTER_PORT", "29500"}};
  EXPECT_EQ(discover(with(kSlurm, by_hand)).master_port, 29500) << "they agree: export RANK=$SLURM_PROCID …";
  EXPECT_EQ(discover(with(kOpenMpi, {{"RANK", "0"}, {"WORLD_SIZE", "1"}})).source, "OpenMPI")
      << "a container's defaults";
}

TEST(Launch, TwoLaunchersThatDisagreeAreNamed) {
  const std::string text = refusal(with(kOpenMpi, kByHand));
  EXPECT_HAS(text, "RANK and WORLD_SIZE says that this is rank 1 of 2");
  EXPECT_HAS(text, "OpenMPI says rank 3 of 4");
  EXPECT_HAS(refusal(with(kSlurm, kByHand)), "SLURM says rank 4 of 7");
  EXPECT_HAS(refusal(with(kSlurm, kTorchrun)), "SLURM says rank 4 of 7") << "seven torchruns that expect two";
  EXPECT_HAS(refusal(with(kSlurm, kOpenMpi)), "SLURM says rank 4 of 7") << "srun -n 7 mpirun -n 4";
  const Variables alone = with(kTorchrun, {{"RANK", "0"}, {"WORLD_SIZE", "1"}, {"GROUP_WORLD_SIZE", "1"}});
  EXPECT_HAS(refusal(with(kOpenMpi, alone)), "torchrun says that this is rank 0 of 1") << "four runs instead of one";
  EXPECT_HAS(refusal(with(kByHand, {{"CHASSIS_RANK", "0"}, {"CHASSIS_WORLD_SIZE", "4"}, {"CHASSIS_STORE_PORT", "1"}})),
             "chassis --nproc says that this is rank 0 of 4");
}

TEST(Launch, AVariableThatIsMissingIsNamed) {
  for (const char* name : {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}) {
    EXPECT_HAS(refusal(without(kByHand, name)), std::string(name) + " is not set");
    EXPECT_HAS(refusal(with(kByHand, {{name, ""}})), std::string(name) + " is not set");
    EXPECT_HAS(refusal(without(kTorchrun, name)), std::string("started by torchrun, but ") + name + " is not set");
  }
  for (const char* name : {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"})
    EXPECT_HAS(refusal(without(kOpenMpi, name)), std::string("started by OpenMPI, but ") + name + " is not set");
  for (const char* name : {"SLURM_LOCALID", "SLURM_NODEID", "SLURM_JOB_ID"})
    EXPECT_HAS(refusal(without(kSlurm, name)), std::string("started by SLURM, but ") + name + " is not set");
  EXPECT_HAS(refusal(without(kSlurm, "SLURM_STEP_NODELIST")), "SLURM_NODELIST is not set");
  for (const char* name : {"CHASSIS_WORLD_SIZE", "CHASSIS_STORE_PORT"})
    EXPECT_HAS(
        refusal(without({{"CHASSIS_RANK", "0"}, {"CHASSIS_WORLD_SIZE", "2"}, {"CHASSIS_STORE_PORT", "5"}}, name)),
        std::string(name) + " is not set");
}

TEST(Launch, AVariableThatIsNotANumberOrIsOutOfRangeIsNamedWithTheRange) {
  const std::pair<Variables, const char*> cases[] = {
      {{{"RANK", "2"}}, "RANK is '2', expected 0 to 1"},
      {{{"RANK", "-1"}}, "RANK is '-1', expected 0 to 1"},
      {{{"RANK", "one"}}, "RANK is 'one', expected 0 to 1"},
      {{{"RANK", "1 "}}, "RANK is '1 ', expected 0 to 1"},
      {{{"WORLD_SIZE", "0"}}, "WORLD_SIZE is '0', expected 1 to"},
      {{{"WORLD_SIZE", "99999999999999999999"}}, "WORLD_SIZE is '99999999999999999999'"},
      {{{"LOCAL_WORLD_SIZE", "3"}}, "LOCAL_WORLD_SIZE is '3', expected 1 to 2"},
      {{{"LOCAL_RANK", "2"}}, "LOCAL_RANK is '2', expected 0 to 1"},
      {{{"MASTER_PORT", "0"}}, "MASTER_PORT is '0', expected 1 to 65535"},
      {{{"MASTER_PORT", "70000"}}, "MASTER_PORT is '70000', expected 1 to 65535"},
  };
  for (const auto& [change, text] : cases) EXPECT_HAS(refusal(with(kByHand, change)), text);
  for (const char* list : {"3(x1),1", "", "3(x", "three", "3(x0)", "-2", "3(x2)y"})
    EXPECT_HAS(refusal(with(kSlurm, {{"SLURM_STEP_TASKS_PER_NODE", list}, {"SLURM_NODEID", "5"}})),
               "SLURM_STEP_TASKS_PER_NODE is");
}

TEST(Launch, TheProcessEnvironmentIsReadAsItIs) {
  setenv("CHASSIS_LAUNCH_TEST", "", 1);
  EXPECT_EQ(process_environment()("CHASSIS_LAUNCH_TEST"), std::optional<std::string>(""));
  unsetenv("CHASSIS_LAUNCH_TEST");
  EXPECT_EQ(process_environment()("CHASSIS_LAUNCH_TEST"), std::nullopt);
}

}  // namespace
}  // namespace chassis

// A run of several processes has the same losses to the last bit, the same evaluation and the same text, whichever
// launcher starts the processes and on whichever hosts they run.
#include <gtest/gtest.h>
#include <sched.h>

#include <functional>
#include <memory>
#include <nlohmann/json.hpp>

#include "tests/support/expect_has.hpp"
#include "tests/support/process.hpp"
#include "tests/support/unused_port.hpp"

namespace chassis::test {
namespace {

namespace fs = std::filesystem;
using Words = std::vector<std::string>;
using Variables = std::vector<std::pair<std::string, std::string>>;

const char* const kToml = R"(schema_version = 1
[run]
output_dir = "run"
max_steps = 4
seed = 5
device = "cpu"
[model]
plugin = "llama"
config = { vocab_size = 259, hidden_size = 36, intermediate_size = 57, num_hidden_layers = 2, num_attention_heads = 6, num_key_value_heads = 2, initializer_range = 0.1 }
[tokenizer]
plugin = "bytes"
[[data.train]]
path = "corpus.txt"
[[data.eval]]
path = "corpus.txt"
[data]
cache_dir = "cache"
[train]
seq_len = 32
global_batch_size = 12
[optimizer]
plugin = "adamw"
lr = 2e-2
eps = 1e-4
[comm]
timeout_s = 60
[generate]
max_new_tokens = 24
)";

Words joined(Words words, const Words& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

// The path of an installed program, or empty.
std::string path_of(const std::string& program) {
  const char* const path = std::getenv("PATH");
  std::istringstream folders(std::string(path ? path : "") + ":/usr/sbin:/sbin");
  for (std::string folder; std::getline(folders, folder, ':');)
    if (fs::exists(folder + "/" + program)) return folder + "/" + program;
  return "";
}

class Launched : public testing::Test {
 protected:
  Launched() {
    write_text(folder_ / "run.toml", kToml);
    write_text(folder_ / "fsdp2.toml",
               "schema_version = 1\nextends = [\"run.toml\"]\n[[parallel]]\nplugin = \"fsdp2\"\n");
    write_text(folder_ / "hsdp.toml",
               "schema_version = 1\nextends = [\"run.toml\"]\n[mesh]\ndp_replicate = 2\ndp_shard = "
               "2\n[[parallel]]\nplugin = \"fsdp2\"\n");
    write_text(folder_ / "zero.toml",
               "schema_version = 1\nextends = [\"run.toml\"]\n[[parallel]]\nplugin = \"zero\"\nstage = 3\n");
    std::string corpus;
    for (int i = 0; i < 200; ++i) corpus += "line " + std::to_string(i * 37 % 101) + " of a small corpus\n";
    write_text(folder_ / "corpus.txt", corpus);
  }

  Words chassis(const std::string& verb, const std::string& toml, const Words& more = {}) const {
    return joined({CHASSIS_PROGRAM, verb, folder_ / toml, "--plugin-path", CHASSIS_TEST_PLUGIN_DIR}, more);
  }
  Words training(const std::string& toml, const std::string& name) const {
    return chassis("train", toml, {"run.output_dir=" + folder_ / name, "run.threads=1"});
  }

  // The losses of all steps of a run.
  std::vector<double> losses(const std::string& name) const {
    std::vector<double> out;
    std::istringstream lines(text_of_file(folder_ / (name + "/metrics.jsonl")));
    for (std::string line; std::getline(lines, line);)
      if (const auto record = nlohmann::json::parse(line); record.contains("loss")) out.push_back(record.at("loss"));
    return out;
  }
  void expect_same_run(const std::string& ours, const std::string& theirs) const {
    EXPECT_EQ(losses(theirs).size(), 4u);
    EXPECT_EQ(losses(ours), losses(theirs));
    const std::string model = text_of_file(folder_ / (theirs + "/final/model.safetensors"));
    EXPECT_GT(model.size(), 10'000u);
    EXPECT_TRUE(text_of_file(folder_ / (ours + "/final/model.safetensors")) == model);
  }
  void expect_success(const Words& command, const Variables& variables = {}) const {
    const Outcome outcome = run_process(command, folder_.path(), variables);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
  }

  // Ranks 0 to 3 on two hosts with two ranks each, every rank in its own folder. `on_host` gives the command prefix and
  // the variables that place a process on a host.
  void train_on_two_hosts(const std::string& name, const std::string& master,
                          const std::function<std::pair<Words, Variables>(int host)>& on_host) const {
    const std::string port = std::to_string(unused_port());
    std::vector<std::unique_ptr<Process>> ranks;
    for (int rank = 0; rank < 4; ++rank) {
      const int host = rank / 2;
      const std::string home = folder_ / ("rank" + std::to_string(rank));
      const std::string cache = folder_ / ("cache" + std::to_string(host));
      fs::create_directory(home);
      if (!fs::exists(home + "/corpus.txt")) fs::copy(folder_ / "corpus.txt", home);
      if (!fs::exists(home + "/cache")) fs::create_directory_symlink(cache, home + "/cache");
      auto [words, variables] = on_host(host);
      for (const auto& [key, value] : Variables{{"RANK", std::to_string(rank)},
                                                {"WORLD_SIZE", "4"},
                                                {"LOCAL_RANK", std::to_string(rank % 2)},
                                                {"LOCAL_WORLD_SIZE", "2"},
                                                {"MASTER_ADDR", master},
                                                {"MASTER_PORT", port}})
        variables.emplace_back(key, value);
      fs::create_directories(cache);
      ranks.push_back(std::make_unique<Process>(joined(words, training("hsdp.toml", name)), home, variables));
    }
    for (const auto& rank : ranks) {
      const Outcome outcome = rank->wait();
      EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
    }
  }

  ScratchDirectory folder_;
};

TEST_F(Launched, MpirunGivesTheRunOfNproc) {
  const std::string mpirun = path_of("mpirun");
  if (mpirun.empty()) GTEST_SKIP() << "there is no mpirun";
  expect_success(joined(training("fsdp2.toml", "nproc"), {"--nproc", "2"}));
  expect_success(joined({mpirun, "-np", "2", "--oversubscribe"}, training("fsdp2.toml", "mpirun")),
                 {{"OMPI_ALLOW_RUN_AS_ROOT", "1"}, {"OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"}});
  expect_same_run("mpirun", "nproc");
}

TEST_F(Launched, CoresAreDividedAmongTheRanksUnlessTheUserSetsThreads) {
  const std::string mpirun = path_of("mpirun");
  if (mpirun.empty()) GTEST_SKIP() << "there is no mpirun";
  cpu_set_t cores;
  sched_getaffinity(0, sizeof cores, &cores);
  const std::string all = std::to_string(CPU_COUNT(&cores)), share = std::to_string(std::max(1, CPU_COUNT(&cores) / 2));
  unsetenv("OMP_NUM_THREADS");
  const Words train = joined(training("fsdp2.toml", "run"), {"run.threads=0", "run.max_steps=1"});
  const Words launchers[] = {joined({mpirun, "-np", "2", "--oversubscribe", "--bind-to", "none"}, train),
                             joined(train, {"--nproc", "2"})};
  for (const Words& command : launchers) {
    Variables variables = {{"OMPI_ALLOW_RUN_AS_ROOT", "1"}, {"OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"}};
    const auto output = [&] {
      fs::remove_all(folder_ / "run");
      return run_process(command, folder_.path(), variables).output;
    };
    EXPECT_HAS(output(), ", " + share + " threads,");
    variables.emplace_back("OMP_NUM_THREADS", all);
    EXPECT_HAS(output(), ", " + all + " threads,");
  }
}

TEST_F(Launched, TwoHostsGiveTheRunOfOne) {
  expect_success(joined(training("hsdp.toml", "nproc"), {"--nproc", "4"}));
  train_on_two_hosts("hosts", "127.0.0.1", [](int host) {
    return std::pair(Words{}, Variables{{"CHASSIS_HOST_ADDRESS", host == 0 ? "127.0.0.1" : "127.0.0.2"}});
  });
  expect_same_run("hosts", "nproc");
}

// Two network namespaces joined by a veth pair; removed by the destructor.
class TwoNetworks {
 public:
  TwoNetworks() : ip_(path_of("ip")) {
    works_ =
        !ip_.empty() && run({"netns", "add", name(0)}) && run({"netns", "add", name(1)}) &&
        run({"link", "add", "cable0", "netns", name(0), "type", "veth", "peer", "name", "cable1", "netns", name(1)});
    for (int host : {0, 1}) {
      const std::string end = "cable" + std::to_string(host);
      works_ = works_ && run({"-n", name(host), "addr", "add", address(host) + "/24", "dev", end}) &&
               run({"-n", name(host), "link", "set", end, "up"}) && run({"-n", name(host), "link", "set", "lo", "up"});
    }
  }
  ~TwoNetworks() {
    for (int host : {0, 1})
      if (!ip_.empty()) run({"netns", "del", name(host)});
  }
  bool works() const { return works_; }
  static std::string address(int host) { return "10.254.77." + std::to_string(host + 1); }
  Words enter(int host) const { return {ip_, "netns", "exec", name(host)}; }

 private:
  static std::string name(int host) { return "chassis-test-" + std::to_string(getpid()) + "-" + std::to_string(host); }
  bool run(const Words& words) const {
    const ScratchDirectory scratch;
    return run_process(joined({ip_}, words), scratch.path()).exit_code == 0;
  }
  std::string ip_;
  bool works_ = false;
};

TEST_F(Launched, TwoNetworksGiveTheRunOfOne) {
  const TwoNetworks networks;
  if (!networks.works()) GTEST_SKIP() << "network namespaces are not permitted here";
  expect_success(joined(training("hsdp.toml", "nproc"), {"--nproc", "4"}));
  train_on_two_hosts("networks", TwoNetworks::address(0),
                     [&](int host) { return std::pair(networks.enter(host), Variables{}); });
  expect_same_run("networks", "nproc");
}

// "corpus loss 5.123456 perplexity …"
double loss_of(const std::string& output) {
  const size_t at = output.find(" loss ");
  EXPECT_NE(at, std::string::npos) << output;
  return at == std::string::npos ? 0.0 : std::stod(output.substr(at + 6));
}

TEST_F(Launched, EvaluationAndGenerationMatchOneProcess) {
  expect_success(training("run.toml", "run"));
  const auto output_of = [&](const std::string& verb, const std::string& toml, int ranks, const Words& more) {
    const Words common = {"--from", folder_ / "run/final", "run.threads=1"};
    const Words launcher = ranks > 1 ? Words{"--nproc", std::to_string(ranks)} : Words{};
    const Outcome outcome = run_process(chassis(verb, toml, joined(joined(common, launcher), more)), folder_.path());
    EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
    return outcome.output.substr(outcome.output.find("warning: ") == 0 ? outcome.output.find('\n') + 1 : 0);
  };
  const double loss = loss_of(output_of("eval", "run.toml", 1, {}));
  const Words greedy = {"--prompt", "line 3"}, sampled = {"--prompt", "line 3", "generate.temperature=1.0"};
  const std::string text = output_of("generate", "run.toml", 1, greedy),
                    drawn = output_of("generate", "run.toml", 1, sampled);
  EXPECT_GE(text.size(), 24u);
  EXPECT_NE(drawn, text);
  for (const auto& [toml, ranks] : {std::pair("fsdp2.toml", 2), std::pair("zero.toml", 3), std::pair("hsdp.toml", 4)}) {
    SCOPED_TRACE(toml);
    EXPECT_NEAR(loss_of(output_of("eval", toml, ranks, {})), loss, 2e-6 * loss);
    EXPECT_EQ(output_of("generate", toml, ranks, greedy), text);
  }
  EXPECT_EQ(output_of("generate", "zero.toml", 2, sampled), drawn);
}

TEST_F(Launched, TorchrunGivesTheRunOfNproc) {
  const std::string ours = CHASSIS_TEST_SOURCE_DIR "/.deps/interop-venv/bin/torchrun";
  const std::string torchrun = fs::exists(ours) ? ours : path_of("torchrun");
  if (torchrun.empty()) GTEST_SKIP() << "there is no torchrun";
  expect_success(joined(training("fsdp2.toml", "nproc"), {"--nproc", "2"}));
  expect_success(
      joined({torchrun, "--standalone", "--no-python", "--nproc-per-node=2"}, training("fsdp2.toml", "torchrun")));
  expect_same_run("torchrun", "nproc");
}

// The driver reports two GPUs, but LibTorch finds none: two processes run on the CPU.
TEST_F(Launched, WithoutNprocThereIsOneProcessForEachGpu) {
  const auto output = [&](const std::string& toml, const char* num_gpus) {
    fs::remove_all(folder_ / "run");
    const Outcome outcome =
        run_process(joined(training(toml, "run"), {"run.device=auto", "run.max_steps=1"}), folder_.path(),
                    {{"LD_LIBRARY_PATH", CHASSIS_FAKE_DRIVER_DIR}, {"CHASSIS_FAKE_GPUS", num_gpus}});
    EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
    return outcome.output;
  };
  const std::string two = output("fsdp2.toml", "2");
  EXPECT_HAS(two, "starting 2 processes, one per visible GPU");
  EXPECT_HAS(two, " × 2 ranks ");
  for (const std::string& one : {output("fsdp2.toml", "1"), output("run.toml", "2")})
    EXPECT_EQ(one.find(" ranks "), std::string::npos) << one;
}

}  // namespace
}  // namespace chassis::test

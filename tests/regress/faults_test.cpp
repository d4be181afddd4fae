// Faults of one of several processes, one row each: all ranks end with the error of the faulty rank. Some runs are
// started by --nproc, whose parent serves the store and reaps its children; others by hand, as if each rank had its own
// machine. With the label slow, faults during training are repeated, and the time that the ranks took to end is
// printed.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>

#include "host/base/error.hpp"
#include "tests/regress/fault_run.hpp"
#include "tests/support/expect_has.hpp"
#include "tests/support/process.hpp"
#include "tests/support/unused_port.hpp"

namespace chassis::test {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;
using Words = std::vector<std::string>;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif
constexpr int kSlower = kSanitized ? 4 : 1;
constexpr auto kHang = std::chrono::seconds(60 * kSlower);
// Seconds that ranks wait for a stopped rank, or at the start for a missing one.
constexpr int kDeadline = 3 * kSlower;

// Keeps a port in use.
class Listener {
 public:
  explicit Listener(int port) : socket_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_ANY);
    EXPECT_EQ(bind(socket_, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    EXPECT_EQ(listen(socket_, 8), 0);
  }
  ~Listener() { close(socket_); }
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;

 private:
  int socket_;
};

// How one rank is started by hand.
struct Start {
  std::string directory;  // its working directory, with tokens.jsonl
  Words more = {};        // further arguments
  std::string variable;   // RANK
  bool starts = true;
};

struct Fault {
  std::string name;
  bool by_hand;
  int num_ranks;
  int rank;                                      // the faulty rank
  Words overrides;                               // for all ranks
  ExitCode code;                                 // from all ranks
  std::string own_error;                         // from the faulty rank; empty if it prints none
  std::string others_error;                      // from all other ranks
  std::function<void(Start&)> change = nullptr;  // changes how the faulty rank is started
  bool port_in_use = false;
  std::string toml = "";  // appended to the configuration
  int absent = -1;        // this rank is not started; the faulty rank waits for it and is sent `signal`
  int signal = 0;

  bool has(const char* word) const { return name.find(word) != std::string::npos; }
  friend void PrintTo(const Fault& fault, std::ostream* out) { *out << fault.name; }
};

struct End {
  bool hung = false;
  double seconds = 0.0;        // from the fault, or the start, to the end of the last rank
  std::vector<Outcome> ranks;  // by hand: one for each rank; else one for all
};

const std::string kToml = R"(schema_version = 1
[run]
max_steps = 6
seed = 5
threads = 1
device = "cpu"
)" + kFaultRun + R"([export]
when = "never"
[comm]
timeout_s = 60
init_timeout_s = 60
[[parallel]]
plugin = "faulty"
)";

class Run {
 public:
  explicit Run(const Fault& fault) : fault_(fault) {
    if (fault.port_in_use) listener_.emplace(port_);
    write_text(folder_ / "run.toml", kToml + fault.toml);
    for (int rank = 0; rank < (fault.by_hand ? fault.num_ranks : 1); ++rank) start(rank);
    if (fault.signal == 0) return;
    const Process& process = *processes_[static_cast<size_t>(fault.rank)];
    EXPECT_TRUE(process.wait_for("waiting for 1 of 3 ranks: " + std::to_string(fault.absent)));
    sent_ = Clock::now();
    process.send(fault.signal);
  }

  End wait() {
    const Clock::time_point began = Clock::now();
    // By hand only this test continues a stopped rank; the other ranks must end without it.
    const bool needs_continue = fault_.by_hand && fault_.has("stop");
    const auto others_ended = [&] {
      for (size_t i = 0; i < processes_.size(); ++i)
        if (processes_[i] && processes_[i]->running() && !(needs_continue && static_cast<int>(i) == fault_.rank))
          return false;
      return true;
    };
    End end;
    end.hung = !poll(began, others_ended);
    end.seconds = std::chrono::duration<double>(Clock::now() - time_of_fault().value_or(began)).count();
    if (needs_continue) {
      processes_[static_cast<size_t>(fault_.rank)]->send(SIGCONT);
      end.hung |= !poll(Clock::now(), [&] { return !processes_[static_cast<size_t>(fault_.rank)]->running(); });
    }
    for (const auto& process : processes_) {
      if (process && end.hung) process->send(SIGKILL);
      end.ranks.push_back(process ? process->wait() : Outcome{});
    }
    return end;
  }

 private:
  void start(int rank) {
    Start start{.directory = folder_ / ("rank" + std::to_string(rank)), .variable = std::to_string(rank)};
    fs::create_directory(start.directory);
    write_tokens(start.directory + "/tokens.jsonl", 101);
    if (rank == fault_.rank && fault_.change) fault_.change(start);
    Words command = {CHASSIS_PROGRAM, "train", folder_ / "run.toml", "run.output_dir=" + folder_ / "run",
                     "parallel.0.rank=" + std::to_string(fault_.rank)};
    for (const Words& more : {fault_.overrides, start.more}) command.insert(command.end(), more.begin(), more.end());
    command.insert(command.end(), {"--plugin-path", CHASSIS_TEST_PLUGIN_DIR, "--plugin-path", CHASSIS_TEST_STUB_DIR});
    if (!fault_.by_hand) command.insert(command.end(), {"--nproc", std::to_string(fault_.num_ranks)});
    std::vector<std::pair<std::string, std::string>> environment;
    if (fault_.by_hand)
      environment = {{"RANK", start.variable},
                     {"WORLD_SIZE", std::to_string(fault_.num_ranks)},
                     {"LOCAL_RANK", "0"},
                     {"GROUP_RANK", std::to_string(rank)},
                     {"LOCAL_WORLD_SIZE", "1"},
                     {"MASTER_ADDR", "127.0.0.1"},
                     {"MASTER_PORT", std::to_string(port_)}};
    const bool starts = start.starts && rank != fault_.absent;
    processes_.push_back(starts ? std::make_unique<Process>(command, start.directory, environment) : nullptr);
  }

  static bool poll(Clock::time_point from, const std::function<bool()>& ready) {
    while (!ready()) {
      if (Clock::now() - from > kHang) return false;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return true;
  }

  // The time that the faulty plugin printed, or at which the signal was sent.
  std::optional<Clock::time_point> time_of_fault() const {
    if (sent_) return sent_;
    for (const auto& process : processes_) {
      const std::string output = process ? process->output_so_far() : "";
      if (const size_t at = output.find("fault of "); at != std::string::npos)
        return Clock::time_point(std::chrono::nanoseconds(std::stoll(output.substr(output.find(" at ", at) + 4))));
    }
    return std::nullopt;
  }

  const Fault& fault_;
  ScratchDirectory folder_;
  const int port_ = unused_port();
  std::optional<Listener> listener_;
  std::vector<std::unique_ptr<Process>> processes_;
  std::optional<Clock::time_point> sent_;
};

// The output of one of the ranks of --nproc; rank 0 prints without a mark, as their parent does.
std::string lines_of(int rank, const std::string& output) {
  const std::string mark = "[rank " + std::to_string(rank) + "] ";
  std::string found;
  std::istringstream lines(output);
  bool is_own = false;
  for (std::string line; std::getline(lines, line);) {
    const bool continues = line.starts_with("caused by: ") || line.starts_with("hint: ");
    if (!continues) is_own = rank == 0 ? !line.starts_with("[rank ") : line.starts_with(mark);
    if (is_own) found += line + "\n";
  }
  return found;
}

// The output of every rank, also of one that prints no error.
std::string all_output(const End& end) {
  std::string all;
  for (size_t i = 0; i < end.ranks.size(); ++i)
    all += "process " + std::to_string(i) + ": exit code " + std::to_string(end.ranks[i].exit_code) + "\n" +
           end.ranks[i].output;
  return all;
}

void expect_end(const Fault& fault, const End& end) {
  EXPECT_FALSE(end.hung) << all_output(end);
  for (int rank = 0; rank < fault.num_ranks; ++rank) {
    const Outcome& outcome = end.ranks[fault.by_hand ? static_cast<size_t>(rank) : 0];
    const bool is_faulty = rank == fault.rank;
    const std::string output = fault.by_hand ? outcome.output : lines_of(rank, outcome.output);
    EXPECT_EQ(outcome.output.find("internal error"), std::string::npos) << outcome.output;
    if ((is_faulty && fault.own_error.empty()) || rank == fault.absent) continue;
    EXPECT_HAS(output, is_faulty ? fault.own_error : fault.others_error) << "rank " << rank << ": " << outcome.output;
    EXPECT_EQ(outcome.exit_code, static_cast<int>(fault.code)) << "rank " << rank << ": " << outcome.output;
  }
}

End run_fault(const Fault& fault) {
  const End end = Run(fault).wait();
  expect_end(fault, end);
  return end;
}

Words strategy(const std::string& fault, const Words& more = {}) {
  Words words = {"parallel.0.fault=" + fault};
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

// A fault of rank 0, while the others wait for it to finish the files of step 3.
Words in_checkpoint(const std::string& fault, const Words& more = {}) {
  Words words = {"checkpoint.plugin=crashing", "checkpoint.fault=" + fault, "checkpoint.every_steps=3",
                 "checkpoint.async=false"};
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

const Words kShortInitTimeout = {"comm.init_timeout_s=" + std::to_string(kDeadline)};
const Words kShortTimeout = {"comm.timeout_s=" + std::to_string(kDeadline)};
// Wide enough that the optimizer states need more memory than the limit leaves.
const Words kWide = {"model.config.hidden_size=512", "model.config.intermediate_size=1024"};
constexpr bool kNproc = false, kByHand = true;
const std::string kFirstIsGone = "rank 0 is gone: lost the store at 127.0.0.1:";
const std::string kFirstHangs = "rank 0 hangs: lost the store at 127.0.0.1:";
const std::string kDifferentCalls = "two ranks make different calls in #";

// Faults during training, by faulty_strategy.cpp and crashing_format.cpp.
std::vector<Fault> live_faults() {
  const auto killed = [](int rank) { return "rank " + std::to_string(rank) + " was killed by SIGKILL"; };
  const auto silent = [](int rank) { return " s: rank " + std::to_string(rank) + " did not respond"; };
  const Words kill_in_forward = strategy("kill in forward"), kill_in_collective = strategy("kill in collective"),
              stop_in_forward = strategy("stop in forward", kShortTimeout),
              stop_in_collective = strategy("stop in collective", kShortTimeout),
              another_order = strategy("another order"), out_of_memory = strategy("out of memory", kWide);
  const ExitCode comm = ExitCode::kCommunication;
  std::vector<Fault> faults = {
      {"kill_in_forward", kNproc, 3, 1, kill_in_forward, comm, "", killed(1)},
      {"kill_in_bound_by_hand", kByHand, 3, 1, strategy("kill in bound"), comm, "", "rank 1 went away: process "},
      {"kill_in_collective", kNproc, 3, 2, kill_in_collective, comm, "", killed(2)},
      {"kill_of_the_first", kNproc, 3, 0, kill_in_collective, comm, "", killed(0)},
      {"kill_by_hand", kByHand, 3, 1, kill_in_collective, comm, "", "rank 1 went away"},
      {"kill_of_the_first_by_hand", kByHand, 3, 0, kill_in_forward, comm, "", kFirstIsGone},
      {"late_kill_of_the_first_by_hand", kByHand, 2, 0, strategy("kill late in collective"), comm, "", kFirstIsGone},
      {"stop_in_forward", kNproc, 3, 1, stop_in_forward, comm, silent(1), silent(1)},
      {"stop_in_collective", kNproc, 3, 0, stop_in_collective, comm, silent(0), silent(0)},
      {"stop_by_hand", kByHand, 2, 1, stop_in_collective, comm, "rank 0", silent(1)},
      {"stop_of_the_first_by_hand", kByHand, 3, 0, stop_in_forward, comm, "rank ", kFirstHangs},
      {"kill_in_checkpoint", kNproc, 3, 0, in_checkpoint("kill"), comm, "", killed(0)},
      {"kill_in_checkpoint_by_hand", kByHand, 3, 0, in_checkpoint("kill"), comm, "", kFirstIsGone},
      {"stop_in_checkpoint", kNproc, 3, 0, in_checkpoint("stop", kShortTimeout), comm, "stopped: checkpoint '",
       "save step-000003: sync: waited " + std::to_string(kDeadline) + " s for rank 0"},
      {"stop_in_checkpoint_by_hand", kByHand, 3, 0, in_checkpoint("stop", kShortTimeout), comm, "", kFirstHangs},
      {"another_order", kNproc, 3, 1, another_order, comm, kDifferentCalls, kDifferentCalls},
      {"another_order_by_hand", kByHand, 2, 1, another_order, comm, kDifferentCalls, kDifferentCalls},
      {"error_in_forward", kNproc, 3, 2, strategy("error in forward"), ExitCode::kConfig,
       "the strategy fails on purpose", "rank 2: plugin 'faulty'"},
      {"out_of_memory", kNproc, 2, 1, out_of_memory, ExitCode::kOutOfMemory, "out of ", "rank 1: out of "},
      {"out_of_memory_by_hand", kByHand, 2, 1, out_of_memory, ExitCode::kOutOfMemory, "out of ", "rank 1: out of "},
  };
  // Ranks 0 and 1 have the first stage, 2 and 3 the second. Faults happen in warm-up, steady state and cool-down.
  const auto in_stages = [&](const char* name, int rank, const char* fault, bool stops = false) {
    Words words = strategy(fault, stops ? kShortTimeout : Words{});
    words.insert(words.end(), {"mesh.tp=2", "mesh.pp=2"});
    Fault out{
        name, kNproc, 4, rank, std::move(words), comm, stops ? silent(rank) : "", stops ? silent(rank) : killed(rank)};
    out.toml = "[[parallel]]\nplugin = \"tensor\"\n[[parallel]]\nplugin = \"pipeline\"\n";
    return out;
  };
  faults.push_back(in_stages("kill_in_warm_up", 0, "kill in forward"));
  faults.push_back(in_stages("kill_in_steady_state", 2, "kill in second forward"));
  faults.push_back(in_stages("kill_in_cool_down", 1, "kill in last backward"));
  faults.push_back(in_stages("stop_in_steady_state", 2, "stop in second forward", true));
  // The limit would also fail the mappings of a sanitizer.
  std::erase_if(faults, [](const Fault& fault) { return kSanitized && fault.has("out_of_memory"); });
  return faults;
}

void is_not_started(Start& start) { start.starts = false; }
void has_another_rate(Start& start) { start.more = {"optimizer.lr=0.5"}; }
void has_a_key_of_its_own(Start& start) { start.more = {"attention.plugin=\"naive\""}; }
void has_a_wrong_number(Start& start) { start.variable = "7"; }
void has_a_wrong_key(Start& start) { start.more = {"optimizer.no_such_key=1"}; }
void has_other_data(Start& start) { write_tokens(start.directory + "/tokens.jsonl", 100); }
void has_another_plugin(Start& start) {
  const std::string folder = start.directory + "/plugins";
  fs::create_directory(folder);
  write_text(folder + "/adamw.so", text_of_file(CHASSIS_TEST_PLUGIN_DIR "/adamw.so") + "after what is loaded");
  start.more = {"--plugin-path", folder};
}

// Faults before the first step.
std::vector<Fault> early_faults() {
  const ExitCode comm = ExitCode::kCommunication, config = ExitCode::kConfig;
  const std::string late = std::to_string(kDeadline), differ = "the ranks differ in ", from_1 = "rank 1: ";
  const std::string rate = differ + "configuration: 'optimizer.lr = 0.5' on rank 1, 'optimizer.lr = 0.002' on rank 0";
  const std::string plugin = differ + "plugins: 'adamw ", data = differ + "data: '";
  const std::string cpu = "nccl serves CUDA memory; this run is on the CPU";
  const std::string nobody = "mesh.tp = 2, but no strategy of [[parallel]] serves this axis";
  const std::string nothing = "plugin 'faulty' 0.1.0 has nothing to divide: the mesh is ";
  const std::string twice = "axis 'dp_shard' is served by plugin 'faulty' 0.1.0 and by plugin 'faulty' 0.1.0";
  const std::string second = "[[parallel]]\nplugin = \"faulty\"\nfault = \"place nothing\"\n";
  const std::string own_key =
      differ + "configuration: 'attention.plugin = \"naive\"' on rank 1, 'attention.plugin = \"auto\"' on rank 0";
  const std::string wrong_number = "RANK is '7', expected 0 to 2", told = "a process that was started with RANK=7 (";
  const std::string wrong_key = "no_such_key";
  const Words none;
  return {
      {"rank_missing", kByHand, 3, 2, kShortInitTimeout, comm, "",
       "1 of 3 ranks did not arrive within " + late + " s: 2", is_not_started},
      {"first_rank_missing", kByHand, 2, 0, kShortInitTimeout, comm, "", "within " + late + " s: Connection refused",
       is_not_started},
      {.name = "kill_of_the_first_at_the_start",
       .by_hand = kByHand,
       .num_ranks = 3,
       .rank = 0,
       .overrides = none,
       .code = comm,
       .own_error = "",
       .others_error = kFirstIsGone,
       .absent = 2,
       .signal = SIGKILL},
      {.name = "stop_of_the_first_at_the_start",
       .by_hand = kByHand,
       .num_ranks = 3,
       .rank = 0,
       .overrides = kShortInitTimeout,
       .code = comm,
       .own_error = "1 of 3 ranks did not arrive within " + late + " s: 2",
       .others_error = kFirstHangs,
       .absent = 2,
       .signal = SIGSTOP},
      {"port_in_use", kByHand, 2, 0, kShortInitTimeout, comm, "Address already in use",
       "it accepts connections, but does not answer", nullptr, true},
      {"other_configuration", kByHand, 3, 1, none, config, rate, from_1 + rate, has_another_rate},
      {"key_of_one_rank_alone", kByHand, 2, 1, none, config, own_key, from_1 + own_key, has_a_key_of_its_own},
      {"wrong_number_of_a_rank", kByHand, 3, 1, none, config, wrong_number, told, has_a_wrong_number},
      {"wrong_number_of_the_first_rank", kByHand, 3, 0, none, config, wrong_number, told, has_a_wrong_number},
      {"wrong_key_on_one_rank", kByHand, 2, 1, none, config, wrong_key, wrong_key, has_a_wrong_key},
      {"other_plugin", kByHand, 2, 1, none, config, plugin, from_1 + plugin, has_another_plugin},
      {"other_data", kByHand, 2, 1, none, config, data, from_1 + data, has_other_data},
      {"axis_without_a_strategy", kNproc, 2, 1, {"mesh.tp=2"}, config, nobody, nobody},
      {"strategy_without_an_axis", kNproc, 2, 1, strategy("claim nothing"), config, nothing, nothing},
      {"axis_of_two_strategies", kNproc, 2, 1, none, config, twice, twice, nullptr, false, second},
      {"nccl_without_a_gpu", kNproc, 2, 1, {"comm.plugin=nccl"}, config, cpu, cpu},
  };
}

std::string name_of(const testing::TestParamInfo<Fault>& info) { return info.param.name; }

class Faults : public testing::TestWithParam<Fault> {};
TEST_P(Faults, EndAllRanksWithTheError) {
  if (GetParam().has("nccl") && !fs::exists(CHASSIS_TEST_PLUGIN_DIR "/nccl.so"))
    GTEST_SKIP() << "nccl is built with CUDA";
  std::printf("%-30s %.1f s\n", GetParam().name.c_str(), run_fault(GetParam()).seconds);
}
INSTANTIATE_TEST_SUITE_P(Early, Faults, testing::ValuesIn(early_faults()), name_of);
INSTANTIATE_TEST_SUITE_P(Live, Faults, testing::ValuesIn(live_faults()), name_of);

class RepeatedFaults : public testing::TestWithParam<Fault> {};
TEST_P(RepeatedFaults, NeverHang) {
  constexpr int kRepetitions = 50;
  int num_hung = 0;
  double longest = 0.0;
  for (int i = 0; i < kRepetitions; ++i) {
    const End end = run_fault(GetParam());
    num_hung += end.hung;
    longest = std::max(longest, end.seconds);
  }
  std::printf("| %s | %d | %d | %.1f |\n", GetParam().name.c_str(), kRepetitions, num_hung, longest);
  std::fflush(stdout);
}
INSTANTIATE_TEST_SUITE_P(Live, RepeatedFaults, testing::ValuesIn(live_faults()), name_of);

}  // namespace
}  // namespace chassis::test

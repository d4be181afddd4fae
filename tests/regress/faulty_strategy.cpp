// ZeRO 1 with a fault on one rank, for faults_test.cpp; gradients are reduced in two parts. Faults during training
// happen in the third step, since plans rehearse two.
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdio>
#include <memory>
#include <vector>

#include "chassis/memory.hpp"
#include "chassis/options.hpp"
#include "chassis/parallel.hpp"
#include "chassis/plugin.hpp"
#include "mark_fault.hpp"

namespace {

using namespace chassis;

constexpr int kFaultyStep = 2;

class Faulty final : public Parallel {
 public:
  static constexpr std::string_view kDoc = "test: ZeRO 1 with a fault";
  static constexpr std::string_view kHomeAxis = "dp_shard";
  static const Options& options() {
    static const Options schema = {
        option("fault", "none")
            .choices({"none", "claim nothing", "place nothing", "out of memory", "error in bound", "error in forward",
                      "kill in forward", "kill in bound", "kill in second forward", "kill in last backward",
                      "stop in second forward", "kill in collective", "kill late in collective", "stop in forward",
                      "stop in collective", "another order", "grow"}),
        option("rank", 0).range(0, 1 << 20).doc("the faulty rank"),
    };
    return schema;
  }

  explicit Faulty(const Host& host)
      : Parallel(host),
        fault_(option_value<std::string>(host, "fault")),
        faulty_rank_(option_value<int64_t>(host, "rank")) {}

  void resolve(const ParallelProblem& problem, ParallelSink& sink) override {
    int64_t rank = 0;  // in the run
    for (const chassis_mesh_axis_t& axis : problem.axes()) rank = rank * axis.size + axis.rank;
    is_faulty_ = rank == faulty_rank_;
    if (fault_ != "claim nothing") sink.claim(kHomeAxis);
    all_.clear(), first_.clear(), second_.clear();
    if (fault_ == "place nothing") return;
    for (uint32_t id = 0; id < problem.parameters().size(); ++id) {
      if (fault_ == "claim nothing")
        sink.place(id, {.kind = CHASSIS_SHARD_REPLICATE, .resident = true});
      else
        sink.place(id, {.kind = CHASSIS_SHARD_FLAT, .axes = {kHomeAxis}, .resident = true});
      all_.push_back(id);
      (id % 3 == 0 ? first_ : second_).push_back(id);
    }
  }

  // Limits the address space, so that the next allocation of the host fails.
  void bound() override {
    if (has("kill in bound")) raise_once(SIGKILL);
    if (has("error in bound")) fail_invalid("the strategy fails on purpose");
    if (!has("out of memory")) return;
    test::mark_fault();
    limit_memory(1 << 20);
    sleep(2);  // so that the threads of the host run under the limit too
  }

  void pre_forward(uint32_t unit, UnitFlags flags) override {
    if (!flags.training || unit != 1 || step_ != kFaultyStep) return;
    ++num_forwards_;
    if (has("kill in second forward") && num_forwards_ == 2) raise_once(SIGKILL);
    if (has("stop in second forward") && num_forwards_ == 2) raise_once(SIGSTOP);
    if (has("error in forward")) {
      test::mark_fault();
      fail_invalid("the strategy fails on purpose");
    }
    if (has("grow")) grow();
    if (has("kill in forward")) raise_once(SIGKILL);
    if (has("stop in forward")) raise_once(SIGSTOP);
  }

  void pre_backward(uint32_t unit, UnitFlags flags) override {
    if (unit == 1 && step_ == kFaultyStep && flags.last_microbatch && has("kill in last backward")) raise_once(SIGKILL);
  }

  void finish_grads() override {
    const bool now = step_++ == kFaultyStep;
    const bool other_order = now && has("another order");
    if (other_order) test::mark_fault();
    shards().reduce(other_order ? second_ : first_, "gradients");
    if (now && has("kill late in collective")) sleep(2);  // until the other ranks have reported what they wait for
    if (now && (has("kill in collective") || has("kill late in collective"))) raise_once(SIGKILL);
    if (now && has("stop in collective")) raise_once(SIGSTOP);
    shards().reduce(other_order ? first_ : second_, "gradients");
    shards().wait_reduced(all_);
  }

  void post_optimizer() override {
    shards().gather(all_, "parameters");
    shards().wait_gathered(all_);
    shards().release(all_);
  }

 private:
  bool has(std::string_view fault) const { return is_faulty_ && fault_ == fault; }

  // From now on the process may reserve only that much more.
  static void limit_memory(rlim_t more_bytes) {
    long pages = 0;
    if (FILE* const file = std::fopen("/proc/self/statm", "r")) {
      if (std::fscanf(file, "%ld", &pages) != 1) pages = 0;
      std::fclose(file);
    }
    rlimit limit{};
    getrlimit(RLIMIT_AS, &limit);
    limit.rlim_cur = static_cast<rlim_t>(pages) * static_cast<rlim_t>(sysconf(_SC_PAGESIZE)) + more_bytes;
    setrlimit(RLIMIT_AS, &limit);
  }

  // Takes all memory that there is.
  void grow() const {
    test::mark_fault();
    limit_memory(128 << 20);
    std::vector<std::unique_ptr<Scratch<char>>> held;
    for (;;) held.push_back(std::make_unique<Scratch<char>>(host(), 8 << 20));
  }

  // Signals only once, since units run forward for every micro-batch.
  void raise_once(int signal) {
    is_faulty_ = false;
    test::mark_fault();
    kill(getpid(), signal);
  }

  std::string fault_;
  int64_t faulty_rank_;
  bool is_faulty_ = false;
  int step_ = 0, num_forwards_ = 0;
  std::vector<uint32_t> all_, first_, second_;
};

}  // namespace

CHASSIS_PLUGIN("swappable=1\nlicense=Apache-2.0\n", Faulty)

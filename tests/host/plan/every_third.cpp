// ZeRO 1 that reduces in every third micro-batch: its behaviour depends on how many micro-batches came before.
#include <vector>

#include "chassis/parallel.hpp"
#include "chassis/plugin.hpp"

namespace {

using namespace chassis;

class EveryThird final : public Parallel {
 public:
  static constexpr std::string_view kDoc = "test: ZeRO 1 that reduces in every third micro-batch";
  static constexpr std::string_view kHomeAxis = "dp_shard";
  using Parallel::Parallel;

  void resolve(const ParallelProblem& problem, ParallelSink& sink) override {
    sink.claim(kHomeAxis);
    all_.clear();
    for (uint32_t id = 0; id < problem.parameters().size(); ++id) {
      sink.place(id, {.kind = CHASSIS_SHARD_FLAT, .axes = {kHomeAxis}, .resident = true});
      all_.push_back(id);
    }
  }
  void post_backward(uint32_t unit, UnitFlags flags) override {
    if (flags.inputs_only || unit != 0 || ++num_backwards_ % 3 != 0 || flags.last_microbatch) return;
    reduce();
  }
  void finish_grads() override { reduce(); }
  void post_optimizer() override {
    shards().gather(all_, "parameters");
    shards().wait_gathered(all_);
    shards().release(all_);
  }

 private:
  void reduce() {
    shards().reduce(all_, "gradients");
    shards().wait_reduced(all_);
  }
  std::vector<uint32_t> all_;
  int num_backwards_ = 0;
};

}  // namespace

CHASSIS_PLUGIN("license=Apache-2.0\n", EveryThird)

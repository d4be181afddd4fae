// ZeRO stage 1 (Rajbhandari et al. 2020) without options: every rank has all parameters and all gradients, but steps
// only its own flat range of each; afterwards, the ranges are gathered. A complete parallel strategy on one screen.
#include <vector>

#include "chassis/parallel.hpp"
#include "chassis/plugin.hpp"

namespace {

using namespace chassis;

class PlainZero1 final : public Parallel {
 public:
  static constexpr std::string_view kDoc = "example: optimizer states in flat ranges, parameters whole";
  static constexpr std::string_view kHomeAxis = "dp_shard";
  using Parallel::Parallel;

  void resolve(const ParallelProblem& problem, ParallelSink& sink) override {
    sink.claim(kHomeAxis);
    all_.clear(), trained_.clear();
    for (uint32_t id = 0; id < problem.parameters().size(); ++id) {
      const bool trained = problem.parameters()[id].trainable != 0;
      if (trained)
        sink.place(id, {.kind = CHASSIS_SHARD_FLAT, .axes = {kHomeAxis}, .resident = true});
      else
        sink.place(id, {.kind = CHASSIS_SHARD_REPLICATE, .resident = true});
      all_.push_back(id);
      if (trained) trained_.push_back(id);
    }
  }

  // The whole gradients hold the sum over micro-batches; reduce sums them over the ranks into each rank's range.
  void finish_grads() override {
    shards().reduce(trained_, "gradients");
    shards().wait_reduced(trained_);
  }

  // Each rank has updated its range: gather the ranges.
  void post_optimizer() override {
    shards().gather(all_, "parameters");
    shards().wait_gathered(all_);
    shards().release(all_);
  }

 private:
  std::vector<uint32_t> all_, trained_;
};

}  // namespace

CHASSIS_PLUGIN("license=Apache-2.0\n", PlainZero1)

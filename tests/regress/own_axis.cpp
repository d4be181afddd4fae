// A data strategy along the axis of experts, for parallel_test.cpp: replicas whose gradients are summed after the
// step's last backward.
#include <vector>

#include "chassis/parallel.hpp"
#include "chassis/plugin.hpp"

namespace {

using namespace chassis;

class OwnAxis final : public Parallel {
 public:
  static constexpr std::string_view kDoc = "test: replicas along 'ep'";
  static constexpr std::string_view kHomeAxis = "ep";

  explicit OwnAxis(const Host& host) : Parallel(host) {}

  void resolve(const ParallelProblem& problem, ParallelSink& sink) override {
    sink.claim(kHomeAxis);
    all_.clear();
    for (uint32_t id = 0; id < problem.parameters().size(); ++id) {
      sink.place(id, {.kind = CHASSIS_SHARD_REPLICATE, .resident = true});
      all_.push_back(id);
    }
  }

  void finish_grads() override {
    shards().reduce(all_, "all");
    shards().wait_reduced(all_);
  }

  void post_optimizer() override {
    shards().gather(all_, "parameters");
    shards().wait_gathered(all_);
    shards().release(all_);
  }

 private:
  std::vector<uint32_t> all_;
};

}  // namespace

CHASSIS_PLUGIN("license=Apache-2.0\n", OwnAxis)

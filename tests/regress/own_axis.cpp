// Strategies along the axis of experts, for parallel_test.cpp and tests/host/parallel.
#include <string>
#include <vector>

#include "chassis/options.hpp"
#include "chassis/parallel.hpp"
#include "chassis/plugin.hpp"

namespace {

using namespace chassis;

constexpr std::string_view kAxis = "ep";

// Parameters whose gradients are summed after the step's last backward.
class OwnAxis final : public Parallel {
 public:
  static constexpr std::string_view kDoc = "test: the batch divided along 'ep'";
  static constexpr std::string_view kId = "own_axis";
  static constexpr std::string_view kHomeAxis = kAxis;

  static const Options& options() {
    static const Options schema = {option("dim", "").doc("a dim that is divided along 'ep'; empty: none"),
                                   option("shards", false).doc("true: shards of parameters; false: replicas"),
                                   option("differ", "").doc("an axis along which replicas may differ; empty: none")};
    return schema;
  }

  explicit OwnAxis(const Host& host)
      : Parallel(host),
        dim_(option_value<std::string>(host, "dim")),
        shards_parameters_(option_value<bool>(host, "shards")),
        differ_(option_value<std::string>(host, "differ")) {}

  void divide(const DivisionProblem&, DivisionSink& sink) override {
    if (!dim_.empty()) sink.divide(dim_, kAxis);
  }

  void resolve(const ParallelProblem& problem, ParallelSink& sink) override {
    sink.claim(kAxis);
    all_.clear();
    for (uint32_t id = 0; id < problem.parameters().size(); ++id) {
      if (shards_parameters_)
        sink.place(id, {.kind = CHASSIS_SHARD_FLAT, .axes = {kAxis}, .resident = true});
      else
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

  bool replicas_differ(std::string_view axis) const noexcept override { return axis == differ_; }

 private:
  const std::string dim_;
  const bool shards_parameters_;
  const std::string differ_;
  std::vector<uint32_t> all_;
};

// Leaves the parameters to another strategy.
class OwnExperts final : public Parallel {
 public:
  static constexpr std::string_view kDoc = "test: the batch divided along 'ep', next to another strategy";
  static constexpr std::string_view kId = "own_experts";
  static constexpr std::string_view kHomeAxis = kAxis;

  static const Options& options() {
    static const Options schema = {option("dim", "").doc("a dim that is divided along 'ep'; empty: none"),
                                   option("sequence", false).doc("true: asks for sequence parallelism along 'ep'")};
    return schema;
  }

  explicit OwnExperts(const Host& host)
      : Parallel(host), dim_(option_value<std::string>(host, "dim")), sequence_(option_value<bool>(host, "sequence")) {}

  void divide(const DivisionProblem&, DivisionSink& sink) override {
    if (!dim_.empty()) sink.divide(dim_, kAxis);
    if (sequence_) sink.sequence_parallel(kAxis);
  }

  void resolve(const ParallelProblem&, ParallelSink& sink) override { sink.claim(kAxis); }

 private:
  const std::string dim_;
  const bool sequence_;
};

}  // namespace

CHASSIS_PLUGIN("requires=chassis.options/1\nlicense=Apache-2.0\n", OwnAxis, OwnExperts)

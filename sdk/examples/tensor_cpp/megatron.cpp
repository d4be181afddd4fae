// The tensor parallelism of Megatron-LM (Shoeybi et al. 2019) without options: the ranks of axis "tp" divide attention
// heads and the hidden units of MLPs. The host finds out where values must be summed, so the strategy only names dims.
#include "chassis/parallel.hpp"
#include "chassis/plugin.hpp"

namespace {

using namespace chassis;

class Megatron final : public Parallel {
 public:
  static constexpr std::string_view kDoc = "example: heads and MLP widths divided over the ranks";
  static constexpr std::string_view kHomeAxis = "tp";
  using Parallel::Parallel;

  void divide(const DivisionProblem& problem, DivisionSink& sink) override {
    for (const std::string_view dim : {"heads", "kv_heads", "ffn"})
      if (problem.has_dim(dim)) sink.divide(dim, kHomeAxis);
  }

  // A rank stores what the division leaves to it.
  void resolve(const ParallelProblem&, ParallelSink&) override {}
};

}  // namespace

CHASSIS_PLUGIN("license=Apache-2.0\n", Megatron)

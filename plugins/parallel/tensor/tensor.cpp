// Tensor parallelism (Shoeybi et al. 2019): each rank has some of the attention heads and some of the hidden units of
// the MLP. A layer's forward sums two activations over the ranks, its backward two gradients.
#include "chassis/options.hpp"
#include "chassis/parallel.hpp"
#include "chassis/plugin.hpp"

namespace {

using namespace chassis;

class TensorParallel final : public Parallel {
 public:
  static constexpr int kMinHostMinor = 7;  // the first host that calls divide
  static constexpr std::string_view kDoc = "attention heads and MLP widths divided over the ranks";
  static constexpr std::string_view kHomeAxis = "tp";

  static const Options& options() {
    static const Options schema = {};
    return schema;
  }

  explicit TensorParallel(const Host& host) : Parallel(host) {}

  void divide(const DivisionProblem& problem, DivisionSink& sink) override {
    for (const std::string_view dim : {"heads", "kv_heads", "ffn"})
      if (problem.has_dim(dim)) sink.divide(dim, kHomeAxis);
  }

  void resolve(const ParallelProblem&, ParallelSink&) override {}  // stores what its dims leave
};

}  // namespace

CHASSIS_PLUGIN("requires=chassis.options/1\nlicense=Apache-2.0\n", TensorParallel)

// Tensor parallelism (Shoeybi et al. 2019): each rank has some of the attention heads, of the hidden units of the MLP
// and of the vocabulary. A layer's forward sums two activations over the ranks, its backward two gradients. Sequence
// parallelism (Korthikanti et al. 2022) divides the positions of the values in between; its gathers and scatters may
// overlap with the products next to them, chunk by chunk around the ranks (Wang et al. 2023).
#include "chassis/options.hpp"
#include "chassis/parallel.hpp"
#include "chassis/plugin.hpp"

namespace {

using namespace chassis;

class TensorParallel final : public Parallel {
 public:
  static constexpr std::string_view kDoc = "attention heads, MLP widths and vocabulary divided over the ranks";
  static constexpr std::string_view kHomeAxis = "tp";
  static constexpr Saving kSavings[] = {{"sequence_parallel", "true"}};

  static const Options& options() {
    static const Options schema = {
        option("sequence_parallel", false)
            .doc("true: divide positions where nothing else is divided, at norms and residual sums; less memory, and "
                 "a gather and a scatter in place of each sum"),
        option("overlap", "none")
            .choices({"none", "ring"})
            .doc("ring: the gathers and scatters of sequence_parallel pass chunks of positions from rank to rank, "
                 "while the products of other chunks are computed. Gains where a transfer takes as long as a product "
                 "and does not use the cores that compute"),
    };
    return schema;
  }

  explicit TensorParallel(const Host& host)
      : Parallel(host),
        sequence_parallel_(option_value<bool>(host, "sequence_parallel")),
        rings_(option_value<std::string>(host, "overlap") == "ring") {
    if (rings_ && !sequence_parallel_)
      fail_invalid(option_origin(host, "overlap"),
                   ": overlap = \"ring\" needs sequence_parallel = true, whose gathers and scatters it divides; a sum "
                   "of all positions cannot overlap with its product");
  }

  void divide(const DivisionProblem& problem, DivisionSink& sink) override {
    for (const std::string_view dim : {"heads", "kv_heads", "ffn", "expert_ffn", "shared_ffn"})
      if (problem.has_dim(dim)) sink.divide(dim, kHomeAxis);
    if (problem.has_dim("vocab")) sink.divide("vocab", kHomeAxis, true);
    if (sequence_parallel_) sink.sequence_parallel(kHomeAxis);
    if (rings_) sink.overlap(kHomeAxis, CHASSIS_OVERLAP_RING);
  }

  void resolve(const ParallelProblem&, ParallelSink&) override {}  // a rank stores what the division leaves to it

 private:
  const bool sequence_parallel_, rings_;
};

}  // namespace

CHASSIS_PLUGIN("requires=chassis.options/1\nswappable=1\nlicense=Apache-2.0\n", TensorParallel)

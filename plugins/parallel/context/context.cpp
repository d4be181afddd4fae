// Context parallelism: each rank has some of the positions of every row, and all weights. Only attention reads
// positions of other ranks: all of some heads (Jacobs et al. 2023, "DeepSpeed Ulysses"), or all keys and values for its
// own queries (Llama Team 2024, "The Llama 3 Herd of Models", 3.3.2), at once or one rank's after another (Liu et al.
// 2023, "Ring Attention with Blockwise Transformers").
#include "chassis/options.hpp"
#include "chassis/parallel.hpp"
#include "chassis/plugin.hpp"

namespace {

using namespace chassis;

class ContextParallel final : public Parallel {
 public:
  static constexpr std::string_view kDoc = "positions divided over the ranks, for long sequences";
  static constexpr std::string_view kHomeAxis = "cp";

  static const Options& options() {
    static const Options schema = {
        option("mode", "all_to_all")
            .choices({"all_to_all", "gather", "ring"})
            .doc("how attention sees other ranks' positions. all_to_all: a rank computes some heads of all positions; "
                 "cp must divide the heads. gather: it gathers all keys and values; any cp. ring: keys and values pass "
                 "from rank to rank, so that none has all; any cp"),
    };
    return schema;
  }

  explicit ContextParallel(const Host& host) : Parallel(host), mode_(option_value<std::string>(host, "mode")) {}

  void divide(const DivisionProblem&, DivisionSink& sink) override {
    sink.context_parallel(kHomeAxis, mode_ == "ring"     ? CHASSIS_CONTEXT_RING
                                     : mode_ == "gather" ? CHASSIS_CONTEXT_GATHER
                                                         : CHASSIS_CONTEXT_ALL_TO_ALL);
  }

  void resolve(const ParallelProblem&, ParallelSink&) override {}  // every rank stores everything

 private:
  const std::string mode_;
};

}  // namespace

CHASSIS_PLUGIN("requires=chassis.options/1\nswappable=1\nlicense=Apache-2.0\n", ContextParallel)

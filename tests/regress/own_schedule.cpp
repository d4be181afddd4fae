// A strategy with a schedule of its own, for pipeline_parallel_test.cpp: all forwards, then all backwards from the last
// micro-batch to the first; and what the host must refuse.
#include <string>
#include <vector>

#include "chassis/options.hpp"
#include "chassis/parallel.hpp"
#include "chassis/plugin.hpp"

namespace {

using namespace chassis;

class OwnSchedule final : public Parallel {
 public:
  static constexpr std::string_view kDoc = "test: backwards in reverse order";
  static constexpr std::string_view kHomeAxis = "pp";
  static const Options& options() {
    static const Options schema = {
        option("fault", "none")
            .choices({"none", "no backward", "backward before forward", "unknown work", "idle rank", "another axis",
                      "no schedule", "two schedules", "rank outside", "one micro-batch less"}),
    };
    return schema;
  }

  explicit OwnSchedule(const Host& host) : Parallel(host), fault_(option_value<std::string>(host, "fault")) {}

  void stages(const StageProblem& problem, StageSink& sink) override {
    const uint32_t num_ranks = problem.axis_size(kHomeAxis);
    uint32_t num_microbatches = problem.num_microbatches() == 0 ? 1 : problem.num_microbatches();
    if (has("one micro-batch less")) --num_microbatches;
    std::vector<uint32_t> ranks;
    std::vector<std::vector<chassis_work_t>> works(num_ranks);
    for (uint32_t rank = 0; rank < num_ranks; ++rank) {
      ranks.push_back(has("idle rank") ? 0 : has("rank outside") ? rank + 1 : rank);
      for (uint32_t m = 0; m < num_microbatches; ++m) works[rank].push_back({CHASSIS_WORK_FORWARD, 0, m});
      for (uint32_t m = num_microbatches; m-- > 0;)
        if (!(has("no backward") && m == 1)) works[rank].push_back({CHASSIS_WORK_BACKWARD, 0, m});
    }
    if (has("unknown work")) works[0][0].kind = 9;
    if (has("backward before forward")) std::swap(works[1].front(), works[1].back());
    if (has("no schedule")) return sink.layers(std::vector<int64_t>(num_ranks, 1));
    sink.lists(has("another axis") ? "tp" : kHomeAxis, ranks, works);
    if (has("two schedules")) sink.named(kHomeAxis, "gpipe", 1);
  }

  void resolve(const ParallelProblem&, ParallelSink&) override {}

 private:
  bool has(std::string_view fault) const { return fault_ == fault; }
  const std::string fault_;
};

}  // namespace

CHASSIS_PLUGIN("requires=chassis.options/1\nlicense=Apache-2.0\n", OwnSchedule)

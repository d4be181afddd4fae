#include "host/program/layout.hpp"

#include <gtest/gtest.h>

#include <barrier>
#include <set>
#include <thread>

#include "host/plugin/thread_role.hpp"
#include "tests/host/program/cpu_run.hpp"
#include "tests/support/expect_has.hpp"

namespace chassis {
namespace {

using test::CpuRun;
using test::fields_of;
using test::kIds;
using test::LoadedPlugins;
using test::Recorder;
using test::SmallModel;

class Divide final : public LayoutStrategy {
 public:
  Divide(int64_t ways, std::set<std::string> dims, bool sequence = false)
      : ways_(ways), dims_(std::move(dims)), sequence_(sequence) {}
  std::string axis() const override { return "tp"; }
  int64_t axis_size() const override { return ways_; }
  bool divides(std::string_view dim) const override { return dims_.count(std::string(dim)) != 0; }
  bool pads(std::string_view) const override { return false; }
  bool sequence_parallel() const override { return sequence_; }

 private:
  int64_t ways_;
  std::set<std::string> dims_;
  bool sequence_;
};

std::string layout_refusal(Program program, const Divide& strategy) {
  const LayoutStrategy* stack[] = {&strategy};
  return test::refusal([&] { apply_layout(program, stack); });
}

TEST(Layout, CollectivesAreEachOthersBackward) {
  for (const char* op : {"comm.copy", "comm.all_reduce", "comm.all_gather", "comm.reduce_scatter"})
    EXPECT_EQ(dual_of(dual_of(op)), op);
}

TEST(Layout, ASizeThatDoesNotDivideIsRefused) {
  const std::string said = layout_refusal(SmallModel{}.program(), Divide(4, {"ffn"}));
  EXPECT_HAS(said, "axis 'tp' of size 4 can not divide ffn = 6");
  EXPECT_HAS(said, "choose a size that divides 6");
}

TEST(Layout, ABiasBehindADividedContractionIsRefused) {
  EXPECT_HAS(layout_refusal(test::record([](Recorder& r) {
               const DimId v = r.dim("vocab", 4), f = r.dim("ffn", 8), h = r.dim("hidden", 2);
               const uint32_t block = r.block("b", [&] {
                 const ValueId x = r.op("embedding", "e", {r.field("input_ids")}, {r.slot("e", {{v}, {h}})}, {}, {h});
                 const ValueId u = r.op("linear", "up", {x}, {r.slot("u", {{f}, {h}})}, {}, {f});
                 r.output("y", r.op("linear", "down", {u}, {r.slot("d", {{h}, {f}}), r.slot("c", {{h}})}, {}, {h}));
               });
               r.chain("c", "", {block});
             }),
                            Divide(2, {"ffn"})),
             "axis 'tp' can not divide block 'b': linear 'down' has a bias, which every rank of the axis would add");
}

TEST(Layout, AContractionOfSomethingWholeIsRefused) {
  EXPECT_HAS(layout_refusal(SmallModel{}.program(), Divide(2, {"hidden"})), "axis 'tp' can not divide block");
}

TEST(Layout, SequenceParallelismNeedsADividedVocabulary) {
  EXPECT_HAS(layout_refusal(SmallModel{}.program(), Divide(2, {"ffn"}, true)),
             "cross_entropy 'loss' has logits divided along T, but whole labels; divide the vocabulary as well");
}

TEST(Layout, HeadsDividedOnOneSideAloneAreRefused) {
  EXPECT_HAS(
      layout_refusal(
          test::record([](Recorder& r) {
            const DimId v = r.dim("vocab", 4), n = r.dim("heads", 4), k = r.dim("kv_heads", 1),
                        d = r.dim("head_dim", 2), h = r.dim("hidden", 2);
            const uint32_t block = r.block("b", [&] {
              const ValueId x = r.op("embedding", "e", {r.field("input_ids")}, {r.slot("e", {{v}, {h}})}, {}, {h});
              const ValueId q = r.op("linear", "q", {x}, {r.slot("q", {{n, d}, {h}})}, {}, {n, d});
              const ValueId key = r.op("linear", "k", {x}, {r.slot("k", {{k, d}, {h}})}, {}, {k, d});
              r.output("y", r.op("attention", "a", {q, key, key}));
            });
            r.chain("c", "", {block});
          }),
          Divide(2, {"heads"})),
      "attention 'a' has divided heads on one side only");
}

// Two ranks on two threads, which add up for real.
class ThreadedCollectives final : public Collectives {
 public:
  struct Meeting {
    std::barrier<> barrier{2};
    Tensor parts[2];
  };
  ThreadedCollectives(Meeting& meeting, int rank) : meeting_(meeting), rank_(rank) {}

  Tensor run(const std::string& op, const std::string&, int, const Tensor& input) override {
    CHASSIS_CHECK(op == "comm.all_reduce", op);
    meeting_.parts[rank_] = input;
    meeting_.barrier.arrive_and_wait();
    Tensor sum = meeting_.parts[0].clone();
    sum.add(meeting_.parts[1]);
    meeting_.barrier.arrive_and_wait();
    return sum;
  }

 private:
  Meeting& meeting_;
  int rank_;
};

Tensor part_of(const Tensor& whole, const Parameter& p, int rank) {
  if (p.descriptor.placements.empty()) return whole;
  const int dim = p.descriptor.placements[0].dim;
  const int64_t size = p.local_shape[static_cast<size_t>(dim)];
  return whole.narrow(dim, size * rank, size).contiguous();
}

TEST(Layout, TwoRanksTogetherComputeWhatOneDoes) {
  LoadedPlugins plugins;
  CpuRun whole(SmallModel{.layers = 3}.program(), {plugins.ops("reference")});
  const double loss = whole.step({fields_of(kIds, 2)});
  const auto expected = whole.gradients();

  const Divide strategy(2, {"ffn"});
  const LayoutStrategy* stack[] = {&strategy};
  ThreadedCollectives::Meeting meeting;
  auto rank_body = [&](int rank, OpsProvider provider) {
    const ThreadRoleScope role(ThreadRole::kStep);
    Program program = SmallModel{.layers = 3}.program();
    const ProgramLayout layout = apply_layout(program, stack);
    ParameterTable parameters(program, layout);
    parameters.allocate({});
    for (const auto& p : parameters.all()) p->value.copy_from(part_of(whole.parameters.find(p->name)->value, *p, rank));
    ResolveOptions options;
    options.batch = 2;
    options.time = 3;
    options.kernels = {provider};
    ThreadedCollectives collectives(meeting, rank);
    Executor executor(program, layout, parameters, options, Recompute::kFull, nullptr, &collectives);
    parameters.start_step();
    EXPECT_NEAR(executor.forward(0, fields_of(kIds, 2), 1.0).item(), loss, 1e-5);
    executor.backward(0);
    for (const auto& p : parameters.all())
      EXPECT_LT(test::largest_difference(p->gradient, part_of(expected.at(p->name), *p, rank)), 1e-5) << p->name;
  };
  std::thread other(rank_body, 1, plugins.ops("reference"));
  rank_body(0, plugins.ops("reference"));
  other.join();
}

}  // namespace
}  // namespace chassis

// An adapter, a tensor axis and a quant scheme are passes like any other: with stubs of all three, a run trains, plans
// and checks.
#include <gtest/gtest.h>

#include <thread>

#include "host/compile/graph_text.hpp"
#include "host/plan/plan_rank.hpp"
#include "host/plugin/thread_role.hpp"
#include "host/save/saved_tensors.hpp"
#include "host/service/meta_memory.hpp"
#include "host/service/tensor.hpp"
#include "host/session/fields.hpp"
#include "tests/regress/small_run.hpp"
#include "tests/support/cpu_run.hpp"
#include "tests/support/expect_has.hpp"
#include "tests/support/stub_passes.hpp"
#include "tests/support/two_ranks.hpp"

namespace chassis::test {
namespace {

constexpr int64_t kHidden = 32, kFfn = 56, kLayers = 3, kRank = 4;  // as in SmallRun
// Elements of A and B for q, o (32 × 32), k, v (16 × 32), gate, up and down.
constexpr int64_t kAdapterElements =
    kLayers * kRank * (2 * 2 * kHidden + 2 * (kHidden + kHidden / 2) + 3 * (kHidden + kFfn));

bool is_adapter(const std::string& name) { return name.find("lora") != std::string::npos; }

// Sends nothing; the result has the right shape, but no values.
class NoCollectives final : public Collectives {
 public:
  int num_calls = 0;
  Tensor run(const CollectiveCall& call, const Tensor& input) override {
    CHASSIS_CHECK(call.op == CommOp::kAllReduce, std::string(comm_spec(call.op).name));
    ++num_calls;
    return Tensor::empty(input.sizes(), input.dtype(), input.device());
  }
};

class Pipeline : public testing::Test {
 protected:
  Pipeline() { run_.write(random_documents(std::vector<size_t>(24, 30))); }

  std::unique_ptr<Session> open(ProgramPasses passes, Collectives* collectives = nullptr) const {
    return run_.open(overrides_, std::move(passes), collectives);
  }
  // Created as `plan` and `check` do.
  Session without_device(ProgramPasses passes, Collectives* collectives = nullptr) const {
    return Session(load_config(run_.config_path(), overrides_),
                   {.plugin_path = {CHASSIS_TEST_PLUGIN_DIR},
                    .target = {.without_device = true, .assume_configured_device = true},
                    .passes = std::move(passes),
                    .collectives = collectives});
  }
  RankPlan plan(ProgramPasses passes, Collectives* collectives = nullptr) const {
    Session session = without_device(std::move(passes), collectives);
    return *rehearse(session, Recompute::kNone, check_saving(session), false);
  }

  SmallRun run_{{"naive", "[\"stored_linear\", \"reference\"]"}};
  const std::vector<std::string> overrides_ = {"plugins.path=[\"" CHASSIS_TEST_STUB_DIR "\"]",
                                               "train.global_batch_size=2"};
  const LowRankAdapter adapter_;
  const TensorAxis axis_{2, {"ffn"}};
  const QuantScheme scheme_{"stub4", "stub/linear", 32};  // leaves down_proj, which has 56 columns
};

TEST_F(Pipeline, AnAdapterTrainsItsBranchesAndNothingElse) {
  const Trained plain = train(*open({}), 3);
  const auto session = open({.adapters = {&adapter_}});
  Values before;
  for (const auto& p : session->parameters().all()) before[p->name] = floats_of(p->stored());
  const Trained adapted = train(*session, 3);
  EXPECT_EQ(adapted.losses[0], plain.losses[0]) << "B starts at zero";
  EXPECT_NE(adapted.losses[2], plain.losses[2]);
  EXPECT_EQ(session->parameters().num_elements(true), kAdapterElements);
  for (const auto& [name, values] : adapted.weights) EXPECT_EQ(values != before.at(name), is_adapter(name)) << name;
}

TEST_F(Pipeline, ASwappedLinearTrainsToTheSameBits) {
  const auto session = open({.quant = {&scheme_}});
  expect_same_bits(train(*session, 3), train(*open({}), 3));
  size_t num_stored = 0;
  for (const Node& node : session->executor().resolved(Purpose::kTraining).units[1]->nodes)
    num_stored += node.provider->name == "stored_linear";
  EXPECT_EQ(num_stored, 6u) << "q, k, v, o, gate and up";
}

TEST_F(Pipeline, TwoRanksOfATensorAxisTrainLikeOne) {
  const ProgramPasses undivided{.adapters = {&adapter_}, .quant = {&scheme_}};
  ProgramPasses divided = undivided;
  divided.layout = {&axis_};
  const auto whole = open(undivided);
  for (const auto& p : whole->parameters().all())  // so that both A and B have gradients
    if (p->name.ends_with("lora_b.weight")) p->value.fill(0.05);
  const Fields batch = to_fields(open_train_data(whole->data_needs())->next_step(1, 1).micro_batches.at(0), {});
  const auto run = [&](Session& session) {
    session.parameters().start_step();
    const double loss = session.executor().forward(0, batch, 1.0).item();
    session.executor().backward(0);
    return loss;
  };
  const double loss = run(*whole);

  ThreadedCollectives::Exchange meeting;
  ThreadedCollectives collectives[] = {{meeting, 0}, {meeting, 1}};
  const std::unique_ptr<Session> ranks[] = {open(divided, &collectives[0]), open(divided, &collectives[1])};
  double losses[2] = {};
  for (int rank : {0, 1}) {
    for (const auto& p : ranks[rank]->parameters().all())
      p->value.copy_from(part_of(whole->parameters().find(p->name)->value, *p, rank));
  }
  std::thread other([&] {
    const ThreadRoleScope role(ThreadRole::kStep);
    losses[1] = run(*ranks[1]);
  });
  losses[0] = run(*ranks[0]);
  other.join();
  for (int rank : {0, 1}) {
    EXPECT_NEAR(losses[rank], loss, 1e-5 * loss);
    for (const auto& p : ranks[rank]->parameters().all()) {
      ASSERT_EQ(p->trainable, is_adapter(p->name)) << p->name;
      if (!p->trainable) continue;
      EXPECT_LT(largest_difference(p->gradient, part_of(whole->parameters().find(p->name)->gradient, *p, rank)), 1e-4)
          << p->name;
    }
  }
}

TEST_F(Pipeline, APlanCountsTheTensorsThatPassesAdd) {
  install_meta_allocator();
  const auto bytes = [](const RankPlan& plan, PlanCategory category) { return plan.step.of(category).peak_bytes; };
  const RankPlan plain = plan({}), adapted = plan({.adapters = {&adapter_}, .quant = {&scheme_}});
  EXPECT_EQ(bytes(adapted, PlanCategory::kParameters) - bytes(plain, PlanCategory::kParameters), 4u * kAdapterElements);
  EXPECT_EQ(bytes(adapted, PlanCategory::kGradients), 4u * kAdapterElements);
  EXPECT_EQ(bytes(adapted, PlanCategory::kOptimizer), 8u * kAdapterElements);

  NoCollectives none;
  const RankPlan divided = plan({.adapters = {&adapter_}, .layout = {&axis_}, .quant = {&scheme_}}, &none);
  // Half of gate, up and down, of B of gate and up, and of A of down.
  constexpr int64_t kElsewhere = kLayers * 3 * kFfn * (kHidden + kRank) / 2;
  EXPECT_EQ(bytes(adapted, PlanCategory::kParameters) - bytes(divided, PlanCategory::kParameters), 4u * kElsewhere);
  EXPECT_GT(none.num_calls, 0);
}

TEST_F(Pipeline, ACheckShowsWhatEachPassDidOrRefused) {
  Session session = without_device({.adapters = {&adapter_}, .layout = {&axis_}, .quant = {&scheme_}});
  const std::string graph = graph_text(session.compiled());
  EXPECT_HAS(graph, "  adapter   low-rank on layer.self_attn.q_proj: adds a branch of rank 4\n");
  EXPECT_HAS(graph, "  adapter   low-rank on head.lm_head: left: it is the head\n");
  EXPECT_HAS(graph, "  layout    tp: divides 6 parameters by 2 and inserts ");
  EXPECT_HAS(graph, "  quant     stub4 on layer.mlp.up_proj: stored as stub4, computed by stub/linear\n");
  EXPECT_HAS(graph, "  quant     stub4 on layer.mlp.down_proj: left: its 56 columns are no multiple of 32\n");
  // The first layer, whose input needs no gradient, is a separate block.
  EXPECT_HAS(graph, "  providers stored_linear: computes 12 of ");
  EXPECT_HAS(graph, "tp.mlp.down_proj");  // the collective of the divided contraction
}

}  // namespace
}  // namespace chassis::test

// Unit events, recompute, gradients and memory of whole steps.
#include "host/execute/executor.hpp"

#include <gtest/gtest.h>

#include "host/service/memory.hpp"
#include "tests/support/cpu_run.hpp"
#include "tests/support/expect_has.hpp"
#include "tests/support/stub_provider.hpp"

namespace chassis {
namespace {

using test::CpuRun;
using test::fields_of;
using test::kIds;
using test::largest_difference;
using test::LoadedPlugins;
using test::Recorder;
using test::SmallModel;
using test::StubNode;
using test::StubProvider;
using Lines = std::vector<std::string>;

class EventLog final : public UnitEvents {
 public:
  Lines lines;
  void pre_forward(size_t unit, Flags flags) override { note(flags.recompute ? "again " : "forward ", unit); }
  void post_forward(size_t unit, Flags flags) override { note(flags.recompute ? "/again " : "/forward ", unit); }
  void pre_backward(size_t unit, Flags flags) override { note("", flags, unit); }
  void post_backward(size_t unit, Flags flags) override { note("/", flags, unit); }

 private:
  void note(const char* prefix, Flags flags, size_t unit) {
    const std::string part = flags.inputs && flags.params ? "backward " : flags.inputs ? "inputs " : "params ";
    note((prefix + part).c_str(), unit);
  }
  void note(const char* what, size_t unit) { lines.push_back(what + std::to_string(unit)); }
};

class ExecutorTest : public testing::Test {
 protected:
  ExecutorTest() { install_memory_allocator(); }
  CpuRun run_of(const SmallModel& model) { return CpuRun(model.program(), {reference_}); }

  LoadedPlugins plugins_;
  OpsProvider reference_ = plugins_.ops("reference");
};

TEST_F(ExecutorTest, FiresUnitEventsAroundEveryRun) {
  CpuRun run = run_of({});
  EventLog log;
  run.make(Recompute::kNone, &log);
  run.step({fields_of(kIds, 2)});
  EXPECT_EQ(log.lines, (Lines{"forward 0", "/forward 0", "forward 1", "/forward 1", "forward 2", "/forward 2",
                              "forward 3", "/forward 3", "backward 3", "/backward 3", "backward 2", "/backward 2",
                              "backward 1", "/backward 1", "backward 0", "/backward 0"}));
  log.lines.clear();
  run.executor->loss(fields_of(kIds, 2));
  EXPECT_EQ(log.lines.size(), 8u);
}

TEST_F(ExecutorTest, RecomputesTheFirstBlocksOfAChain) {
  CpuRun run = run_of({.layers = 4});
  const std::vector<Fields> micro_batches = {fields_of(kIds, 2)};
  EventLog log;
  run.make(Recompute{.full = 2}, &log);
  EXPECT_EQ(max_recomputed_blocks(run.compiled.program()), 4);
  const double loss = run.step(micro_batches);
  const auto gradients = run.gradients();
  for (size_t unit = 0; unit < 6; ++unit)
    EXPECT_EQ(std::count(log.lines.begin(), log.lines.end(), "again " + std::to_string(unit)),
              unit == 1 || unit == 2 ? 1 : 0)
        << unit;
  run.make(Recompute::kNone);
  EXPECT_EQ(run.step(micro_batches), loss);
  for (const auto& [name, gradient] : run.gradients())
    EXPECT_EQ(test::values_of(gradient), test::values_of(gradients.at(name))) << name;
}

TEST_F(ExecutorTest, FiresForwardEventsInsideTheBackwardWhenItRecomputes) {
  CpuRun run = run_of({});
  EventLog log;
  run.make(Recompute::kFull, &log);
  run.executor->forward(0, fields_of(kIds, 2), 1.0);
  log.lines.clear();
  run.executor->backward(0);
  EXPECT_EQ(log.lines, (Lines{"backward 3", "/backward 3", "backward 2", "again 2", "/again 2", "/backward 2",
                              "backward 1", "again 1", "/again 1", "/backward 1", "backward 0", "/backward 0"}));
}

// Strategies hold the parameters of a unit during its backward, so they need no events of single nodes.
TEST_F(ExecutorTest, NodesThatRunAgainFireNoEvents) {
  CpuRun run = run_of({});
  EventLog log;
  run.make(Recompute::kSelective, &log);
  run.executor->forward(0, fields_of(kIds, 2), 1.0);
  log.lines.clear();
  run.executor->backward(0);
  EXPECT_EQ(log.lines, (Lines{"backward 3", "/backward 3", "backward 2", "/backward 2", "backward 1", "/backward 1",
                              "backward 0", "/backward 0"}));
}

TEST_F(ExecutorTest, RecomputeGivesTheSameBits) {
  CpuRun run = run_of({.layers = 3});
  const double loss = run.step({fields_of(kIds, 2)});
  const auto gradients = run.gradients();
  run.make(Recompute::kFull);
  EXPECT_EQ(run.step({fields_of(kIds, 2)}), loss);
  EXPECT_EQ(gradients.size(), run.parameters.all().size());
  for (const auto& [name, gradient] : run.gradients())
    EXPECT_EQ(test::values_of(gradient), test::values_of(gradients.at(name))) << name;
}

TEST_F(ExecutorTest, AccumulatesOverMicrobatches) {
  CpuRun run = run_of({});
  const double loss = run.step({fields_of(kIds, 2)}, 0.25);
  const auto whole = run.gradients();
  const double parts = run.step({fields_of({1, 5, 9}, 1), fields_of({2, 2, 10}, 1)}, 0.25);
  EXPECT_NEAR(parts, loss, 1e-6);
  for (const auto& [name, gradient] : run.gradients())
    EXPECT_LT(largest_difference(gradient, whole.at(name)), 1e-6) << name;
}

TEST_F(ExecutorTest, RangesOfUnitsComputeWhatTheWholeDoes) {
  CpuRun run = run_of({.layers = 3});
  const Fields batch = fields_of(kIds, 2);
  const double loss = run.step({batch});
  const auto whole = run.gradients();
  for (const Recompute recompute : {Recompute::kNone, Recompute::kFull}) {
    run.make(recompute);
    Executor& executor = *run.executor;
    const size_t end = executor.all_units().end;
    ASSERT_EQ(end, 5u);
    for (size_t cut = 1; cut < end; ++cut) {
      run.parameters.start_step();
      const StreamValues between = executor.forward(0, {0, cut}, batch, {}, 1.0);
      ASSERT_EQ(between.size(), 1u);
      EXPECT_EQ(executor.forward(0, {cut, end}, batch, between, 1.0).at("loss").item(), loss);
      StreamValues gradients = executor.backward(0, {cut, end}, {});
      ASSERT_EQ(gradients.size(), 1u);
      EXPECT_EQ(gradients.at("hidden").sizes(), between.at("hidden").sizes());
      EXPECT_TRUE(executor.backward(0, {0, cut}, std::move(gradients)).empty());
      const auto parts = run.gradients();
      ASSERT_EQ(parts.size(), whole.size());
      for (const auto& [name, gradient] : parts)
        EXPECT_EQ(test::values_of(gradient), test::values_of(whole.at(name))) << name << ", cut at " << cut;
    }
  }
}

TEST_F(ExecutorTest, RunsForwardsAndBackwardsOfAPipelineInAnyOrder) {
  CpuRun run = run_of({});
  const Fields a = fields_of({1, 5, 9}, 1), b = fields_of({2, 2, 10}, 1);
  run.step({a, b});
  const auto sequential = run.gradients();
  run.parameters.start_step();
  run.executor->forward(0, a, 1.0);
  run.executor->forward(1, b, 1.0);
  run.executor->backward(0);
  run.executor->backward(1);
  for (const auto& [name, gradient] : run.gradients())
    EXPECT_EQ(test::values_of(gradient), test::values_of(sequential.at(name))) << name;
}

// Two micro-batches in the order of a zero-bubble schedule, whose last stage is the head and the layer before it.
void expect_same_bits_if_split(CpuRun& run, const Fields& a, const Fields& b, Recompute recompute) {
  run.make(recompute);
  run.step({a, b});
  const auto joint = run.gradients();
  Executor& executor = *run.executor;
  const size_t end = executor.all_units().end;
  const UnitRange first{0, end - 2}, last{end - 2, end};
  run.parameters.start_step();
  const auto forward = [&](int m, const Fields& fields) {
    executor.forward(m, last, fields, executor.forward(m, first, fields, {}, 1.0), 1.0);
  };
  const auto inputs = [&](int m) { executor.backward_inputs(m, first, executor.backward_inputs(m, last, {})); };
  forward(0, a);
  inputs(0);
  forward(1, b);
  inputs(1);
  for (int m = 0; m < 2; ++m) {
    executor.backward_params(m, last, m == 1);
    executor.backward_params(m, first, m == 1);
  }
  const auto split = run.gradients();
  ASSERT_EQ(split.size(), joint.size());
  for (const auto& [name, gradient] : split)
    EXPECT_EQ(test::values_of(gradient), test::values_of(joint.at(name))) << name << ", recompute " << text(recompute);
}

TEST_F(ExecutorTest, ABackwardInTwoPartsGivesTheSameBits) {
  const Fields a = fields_of({1, 5, 9}, 1), b = fields_of({2, 2, 10}, 1);
  const uint64_t before = memory_usage().of(MemoryCategory::kActivations).live_bytes;
  for (const char* provider : {"reference", "aten", "fused"})
    for (const Recompute recompute : {Recompute::kNone, Recompute{1}, Recompute::kSelective, Recompute::kFull}) {
      SCOPED_TRACE(provider);
      CpuRun run(SmallModel{.layers = 3}.program(), {plugins_.ops(provider), reference_});
      expect_same_bits_if_split(run, a, b, recompute);
    }
  EXPECT_EQ(memory_usage().of(MemoryCategory::kActivations).live_bytes, before);
}

TEST_F(ExecutorTest, ABackwardInTwoPartsFiresEventsOfBoth) {
  CpuRun run = run_of({.layers = 1});
  EventLog log;
  run.make(Recompute::kNone, &log);
  run.executor->forward(0, fields_of(kIds, 2), 1.0);
  log.lines.clear();
  run.executor->backward_inputs(0, run.executor->all_units(), {});
  EXPECT_EQ(log.lines, (Lines{"inputs 2", "/inputs 2", "inputs 1", "/inputs 1", "inputs 0", "/inputs 0"}));
  EXPECT_FALSE(run.parameters.find("layers.0.up.weight")->gradient_written);
  log.lines.clear();
  run.executor->backward_params(0, run.executor->all_units());
  EXPECT_EQ(log.lines, (Lines{"params 2", "/params 2", "params 1", "/params 1", "params 0", "/params 0"}));
  EXPECT_TRUE(run.parameters.find("layers.0.up.weight")->gradient_written);
}

TEST_F(ExecutorTest, AStepStartsWithoutTheGradientsOfTheLast) {
  CpuRun run = run_of({});
  run.step({fields_of(kIds, 2)});
  const auto first = run.gradients();
  run.step({fields_of(kIds, 2)});
  for (const auto& [name, gradient] : run.gradients())
    EXPECT_EQ(test::values_of(gradient), test::values_of(first.at(name))) << name;
}

TEST_F(ExecutorTest, GradientsAgreeWithFiniteDifferencesOfTheLoss) {
  CpuRun run = run_of({});
  const Fields fields = fields_of(kIds, 2);
  run.step({fields});
  const auto gradients = run.gradients();
  for (const auto& p : run.parameters.all()) {
    float* value = p->value.data_as<float>();
    const int64_t at = p->value.num_elements() / 2;
    const float before = value[at], h = 1e-2f;
    value[at] = before + h;
    const double above = run.executor->loss(fields).item();
    value[at] = before - h;
    const double below = run.executor->loss(fields).item();
    value[at] = before;
    const double expected = (above - below) / (2.0 * h), got = gradients.at(p->name).data_as<float>()[at];
    EXPECT_NEAR(got, expected, 5e-3 + 0.02 * std::abs(expected)) << p->name;
  }
}

TEST_F(ExecutorTest, ATiedParameterGetsTheGradientsOfBothUses) {
  CpuRun untied = run_of({}), tied = run_of({.tied = true});
  EXPECT_EQ(tied.parameters.all().size() + 1, untied.parameters.all().size());
  for (const auto& p : tied.parameters.all()) untied.parameters.find(p->name)->value.copy_from(p->value);
  untied.parameters.find("lm_head.weight")->value.copy_from(tied.parameters.find("embed.weight")->value);
  EXPECT_EQ(untied.step({fields_of(kIds, 2)}), tied.step({fields_of(kIds, 2)}));
  auto two = untied.gradients();
  const auto one = tied.gradients();
  two.at("embed.weight").add(two.at("lm_head.weight"));
  EXPECT_LT(largest_difference(one.at("embed.weight"), two.at("embed.weight")), 1e-6);
  EXPECT_LT(largest_difference(one.at("layers.0.up.weight"), two.at("layers.0.up.weight")), 1e-7);
}

TEST_F(ExecutorTest, NothingRunsBackwardBelowTheFirstTrainedUnit) {
  CpuRun run = run_of({.layers = 3});
  for (const auto& p : run.parameters.all())
    p->trainable = p->name.rfind("layers.2", 0) == 0 || p->name.rfind("lm_head", 0) == 0;
  EventLog log;
  run.make(Recompute::kNone, &log);
  run.executor->forward(0, fields_of(kIds, 2), 1.0);
  log.lines.clear();
  run.executor->backward(0);
  EXPECT_EQ(log.lines, (Lines{"backward 4", "/backward 4", "backward 3", "/backward 3"}));
  EXPECT_FALSE(run.parameters.find("layers.1.up.weight")->gradient);
  EXPECT_TRUE(run.parameters.find("layers.2.up.weight")->gradient);
  const ResolvedProgram& resolved = run.executor->resolved(Purpose::kTraining);
  EXPECT_EQ(resolved.units[1], resolved.units[2]) << "frozen layers share a block";
  EXPECT_NE(resolved.units[2], resolved.units[3]);
  EXPECT_EQ(resolved.units[1]->kept_bytes, 0u);
}

TEST_F(ExecutorTest, AFrozenLayerAboveATrainedOnePassesGradientsThrough) {
  CpuRun whole = run_of({}), run = run_of({});
  whole.step({fields_of(kIds, 2)});
  const auto all = whole.gradients();
  for (const auto& p : run.parameters.all()) p->trainable = p->name == "embed.weight";
  run.step({fields_of(kIds, 2)});
  EXPECT_EQ(run.gradients().size(), 1u);
  EXPECT_EQ(test::values_of(run.gradients().at("embed.weight")), test::values_of(all.at("embed.weight")));
}

// x + f(x) passes one gradient tensor to both of its inputs; a later addition to one must not change the other.
TEST_F(ExecutorTest, AGradientThatTwoValuesShareIsCopiedBeforeItIsAddedTo) {
  StubProvider sharing("sharing", {"add"});
  sharing.forward = [](const StubNode&, chassis_call_t& call) {
    Tensor sum = Tensor::share(call.inputs[0]).clone();
    sum.add(Tensor::share(call.inputs[1]));
    call.outputs[0] = sum.release();
  };
  sharing.backward_inputs = [](const StubNode&, chassis_call_t& call) {
    for (size_t i = 0; i < 2; ++i)
      if (call.needs_grad_inputs[i]) call.grad_inputs[i] = Tensor::share(call.grad_outputs[0]).release();
  };
  auto residual_twice = [](Recorder& r) {  // y = (x + x) + gelu(x)
    const DimId v = r.dim("vocab", 11), h = r.dim("hidden", 4);
    const uint32_t block = r.block("b", [&] {
      const ValueId x = r.op("embedding", "e", {r.field("input_ids")}, {r.slot("e", {{v}, {h}})}, {}, {h});
      const ValueId twice = r.op("add", "twice", {x, x});
      const ValueId f = r.op("activation", "f", {x}, {}, {{"function", std::string("gelu")}});
      const ValueId y = r.op("add", "y", {twice, f});
      const ValueId logits = r.op("linear", "w", {y}, {r.slot("w", {{v}, {h}})}, {}, {v});
      r.output("loss", r.op("cross_entropy", "l", {logits, r.field("labels")}));
    });
    r.chain("c", "", {block});
  };
  CpuRun plain(test::record(residual_twice), {reference_}),
      shared(test::record(residual_twice), {sharing.provider(), reference_});
  EXPECT_EQ(plain.step({fields_of(kIds, 2)}), shared.step({fields_of(kIds, 2)}));
  for (const auto& [name, gradient] : shared.gradients())
    EXPECT_LT(largest_difference(gradient, plain.gradients().at(name)), 1e-6) << name;
}

// y = p(x) + x passes its gradient to p, whose backward_params reads it later, and to x, to which p then adds.
TEST_F(ExecutorTest, AGradientThatADeferredNodeReadsIsCopiedBeforeItIsAddedTo) {
  StubProvider sharing("sharing", {"add"});
  sharing.forward = [](const StubNode&, chassis_call_t& call) {
    Tensor sum = Tensor::share(call.inputs[0]).clone();
    sum.add(Tensor::share(call.inputs[1]));
    call.outputs[0] = sum.release();
  };
  sharing.backward_inputs = [](const StubNode&, chassis_call_t& call) {
    for (size_t i = 0; i < 2; ++i)
      if (call.needs_grad_inputs[i]) call.grad_inputs[i] = Tensor::share(call.grad_outputs[0]).release();
  };
  CpuRun run(test::record([](Recorder& r) {
               const DimId v = r.dim("vocab", 11), h = r.dim("hidden", 4);
               const uint32_t block = r.block("b", [&] {
                 const ValueId x = r.op("embedding", "e", {r.field("input_ids")}, {r.slot("e", {{v}, {h}})}, {}, {h});
                 const ValueId p = r.op("linear", "p", {x}, {r.slot("p", {{h}, {h}})}, {}, {h});
                 const ValueId y = r.op("add", "y", {p, x});
                 const ValueId logits = r.op("linear", "w", {y}, {r.slot("w", {{v}, {h}})}, {}, {v});
                 r.output("loss", r.op("cross_entropy", "l", {logits, r.field("labels")}));
               });
               r.chain("c", "", {block});
             }),
             {sharing.provider(), reference_});
  run.step({fields_of(kIds, 2)});
  const auto joint = run.gradients();
  run.parameters.start_step();
  run.executor->forward(0, fields_of(kIds, 2), 1.0);
  run.executor->backward_inputs(0, run.executor->all_units(), {});
  run.executor->backward_params(0, run.executor->all_units());
  ASSERT_EQ(run.gradients().size(), 3u);
  for (const auto& [name, gradient] : run.gradients())
    EXPECT_EQ(test::values_of(gradient), test::values_of(joint.at(name))) << name;
}

TEST_F(ExecutorTest, AProviderWithoutABackwardIsRefusedForTraining) {
  StubProvider half("half", {"activation"});
  half.table().backward_inputs = nullptr;
  CpuRun run(SmallModel{}.program(), {half.provider(), reference_});
  EXPECT_HAS(test::refusal([&] { run.executor->resolved(Purpose::kTraining); }),
             "provider 'half' on layer.gelu: claimed for training, but offers no backward_inputs");
  EXPECT_EQ(test::refusal([&] { run.executor->resolved(Purpose::kLoss); }), "");
}

TEST_F(ExecutorTest, NothingIsLeftAliveAfterAStep) {
  CpuRun run = run_of({.layers = 4});
  const uint64_t before = memory_usage().of(MemoryCategory::kActivations).live_bytes;
  for (Recompute recompute : {Recompute::kNone, Recompute{3}, Recompute::kFull}) {
    run.make(recompute);
    run.step({fields_of(kIds, 2)});
    EXPECT_EQ(memory_usage().of(MemoryCategory::kActivations).live_bytes, before);
  }
}

uint64_t peak_of(const std::function<void()>& body) {
  reset_peak_memory();
  const uint64_t before = memory_usage().of(MemoryCategory::kActivations).live_bytes;
  body();
  return memory_usage().of(MemoryCategory::kActivations).peak_bytes - before;
}

TEST_F(ExecutorTest, EvaluationNeedsTheSameMemoryForAnyNumberOfLayers) {
  const Fields fields = fields_of(kIds, 2);
  auto peak = [&](size_t layers) {
    CpuRun run = run_of({.vocab = 11, .hidden = 256, .ffn = 512, .layers = layers});
    return peak_of([&] { run.executor->loss(fields); });
  };
  const uint64_t two = peak(2);
  EXPECT_GT(two, 0u);
  EXPECT_EQ(peak(9), two);
}

TEST_F(ExecutorTest, TrainingTakesTheMemoryThatThePlanSays) {
  CpuRun run = run_of({.vocab = 11, .hidden = 256, .ffn = 512, .layers = 6});
  const Fields fields = fields_of(kIds, 2);
  for (Recompute recompute : {Recompute::kNone, Recompute{3}, Recompute::kFull}) {
    run.make(recompute);
    const uint64_t planned = run.compiled.planned_activation_bytes(recompute);
    const uint64_t peak = peak_of([&] { run.step({fields}); });
    EXPECT_LE(peak, planned + planned / 4) << "recompute " << text(recompute);
    EXPECT_GE(peak, planned / 2) << "recompute " << text(recompute);
  }
  EXPECT_LT(run.compiled.planned_activation_bytes(Recompute::kFull),
            run.compiled.planned_activation_bytes(Recompute::kNone) / 2);
}

// One product over at most 4 patches of 3 channels.
Program tower() {
  return test::record([](Recorder& r) {
    const DimId patches = r.bounded_dim("patches", 4), channels = r.dim("channels", 3), hidden = r.dim("hidden", 2);
    const uint32_t block = r.block("tower", [&] {
      r.field("labels");
      const ValueId pixels = r.field("pixels", CHASSIS_DTYPE_F32, {patches, channels});
      r.output("y", r.op("linear", "proj", {pixels}, {r.slot("proj.weight", {{hidden}, {channels}})}, {}, {hidden}));
    });
    r.chain("tower", "", {block});
  });
}

Tensor filled(const std::vector<int64_t>& sizes, double value) {
  Tensor tensor = Tensor::empty(sizes, Dtype::f32);
  tensor.fill(value);
  return tensor;
}

Fields patches_of(int64_t count) {
  return {{"labels", test::ids_tensor({1, 2}, 1)}, {"pixels", filled({count, 3}, 0.5)}};
}

TEST_F(ExecutorTest, EachMicroBatchSaysHowLongABoundedDimIs) {
  for (const char* provider : {"reference", "aten"}) {
    CpuRun run(tower(), {plugins_.ops(provider)});
    EXPECT_EQ(run.compiled.resolved(Purpose::kTraining).running(0).value_shapes.back(), (std::vector<int64_t>{4, 2}));
    run.parameters.start_step();
    for (const int64_t count : {3, 1, 4}) {
      const int number = static_cast<int>(count);
      EXPECT_EQ(run.executor->forward(number, {0, 1}, patches_of(count), {}, 1.0).at("y").sizes(),
                (std::vector<int64_t>{count, 2}));
      run.executor->backward(number, {0, 1}, {{"y", filled({count, 2}, 1.0)}});
    }
    // 8 patches of 0.5 in all.
    EXPECT_EQ(test::values_of(run.gradients().at("proj.weight")), std::vector<float>(6, 4.0f)) << provider;
  }
}

TEST_F(ExecutorTest, RefusesAMicroBatchAboveTheMaximumOfABoundedDim) {
  CpuRun run(tower(), {reference_});
  EXPECT_HAS(test::refusal([&] {
               run.executor->forward(0, {0, 1}, patches_of(5), {}, 1.0);
             }),
             "dim 'patches' has size 5 in a micro-batch; the model's maximum is 4");
}

TEST_F(ExecutorTest, RefusesFieldsThatGiveADimTwoSizes) {
  CpuRun run = run_of({});
  Fields fields = fields_of(kIds, 2);
  fields["labels"] = test::ids_tensor({1, 2, 3}, 1);
  EXPECT_HAS(test::refusal([&] { run.executor->loss(fields); }),
             "dim 'B' has size 2 in field 'input_ids' of the batch, and 1 in 'labels'");
}

}  // namespace
}  // namespace chassis

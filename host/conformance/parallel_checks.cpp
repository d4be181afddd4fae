// Simulated ranks that run the events of several steps, and the comparison of their collectives.
#include "host/conformance/parallel_checks.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "host/base/error.hpp"
#include "host/compile/compile.hpp"
#include "host/parallel/divisions.hpp"
#include "host/parallel/stack_events.hpp"
#include "host/parallel/stack_plan.hpp"
#include "host/state/cover.hpp"

namespace chassis {
namespace {

constexpr int kNumRanks = 4;

struct Scenario {
  Dtype compute = Dtype::f32;
  bool recomputes = false;
  int num_microbatches = 1;
  bool splits = false;  // backward in two parts

  std::string text() const {
    return fmt::format("{}, {} micro-batch(es){}{}", dtype_name(compute), num_microbatches,
                       recomputes ? ", recomputing" : "", splits ? ", backward in two parts" : "");
  }
};

// Slots only, since strategies see no ops. 13 and 3 rows are not multiples of 4; `gain` has one element.
Program small_program() {
  Program program;
  program.dims = predeclared_dims();
  program.dims.insert(program.dims.end(), {{"vocab", 13}, {"hidden", 6}, {"ffn", 8}, {"few", 3}, {"one", 1}});
  constexpr DimId kVocab = 2, kHidden = 3, kFfn = 4, kFew = 5, kOne = 6;
  const auto slot = [](std::string name, std::vector<std::vector<DimId>> axes, std::string tied_to = "") {
    ParameterSlot out;
    out.name = std::move(name);
    out.axes = std::move(axes);
    out.init = CHASSIS_INIT_ONES;
    out.tied_to = std::move(tied_to);
    return out;
  };
  BlockType embed, layer, head;
  embed.name = "embed";
  embed.add_slot(slot("embed.weight", {{kVocab}, {kHidden}}));
  layer.name = "layer";
  layer.add_slot(slot("norm.weight", {{kHidden}}));
  layer.add_slot(slot("up.weight", {{kFfn}, {kHidden}}));
  layer.add_slot(slot("down.weight", {{kFew}, {kFfn}}));
  layer.add_slot(slot("gain", {{kOne}}));
  head.name = "head";
  head.add_slot(slot("norm.weight", {{kHidden}}));
  head.add_slot(slot("head.weight", {{kVocab}, {kHidden}}, "embed.weight"));
  program.blocks = {std::move(embed), std::move(layer), std::move(head)};
  program.chains = {{"embed", "", {0}}, {"layers", "layers.{i}", {1, 1, 1, 1, 1, 1, 1, 1}}, {"head", "", {2}}};
  return program;
}
constexpr const char* kFrozen = "layers.1.up.weight";

// One rank of the mesh. `events` lists its collectives, one line per event.
class Rank {
 public:
  Rank(const Scenario& scenario, int rank, std::unique_ptr<Instance> strategy, std::unique_ptr<Instance> backend,
       const Program& program, MetricsStore& metrics)
      : scenario_(scenario),
        metrics_(metrics),
        mesh_(mesh_of(*strategy)),
        strategies_(std::make_shared<Strategies>(members(std::move(strategy)))),
        compiled_(compiled(program, rank)) {
    StackContext facts;
    facts.mesh = mesh_;
    facts.rank = rank;
    facts.num_microbatches = scenario.num_microbatches;
    event("resolve", [&] {
      plan_ = std::make_unique<StackPlan>(strategies_, compiled_.program(), parameters_, facts);
      plan_->place(parameters_);
    });
    communicator_ = std::make_unique<Communicator>(std::move(backend), world_, mesh_, rank, Device{});
    storage_.emplace(parameters_, Device{});
    event("bind", [&] { stack_ = std::make_unique<StackEvents>(*plan_, parameters_, *communicator_, Device{}); });
    parameters_.initialize(7);
    event("post_optimizer after the initialization", [&] { stack_->refresh(); });
  }

  void run() {
    for (int step = 1; step <= 3; ++step) {
      where_ = fmt::format("step {}: ", step);
      this->step();
      where_ = fmt::format("evaluation after step {}: ", step);
      for (int batch = 0; batch < 2; ++batch)
        for (int chunk = 0; chunk < pipeline().stages().num_chunks(plan_->stage_coordinate()); ++chunk)
          forward(chunk, {.training = false});
      event("drain", [&] { stack_->finish_step(); });
    }
  }

  const std::vector<std::string>& events() const { return events_; }
  const Pipeline& pipeline() const { return plan_->pipeline(); }
  const MeshShape& mesh() const { return mesh_; }
  const ParameterTable& parameters() const { return parameters_; }

 private:
  static MeshShape mesh_of(const Instance& strategy) {
    const std::string axis(view_of(strategy.interface<chassis_parallel_t>(CHASSIS_PARALLEL_ID).home_axis));
    if (axis.empty()) throw plugin_error("it has no home axis; the mesh of this test gives all ranks to that axis");
    return MeshShape({{axis, kNumRanks}});
  }
  CompiledProgram compiled(const Program& program, int rank) {
    CompileOptions options;
    const auto axes = layout_axes(*strategies_, mesh_, rank);
    for (const auto& axis : axes) options.passes.layout.push_back(axis.get());
    options.freeze = [](ParameterTable& parameters) {
      for (const auto& p : parameters.all()) p->trainable = p->name != kFrozen;
    };
    options.resolve.compute = scenario_.compute;
    std::optional<CompiledProgram> out;
    event("divide", [&] { out = compile(Program(program), std::move(options)); });
    return *std::move(out);
  }
  static std::vector<StackMember> members(std::unique_ptr<Instance> strategy) {
    std::vector<StackMember> out;
    out.push_back({std::move(strategy), {}});
    return out;
  }

  template <class Body>
  void event(const std::string& name, const Body& body) {
    try {
      body();
    } catch (const Error& error) {
      throw plugin_error(where_ + name + ": " + error.message());
    }
    std::string calls;
    if (communicator_)
      for (const CommCount& count : communicator_->take_counts())
        calls += fmt::format("{}{} {} of {} bytes on {}", calls.empty() ? "" : ", ", count.calls, count.op, count.bytes,
                             count.group);
    if (calls.empty()) calls = "no collective";
    // The counts have no order, but the backend may report one as a metric.
    for (const auto& [metric, value] : metrics_.take())
      if (metric.ends_with("/order")) calls += fmt::format(", in the order {:.0f}", value);
    events_.push_back(where_ + name + ": " + calls);
  }
  std::string of_unit(const char* name, size_t unit) const {
    return std::string(name) + " of " + program_.unit_names()[unit];
  }

  void expect_gathered(size_t unit) const {
    for (const Parameter* p : parameters_.of_unit(unit))
      if (!p->value) throw plugin_error("parameter '" + p->name + "' is not gathered when the unit runs");
  }

  void forward_unit(size_t unit, UnitEvents::Flags flags) {
    event(of_unit(flags.recompute ? "pre_forward, again," : "pre_forward", unit),
          [&] { stack_->pre_forward(unit, flags); });
    expect_gathered(unit);
    event(of_unit("post_forward", unit), [&] { stack_->post_forward(unit, flags); });
  }
  std::vector<Work> works() const {
    std::vector<Work> out;
    for (const Work& work : pipeline().work(plan_->stage_coordinate(), scenario_.num_microbatches)) {
      const bool is_split = scenario_.splits && work.kind == Work::Kind::kBackward;
      out.push_back(work);
      if (!is_split) continue;
      out.back().kind = Work::Kind::kBackwardInputs;
      out.push_back({Work::Kind::kBackwardParams, work.chunk, work.microbatch});
    }
    return out;
  }

  UnitRange units_of(int chunk) const {
    return pipeline().units[static_cast<size_t>(pipeline().stages().stage(plan_->stage_coordinate(), chunk))];
  }
  void forward(int chunk, UnitEvents::Flags flags) {
    const UnitRange units = units_of(chunk);
    for (size_t unit = units.begin; unit < units.end; ++unit) forward_unit(unit, flags);
  }
  void backward(int chunk, UnitEvents::Flags flags) {
    const UnitEvents::Flags again{
        .recompute = true, .last_microbatch = flags.last_microbatch, .microbatch = flags.microbatch};
    const UnitRange units = units_of(chunk);
    for (size_t unit = units.end; unit-- > units.begin;) {
      event(of_unit("pre_backward", unit), [&] { stack_->pre_backward(unit, flags); });
      const bool is_inner = unit > 0 && unit + 1 < program_.num_units();
      if (scenario_.recomputes && is_inner && flags.inputs) forward_unit(unit, again);
      event(of_unit("backward", unit), [&] { expect_gathered(unit); });
      for (Parameter* p : parameters_.of_unit(unit)) {
        if (!p->trainable || !flags.params) continue;
        if (!p->gradient) p->gradient = Tensor::zeros(p->local_shape, Dtype::f32);
        p->gradient_written = true;
      }
      event(of_unit("post_backward", unit), [&] { stack_->post_backward(unit, flags); });
    }
  }

  void step() {
    parameters_.start_step();
    const std::vector<Work> works = this->works();
    const std::vector<uint8_t> last = last_of_chunk(works);
    for (size_t i = 0; i < works.size(); ++i) {
      const Work& work = works[i];
      if (work.kind == Work::Kind::kForward)
        forward(work.chunk, {.microbatch = work.microbatch});
      else
        backward(work.chunk, {.last_microbatch = last[i] != 0,
                              .microbatch = work.microbatch,
                              .inputs = work.kind != Work::Kind::kBackwardParams,
                              .params = work.kind != Work::Kind::kBackwardInputs});
    }
    event("finish_grads", [&] {
      stack_->finish_grads();
      for (const auto& p : parameters_.all())
        if (p->trainable && p->is_here && !p->step_gradient())
          throw plugin_error("the gradient of '" + p->name + "' was not reduced by the end of the step");
    });
    event("post_optimizer", [&] { stack_->refresh(); });
    event("drain", [&] { stack_->finish_step(); });
  }

  const Scenario scenario_;
  MetricsStore& metrics_;
  World world_;
  const MeshShape mesh_;
  std::vector<std::string> events_;
  std::string where_;
  std::unique_ptr<Communicator> communicator_;  // outlives the shards
  std::shared_ptr<Strategies> strategies_;
  CompiledProgram compiled_;
  const Program& program_ = compiled_.program();
  ParameterTable& parameters_ = compiled_.parameters();
  std::optional<ParameterStorage> storage_;
  std::unique_ptr<const StackPlan> plan_;
  std::unique_ptr<StackEvents> stack_;  // from bind on
};

void compare_placements(const Rank& first, const Rank& other, int rank) {
  const auto &a = first.parameters().all(), &b = other.parameters().all();
  for (size_t i = 0; i < a.size(); ++i)
    if (!(a[i]->descriptor.placements == b[i]->descriptor.placements))
      throw plugin_error(fmt::format("ranks 0 and {} place parameter '{}' differently", rank, a[i]->name));
}

void compare_events(const Rank& first, const Rank& other, int rank) {
  const auto &a = first.events(), &b = other.events();
  const size_t common = std::min(a.size(), b.size());
  const auto at = static_cast<size_t>(
      std::mismatch(a.begin(), a.begin() + static_cast<int64_t>(common), b.begin()).first - a.begin());
  if (at < common)
    throw plugin_error(
        fmt::format("ranks differ and would deadlock: rank 0 has \"{}\", rank {} has \"{}\"", a[at], rank, b[at]));
}

void prove_cover_of(const Rank& rank) {
  std::vector<Layout> layouts;
  for (const auto& p : rank.parameters().all()) layouts.emplace_back(p->descriptor, rank.mesh());
  prove_cover(layouts);
}

}  // namespace

std::vector<std::string> parallel_failures(const MakeInstance& strategy, const MakeInstance& backend,
                                           MetricsStore& metrics) {
  const Program program = small_program();
  std::vector<std::string> failures;
  for (const Scenario& scenario :
       {Scenario{}, Scenario{Dtype::bf16, false, 1}, Scenario{Dtype::f32, true, 1}, Scenario{Dtype::bf16, true, 3},
        Scenario{Dtype::f32, false, 2}, Scenario{Dtype::f32, false, 2, true}}) {
    std::vector<std::unique_ptr<Rank>> ranks;
    int at = 0;
    try {
      for (; at < kNumRanks; ++at) {
        ranks.push_back(std::make_unique<Rank>(scenario, at, strategy(), backend(), program, metrics));
        ranks.back()->run();
      }
    } catch (const Error& error) {
      failures.push_back(fmt::format("{}, rank {}: {}", scenario.text(), at, error.message()));
      continue;
    }
    try {
      prove_cover_of(*ranks[0]);
      for (int rank = 1; rank < kNumRanks; ++rank) {
        compare_placements(*ranks[0], *ranks[static_cast<size_t>(rank)], rank);
        // The lists of a pipeline's ranks differ, and are proven together before they run.
        if (!ranks[0]->pipeline().divides()) compare_events(*ranks[0], *ranks[static_cast<size_t>(rank)], rank);
      }
    } catch (const Error& error) {
      failures.push_back(fmt::format("{}: {}", scenario.text(), error.message()));
    }
  }
  return failures;
}

}  // namespace chassis

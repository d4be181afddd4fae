// Collects the answers of the strategies, checks them together, and calls the strategies at every event.
#include "host/program/parallel_stack.hpp"

#include <algorithm>
#include <deque>
#include <map>
#include <utility>

#include "host/base/error.hpp"
#include "host/base/log.hpp"
#include "host/base/mesh_axes.hpp"
#include "host/plugin/sized.hpp"
#include "host/plugin/status.hpp"
#include "host/service/memory.hpp"

namespace chassis {

struct ParallelStack::Problem {
  chassis_parallel_problem_t raw{};
  std::vector<chassis_mesh_axis_t> axes;
  std::deque<chassis_parallel_parameter_t> parameters;
  std::vector<const chassis_parallel_parameter_t*> pointers;
  std::deque<std::vector<uint32_t>> units;
  std::vector<std::string> unit_texts;
  std::vector<chassis_str_t> unit_names;
};

namespace {

bool contains(const std::vector<std::string>& texts, const std::string& text) {
  return std::find(texts.begin(), texts.end(), text) != texts.end();
}

std::vector<chassis_mesh_axis_t> raw_axes(const MeshShape& mesh, int rank) {
  std::vector<chassis_mesh_axis_t> out;
  const auto at = mesh.coordinates(rank);
  for (int a = 0; a < mesh.num_axes(); ++a)
    out.push_back({str_of(mesh.axes()[static_cast<size_t>(a)].name), static_cast<uint32_t>(mesh.size(a)),
                   static_cast<uint32_t>(at[static_cast<size_t>(a)])});
  return out;
}

void expect_axis(const MeshShape& mesh, const std::string& axis, const char* verb) {
  if (mesh.find(axis) < 0)
    throw plugin_error("there is no axis '" + axis + "' to " + verb + "; the mesh is " + mesh.text());
}

}  // namespace

// ---- what the layout pass asks

// The host's side of divide(): collects what one strategy divides, by axis.
class ParallelStack::DivisionSink {
 public:
  DivisionSink(const MeshShape& mesh, const Program& program) : mesh_(mesh), program_(program) {
    raw_.struct_size = sizeof raw_;
    raw_.impl = this;
    raw_.divide = [](const chassis_division_sink_t* s, chassis_str_t dim, chassis_str_t axis, uint32_t flags) {
      return guarded([&] { self(s).divide(std::string(view_of(dim)), std::string(view_of(axis)), flags); });
    };
    raw_.sequence_parallel = [](const chassis_division_sink_t* s, chassis_str_t axis) {
      return guarded([&] { self(s).along(std::string(view_of(axis))).sequence_parallel = true; });
    };
    raw_.context_parallel = [](const chassis_division_sink_t* s, chassis_str_t axis, uint32_t mode) {
      return guarded([&] { self(s).divide_context(std::string(view_of(axis)), mode); });
    };
  }
  const chassis_division_sink_t* get() const { return &raw_; }
  const std::map<std::string, Division>& divisions() const { return divisions_; }

 private:
  static DivisionSink& self(const chassis_division_sink_t* s) { return *static_cast<DivisionSink*>(s->impl); }

  Division& along(const std::string& axis) {
    expect_axis(mesh_, axis, "divide along");
    if (!is_tensor_axis(axis))
      throw plugin_error("axis '" + axis + "' cannot divide the computation; '" + std::string(kTensorAxis) + "' can");
    return divisions_[axis];
  }

  void divide_context(const std::string& axis, uint32_t mode) {
    expect_axis(mesh_, axis, "divide positions along");
    if (!is_context_axis(axis))
      throw plugin_error("axis '" + axis + "' cannot divide positions; '" + std::string(kContextAxis) + "' can");
    if (mode != CHASSIS_CONTEXT_ALL_TO_ALL && mode != CHASSIS_CONTEXT_GATHER)
      throw plugin_error("context parallelism has the unknown mode " + std::to_string(mode));
    divisions_[axis].context = mode == CHASSIS_CONTEXT_GATHER ? ContextMode::kGather : ContextMode::kAllToAll;
  }

  void divide(const std::string& dim, const std::string& axis, uint32_t flags) {
    Division& division = along(axis);
    if ((flags & ~CHASSIS_DIVIDE_PAD) != 0)
      throw plugin_error("the division of '" + dim + "' has the unknown flags " + std::to_string(flags));
    const auto known = program_.find_dim(dim);
    if (!known || program_.dims[*known].size == 0) throw plugin_error("the program has no dim '" + dim + "' to divide");
    division.dims[dim] = (flags & CHASSIS_DIVIDE_PAD) != 0;
  }

  const MeshShape& mesh_;
  const Program& program_;
  std::map<std::string, Division> divisions_;
  chassis_division_sink_t raw_{};
};

class ParallelStack::LayoutAxisOf final : public LayoutStrategy {
 public:
  LayoutAxisOf(const ParallelStack& stack, const MeshShape& mesh, int rank, MeshAxis axis)
      : stack_(stack), mesh_(mesh), rank_(rank), axis_(std::move(axis)) {}

  std::string axis() const override { return axis_.name; }
  int64_t axis_size() const override { return axis_.size; }
  Division divide(const Program& program) const override {
    return stack_.division_of(axis_.name, mesh_, rank_, program);
  }
  int64_t coordinate() const override { return mesh_.coordinates(rank_)[static_cast<size_t>(mesh_.find(axis_.name))]; }

 private:
  const ParallelStack& stack_;
  const MeshShape mesh_;
  const int rank_;
  const MeshAxis axis_;
};

std::vector<const LayoutStrategy*> ParallelStack::layout_axes(const MeshShape& mesh, int rank) {
  layout_axes_.clear();
  std::vector<const LayoutStrategy*> out;
  for (const MeshAxis& axis : mesh.axes())
    if (axis.size > 1 && (is_tensor_axis(axis.name) || is_context_axis(axis.name)))
      out.push_back(layout_axes_.emplace_back(std::make_unique<LayoutAxisOf>(*this, mesh, rank, axis)).get());
  return out;
}

std::map<std::string, Division> ParallelStack::ask_divisions(const Member& member, const MeshShape& mesh, int rank,
                                                             const Program& program) {
  if (member.table->divide == nullptr) return {};
  const std::vector<chassis_mesh_axis_t> axes = raw_axes(mesh, rank);
  std::vector<chassis_dim_size_t> dims;
  for (const Dim& dim : program.dims)
    if (dim.size > 0) dims.push_back({str_of(dim.name), dim.size});
  chassis_division_problem_t problem{};
  problem.struct_size = sizeof problem;
  problem.num_axes = static_cast<uint32_t>(axes.size());
  problem.axes = axes.data();
  problem.dims = dims.data();
  problem.num_dims = dims.size();
  const DivisionSink sink(mesh, program);
  member.instance->check(member.table->divide(member.instance->get("divide"), &problem, sink.get()));
  return sink.divisions();
}

Division ParallelStack::division_of(const std::string& axis, const MeshShape& mesh, int rank,
                                    const Program& program) const {
  Division out;
  const Member* divider = nullptr;
  for (const Member& member : members_) {
    const auto divisions = ask_divisions(member, mesh, rank, program);
    const auto found = divisions.find(axis);
    if (found == divisions.end()) continue;
    if (divider != nullptr)
      throw Error(
          ExitCode::kConfig, member.where,
          "axis '" + axis + "' is divided by " + divider->instance->label() + " and by " + member.instance->label())
          .hint("each axis of the mesh has one strategy; remove one of the two from [[parallel]]");
    divider = &member;
    out = found->second;
    out.where = member.where;
  }
  return out;
}

// ---- where shards live

// The host's side of resolve(). Whether the answers fit together is checked when all strategies have answered.
class ParallelStack::Sink {
 public:
  Sink(const StackContext& facts, const ParameterTable& parameters, std::vector<ShardRule>& rules, Answer& answer)
      : facts_(facts), parameters_(parameters), rules_(rules), answer_(answer) {
    raw_.struct_size = sizeof raw_;
    raw_.impl = this;
    raw_.claim = [](const chassis_parallel_sink_t* s, chassis_str_t axis) {
      return guarded([&] { self(s).claim(std::string(view_of(axis))); });
    };
    raw_.place = [](const chassis_parallel_sink_t* s, const chassis_shard_rule_t* rule) {
      return guarded([&] { self(s).place(read_struct(rule, "the rule of a parameter")); });
    };
  }
  const chassis_parallel_sink_t* get() const { return &raw_; }

 private:
  static Sink& self(const chassis_parallel_sink_t* s) { return *static_cast<Sink*>(s->impl); }

  void claim(const std::string& axis) {
    if (!is_data_axis(axis))
      throw plugin_error("'" + axis + "' is not a data axis; strategies can claim only axes that divide the batch");
    expect_axis(facts_.mesh, axis, "claim");
    if (!contains(answer_.axes, axis)) answer_.axes.push_back(axis);
  }

  void place(const chassis_shard_rule_t& raw) {
    if (raw.parameter >= rules_.size())
      throw plugin_error("there is no parameter " + std::to_string(raw.parameter) + " to place; there are " +
                         std::to_string(rules_.size()));
    const Parameter& p = *parameters_.all()[raw.parameter];
    answer_.parameters.push_back(raw.parameter);
    if (raw.kind < CHASSIS_SHARD_REPLICATE || raw.kind > CHASSIS_SHARD_FLAT)
      throw plugin_error("'" + p.name + "' has the unknown kind of placement " + std::to_string(raw.kind));
    if (raw.kind == CHASSIS_SHARD_DIM && raw.dim != 0)
      throw plugin_error("dim " + std::to_string(raw.dim) + " of '" + p.name + "' is divided; only dim 0 can be");
    ShardRule& rule = rules_[raw.parameter] = {};
    rule.kind = raw.kind;
    for (uint32_t i = 0; i < raw.num_axes; ++i) {
      rule.axes.emplace_back(view_of(raw.axes[i]));
      if (!contains(answer_.axes, rule.axes.back()))
        throw plugin_error("'" + p.name + "' is divided along '" + rule.axes.back() +
                           "', which its strategy did not claim");
    }
    if (rule.kind == CHASSIS_SHARD_REPLICATE) rule.axes.clear();
    rule.resident = raw.resident != 0 || rule.kind == CHASSIS_SHARD_REPLICATE;
    rule.gather_dtype = dtype_or(raw.gather_dtype, parameters_.compute(), p);
    rule.reduce_dtype = dtype_or(raw.reduce_dtype, facts_.reduce_dtype, p);
    rule.offload = raw.offload != 0;
    rule.pin_memory = raw.pin_memory != 0;
  }

  Dtype dtype_or(uint32_t given, Dtype otherwise, const Parameter& p) const {
    const Dtype dtype = given ? static_cast<Dtype>(given) : otherwise;
    if (dtype != Dtype::f32 && dtype != Dtype::bf16 && dtype != Dtype::f16)
      throw plugin_error("'" + p.name + "' cannot be sent as dtype " + std::to_string(given) +
                         "; choose f32, bf16 or f16");
    return dtype;
  }

  const StackContext& facts_;
  const ParameterTable& parameters_;
  std::vector<ShardRule>& rules_;
  Answer& answer_;
  chassis_parallel_sink_t raw_{};
};

namespace {

uint32_t bits(UnitEvents::Flags flags) {
  return (flags.recompute ? CHASSIS_EVENT_RECOMPUTE : 0) | (flags.last_microbatch ? CHASSIS_EVENT_LAST_MICROBATCH : 0) |
         (flags.training ? CHASSIS_EVENT_TRAINING : 0);
}

}  // namespace

ParallelStack::ParallelStack(std::vector<StackMember> members) {
  for (auto& [instance, where] : members) {
    const auto* table = &instance->interface<chassis_parallel_t>(CHASSIS_PARALLEL_ID);
    instance->require(CHASSIS_PARALLEL_ID, {{"resolve", table->resolve != nullptr}});
    members_.push_back({std::move(instance), std::move(where), table});
  }
}

ParallelStack::~ParallelStack() = default;

std::string ParallelStack::home_axis(const std::vector<std::string>& given) const {
  for (const Member& member : members_)
    if (std::string home(view_of(member.table->home_axis)); !contains(given, home)) return home;
  if (!empty()) return std::string(view_of(members_.front().table->home_axis));
  const auto rest = std::find_if(kMeshAxes.begin(), kMeshAxes.end(), [](const AxisSpec& a) { return a.takes_rest; });
  return std::string(rest->name);
}

std::vector<ParallelStack::Saving> ParallelStack::savings() const {
  std::vector<Saving> out;
  for (size_t m = 0; m < members_.size(); ++m)
    for (uint32_t i = 0; i < members_[m].table->num_savings; ++i) {
      const chassis_saving_t& saving = members_[m].table->savings[i];
      out.push_back({m, std::string(view_of(saving.option)), std::string(view_of(saving.value))});
    }
  return out;
}

void ParallelStack::resolve(const Program& program, ParameterTable& parameters, const StackContext& facts) {
  facts_ = facts;
  parameters_ = &parameters;
  const auto& all = parameters.all();
  auto problem = std::make_unique<Problem>();
  problem->axes = raw_axes(facts_.mesh, facts_.rank);
  problem->unit_texts = program.unit_names();
  for (const std::string& text : problem->unit_texts) problem->unit_names.push_back(str_of(text));
  std::map<const Parameter*, std::vector<uint32_t>> units;
  const auto num_units = static_cast<uint32_t>(program.num_units());
  for (uint32_t unit = 0; unit < num_units; ++unit)
    for (const Parameter* p : parameters.of_unit(unit))
      if (auto& list = units[p]; list.empty() || list.back() != unit) list.push_back(unit);
  ready_at_.assign(num_units, {});
  for (uint32_t i = 0; i < all.size(); ++i) {
    const Parameter& p = *all[i];
    const std::vector<uint32_t>& of = problem->units.emplace_back(std::move(units[&p]));
    if (!of.empty() && p.trainable) ready_at_[of.front()].push_back(i);
    chassis_parallel_parameter_t raw{};
    raw.struct_size = sizeof raw;
    raw.num_dims = static_cast<uint32_t>(p.local_shape.size());
    raw.shape = p.local_shape.data();
    raw.name = str_of(p.name);
    raw.num_elements = numel(Shape(p.local_shape));
    raw.trainable = p.trainable;
    raw.num_units = static_cast<uint32_t>(of.size());
    raw.units = of.data();
    problem->pointers.push_back(&problem->parameters.emplace_back(raw));
  }
  chassis_parallel_problem_t& raw = problem->raw;
  raw.struct_size = sizeof raw;
  raw.num_axes = static_cast<uint32_t>(problem->axes.size());
  raw.axes = problem->axes.data();
  raw.num_parameters = static_cast<uint32_t>(problem->parameters.size());
  raw.num_units = num_units;
  raw.parameters = problem->pointers.data();
  raw.unit_names = problem->unit_names.data();
  raw.compute_dtype = static_cast<uint32_t>(parameters.compute());
  raw.reduce_dtype = static_cast<uint32_t>(facts.reduce_dtype);
  raw.device_type = static_cast<uint32_t>(facts.device.type);
  raw.num_microbatches = static_cast<uint32_t>(facts.num_microbatches);

  rules_.assign(all.size(), {});
  std::vector<Answer> answers(members_.size());
  for (size_t m = 0; m < members_.size(); ++m) {
    for (const auto& [axis, division] : ask_divisions(members_[m], facts.mesh, facts.rank, program)) {
      answers[m].axes.push_back(axis);
      if (division.sequence_parallel && facts.mesh.size(facts.mesh.find(axis)) == 1)
        counted_warning(
            "sequence parallelism",
            members_[m].instance->label() + ": sequence parallelism has no effect, since " + mesh_key(axis) + " = 1");
    }
    const Sink sink(facts, parameters, rules_, answers[m]);
    members_[m].instance->check(members_[m].table->resolve(members_[m].instance->get("resolve"), &raw, sink.get()));
  }
  problem_ = std::move(problem);
  check_axes(answers);
  data_axes_.clear();
  for (const MeshAxis& axis : facts.mesh.axes())
    if (is_data_axis(axis.name) && std::any_of(answers.begin(), answers.end(),
                                               [&](const Answer& answer) { return contains(answer.axes, axis.name); }))
      data_axes_.push_back(axis.name);
  check_parameters(answers);
  place(parameters);
}

void ParallelStack::check_axes(const std::vector<Answer>& answers) const {
  std::map<std::string, const Member*> served_by;
  std::string served;
  for (size_t m = 0; m < answers.size(); ++m) {
    const Member& member = members_[m];
    const std::string& label = member.instance->label();
    if (answers[m].axes.empty())
      throw Error(ExitCode::kConfig, member.where, label + " has nothing to divide: the mesh is " + facts_.mesh.text())
          .hint("give its axis a size in [mesh], or remove it from [[parallel]]");
    for (const std::string& axis : answers[m].axes) {
      if (const auto [known, fresh] = served_by.emplace(axis, &member); !fresh)
        throw Error(ExitCode::kConfig, member.where,
                    "axis '" + axis + "' is served by " + known->second->instance->label() + " and by " + label)
            .hint("each axis of the mesh has one strategy; remove one of the two from [[parallel]]");
      served += (served.empty() ? "" : ", ") + label + " serves '" + axis + "'";
    }
  }
  for (const MeshAxis& axis : facts_.mesh.axes())
    if (axis.size > 1 && !served_by.contains(axis.name))
      throw config_error(mesh_key(axis.name) + " = " + std::to_string(axis.size) +
                         ", but no strategy of [[parallel]] serves this axis" + (served.empty() ? "" : ": " + served))
          .hint("add one that does, or set " + mesh_key(axis.name) +
                " = 1; `chassis plugins list` shows what there is");
}

void ParallelStack::check_parameters(const std::vector<Answer>& answers) {
  const auto& all = parameters_->all();
  std::vector<const Member*> placed_by(all.size());
  for (size_t m = 0; m < answers.size(); ++m)
    for (const uint32_t i : answers[m].parameters) {
      const Member *const first = std::exchange(placed_by[i], &members_[m]), &second = members_[m];
      if (first == &second)
        throw plugin_error(second.instance->label() + " places parameter '" + all[i]->name + "' twice");
      if (first)
        throw Error(ExitCode::kConfig, second.where,
                    "parameter '" + all[i]->name + "' is placed by " + first->instance->label() + " and by " +
                        second.instance->label())
            .hint("only one strategy of [[parallel]] can divide parameters; remove the other");
    }
  placed_.clear();
  unplaced_.clear();
  for (uint32_t i = 0; i < all.size(); ++i) {
    if (!placed_by[i] && !data_axes_.empty())
      throw plugin_error("no strategy of [[parallel]] says where parameter '" + all[i]->name + "' lives");
    rules_[i].resident |= !placed_by[i];
    (placed_by[i] ? placed_ : unplaced_).push_back(i);
  }
}

// The optimizer decides where strategies may cut, because its states are divided like the parameters. Whole matrices,
// the largest first, go to the coordinate that owns the fewest elements so far; every rank computes the same owners.
void ParallelStack::respect_granularity(const ParameterTable& parameters) {
  using Kind = Granularity::Kind;
  std::vector<size_t> matrices;
  for (size_t i = 0; i < rules_.size(); ++i) {
    ShardRule& rule = rules_[i];
    const Granularity& granularity = parameters.all()[i]->descriptor.granularity;
    if (granularity.kind == Kind::kElement || rule.kind == CHASSIS_SHARD_REPLICATE) continue;
    if (num_ways(rule) == 1) {
      rule.kind = CHASSIS_SHARD_REPLICATE;
    } else if (granularity.kind == Kind::kBlock) {
      rule.kind = CHASSIS_SHARD_FLAT;
      rule.block = granularity.block;
    } else {
      matrices.push_back(i);
    }
  }
  const auto elements = [&](size_t i) { return numel(Shape(parameters.all()[i]->local_shape)); };
  std::stable_sort(matrices.begin(), matrices.end(), [&](size_t a, size_t b) { return elements(a) > elements(b); });
  std::map<std::vector<std::string>, std::multimap<int64_t, int>> owned;  // by axes: elements owned, and the coordinate
  for (const size_t i : matrices) {
    auto& coordinates = owned[rules_[i].axes];
    if (coordinates.empty())
      for (int c = 0; c < num_ways(rules_[i]); ++c) coordinates.emplace_hint(coordinates.end(), 0, c);
    const auto [least, owner] = *coordinates.begin();
    coordinates.erase(coordinates.begin());
    coordinates.emplace(least + elements(i), owner);
    rules_[i].owner = owner;
  }
}

int ParallelStack::num_ways(const ShardRule& rule) const {
  int ways = 1;
  for (const std::string& axis : rule.axes) ways *= facts_.mesh.size(facts_.mesh.find(axis));
  return ways;
}

// Ranks that divide positions have the same parameters, each with a part of their gradients, as ranks that divide the
// batch do. So strategies divide and reduce them over both. Returns these axes.
std::vector<std::string> ParallelStack::divide_over_context(const ParameterTable& parameters) {
  std::vector<std::string> context, all = data_axes_;
  for (const MeshAxis& axis : facts_.mesh.axes())
    if (axis.size > 1 && is_context_axis(axis.name)) context.push_back(axis.name);
  for (const uint32_t i : placed_) {
    if (rules_[i].kind != CHASSIS_SHARD_REPLICATE)
      rules_[i].axes.insert(rules_[i].axes.end(), context.begin(), context.end());
    std::erase_if(parameters.all()[i]->partial_over, [&](const std::string& axis) { return contains(context, axis); });
  }
  all.insert(all.end(), context.begin(), context.end());
  return all;
}

// Writes the rules into the descriptors, which load, save, norms and the optimizer follow.
void ParallelStack::place(ParameterTable& parameters) {
  num_data_ranks_ = 1;
  data_rank_ = 0;
  counts_rows_ = true;
  const auto at = facts_.mesh.coordinates(facts_.rank);
  for (int axis = 0; axis < facts_.mesh.num_axes(); ++axis) {
    const int coordinate = at[static_cast<size_t>(axis)];
    if (!contains(data_axes_, facts_.mesh.axes()[static_cast<size_t>(axis)].name)) {
      counts_rows_ &= coordinate == 0;
      continue;
    }
    num_data_ranks_ *= facts_.mesh.size(axis);
    data_rank_ = data_rank_ * facts_.mesh.size(axis) + coordinate;
  }
  if (empty()) return;  // the program's own layout stays
  parameters.place(facts_.mesh, facts_.rank);
  if (placed_.empty()) return;
  const std::vector<std::string> axes = divide_over_context(parameters);
  respect_granularity(parameters);
  bool offloads = false;
  for (size_t i = 0; i < rules_.size(); ++i) {
    ShardRule& rule = rules_[i];
    for (const std::string& axis : axes)
      if (!contains(rule.axes, axis)) rule.replica_axes.push_back(axis);
    Descriptor& descriptor = parameters.all()[i]->descriptor;
    // The layout's placements stay, and come first.
    std::erase_if(descriptor.placements, [&](const Placement& p) {
      return std::all_of(p.axes.begin(), p.axes.end(), [&](const std::string& axis) { return contains(axes, axis); });
    });
    if (rule.owner >= 0) descriptor.placements.push_back(Placement::only_on(rule.axes, rule.owner));
    else if (rule.kind == CHASSIS_SHARD_DIM) descriptor.placements.push_back(Placement::dim_chunk(rule.axes, 0));
    else if (rule.kind == CHASSIS_SHARD_FLAT) descriptor.placements.push_back(Placement::flat_range(rule.axes));
    descriptor.owner = OwnerRule::kSpread;
    parameters.all()[i]->offloaded = rule.offload;
    parameters.all()[i]->pinned = rule.offload && rule.pin_memory;
    offloads |= rule.offload;
  }
  if (offloads && facts_.device.type == Device::Type::kCpu)
    counted_warning("offload", "offload and pin_memory have no effect: the run's device is the CPU");
}

void ParallelStack::bind(Communicator& communicator, Device device) {
  CHASSIS_CHECK(parameters_, "resolve must be called before bind");
  communicator_ = &communicator;
  shards_ = std::make_unique<Shards>(*parameters_, rules_, communicator, device);
  shards_->allocate();
  for (const Member& m : members_)
    if (m.table->bind) m.instance->check(m.table->bind(m.instance->get("bind"), shards_->table()));
}

void ParallelStack::call(const Member& member, const UnitHook& hook, size_t unit, uint32_t which, Flags flags) {
  if (const auto function = member.table->*hook.function)
    member.instance->check(function(member.instance->get(hook.name, static_cast<int64_t>(unit)), which, bits(flags)));
}

void ParallelStack::call(const Member& member, const StepHook& hook) {
  if (const auto function = member.table->*hook.function)
    member.instance->check(function(member.instance->get(hook.name)));
}

// Logged between the calls of collectives, so that the log shows what was started before a unit computes.
void ParallelStack::trace(const char* what, size_t unit) const {
  if (communicator_ && communicator_->logs_calls()) log::debug("unit: {} {}", what, problem_->unit_texts[unit]);
}

void ParallelStack::pre_forward(size_t unit, Flags flags) {
  constexpr UnitHook kHook = {"pre_forward", &chassis_parallel_t::pre_forward};
  for (const Member& m : members_) call(m, kHook, unit, static_cast<uint32_t>(unit), flags);
  for (const Parameter* p : parameters_->of_unit(unit))
    if (!p->is_whole())
      throw plugin_error("parameter '" + p->name + "' is not gathered when unit " + std::to_string(unit) + " begins");
  trace(flags.recompute ? "forward again" : "forward", unit);
}

void ParallelStack::post_forward(size_t unit, Flags flags) {
  constexpr UnitHook kHook = {"post_forward", &chassis_parallel_t::post_forward};
  for (size_t m = members_.size(); m-- > 0;) call(members_[m], kHook, unit, static_cast<uint32_t>(unit), flags);
}

void ParallelStack::pre_backward(size_t unit, Flags flags) {
  constexpr UnitHook kHook = {"pre_backward", &chassis_parallel_t::pre_backward};
  for (const Member& m : members_) call(m, kHook, unit, static_cast<uint32_t>(unit), flags);
  trace("backward", unit);
}

void ParallelStack::post_backward(size_t unit, Flags flags) {
  constexpr UnitHook kReady = {"grad_ready", &chassis_parallel_t::grad_ready},
                     kAfter = {"post_backward", &chassis_parallel_t::post_backward};
  for (size_t m = members_.size(); m-- > 0;) {
    for (uint32_t parameter : ready_at_[unit]) call(members_[m], kReady, unit, parameter, flags);
    call(members_[m], kAfter, unit, static_cast<uint32_t>(unit), flags);
  }
}

// Sums what each rank of an axis computed of a gradient: of its positions, or of its heads.
void ParallelStack::sum_partial_gradients() {
  std::map<std::vector<std::string>, std::vector<Collective>> by_axes;
  std::vector<std::pair<Tensor, Tensor>> offloaded;  // in host memory, and its copy on the device
  for (const auto& p : parameters_->all()) {
    // The ranks that it is summed over store the same elements of it, maybe none.
    if (p->partial_over.empty() || !p->trainable || p->shard.num_elements() == 0) continue;
    const Device device = shards_->device();
    Tensor own = p->step_gradient();
    if (!own) {  // another rank of the axis may have one
      const MemoryTag tag(MemoryCategory::kGradients);
      own = p->reduced = Tensor::zeros(p->shard.sizes(), Dtype::f32, p->shard.device());
    }
    const Tensor sum = own.device() == device ? own : own.to(device);
    if (own.device() != device) offloaded.emplace_back(own, sum);
    Collective call;
    call.send = call.recv = sum;
    call.name = "partial gradients";
    by_axes[p->partial_over].push_back(std::move(call));
  }
  for (auto& [axes, calls] : by_axes) {
    CommWork work = communicator_->start(communicator_->group(axes), std::move(calls));
    communicator_->wait(work);
  }
  for (const auto& [own, sum] : offloaded) own.copy_from(sum);
}

void ParallelStack::finish_grads() {
  for (const Member& m : members_) call(m, StepHook{"finish_grads", &chassis_parallel_t::finish_grads});
  sum_partial_gradients();
  for (const uint32_t i : placed_)
    if (const Parameter& p = *parameters_->all()[i]; p.gradient_written)
      throw plugin_error("the gradient of '" + p.name + "' was not reduced by the end of the step");
}

void ParallelStack::refresh() {
  shards_->mark_stale();
  shards_->gather(unplaced_, "");  // nothing is sent: this rank has them
  shards_->release(unplaced_);
  for (const Member& m : members_) call(m, StepHook{"post_optimizer", &chassis_parallel_t::post_optimizer});
  if (const auto stale = shards_->stale(); !stale.empty())
    throw plugin_error("parameter '" + stale.front() + "' still shows the values from before the step");
}

void ParallelStack::finish_step() {
  for (const Member& m : members_) call(m, StepHook{"drain", &chassis_parallel_t::drain});
  shards_->wait_all();
}

}  // namespace chassis

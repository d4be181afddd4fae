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
#include "host/program/unit_flops.hpp"
#include "host/service/memory.hpp"

namespace chassis {

// Of one rank's stages.
struct ParallelStack::Problem {
  chassis_parallel_problem_t raw{};
  std::vector<chassis_mesh_axis_t> axes;
  std::vector<uint32_t> ids;        // by parameter: its index in the table
  std::vector<size_t> whole_units;  // by unit: its index in the program
  std::deque<chassis_parallel_parameter_t> parameters;
  std::vector<const chassis_parallel_parameter_t*> pointers;
  std::deque<std::vector<uint32_t>> units;
  std::vector<std::string> unit_texts;
  std::vector<chassis_str_t> unit_names;
  std::vector<chassis_chunk_t> chunks;
};

namespace {

bool contains(const std::vector<std::string>& texts, const std::string& text) {
  return std::find(texts.begin(), texts.end(), text) != texts.end();
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
    if (mode < CHASSIS_CONTEXT_ALL_TO_ALL || mode > CHASSIS_CONTEXT_RING)
      throw plugin_error("context parallelism has the unknown mode " + std::to_string(mode));
    divisions_[axis].context = mode == CHASSIS_CONTEXT_RING     ? ContextMode::kRing
                               : mode == CHASSIS_CONTEXT_GATHER ? ContextMode::kGather
                                                                : ContextMode::kAllToAll;
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
  Sink(const StackContext& facts, const ParameterTable& parameters, const std::vector<uint32_t>& ids,
       std::vector<ShardRule>& rules, Answer& answer)
      : facts_(facts), parameters_(parameters), ids_(ids), rules_(rules), answer_(answer) {
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
    if (raw.parameter >= ids_.size())
      throw plugin_error("there is no parameter " + std::to_string(raw.parameter) + " to place; there are " +
                         std::to_string(ids_.size()));
    const uint32_t id = ids_[raw.parameter];
    const Parameter& p = *parameters_.all()[id];
    answer_.parameters.push_back(id);
    if (raw.kind < CHASSIS_SHARD_REPLICATE || raw.kind > CHASSIS_SHARD_FLAT)
      throw plugin_error("'" + p.name + "' has the unknown kind of placement " + std::to_string(raw.kind));
    if (raw.kind == CHASSIS_SHARD_DIM && raw.dim != 0)
      throw plugin_error("dim " + std::to_string(raw.dim) + " of '" + p.name + "' is divided; only dim 0 can be");
    ShardRule& rule = rules_[id] = {};
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
  const std::vector<uint32_t>& ids_;
  std::vector<ShardRule>& rules_;
  Answer& answer_;
  chassis_parallel_sink_t raw_{};
};

namespace {

// All-reduces of gradients of shards, by group.
class GradientSums {
 public:
  explicit GradientSums(const Shards& shards) : shards_(shards) {}

  // The ranks of the group store the same elements of the parameter, maybe none.
  void add(CommGroup& group, Parameter& p) {
    if (p.shard.num_elements() == 0) return;
    const Device device = shards_.device();
    Tensor own = p.step_gradient();
    if (!own) {  // another rank of the group may have one
      const MemoryTag tag(MemoryCategory::kGradients);
      own = p.reduced = Tensor::zeros(p.shard.sizes(), Dtype::f32, p.shard.device());
    }
    const Tensor sum = own.device() == device ? own : own.to(device);
    if (own.device() != device) offloaded_.emplace_back(own, sum);
    Collective call;
    call.send = call.recv = sum;
    auto found =
        std::find_if(by_group_.begin(), by_group_.end(), [&](const auto& other) { return other.first == &group; });
    if (found == by_group_.end()) found = by_group_.insert(found, {&group, {}});
    found->second.push_back(std::move(call));
  }
  void run(Communicator& communicator, const char* name) {
    for (auto& [group, calls] : by_group_) {
      for (Collective& call : calls) call.name = name;
      CommWork work = communicator.start(*group, std::move(calls));
      communicator.wait(work);
    }
    for (const auto& [own, sum] : offloaded_) own.copy_from(sum);
  }

 private:
  const Shards& shards_;
  std::vector<std::pair<CommGroup*, std::vector<Collective>>> by_group_;  // in order of first use
  std::vector<std::pair<Tensor, Tensor>> offloaded_;                      // in host memory, and its copy on the device
};

uint32_t bits(UnitEvents::Flags flags) {
  return (flags.recompute ? CHASSIS_EVENT_RECOMPUTE : 0) | (flags.last_microbatch ? CHASSIS_EVENT_LAST_MICROBATCH : 0) |
         (flags.training ? CHASSIS_EVENT_TRAINING : 0) | (flags.params ? 0 : CHASSIS_EVENT_INPUTS_ONLY) |
         (flags.inputs ? 0 : CHASSIS_EVENT_PARAMS_ONLY);
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
  std::vector<Answer> answers(members_.size());
  pipeline_ = ask_stages(program, answers);
  find_stages_of(program);
  rules_.assign(parameters.all().size(), {});
  placed_by_.assign(parameters.all().size(), nullptr);
  conflict_.reset();
  // Every rank knows where the parameters of all stages live. A strategy keeps what it heard last, so this rank's
  // stages come last.
  const int num_coordinates = pipeline_.divides() ? pipeline_.stages().num_ranks() : 1;
  for (int i = 1; i <= num_coordinates; ++i)
    resolve_stages(program, (stage_coordinate_ + i) % num_coordinates, answers);
  check_axes(answers);
  if (conflict_) throw *conflict_;
  data_axes_.clear();
  for (const MeshAxis& axis : facts.mesh.axes())
    if (is_data_axis(axis.name) && std::any_of(answers.begin(), answers.end(),
                                               [&](const Answer& answer) { return contains(answer.axes, axis.name); }))
      data_axes_.push_back(axis.name);
  check_parameters();
  place(parameters);
}

Pipeline ParallelStack::ask_stages(const Program& program, std::vector<Answer>& answers) const {
  Pipeline out;
  const PipelineFacts facts{program, unit_flops(program, *parameters_, facts_.time), facts_.mesh, facts_.rank,
                            facts_.trains ? facts_.num_microbatches : 0};
  const Member* owner = nullptr;
  for (size_t m = 0; m < members_.size(); ++m) {
    const Member& member = members_[m];
    if (member.table->stages == nullptr) continue;
    const StageProblem problem(facts);
    const StageSink sink(facts);
    try {
      member.instance->check(member.table->stages(member.instance->get("stages"), problem.get(), sink.get()));
      if (!sink.is_used()) continue;
      if (owner != nullptr)
        throw config_error("the schedule of pipeline stages is given by " + owner->instance->label() + " and by " +
                           member.instance->label())
            .hint("only one strategy of [[parallel]] can own it; remove the other");
      out = sink.pipeline();
    } catch (const Error& error) {
      if (error.code() != ExitCode::kConfig || !error.where().file.empty()) throw;
      throw Error(ExitCode::kConfig, member.where, error.message()).hint(error.hint_text());
    }
    owner = &member;
    answers[m].axes.push_back(out.axis);
  }
  if (!out.divides()) out.units = {{0, program.num_units()}};
  return out;
}

// Which coordinates of the pipeline read each parameter.
void ParallelStack::find_stages_of(const Program& program) {
  stage_coordinate_ = 0;
  coordinates_of_.assign(parameters_->all().size(), {});
  if (!pipeline_.divides()) return;
  stage_coordinate_ = facts_.mesh.coordinates(facts_.rank)[static_cast<size_t>(facts_.mesh.find(pipeline_.axis))];
  std::map<const Parameter*, size_t> index;
  for (size_t i = 0; i < parameters_->all().size(); ++i) index[parameters_->all()[i].get()] = i;
  for (size_t unit = 0; unit < program.num_units(); ++unit) {
    const int coordinate = pipeline_.stages().rank(pipeline_.stage_of(unit));
    for (const Parameter* p : parameters_->of_unit(unit)) {
      std::vector<int>& of = coordinates_of_[index.at(p)];
      if (std::find(of.begin(), of.end(), coordinate) == of.end()) of.push_back(coordinate);
    }
  }
}

std::unique_ptr<ParallelStack::Problem> ParallelStack::problem_of(const Program& program, int coordinate) const {
  auto problem = std::make_unique<Problem>();
  const auto& all = parameters_->all();
  int rank = facts_.rank;
  if (pipeline_.divides()) {
    MeshShape::Coordinates at = facts_.mesh.coordinates(rank);
    at[static_cast<size_t>(facts_.mesh.find(pipeline_.axis))] = coordinate;
    rank = facts_.mesh.rank(at);
  }
  problem->axes = raw_axes(facts_.mesh, rank);
  const std::vector<std::string> names = program.unit_names();
  for (int chunk = 0; chunk < pipeline_.stages().num_chunks(coordinate); ++chunk) {
    const int stage = pipeline_.stages().stage(coordinate, chunk);
    const UnitRange units = pipeline_.units[static_cast<size_t>(stage)];
    const auto first = static_cast<uint32_t>(problem->whole_units.size());
    for (size_t unit = units.begin; unit < units.end; ++unit) {
      problem->whole_units.push_back(unit);
      problem->unit_texts.push_back(names[unit]);
    }
    problem->chunks.push_back(
        {first, static_cast<uint32_t>(problem->whole_units.size()), static_cast<uint32_t>(stage), 0});
  }
  for (const std::string& text : problem->unit_texts) problem->unit_names.push_back(str_of(text));
  std::map<const Parameter*, std::vector<uint32_t>> units;
  const auto num_units = static_cast<uint32_t>(problem->whole_units.size());
  for (uint32_t unit = 0; unit < num_units; ++unit)
    for (const Parameter* p : parameters_->of_unit(problem->whole_units[unit]))
      if (auto& list = units[p]; list.empty() || list.back() != unit) list.push_back(unit);
  for (uint32_t i = 0; i < all.size(); ++i) {
    const Parameter& p = *all[i];
    const auto found = units.find(&p);
    if (found == units.end() && pipeline_.divides()) continue;  // of another stage
    problem->ids.push_back(i);
    const std::vector<uint32_t>& of =
        problem->units.emplace_back(found == units.end() ? std::vector<uint32_t>{} : std::move(found->second));
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
  raw.compute_dtype = static_cast<uint32_t>(parameters_->compute());
  raw.reduce_dtype = static_cast<uint32_t>(facts_.reduce_dtype);
  raw.device_type = static_cast<uint32_t>(facts_.device.type);
  raw.num_microbatches = static_cast<uint32_t>(facts_.num_microbatches);
  raw.num_chunks = static_cast<uint32_t>(problem->chunks.size());
  raw.num_stages = static_cast<uint32_t>(pipeline_.num_stages());
  raw.chunks = problem->chunks.data();
  return problem;
}

void ParallelStack::resolve_stages(const Program& program, int coordinate, std::vector<Answer>& answers) {
  auto problem = problem_of(program, coordinate);
  const bool is_own = coordinate == stage_coordinate_;
  const std::vector<ShardRule> before = rules_;
  std::vector<const Member*> placed_here(rules_.size());
  for (size_t m = 0; m < members_.size(); ++m) {
    const Member& member = members_[m];
    if (is_own)
      for (const auto& [axis, division] : ask_divisions(member, facts_.mesh, facts_.rank, program)) {
        answers[m].axes.push_back(axis);
        if (division.sequence_parallel && facts_.mesh.size(facts_.mesh.find(axis)) == 1)
          counted_warning(
              "sequence parallelism",
              member.instance->label() + ": sequence parallelism has no effect, since " + mesh_key(axis) + " = 1");
      }
    Answer answer;
    const Sink sink(facts_, *parameters_, problem->ids, rules_, answer);
    member.instance->check(member.table->resolve(member.instance->get("resolve"), &problem->raw, sink.get()));
    if (is_own) answers[m].axes.insert(answers[m].axes.end(), answer.axes.begin(), answer.axes.end());
    for (const uint32_t id : answer.parameters) {
      const std::string& name = parameters_->all()[id]->name;
      const Member* const first = std::exchange(placed_here[id], &member);
      if (!conflict_ && first == &member)
        conflict_ = plugin_error(member.instance->label() + " places parameter '" + name + "' twice");
      else if (!conflict_ && first != nullptr)
        conflict_ = Error(ExitCode::kConfig, member.where,
                          "parameter '" + name + "' is placed by " + first->instance->label() + " and by " +
                              member.instance->label())
                        .hint("only one strategy of [[parallel]] can divide parameters; remove the other");
      else if (!conflict_ && placed_by_[id] != nullptr && !(before[id] == rules_[id]))
        conflict_ = plugin_error(member.instance->label() + " places parameter '" + name +
                                 "', which two pipeline stages read, differently on each");
      placed_by_[id] = &member;
    }
  }
  if (is_own) take_problem(std::move(problem));
}

// Keeps what this rank needs during a step.
void ParallelStack::take_problem(std::unique_ptr<Problem> problem) {
  problem_ = std::move(problem);
  local_unit_.clear();
  for (uint32_t unit = 0; unit < problem_->whole_units.size(); ++unit) local_unit_[problem_->whole_units[unit]] = unit;
  trained_of_unit_.assign(problem_->whole_units.size(), {});
  ready_.assign(problem_->ids.size(), {});
  for (uint32_t i = 0; i < problem_->ids.size(); ++i) {
    ready_[i].num_units = static_cast<uint32_t>(problem_->units[i].size());
    if (!problem_->parameters[i].trainable) continue;
    for (const uint32_t unit : problem_->units[i]) trained_of_unit_[unit].push_back(i);
  }
}

Parameter& ParallelStack::local(uint32_t i) const { return *parameters_->all()[problem_->ids[i]]; }

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

void ParallelStack::check_parameters() {
  const auto& all = parameters_->all();
  placed_.clear();
  for (uint32_t i = 0; i < all.size(); ++i) {
    if (!placed_by_[i] && !data_axes_.empty())
      throw plugin_error("no strategy of [[parallel]] says where parameter '" + all[i]->name + "' lives");
    rules_[i].resident |= !placed_by_[i];
    if (placed_by_[i]) placed_.push_back(i);
  }
  unplaced_here_.clear();
  placed_here_.clear();
  for (uint32_t i = 0; i < problem_->ids.size(); ++i)
    (placed_by_[problem_->ids[i]] ? placed_here_ : unplaced_here_).push_back(i);
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
  // By axes, and by the pipeline's coordinate: elements owned, and the coordinate.
  std::map<std::pair<std::vector<std::string>, int>, std::multimap<int64_t, int>> owned;
  for (const size_t i : matrices) {
    auto& coordinates = owned[{rules_[i].axes, coordinates_of_[i].empty() ? 0 : coordinates_of_[i].front()}];
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
    const std::string& name = facts_.mesh.axes()[static_cast<size_t>(axis)].name;
    if (!contains(data_axes_, name)) {
      // The last stage has the loss.
      counts_rows_ &= coordinate == (name == pipeline_.axis ? pipeline_.stages().rank(pipeline_.num_stages() - 1) : 0);
      continue;
    }
    num_data_ranks_ *= facts_.mesh.size(axis);
    data_rank_ = data_rank_ * facts_.mesh.size(axis) + coordinate;
  }
  if (empty()) return;  // the program's own layout stays
  parameters.place(facts_.mesh, facts_.rank);
  place_stages(parameters);
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

// A parameter lies on the ranks whose stages read it. The first owns it; a tied one has a copy on each other.
void ParallelStack::place_stages(ParameterTable& parameters) {
  if (!pipeline_.divides()) return;
  for (size_t i = 0; i < parameters.all().size(); ++i) {
    Parameter& p = *parameters.all()[i];
    std::vector<int> copies = coordinates_of_[i];
    if (copies.empty()) continue;  // no unit reads it
    p.is_here = std::find(copies.begin(), copies.end(), stage_coordinate_) != copies.end();
    Placement placement = Placement::only_on({pipeline_.axis}, copies.front());
    copies.erase(copies.begin());
    placement.copies = std::move(copies);
    std::vector<Placement>& placements = p.descriptor.placements;
    std::erase_if(placements, [&](const Placement& other) { return contains(other.axes, pipeline_.axis); });
    placements.insert(placements.begin() + static_cast<std::ptrdiff_t>(p.num_layout_placements), std::move(placement));
  }
}

void ParallelStack::bind(Communicator& communicator, Device device) {
  CHASSIS_CHECK(parameters_, "resolve must be called before bind");
  communicator_ = &communicator;
  std::vector<Parameter*> here;
  std::vector<ShardRule> rules;
  for (const uint32_t id : problem_->ids) {
    here.push_back(parameters_->all()[id].get());
    rules.push_back(rules_[id]);
  }
  shards_ = std::make_unique<Shards>(*parameters_, here, std::move(rules), communicator, device);
  shards_->allocate();
  connect();
  for (const Member& m : members_)
    if (m.table->bind) m.instance->check(m.table->bind(m.instance->get("bind"), shards_->table()));
}

// Forms the groups that a step needs while the ranks of a pipeline are at different places: whichever rank came first
// would wait for others that wait for it. All ranks form them in the same order.
void ParallelStack::connect() {
  if (!pipeline_.divides()) return;
  for (const MeshAxis& axis : facts_.mesh.axes())
    if (axis.size > 1) communicator_->group(std::vector<std::string>{axis.name});
  communicator_->group({});
  links_ = std::make_unique<RankLinks>(pipeline_, *communicator_);
  for (const auto& p : parameters_->all())
    if (!p->partial_over.empty()) communicator_->group(p->partial_over);
  copies_.clear();
  std::map<std::vector<int>, std::vector<Parameter*>> by_coordinates;
  for (size_t i = 0; i < coordinates_of_.size(); ++i)
    if (coordinates_of_[i].size() > 1 && parameters_->all()[i]->trainable)
      by_coordinates[coordinates_of_[i]].push_back(parameters_->all()[i].get());
  for (auto& [coordinates, tied] : by_coordinates) {
    if (std::find(coordinates.begin(), coordinates.end(), stage_coordinate_) == coordinates.end()) continue;
    std::string key = "tied";
    for (const int coordinate : coordinates) key += "," + std::to_string(coordinate);
    copies_.push_back({&communicator_->group_on(pipeline_.axis, coordinates, key), tied});
  }
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
void ParallelStack::trace(const char* what, uint32_t unit) const {
  if (communicator_ && communicator_->logs_calls()) log::debug("unit: {} {}", what, problem_->unit_texts[unit]);
}

void ParallelStack::pre_forward(size_t unit, Flags flags) {
  constexpr UnitHook kHook = {"pre_forward", &chassis_parallel_t::pre_forward};
  const uint32_t here = local_unit(unit);
  for (const Member& m : members_) call(m, kHook, here, here, flags);
  for (const Parameter* p : parameters_->of_unit(unit))
    if (!p->is_whole())
      throw plugin_error("parameter '" + p->name + "' is not gathered when unit " + std::to_string(unit) + " begins");
  trace(flags.recompute ? "forward again" : "forward", here);
}

void ParallelStack::post_forward(size_t unit, Flags flags) {
  constexpr UnitHook kHook = {"post_forward", &chassis_parallel_t::post_forward};
  const uint32_t here = local_unit(unit);
  for (size_t m = members_.size(); m-- > 0;) call(members_[m], kHook, here, here, flags);
}

void ParallelStack::pre_backward(size_t unit, Flags flags) {
  constexpr UnitHook kHook = {"pre_backward", &chassis_parallel_t::pre_backward};
  const uint32_t here = local_unit(unit);
  for (const Member& m : members_) call(m, kHook, here, here, flags);
  trace("backward", here);
}

// A tied parameter is ready when all units that read it have added to its gradient, maybe in several chunks.
std::vector<std::pair<uint32_t, UnitEvents::Flags>> ParallelStack::ready_after(uint32_t unit, Flags flags) {
  std::vector<std::pair<uint32_t, Flags>> out;
  if (!flags.params) return out;
  for (const uint32_t i : trained_of_unit_[unit]) {
    Readiness& ready = ready_[i];
    ready.num_last += flags.last_microbatch;
    if (++ready.num_done[flags.microbatch] < ready.num_units) continue;
    ready.num_done.erase(flags.microbatch);
    Flags of_parameter = flags;
    of_parameter.last_microbatch = ready.num_last == ready.num_units;
    out.emplace_back(i, of_parameter);
  }
  return out;
}

void ParallelStack::post_backward(size_t unit, Flags flags) {
  constexpr UnitHook kReady = {"grad_ready", &chassis_parallel_t::grad_ready},
                     kAfter = {"post_backward", &chassis_parallel_t::post_backward};
  const uint32_t here = local_unit(unit);
  const auto ready = ready_after(here, flags);
  for (size_t m = members_.size(); m-- > 0;) {
    for (const auto& [parameter, of_parameter] : ready) call(members_[m], kReady, here, parameter, of_parameter);
    call(members_[m], kAfter, here, here, flags);
  }
}

uint32_t ParallelStack::local_unit(size_t unit) const {
  const auto found = local_unit_.find(unit);
  CHASSIS_CHECK(found != local_unit_.end(), "a unit of another stage runs");
  return found->second;
}

// Sums gradients of which several ranks have a part: each computed it from its positions or heads, or from the units of
// its stage that read a tied parameter.
void ParallelStack::sum_partial_gradients() {
  GradientSums sums(*shards_);
  for (const auto& p : parameters_->all())
    if (!p->partial_over.empty() && p->trainable && p->is_here) sums.add(communicator_->group(p->partial_over), *p);
  sums.run(*communicator_, "partial gradients");
  GradientSums tied(*shards_);
  for (const auto& [group, parameters] : copies_)
    for (Parameter* p : parameters) tied.add(*group, *p);
  tied.run(*communicator_, "gradients of tied parameters");
}

void ParallelStack::finish_grads() {
  for (const Member& m : members_) call(m, StepHook{"finish_grads", &chassis_parallel_t::finish_grads});
  sum_partial_gradients();
  for (Readiness& ready : ready_) ready.num_last = 0, ready.num_done.clear();
  for (const uint32_t i : placed_here_)
    if (const Parameter& p = local(i); p.gradient_written)
      throw plugin_error("the gradient of '" + p.name + "' was not reduced by the end of the step");
}

void ParallelStack::refresh() {
  shards_->mark_stale();
  shards_->gather(unplaced_here_, "");  // nothing is sent: this rank has them
  shards_->release(unplaced_here_);
  for (const Member& m : members_) call(m, StepHook{"post_optimizer", &chassis_parallel_t::post_optimizer});
  if (const auto stale = shards_->stale(); !stale.empty())
    throw plugin_error("parameter '" + stale.front() + "' still shows the values from before the step");
}

void ParallelStack::finish_step() {
  for (const Member& m : members_) call(m, StepHook{"drain", &chassis_parallel_t::drain});
  if (links_) links_->finish();
  shards_->wait_all();
}

}  // namespace chassis

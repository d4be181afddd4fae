// Collects the answers of the strategies, stage by stage, and checks them together. The layout pass's questions are in
// parallel_stack_layout.cpp, the events of a step in parallel_stack_step.cpp.
#include "host/parallel/parallel_stack.hpp"

#include <algorithm>
#include <map>
#include <utility>

#include "host/base/error.hpp"
#include "host/base/log.hpp"
#include "host/base/mesh_axes.hpp"
#include "host/compile/unit_flops.hpp"
#include "host/parallel/parallel_stack_impl.hpp"
#include "host/plugin/sized.hpp"
#include "host/plugin/status.hpp"
#include "host/service/memory.hpp"

namespace chassis {

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
    if (!divides_rows(axis))
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

const chassis_parallel_t* table_of(const Instance& instance) {
  const auto* table = &instance.interface<chassis_parallel_t>(CHASSIS_PARALLEL_ID);
  instance.require(CHASSIS_PARALLEL_ID, {{"resolve", table->resolve != nullptr}});
  return table;
}

// Ignores answers, because they are already known.
chassis_stage_sink_t ignoring_stage_sink() {
  chassis_stage_sink_t sink{};
  sink.struct_size = sizeof sink;
  sink.named = [](auto...) -> chassis_status_t* { return nullptr; };
  sink.csv = [](auto...) -> chassis_status_t* { return nullptr; };
  sink.lists = [](auto...) -> chassis_status_t* { return nullptr; };
  sink.layers = [](auto...) -> chassis_status_t* { return nullptr; };
  return sink;
}

}  // namespace

ParallelStack::ParallelStack(std::vector<StackMember> members) {
  for (StackMember& member : members) {
    const chassis_parallel_t* table = table_of(*member.instance);
    members_.push_back({std::move(member.instance), std::move(member.where), table});
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

std::vector<std::string> ParallelStack::home_axes() const {
  std::vector<std::string> out;
  for (const Member& member : members_) out.emplace_back(view_of(member.table->home_axis));
  return out;
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
  index_.clear();
  for (uint32_t i = 0; i < parameters.all().size(); ++i) index_[parameters.all()[i].get()] = i;
  unit_names_ = program.unit_names();
  unit_costs_ = unit_flops(program, parameters, facts.time);
  std::vector<Answer> answers(members_.size());
  pipeline_ = ask_stages(program, answers);
  find_stages_of(program);
  rules_.assign(parameters.all().size(), {});
  placed_by_.assign(parameters.all().size(), nullptr);
  conflict_.reset();
  // Every rank knows where the parameters of all stages live. A strategy keeps what it was told last, so this rank's
  // stages come last.
  const int num_coordinates = pipeline_.divides() ? pipeline_.stages().num_ranks() : 1;
  for (int i = 1; i <= num_coordinates; ++i)
    resolve_stages(program, (stage_coordinate_ + i) % num_coordinates, answers);
  check_axes(answers);
  for (size_t m = 0; m < members_.size(); ++m) members_[m].axes = answers[m].axes;
  if (conflict_) throw *conflict_;
  data_axes_.clear();
  for (const MeshAxis& axis : facts.mesh.axes())
    if (divides_rows(axis.name) && std::any_of(answers.begin(), answers.end(),
                                               [&](const Answer& answer) { return contains(answer.axes, axis.name); }))
      data_axes_.push_back(axis.name);
  check_parameters();
  place(parameters);
}

void ParallelStack::move_to(int rank, const Program& program, std::vector<StackMember> members) {
  CHASSIS_CHECK(parameters_ && members.size() == members_.size(), "a stack moves after resolve, with its own members");
  links_.reset();
  shards_.reset();
  copies_.clear();
  communicator_ = nullptr;
  for (size_t m = 0; m < members.size(); ++m) {
    members_[m].instance = std::move(members[m].instance);
    members_[m].table = table_of(*members_[m].instance);
  }
  for (const uint32_t id : problem_->ids) parameters_->all()[id]->is_here = false;
  facts_.rank = rank;
  stage_coordinate_ = coordinate_of(rank);
  repeat_questions(program);
  for (const uint32_t id : problem_->ids) parameters_->all()[id]->is_here = true;
  number_here();
  place_rank();
  if (!empty()) parameters_->place(facts_.mesh, rank);
}

// Asks new instances what they must be asked before bind. Their answers equal those of the others.
void ParallelStack::repeat_questions(const Program& program) {
  const PipelineFacts facts = pipeline_facts(program);
  const StageProblem stage_problem(facts);
  const chassis_stage_sink_t stage_sink = ignoring_stage_sink();
  auto problem = problem_of(stage_coordinate_);
  std::vector<ShardRule> rules(rules_.size());
  for (const Member& member : members_) {
    const auto& instance = *member.instance;
    if (member.table->stages != nullptr)
      instance.call("stages", [&](auto* self) { return member.table->stages(self, stage_problem.get(), &stage_sink); });
    ask_divisions(member, facts_.mesh, facts_.rank, program);
    Answer answer;
    const Sink sink(facts_, *parameters_, problem->ids, rules, answer);
    instance.call("resolve", [&](auto* self) { return member.table->resolve(self, &problem->raw, sink.get()); });
  }
  take_problem(std::move(problem));
}

PipelineFacts ParallelStack::pipeline_facts(const Program& program) const {
  return {program, unit_costs_, facts_.mesh, facts_.rank, facts_.trains ? facts_.num_microbatches : 0};
}

Pipeline ParallelStack::ask_stages(const Program& program, std::vector<Answer>& answers) const {
  Pipeline out;
  const PipelineFacts facts = pipeline_facts(program);
  const Member* owner = nullptr;
  for (size_t m = 0; m < members_.size(); ++m) {
    const Member& member = members_[m];
    if (member.table->stages == nullptr) continue;
    const StageProblem problem(facts);
    const StageSink sink(facts);
    const auto at_member = [&](const Error& error, const std::string& prefix) {
      if (error.code() == ExitCode::kInternal || !error.where().file.empty()) throw;
      return Error(error.code(), member.where, prefix + error.message()).hint(error.hint_text());
    };
    try {
      member.instance->call("stages",
                            [&](auto* self) { return member.table->stages(self, problem.get(), sink.get()); });
    } catch (const Error& error) {
      throw at_member(error, "");
    }
    if (!sink.is_used()) continue;
    if (owner != nullptr)
      throw Error(ExitCode::kConfig, member.where,
                  "the schedule of pipeline stages is given by " + owner->instance->label() + " and by " +
                      member.instance->label())
          .hint("only one strategy of [[parallel]] can own it; remove the other");
    try {
      out = sink.pipeline();
    } catch (const Error& error) {
      throw at_member(error, member.instance->label() + ": ");
    }
    owner = &member;
    answers[m].axes.push_back(out.axis);
  }
  if (!out.divides()) out.units = {{0, program.num_units()}};
  return out;
}

// Finds the coordinates of the pipeline that read each parameter.
void ParallelStack::find_stages_of(const Program& program) {
  stage_coordinate_ = coordinate_of(facts_.rank);
  coordinates_of_.assign(parameters_->all().size(), {});
  if (!pipeline_.divides()) return;
  for (size_t unit = 0; unit < program.num_units(); ++unit) {
    const int coordinate = pipeline_.stages().rank(pipeline_.stage_of(unit));
    for (const Parameter* p : parameters_->of_unit(unit)) {
      std::vector<int>& of = coordinates_of_[index_.at(p)];
      if (std::find(of.begin(), of.end(), coordinate) == of.end()) of.push_back(coordinate);
    }
  }
}

int ParallelStack::coordinate_of(int rank) const {
  if (!pipeline_.divides()) return 0;
  return facts_.mesh.coordinates(rank)[static_cast<size_t>(facts_.mesh.find(pipeline_.axis))];
}

std::unique_ptr<ParallelStack::Problem> ParallelStack::problem_of(int coordinate) const {
  auto problem = std::make_unique<Problem>();
  const auto& all = parameters_->all();
  int rank = facts_.rank;
  if (pipeline_.divides()) {
    MeshShape::Coordinates at = facts_.mesh.coordinates(rank);
    at[static_cast<size_t>(facts_.mesh.find(pipeline_.axis))] = coordinate;
    rank = facts_.mesh.rank(at);
  }
  problem->axes = raw_axes(facts_.mesh, rank);
  for (int chunk = 0; chunk < pipeline_.stages().num_chunks(coordinate); ++chunk) {
    const int stage = pipeline_.stages().stage(coordinate, chunk);
    const UnitRange units = pipeline_.units[static_cast<size_t>(stage)];
    const auto first = static_cast<uint32_t>(problem->whole_units.size());
    for (size_t unit = units.begin; unit < units.end; ++unit) {
      problem->whole_units.push_back(unit);
      problem->unit_texts.push_back(unit_names_[unit]);
    }
    problem->chunks.push_back(
        {first, static_cast<uint32_t>(problem->whole_units.size()), static_cast<uint32_t>(stage), 0});
  }
  for (const std::string& text : problem->unit_texts) problem->unit_names.push_back(str_of(text));
  std::map<uint32_t, std::vector<uint32_t>> units;  // by parameter
  const auto num_units = static_cast<uint32_t>(problem->whole_units.size());
  for (uint32_t unit = 0; unit < num_units; ++unit)
    for (const Parameter* p : parameters_->of_unit(problem->whole_units[unit]))
      if (auto& list = units[index_.at(p)]; list.empty() || list.back() != unit) list.push_back(unit);
  if (!pipeline_.divides())
    for (uint32_t i = 0; i < all.size(); ++i) units.try_emplace(i);  // also parameters that no unit reads
  for (auto& [i, of_parameter] : units) {
    const Parameter& p = *all[i];
    problem->ids.push_back(i);
    const std::vector<uint32_t>& of = problem->units.emplace_back(std::move(of_parameter));
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
  auto problem = problem_of(coordinate);
  const bool is_own = coordinate == stage_coordinate_;
  std::map<uint32_t, ShardRule> before;  // rules of parameters that another stage reads too
  for (const uint32_t id : problem->ids)
    if (placed_by_[id] != nullptr) before.emplace(id, rules_[id]);
  std::map<uint32_t, const Member*> placed_here;
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
    member.instance->call("resolve",
                          [&](auto* self) { return member.table->resolve(self, &problem->raw, sink.get()); });
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
      else if (!conflict_ && placed_by_[id] != nullptr && !(before.at(id) == rules_[id]))
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
  number_here();
}

void ParallelStack::number_here() {
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
    const Granularity& granularity = parameters.all()[i]->granularity;
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
  // By axes and pipeline coordinate: the elements that each coordinate along the axes owns so far, and that coordinate.
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

// Ranks that divide positions have the same parameters and each a part of their gradients, just as ranks that divide
// the batch do. So strategies divide and reduce parameters over both kinds of axes. Returns these axes.
std::vector<std::string> ParallelStack::divide_over_context(const ParameterTable& parameters) {
  std::vector<std::string> context, all = data_axes_;
  for (const MeshAxis& axis : facts_.mesh.axes())
    if (axis.size > 1 && divides_positions(axis.name)) context.push_back(axis.name);
  for (const uint32_t i : placed_) {
    if (rules_[i].kind != CHASSIS_SHARD_REPLICATE)
      rules_[i].axes.insert(rules_[i].axes.end(), context.begin(), context.end());
    std::erase_if(parameters.all()[i]->partial_over, [&](const std::string& axis) { return contains(context, axis); });
  }
  all.insert(all.end(), context.begin(), context.end());
  return all;
}

// Finds the place of this rank among those that divide the batch.
void ParallelStack::place_rank() {
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
}

// Writes the rules into the descriptors, which load, save, norms and the optimizer follow.
void ParallelStack::place(ParameterTable& parameters) {
  place_rank();
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
    if (rule.owner >= 0)
      descriptor.placements.push_back(Placement::only_on(rule.axes, rule.owner));
    else if (rule.kind == CHASSIS_SHARD_DIM)
      descriptor.placements.push_back(Placement::dim_chunk(rule.axes, 0));
    else if (rule.kind == CHASSIS_SHARD_FLAT)
      descriptor.placements.push_back(Placement::flat_range(rule.axes));
    descriptor.owner = OwnerRule::kSpread;
    parameters.all()[i]->offloaded = rule.offload;
    parameters.all()[i]->pinned = rule.offload && rule.pin_memory;
    offloads |= rule.offload;
  }
  if (offloads && facts_.device.type == Device::Type::kCpu)
    counted_warning("offload", "offload and pin_memory have no effect: the run's device is the CPU");
}

// A parameter lies on the ranks whose stages read it. The first of them owns it; a tied one has copies on the others.
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

}  // namespace chassis

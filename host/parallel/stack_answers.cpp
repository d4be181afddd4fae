// A strategy answers for one pipeline stage after the other; whether all answers fit together is checked afterwards.
#include "host/parallel/stack_answers.hpp"

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "host/base/error.hpp"
#include "host/base/log.hpp"
#include "host/base/mesh_axes.hpp"
#include "host/compile/unit_flops.hpp"
#include "host/parallel/axis_names.hpp"
#include "host/parallel/divisions.hpp"
#include "host/plugin/sized.hpp"
#include "host/plugin/status.hpp"

namespace chassis {
namespace {

// The answer of a strategy; its rules are in the placements.
struct Answer {
  std::vector<std::string> axes;     // axes that it serves
  std::vector<uint32_t> parameters;  // parameters that it places, by index in the table
};

// The host's side of resolve(). Whether the answers fit together is checked when all strategies have answered.
class PlacementSink {
 public:
  PlacementSink(const StackContext& facts, const ParameterTable& parameters, const std::vector<uint32_t>& ids,
                std::vector<ParameterPlacement>& placements, Answer& answer)
      : facts_(facts), parameters_(parameters), ids_(ids), placements_(placements), answer_(answer) {
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
  static PlacementSink& self(const chassis_parallel_sink_t* s) { return *static_cast<PlacementSink*>(s->impl); }

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
    ShardRule& rule = placements_[id].rule = {};
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
  std::vector<ParameterPlacement>& placements_;
  Answer& answer_;
  chassis_parallel_sink_t raw_{};
};

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

PipelineFacts pipeline_facts(const Program& program, const std::vector<double>& unit_costs, const StackContext& facts) {
  return {program, unit_costs, facts.mesh, facts.rank, facts.trains ? facts.num_microbatches : 0};
}

// The arguments of resolve() for the ranks at a coordinate of the pipeline; on other axes they lie where this rank
// does.
std::unique_ptr<ResolveArguments> problem_of(const Pipeline& pipeline, int coordinate, const Program& program,
                                             const ParameterTable& parameters, const StackContext& facts) {
  int rank = facts.rank;
  if (pipeline.divides()) {
    MeshShape::Coordinates at = facts.mesh.coordinates(rank);
    at[static_cast<size_t>(facts.mesh.find(pipeline.axis))] = coordinate;
    rank = facts.mesh.rank(at);
  }
  return std::make_unique<ResolveArguments>(rank_units(pipeline, coordinate, program, parameters),
                                            pipeline.num_stages(), rank, facts, parameters);
}

class Questions {
 public:
  Questions(Strategies& strategies, const Program& program, const ParameterTable& parameters, const StackContext& facts)
      : strategies_(strategies), program_(program), parameters_(parameters), facts_(facts) {}

  StackAnswers ask() {
    out_.unit_costs = unit_flops(program_, parameters_, facts_.sizes);
    out_.axes.resize(strategies_.size());
    out_.placements.resize(parameters_.all().size());
    ask_stages();
    find_readers();
    // Every rank knows where the parameters of all stages live. A strategy keeps what it was told last, so this rank's
    // stages come last.
    const int own = stage_coordinate(out_.pipeline, facts_.mesh, facts_.rank);
    const int num_coordinates = out_.pipeline.divides() ? out_.pipeline.stages().num_ranks() : 1;
    for (int i = 1; i <= num_coordinates; ++i) resolve_stages((own + i) % num_coordinates, i == num_coordinates);
    check_axes();
    if (conflict_) throw *conflict_;
    for (const MeshAxis& axis : facts_.mesh.axes())
      if (divides_rows(axis.name) &&
          std::any_of(out_.axes.begin(), out_.axes.end(), [&](const auto& axes) { return contains(axes, axis.name); }))
        out_.data_axes.push_back(axis.name);
    check_parameters();
    return std::move(out_);
  }

 private:
  void ask_stages();
  void find_readers();
  void resolve_stages(int coordinate, bool is_own);
  void ask_own_divisions(size_t m);
  // A strategy may name an axis twice: one that divides dims and rows is divided and claimed.
  void serve(size_t m, const std::string& axis) {
    if (!contains(out_.axes[m], axis)) out_.axes[m].push_back(axis);
  }
  void note_conflict(size_t m, int first, uint32_t id, const std::map<uint32_t, ShardRule>& before);
  void check_axes() const;
  void check_parameters();

  Strategies& strategies_;
  const Program& program_;
  const ParameterTable& parameters_;
  const StackContext& facts_;
  StackAnswers out_;
  std::optional<Error> conflict_;  // the first conflict, thrown once all axes are known to be served
};

void Questions::ask_stages() {
  const PipelineFacts facts = pipeline_facts(program_, out_.unit_costs, facts_);
  const StackStrategy* owner = nullptr;
  for (size_t m = 0; m < strategies_.size(); ++m) {
    const StackStrategy& strategy = strategies_[m];
    if (strategy.table->stages == nullptr) continue;
    const StagesArguments problem(facts);
    const StageCollector sink(facts);
    const auto at_strategy = [&](const Error& error, const std::string& prefix) {
      if (error.code() == ExitCode::kInternal || !error.where().file.empty()) throw;
      return Error(error.code(), strategy.where, prefix + error.message()).hint(error.hint_text());
    };
    try {
      strategy.instance->call("stages",
                              [&](auto* self) { return strategy.table->stages(self, problem.get(), sink.get()); });
    } catch (const Error& error) {
      throw at_strategy(error, "");
    }
    if (!sink.is_used()) continue;
    if (owner != nullptr)
      throw Error(ExitCode::kConfig, strategy.where,
                  "the schedule of pipeline stages is given by " + owner->label() + " and by " + strategy.label())
          .hint("only one strategy of [[parallel]] can own it; remove the other");
    try {
      out_.pipeline = sink.pipeline();
    } catch (const Error& error) {
      throw at_strategy(error, strategy.label() + ": ");
    }
    owner = &strategy;
    serve(m, out_.pipeline.axis);
  }
  if (!out_.pipeline.divides()) out_.pipeline.units = {{0, program_.num_units()}};
}

// Finds the coordinates of the pipeline that read each parameter.
void Questions::find_readers() {
  if (!out_.pipeline.divides()) return;
  std::map<const Parameter*, size_t> index;
  for (size_t i = 0; i < parameters_.all().size(); ++i) index[parameters_.all()[i].get()] = i;
  for (size_t unit = 0; unit < program_.num_units(); ++unit) {
    const int coordinate = out_.pipeline.stages().rank(out_.pipeline.stage_of(unit));
    for (const Parameter* p : parameters_.of_unit(unit)) {
      std::vector<int>& of = out_.placements[index.at(p)].coordinates;
      if (std::find(of.begin(), of.end(), coordinate) == of.end()) of.push_back(coordinate);
    }
  }
}

void Questions::resolve_stages(int coordinate, bool is_own) {
  const ResolveArguments& problem =
      strategies_.keep(problem_of(out_.pipeline, coordinate, program_, parameters_, facts_));
  std::vector<ParameterPlacement>& placements = out_.placements;
  std::map<uint32_t, ShardRule> before;  // rules of parameters that another stage reads too
  for (const uint32_t id : problem.here().parameters)
    if (placements[id].is_placed()) before.emplace(id, placements[id].rule);
  std::map<uint32_t, int> placed_here;
  for (size_t m = 0; m < strategies_.size(); ++m) {
    const StackStrategy& strategy = strategies_[m];
    if (is_own) ask_own_divisions(m);
    Answer answer;
    const PlacementSink sink(facts_, parameters_, problem.here().parameters, placements, answer);
    strategy.instance->call("resolve",
                            [&](auto* self) { return strategy.table->resolve(self, problem.get(), sink.get()); });
    if (is_own)
      for (const std::string& axis : answer.axes) serve(m, axis);
    for (const uint32_t id : answer.parameters) {
      const int first = std::exchange(placed_here.try_emplace(id, -1).first->second, static_cast<int>(m));
      if (!conflict_) note_conflict(m, first, id, before);
      placements[id].strategy = static_cast<int>(m);
    }
  }
  if (is_own) out_.here = problem.here();
}

void Questions::ask_own_divisions(size_t m) {
  const StackStrategy& strategy = strategies_[m];
  for (const auto& [axis, division] : ask_divisions(strategy, facts_.mesh, facts_.rank, program_)) {
    serve(m, axis);
    if (division.sequence_parallel && facts_.mesh.size(facts_.mesh.find(axis)) == 1)
      counted_warning("sequence parallelism",
                      strategy.label() + ": sequence parallelism has no effect, since " + mesh_key(axis) + " = 1");
  }
}

// `first`: the strategy that placed the parameter before in this stage, or -1.
void Questions::note_conflict(size_t m, int first, uint32_t id, const std::map<uint32_t, ShardRule>& before) {
  const StackStrategy& strategy = strategies_[m];
  const std::string& name = parameters_.all()[id]->name;
  if (first == static_cast<int>(m))
    conflict_ = plugin_error(strategy.label() + " places parameter '" + name + "' twice");
  else if (first >= 0)
    conflict_ = Error(ExitCode::kConfig, strategy.where,
                      "parameter '" + name + "' is placed by " + strategies_[static_cast<size_t>(first)].label() +
                          " and by " + strategy.label())
                    .hint("only one strategy of [[parallel]] can divide parameters; remove the other");
  else if (out_.placements[id].is_placed() && !(before.at(id) == out_.placements[id].rule))
    conflict_ = plugin_error(strategy.label() + " places parameter '" + name +
                             "', which two pipeline stages read, differently on each");
}

void Questions::check_axes() const {
  std::map<std::string, const StackStrategy*> served_by;
  std::string served;
  for (size_t m = 0; m < strategies_.size(); ++m) {
    const StackStrategy& strategy = strategies_[m];
    const std::string& label = strategy.label();
    if (out_.axes[m].empty())
      throw Error(ExitCode::kConfig, strategy.where,
                  label + " has nothing to divide: the mesh is " + facts_.mesh.text())
          .hint("give its axis a size in [mesh], or remove it from [[parallel]]");
    for (const std::string& axis : out_.axes[m]) {
      if (const auto [known, fresh] = served_by.emplace(axis, &strategy); !fresh)
        throw Error(ExitCode::kConfig, strategy.where,
                    "axis '" + axis + "' is served by " + known->second->label() + " and by " + label)
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

void Questions::check_parameters() {
  const auto& all = parameters_.all();
  for (size_t i = 0; i < all.size(); ++i) {
    ParameterPlacement& placement = out_.placements[i];
    if (!placement.is_placed() && !out_.data_axes.empty())
      throw plugin_error("no strategy of [[parallel]] says where parameter '" + all[i]->name + "' lives");
    placement.rule.resident |= !placement.is_placed();
  }
}

}  // namespace

StackAnswers ask_strategies(Strategies& strategies, const Program& program, const ParameterTable& parameters,
                            const StackContext& facts) {
  return Questions(strategies, program, parameters, facts).ask();
}

RankUnits repeat_questions(Strategies& strategies, const Program& program, const ParameterTable& parameters,
                           const StackContext& facts, const StackAnswers& known) {
  const PipelineFacts of_pipeline = pipeline_facts(program, known.unit_costs, facts);
  const StagesArguments stage_problem(of_pipeline);
  const chassis_stage_sink_t stage_sink = ignoring_stage_sink();
  const int coordinate = stage_coordinate(known.pipeline, facts.mesh, facts.rank);
  const ResolveArguments& problem = strategies.keep(problem_of(known.pipeline, coordinate, program, parameters, facts));
  std::vector<ParameterPlacement> ignored(known.placements.size());
  for (const StackStrategy& strategy : strategies.all()) {
    const auto& instance = *strategy.instance;
    if (strategy.table->stages != nullptr)
      instance.call("stages",
                    [&](auto* self) { return strategy.table->stages(self, stage_problem.get(), &stage_sink); });
    ask_divisions(strategy, facts.mesh, facts.rank, program);
    Answer answer;
    const PlacementSink sink(facts, parameters, problem.here().parameters, ignored, answer);
    instance.call("resolve", [&](auto* self) { return strategy.table->resolve(self, problem.get(), sink.get()); });
  }
  return problem.here();
}

}  // namespace chassis

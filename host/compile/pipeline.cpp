// Takes a strategy's stages and schedule, and proves them.
#include "host/compile/pipeline.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "host/base/mesh_axes.hpp"
#include "host/plugin/status.hpp"
#include "host/state/schedule_csv.hpp"
#include "host/state/schedule_generators.hpp"
#include "host/state/schedule_proof.hpp"

namespace chassis {
namespace {

Work::Kind kind_of(uint32_t raw, int rank, uint32_t entry) {
  switch (raw) {
    case CHASSIS_WORK_FORWARD:
      return Work::Kind::kForward;
    case CHASSIS_WORK_BACKWARD:
      return Work::Kind::kBackward;
    case CHASSIS_WORK_BACKWARD_INPUTS:
      return Work::Kind::kBackwardInputs;
    case CHASSIS_WORK_BACKWARD_PARAMS:
      return Work::Kind::kBackwardParams;
    default:
      throw plugin_error(fmt::format("entry {} of rank {} has the unknown kind of work {}", entry, rank, raw));
  }
}

}  // namespace

std::vector<chassis_mesh_axis_t> raw_axes(const MeshShape& mesh, int rank) {
  std::vector<chassis_mesh_axis_t> out;
  const auto at = mesh.coordinates(rank);
  for (int a = 0; a < mesh.num_axes(); ++a)
    out.push_back({str_of(mesh.axes()[static_cast<size_t>(a)].name), static_cast<uint32_t>(mesh.size(a)),
                   static_cast<uint32_t>(at[static_cast<size_t>(a)])});
  return out;
}

UnitRange layer_units(const Program& program) {
  UnitRange longest;
  size_t begin = 0;
  for (const Chain& chain : program.chains) {
    if (chain.blocks.size() > longest.size()) longest = {begin, begin + chain.blocks.size()};
    begin += chain.blocks.size();
  }
  return longest;
}

std::vector<Work> Pipeline::work(int coordinate, int64_t num_microbatches) const {
  if (!divides()) return sequential_schedule(num_microbatches);
  CHASSIS_CHECK(num_microbatches == schedule.num_microbatches, "a schedule for another number of micro-batches");
  return schedule.ranks[static_cast<size_t>(coordinate)];
}

int Pipeline::stage_of(size_t unit) const {
  const auto found = std::find_if(units.begin(), units.end(), [&](const UnitRange& range) { return unit < range.end; });
  return static_cast<int>(found - units.begin());
}

std::string Pipeline::text() const {
  std::string out;
  for (size_t stage = 0; stage < units.size(); ++stage)
    out += fmt::format("stage {}: units {} to {} on rank {} of {}\n", stage, units[stage].begin, units[stage].end - 1,
                       stages().rank(static_cast<int>(stage)), axis);
  return out + schedule_text();
}

std::string Pipeline::schedule_text() const {
  std::string out = "stages on ranks:";
  for (int stage = 0; stage < num_stages(); ++stage) out += fmt::format(" {}", stages().rank(stage));
  out += "\n";
  for (size_t rank = 0; rank < schedule.ranks.size(); ++rank) {
    out += fmt::format("list of rank {}:", rank);
    for (const Work& work : schedule.ranks[rank])
      out += fmt::format(" {}{}.{}", kKindLetters[static_cast<size_t>(work.kind)], work.chunk, work.microbatch);
    out += "\n";
  }
  return out;
}

StagesArguments::StagesArguments(const PipelineFacts& facts)
    : axes_(raw_axes(facts.mesh, facts.rank)), unit_texts_(facts.program.unit_names()) {
  for (const std::string& text : unit_texts_) unit_names_.push_back(str_of(text));
  const UnitRange layers = layer_units(facts.program);
  raw_.struct_size = sizeof raw_;
  raw_.num_axes = static_cast<uint32_t>(axes_.size());
  raw_.axes = axes_.data();
  raw_.num_units = static_cast<uint32_t>(unit_names_.size());
  raw_.num_microbatches = static_cast<uint32_t>(facts.num_microbatches);
  raw_.unit_names = unit_names_.data();
  raw_.unit_costs = facts.unit_costs.data();
  raw_.first_layer = static_cast<uint32_t>(layers.begin);
  raw_.end_layer = static_cast<uint32_t>(layers.end);
}

StageCollector::StageCollector(const PipelineFacts& facts) : facts_(facts) {
  raw_.struct_size = sizeof raw_;
  raw_.impl = this;
  raw_.named = [](const chassis_stage_sink_t* s, chassis_str_t axis, chassis_str_t name, uint32_t num_chunks,
                  uint32_t group_size) {
    return guarded([&] {
      const std::string along(view_of(axis));
      self(s).take(along, self(s).named(along, std::string(view_of(name)), num_chunks, group_size));
    });
  };
  raw_.csv = [](const chassis_stage_sink_t* s, chassis_str_t axis, chassis_str_t text, chassis_str_t origin) {
    return guarded([&] {
      const std::string along(view_of(axis));
      self(s).take(along, self(s).parsed(along, view_of(text), std::string(view_of(origin))));
    });
  };
  raw_.lists = [](const chassis_stage_sink_t* s, chassis_str_t axis, const uint32_t* ranks, uint32_t num_stages,
                  const chassis_work_t* const* works, const uint32_t* num_works) {
    return guarded([&] {
      const std::string along(view_of(axis));
      self(s).take(along, self(s).listed(along, ranks, num_stages, works, num_works));
    });
  };
  raw_.layers = [](const chassis_stage_sink_t* s, const int64_t* per_stage, uint32_t num_stages) {
    return guarded([&] {
      if (!self(s).layers_.empty()) throw plugin_error("the layers of stages are given twice");
      self(s).layers_.assign(per_stage, per_stage + num_stages);
    });
  };
}

int StageCollector::num_ranks(const std::string& axis) const {
  const int index = facts_.mesh.find(axis);
  if (index < 0)
    throw plugin_error("there is no axis '" + axis + "' to divide stages along; the mesh is " + facts_.mesh.text());
  if (!divides_units(axis))
    throw plugin_error("axis '" + axis + "' cannot divide stages; " + axes_that_divide(Divides::kUnits) + " can");
  return facts_.mesh.size(index);
}

void StageCollector::take(const std::string& axis, Schedule schedule) {
  if (!axis_.empty()) throw plugin_error("a second schedule for axis '" + axis + "'");
  axis_ = axis;
  schedule_ = std::move(schedule);
}

void StageCollector::expect_microbatches(const Schedule& schedule, const std::string& what) const {
  if (facts_.num_microbatches == 0 || schedule.num_microbatches == facts_.num_microbatches) return;
  throw config_error(fmt::format("{} has {} micro-batches, a step of this run has {}", what, schedule.num_microbatches,
                                 facts_.num_microbatches))
      .hint(
          "train.global_batch_size ÷ (train.micro_batch_size × ranks that divide the batch) "
          "is the number of a step");
}

Schedule StageCollector::named(const std::string& axis, const std::string& name, uint32_t num_chunks,
                               uint32_t group_size) const {
  ScheduleRequest request;
  request.name = name;
  request.num_ranks = num_ranks(axis);
  request.num_chunks = static_cast<int>(num_chunks);
  request.group_size = static_cast<int>(group_size);
  // If nothing is trained, any number that the schedule accepts will do.
  const int64_t any = std::max<int64_t>(request.num_ranks, group_size);
  const int64_t num_microbatches = facts_.num_microbatches > 0 ? facts_.num_microbatches : any;
  constexpr int64_t kMostForwards = 1 << 22;
  if (num_microbatches > kMostForwards / request.num_ranks / std::max<int64_t>(1, num_chunks))
    throw config_error(fmt::format("schedule '{}' would have {} micro-batches in each of {} × {} stages; "
                                   "the maximum is {} in all",
                                   name, num_microbatches, request.num_ranks, num_chunks, kMostForwards))
        .hint("lower train.global_batch_size, or raise train.micro_batch_size");
  request.num_microbatches = static_cast<int>(num_microbatches);
  return make_schedule(request);
}

Schedule StageCollector::parsed(const std::string& axis, std::string_view text, const std::string& origin) const {
  Schedule out = parse_schedule_csv(text, origin, num_ranks(axis));
  expect_microbatches(out, origin);
  return out;
}

Schedule StageCollector::listed(const std::string& axis, const uint32_t* ranks, uint32_t num_stages,
                                const chassis_work_t* const* works, const uint32_t* num_works) const {
  const int size = num_ranks(axis);
  std::vector<int> by_stage(ranks, ranks + num_stages);
  std::vector<uint8_t> used(static_cast<size_t>(size));
  for (size_t stage = 0; stage < by_stage.size(); ++stage) {
    const int rank = by_stage[stage];
    if (rank < 0 || rank >= size)
      throw plugin_error(
          fmt::format("stage {} lies on rank {} of {}", stage, rank, mesh_key(axis) + " = " + std::to_string(size)));
    used[static_cast<size_t>(rank)] = 1;
  }
  const auto idle = std::find(used.begin(), used.end(), 0);
  if (idle != used.end()) throw plugin_error(fmt::format("rank {} of '{}' has no stage", idle - used.begin(), axis));
  Schedule out;
  out.stages = StageMap(std::move(by_stage));
  out.ranks.resize(static_cast<size_t>(size));
  if (facts_.num_microbatches == 0) return out;  // the lists do not matter
  for (int rank = 0; rank < size; ++rank)
    for (uint32_t i = 0; i < num_works[rank]; ++i) {
      const chassis_work_t& raw = works[rank][i];
      constexpr uint32_t kMost = 1u << 24;  // so that a wrong number does not make the proof allocate without bounds
      if (raw.microbatch >= kMost || raw.chunk >= kMost)
        throw plugin_error(fmt::format("entry {} of rank {} has chunk {}, micro-batch {}; both must be below {}", i,
                                       rank, raw.chunk, raw.microbatch, kMost));
      out.ranks[static_cast<size_t>(rank)].push_back(
          {kind_of(raw.kind, rank, i), static_cast<int>(raw.chunk), static_cast<int>(raw.microbatch)});
      out.num_microbatches = std::max(out.num_microbatches, static_cast<int>(raw.microbatch) + 1);
    }
  prove_schedule(out);
  expect_microbatches(out, "the schedule");
  return out;
}

Pipeline StageCollector::pipeline() const {
  if (axis_.empty()) throw plugin_error("layers of stages, but no schedule");
  Pipeline out;
  out.axis = axis_;
  out.schedule = schedule_;
  if (facts_.num_microbatches > 0) prove_schedule(out.schedule);
  const size_t num_units = facts_.program.num_units();
  out.units = layers_.empty() ? balanced_division(facts_.unit_costs, out.num_stages())
                              : given_division(layers_, out.num_stages(), num_units, layer_units(facts_.program));
  return out;
}

}  // namespace chassis

// Asks each strategy, and refuses two for one axis.
#include "host/parallel/divisions.hpp"

#include <utility>

#include "host/base/error.hpp"
#include "host/base/mesh_axes.hpp"
#include "host/compile/pipeline.hpp"
#include "host/parallel/axis_names.hpp"
#include "host/plugin/status.hpp"

namespace chassis {
namespace {

// The host's side of divide(): collects what one strategy divides, by axis.
class DivisionCollector {
 public:
  DivisionCollector(const MeshShape& mesh, const Program& program) : mesh_(mesh), program_(program) {
    raw_.struct_size = sizeof raw_;
    raw_.impl = this;
    raw_.divide = [](const chassis_division_sink_t* s, chassis_str_t dim, chassis_str_t axis, uint32_t flags) {
      return guarded([&] { self(s).divide(std::string(view_of(dim)), std::string(view_of(axis)), flags); });
    };
    raw_.sequence_parallel = [](const chassis_division_sink_t* s, chassis_str_t axis) {
      return guarded([&] { self(s).divide_sequence(std::string(view_of(axis))); });
    };
    raw_.context_parallel = [](const chassis_division_sink_t* s, chassis_str_t axis, uint32_t mode) {
      return guarded([&] { self(s).divide_context(std::string(view_of(axis)), mode); });
    };
    raw_.overlap = [](const chassis_division_sink_t* s, chassis_str_t axis, uint32_t how) {
      return guarded([&] { self(s).overlap(std::string(view_of(axis)), how); });
    };
  }
  const chassis_division_sink_t* get() const { return &raw_; }
  const std::map<std::string, Division>& divisions() const {
    for (const auto& [axis, division] : divisions_)
      if (division.overlaps_in_ring && !division.sequence_parallel)
        throw plugin_error("axis '" + axis + "' has no gathers to overlap, since it divides no positions");
    return divisions_;
  }

 private:
  static DivisionCollector& self(const chassis_division_sink_t* s) { return *static_cast<DivisionCollector*>(s->impl); }

  Division& along(const std::string& axis) {
    expect_axis(mesh_, axis, "divide along");
    if (!divides_dims(axis))
      throw plugin_error("axis '" + axis + "' cannot divide dims; " + axes_that_divide(Divides::kDims) + " can");
    return divisions_[axis];
  }

  void divide_sequence(const std::string& axis) {
    Division& division = along(axis);
    if (!is_tensor_axis(axis))
      throw plugin_error("sequence parallelism along axis '" + axis + "', whose ranks have different rows");
    division.sequence_parallel = true;
  }

  void divide_context(const std::string& axis, uint32_t mode) {
    expect_axis(mesh_, axis, "divide positions along");
    if (!divides_positions(axis))
      throw plugin_error("axis '" + axis + "' cannot divide positions; " + axes_that_divide(Divides::kPositions) +
                         " can");
    if (mode < CHASSIS_CONTEXT_ALL_TO_ALL || mode > CHASSIS_CONTEXT_RING)
      throw plugin_error("context parallelism has the unknown mode " + std::to_string(mode));
    divisions_[axis].context = mode == CHASSIS_CONTEXT_RING     ? ContextMode::kRing
                               : mode == CHASSIS_CONTEXT_GATHER ? ContextMode::kGather
                                                                : ContextMode::kAllToAll;
  }

  void overlap(const std::string& axis, uint32_t how) {
    if (how != CHASSIS_OVERLAP_RING)
      throw plugin_error("the overlap along axis '" + axis + "' has the unknown kind " + std::to_string(how));
    along(axis).overlaps_in_ring = true;
  }

  void divide(const std::string& dim, const std::string& axis, uint32_t flags) {
    Division& division = along(axis);
    if ((flags & ~CHASSIS_DIVIDE_PAD) != 0)
      throw plugin_error("the division of '" + dim + "' has the unknown flags " + std::to_string(flags));
    const auto known = program_.find_dim(dim);
    if (!known || !program_.dims[*known].is_fixed())
      throw plugin_error("the program has no dim '" + dim + "' to divide");
    division.dims[dim] = (flags & CHASSIS_DIVIDE_PAD) != 0;
  }

  const MeshShape& mesh_;
  const Program& program_;
  std::map<std::string, Division> divisions_;
  chassis_division_sink_t raw_{};
};

Division division_of(const Strategies& strategies, const std::string& axis, const MeshShape& mesh, int rank,
                     const Program& program) {
  Division out;
  const StackStrategy* divider = nullptr;
  for (const StackStrategy& strategy : strategies.all()) {
    const auto divisions = ask_divisions(strategy, mesh, rank, program);
    const auto found = divisions.find(axis);
    if (found == divisions.end()) continue;
    if (divider != nullptr)
      throw Error(ExitCode::kConfig, strategy.where,
                  "axis '" + axis + "' is divided by " + divider->label() + " and by " + strategy.label())
          .hint("each axis of the mesh has one strategy; remove one of the two from [[parallel]]");
    divider = &strategy;
    out = found->second;
    out.where = strategy.where;
    out.strategy = strategy.label();
  }
  return out;
}

class LayoutAxisOf final : public LayoutStrategy {
 public:
  LayoutAxisOf(const Strategies& strategies, MeshShape mesh, int rank, MeshAxis axis)
      : strategies_(strategies), mesh_(std::move(mesh)), rank_(rank), axis_(std::move(axis)) {}

  std::string axis() const override { return axis_.name; }
  int64_t axis_size() const override { return axis_.size; }
  Division divide(const Program& program) const override {
    return division_of(strategies_, axis_.name, mesh_, rank_, program);
  }
  int64_t coordinate() const override { return mesh_.coordinates(rank_)[static_cast<size_t>(mesh_.find(axis_.name))]; }

 private:
  const Strategies& strategies_;
  const MeshShape mesh_;
  const int rank_;
  const MeshAxis axis_;
};

}  // namespace

std::vector<std::unique_ptr<LayoutStrategy>> layout_axes(const Strategies& strategies, const MeshShape& mesh,
                                                         int rank) {
  std::vector<std::unique_ptr<LayoutStrategy>> out;
  for (const MeshAxis& axis : mesh.axes())
    if (axis.size > 1 && (divides_dims(axis.name) || divides_positions(axis.name)))
      out.push_back(std::make_unique<LayoutAxisOf>(strategies, mesh, rank, axis));
  return out;
}

std::map<std::string, Division> ask_divisions(const StackStrategy& strategy, const MeshShape& mesh, int rank,
                                              const Program& program) {
  if (strategy.table->divide == nullptr) return {};
  const std::vector<chassis_mesh_axis_t> axes = raw_axes(mesh, rank);
  std::vector<chassis_dim_size_t> dims;
  for (const GraphDim& dim : program.dims)
    if (dim.is_fixed()) dims.push_back({str_of(dim.name), dim.size});
  chassis_division_problem_t problem{};
  problem.struct_size = sizeof problem;
  problem.num_axes = static_cast<uint32_t>(axes.size());
  problem.axes = axes.data();
  problem.dims = dims.data();
  problem.num_dims = dims.size();
  const DivisionCollector sink(mesh, program);
  strategy.instance->call("divide", [&](auto* self) { return strategy.table->divide(self, &problem, sink.get()); });
  return sink.divisions();
}

}  // namespace chassis

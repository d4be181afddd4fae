// Both are made from the pipeline, the program and the parameters alone.
#include "host/parallel/resolve_arguments.hpp"

#include <map>
#include <utility>

#include "host/plugin/status.hpp"

namespace chassis {

int stage_coordinate(const Pipeline& pipeline, const MeshShape& mesh, int rank) {
  if (!pipeline.divides()) return 0;
  return mesh.coordinates(rank)[static_cast<size_t>(mesh.find(pipeline.axis))];
}

RankUnits rank_units(const Pipeline& pipeline, int coordinate, const Program& program,
                     const ParameterTable& parameters) {
  RankUnits out;
  const std::vector<std::string> names = program.unit_names();
  for (int chunk = 0; chunk < pipeline.stages().num_chunks(coordinate); ++chunk) {
    const int stage = pipeline.stages().stage(coordinate, chunk);
    const UnitRange units = pipeline.units[static_cast<size_t>(stage)];
    const auto first = static_cast<uint32_t>(out.units.size());
    for (size_t unit = units.begin; unit < units.end; ++unit) {
      out.units.push_back(unit);
      out.unit_names.push_back(names[unit]);
    }
    out.chunks.push_back({first, static_cast<uint32_t>(out.units.size()), static_cast<uint32_t>(stage), 0});
  }
  const auto& all = parameters.all();
  std::map<const Parameter*, uint32_t> index;
  for (uint32_t i = 0; i < all.size(); ++i) index[all[i].get()] = i;
  std::map<uint32_t, std::vector<uint32_t>> read;  // by parameter of the table
  for (uint32_t unit = 0; unit < out.units.size(); ++unit)
    for (const Parameter* p : parameters.of_unit(out.units[unit]))
      if (auto& list = read[index.at(p)]; list.empty() || list.back() != unit) list.push_back(unit);
  if (!pipeline.divides())
    for (uint32_t i = 0; i < all.size(); ++i) read.try_emplace(i);
  for (auto& [i, units] : read) {
    out.parameters.push_back(i);
    out.read.push_back(std::move(units));
  }
  return out;
}

ResolveArguments::ResolveArguments(RankUnits here, int num_stages, int rank, const StackContext& facts,
                                   const ParameterTable& parameters)
    : here_(std::move(here)), mesh_(facts.mesh), axes_(raw_axes(mesh_, rank)) {
  for (size_t i = 0; i < here_.parameters.size(); ++i)
    add_parameter(*parameters.all()[here_.parameters[i]], here_.read[i]);
  for (const std::string& name : here_.unit_names) unit_names_.push_back(str_of(name));
  raw_.struct_size = sizeof raw_;
  raw_.num_axes = static_cast<uint32_t>(axes_.size());
  raw_.axes = axes_.data();
  raw_.num_parameters = static_cast<uint32_t>(parameters_.size());
  raw_.num_units = static_cast<uint32_t>(here_.units.size());
  raw_.parameters = pointers_.data();
  raw_.unit_names = unit_names_.data();
  raw_.compute_dtype = static_cast<uint32_t>(parameters.compute());
  raw_.reduce_dtype = static_cast<uint32_t>(facts.reduce_dtype);
  raw_.device_type = static_cast<uint32_t>(facts.device.type);
  raw_.num_microbatches = static_cast<uint32_t>(facts.num_microbatches);
  raw_.num_chunks = static_cast<uint32_t>(here_.chunks.size());
  raw_.num_stages = static_cast<uint32_t>(num_stages);
  raw_.chunks = here_.chunks.data();
}

void ResolveArguments::add_parameter(const Parameter& parameter, const std::vector<uint32_t>& units) {
  const std::vector<int64_t>& shape = shapes_.emplace_back(parameter.local_shape);
  chassis_parallel_parameter_t& raw = parameters_.emplace_back();
  raw.struct_size = sizeof raw;
  raw.num_dims = static_cast<uint32_t>(shape.size());
  raw.shape = shape.data();
  raw.name = str_of(names_.emplace_back(parameter.name));
  raw.num_elements = numel(Shape(shape));
  raw.trainable = parameter.trainable;
  raw.num_units = static_cast<uint32_t>(units.size());
  raw.units = units.data();
  pointers_.push_back(&raw);
}

}  // namespace chassis

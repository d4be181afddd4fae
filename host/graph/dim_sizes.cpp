// Looks up and checks the sizes of dims.
#include "host/graph/dim_sizes.hpp"

#include <algorithm>

#include "host/base/error.hpp"

namespace chassis {

DimSizes DimSizes::largest(const Program& program, int64_t batch, int64_t time) {
  DimSizes sizes{batch, time};
  for (DimId dim = 0; dim < program.dims.size(); ++dim)
    if (program.dims[dim].kind == DimKind::kBounded) sizes.bounded.emplace_back(dim, program.dims[dim].size);
  return sizes;
}

int64_t DimSizes::size_of(const Program& program, DimId dim) const {
  const GraphDim& known = program.dims[dim];
  switch (known.kind) {
    case DimKind::kFixed:
      return known.size;
    case DimKind::kBatch:
      return batch;
    case DimKind::kTime:
      return time;
    case DimKind::kBounded:
      break;
  }
  const auto found = std::ranges::find(bounded, dim, &std::pair<DimId, int64_t>::first);
  CHASSIS_CHECK(found != bounded.end(), "no size of dim " + known.name);
  return found->second;
}

void DimSizes::set(const Program& program, DimId dim, int64_t size) {
  const GraphDim& known = program.dims[dim];
  CHASSIS_CHECK(!known.is_fixed(), known.name);
  if (known.kind != DimKind::kBounded) {
    (known.kind == DimKind::kBatch ? batch : time) = size;
    return;
  }
  if (size > known.size)
    throw config_error("dim '" + known.name + "' has size " + std::to_string(size) +
                       " in a micro-batch; the model's maximum is " + std::to_string(known.size));
  const auto found = std::ranges::find(bounded, dim, &std::pair<DimId, int64_t>::first);
  if (found != bounded.end())
    found->second = size;
  else
    bounded.emplace_back(dim, size);
}

}  // namespace chassis

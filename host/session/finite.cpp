// Finds elements that are NaN or infinite on this rank, and exchanges them between ranks.
#include "host/session/finite.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

#include "host/base/error.hpp"
#include "host/base/json.hpp"
#include "host/state/intersect.hpp"
#include "host/state/layout.hpp"

namespace chassis {
namespace {

constexpr int64_t kBlockElements = 1 << 20;

bool all_finite(const Tensor& tensor) {
  const Tensor flat = tensor.flat();
  const int64_t count = flat.num_elements();
  for (int64_t begin = 0; begin < count; begin += kBlockElements)
    if (!flat.narrow(0, begin, std::min(kBlockElements, count - begin)).all_finite()) return false;
  return true;
}

// The index in the whole tensor of this rank's first element that is not finite; nothing if only padding is not finite.
std::optional<int64_t> first_index(const Tensor& local, const Descriptor& descriptor, const MeshShape& mesh, int rank) {
  const Tensor here = local.to(Device{}).to(Dtype::f32).contiguous();
  const float* const values = here.data_as<float>();
  std::optional<int64_t> first;
  for (const Piece& piece : Layout(descriptor, mesh).pieces(rank)) {
    const StridedView global = row_major_view(descriptor.global_shape, piece.box);
    for_each_run({piece.box, piece.local, global}, [&](int64_t from, int64_t to, int64_t length) {
      if (first && *first <= to) return;
      for (int64_t i = 0; i < length; ++i)
        if (!std::isfinite(values[from + i])) {
          first = std::min(first.value_or(INT64_MAX), to + i);
          return;
        }
    });
  }
  return first;
}

std::optional<NonFiniteElement> least(const std::vector<std::optional<NonFiniteElement>>& all) {
  std::optional<NonFiniteElement> first;
  for (const auto& element : all)
    if (element && (!first || *element < *first)) first = element;
  return first;
}

std::string place_text(const std::string& name, const Shape& shape, int64_t index) {
  std::string at;
  int64_t rest = index;
  for (int dim = shape.ndim() - 1; dim >= 0; --dim) {
    at = std::to_string(rest % shape[dim]) + (at.empty() ? "" : ", ") + at;
    rest /= shape[dim];
  }
  return "'" + name + "' at [" + at + "]";
}

}  // namespace

std::optional<NonFiniteElement> find_nonfinite(const ParameterTable& parameters) {
  for (size_t i = 0; i < parameters.all().size(); ++i) {
    const Parameter& p = *parameters.all()[i];
    if (p.is_quantized()) continue;  // only finite values are encoded
    if (p.stored().num_elements() == 0 || all_finite(p.stored())) continue;
    if (const auto index = first_index(p.stored(), p.descriptor, parameters.mesh(), parameters.rank()))
      return NonFiniteElement{i, *index};
  }
  return std::nullopt;
}

std::optional<NonFiniteElement> find_nonfinite(const ParameterTable& parameters, const Ranks& ranks) {
  const auto own = find_nonfinite(parameters);
  const auto world_size = static_cast<size_t>(parameters.mesh().world_size());
  std::vector<double> found(3 * world_size);  // for each rank: 1 if it found one, the parameter, the index
  if (own) {
    double* const mine = &found[3 * static_cast<size_t>(parameters.rank())];
    mine[0] = 1.0;
    mine[1] = static_cast<double>(own->parameter);
    mine[2] = static_cast<double>(own->index);
  }
  ranks.sum(found, "parameters that are not finite");
  std::vector<std::optional<NonFiniteElement>> all(world_size);
  for (size_t rank = 0; rank < world_size; ++rank)
    if (found[3 * rank] > 0.0)
      all[rank] = {static_cast<size_t>(found[3 * rank + 1]), static_cast<int64_t>(found[3 * rank + 2])};
  return least(all);
}

std::string nonfinite_text(const ParameterTable& parameters, const NonFiniteElement& element) {
  const Parameter& parameter = *parameters.all()[element.parameter];
  return place_text(parameter.name, parameter.descriptor.global_shape, element.index);
}

void require_finite_after(const RunState& state, World& world, int64_t step) {
  // Loss and gradient were finite, since the step was applied.
  require_finite(
      state.parameters(), world, "the parameters after step " + std::to_string(step),
      "loss and gradients were finite, so optimizer '" + state.optimizer->instance().id() +
          "' wrote it: continue from an earlier checkpoint with a lower optimizer.lr, or with another optimizer");
}

void require_finite_states(const PlacedOptimizer& optimizer, World& world, const std::string& what,
                           const std::string& hint) {
  const ParameterTable& parameters = optimizer.schema().table();
  std::string own;
  for (const OptimizerState& state : optimizer.states()) {
    if (!is_float(state.tensor.dtype()) || state.tensor.num_elements() == 0 || all_finite(state.tensor)) continue;
    const auto index = first_index(state.tensor, state.descriptor, parameters.mesh(), parameters.rank());
    if (!index) continue;
    own = place_text(state.descriptor.fqn, state.descriptor.global_shape, *index);
    break;
  }
  for (const std::string& found : world.exchange("whether optimizer states are finite", own))
    if (!found.empty())
      throw Error(ExitCode::kNumeric, what + " are not finite: the first NaN or infinity is in " + found).hint(hint);
}

void require_finite(const ParameterTable& parameters, World& world, const std::string& what, const std::string& hint) {
  const auto own = find_nonfinite(parameters);
  const Json mine = own ? Json{own->parameter, own->index} : Json();
  std::vector<std::optional<NonFiniteElement>> all;
  for (const std::string& text : world.exchange("whether parameters are finite", mine.dump())) {
    const Json of_rank = Json::parse(text);
    all.emplace_back();
    if (!of_rank.is_null()) all.back() = {of_rank[0].get<size_t>(), of_rank[1].get<int64_t>()};
  }
  const auto first = least(all);
  if (!first) return;
  throw Error(ExitCode::kNumeric,
              what + " are not finite: the first NaN or infinity is in " + nonfinite_text(parameters, *first))
      .hint(hint);
}

}  // namespace chassis

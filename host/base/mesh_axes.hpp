// The axes of the mesh: their names, their order, and what ranks along each divide. All code takes the names from here.
// The file is in host/base because the schema of [mesh] needs it.
#pragma once

#include <array>
#include <string>
#include <string_view>

namespace chassis {

// The ranks along an axis divide a set of these among them: the axis of experts divides rows and a dim.
enum class Divides : unsigned {
  kRows = 1,       // the rows of a batch
  kPositions = 2,  // the positions of a sequence
  kDims = 4,       // named dims of the computation
  kUnits = 8,      // the blocks of the model
};
constexpr Divides operator|(Divides a, Divides b) {
  return static_cast<Divides>(static_cast<unsigned>(a) | static_cast<unsigned>(b));
}
constexpr bool includes(Divides all, Divides part) {
  return (static_cast<unsigned>(all) & static_cast<unsigned>(part)) == static_cast<unsigned>(part);
}

inline constexpr std::string_view kStageAxis = "pp";
inline constexpr std::string_view kReplicaAxis = "dp_replicate";
inline constexpr std::string_view kShardAxis = "dp_shard";
inline constexpr std::string_view kContextAxis = "cp";
inline constexpr std::string_view kExpertAxis = "ep";
inline constexpr std::string_view kTensorAxis = "tp";

struct AxisSpec {
  std::string_view name;
  Divides divides;
  std::string_view doc;
  bool takes_rest = false;  // by default, the axis takes the ranks that the other axes leave

  // The axis divides nothing but rows, so that it can take any number of ranks that the others leave.
  constexpr bool may_take_rest() const { return divides == Divides::kRows; }
};

// Slowest first, so that ranks that communicate most are neighbours.
inline constexpr std::array kMeshAxes = {
    AxisSpec{kReplicaAxis, Divides::kRows, "data parallel, parameters replicated"},
    AxisSpec{kStageAxis, Divides::kUnits, "pipeline parallel"},
    AxisSpec{kShardAxis, Divides::kRows, "data parallel, parameters sharded", true},
    AxisSpec{kContextAxis, Divides::kPositions, "context parallel"},
    AxisSpec{kExpertAxis, Divides::kRows | Divides::kDims, "expert parallel"},
    AxisSpec{kTensorAxis, Divides::kDims, "tensor parallel"},
};

// NULL for an unknown name.
constexpr const AxisSpec* find_axis(std::string_view name) {
  for (const AxisSpec& axis : kMeshAxes)
    if (axis.name == name) return &axis;
  return nullptr;
}
// False for an unknown name.
constexpr bool axis_divides(std::string_view name, Divides part) {
  const AxisSpec* axis = find_axis(name);
  return axis != nullptr && includes(axis->divides, part);
}
constexpr bool divides_rows(std::string_view name) { return axis_divides(name, Divides::kRows); }
constexpr bool divides_positions(std::string_view name) { return axis_divides(name, Divides::kPositions); }
constexpr bool divides_dims(std::string_view name) { return axis_divides(name, Divides::kDims); }
constexpr bool divides_units(std::string_view name) { return axis_divides(name, Divides::kUnits); }
// True if ranks along the axis compute parts of the same rows, and so send activations in every layer. Ranks of an axis
// that divides rows too, as that of experts does, have rows of their own.
constexpr bool is_tensor_axis(std::string_view name) { return divides_dims(name) && !divides_rows(name); }

// The axes that divide `part`, for messages: "'ep' or 'tp'".
inline std::string axes_that_divide(Divides part) {
  std::string text;
  for (const AxisSpec& axis : kMeshAxes)
    if (includes(axis.divides, part)) text += (text.empty() ? "'" : " or '") + std::string(axis.name) + "'";
  return text;
}

// The configuration key of the axis's size: "mesh.tp".
inline std::string mesh_key(std::string_view axis) { return "mesh." + std::string(axis); }

}  // namespace chassis

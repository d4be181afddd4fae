// The axes of the mesh: their names, their order, and what ranks along each divide. All code takes the names from here.
// The file is in host/base because the schema of [mesh] needs it.
#pragma once

#include <algorithm>
#include <array>
#include <string>
#include <string_view>

namespace chassis {

enum class AxisRole { kStage, kData, kContext, kExpert, kTensor };

inline constexpr std::string_view kStageAxis = "pp";
inline constexpr std::string_view kReplicaAxis = "dp_replicate";
inline constexpr std::string_view kShardAxis = "dp_shard";
inline constexpr std::string_view kContextAxis = "cp";
inline constexpr std::string_view kExpertAxis = "ep";
inline constexpr std::string_view kTensorAxis = "tp";

struct AxisSpec {
  std::string_view name;
  AxisRole role;
  std::string_view doc;
  bool takes_rest = false;  // by default, the axis takes the ranks that the other axes leave
};

// Slowest first, so that ranks that communicate most are neighbours.
inline constexpr std::array kMeshAxes = {
    AxisSpec{kReplicaAxis, AxisRole::kData, "data parallel, parameters replicated"},
    AxisSpec{kStageAxis, AxisRole::kStage, "pipeline parallel"},
    AxisSpec{kShardAxis, AxisRole::kData, "data parallel, parameters sharded", true},
    AxisSpec{kContextAxis, AxisRole::kContext, "context parallel"},
    AxisSpec{kExpertAxis, AxisRole::kExpert, "expert parallel"},
    AxisSpec{kTensorAxis, AxisRole::kTensor, "tensor parallel"},
};

constexpr bool has_role(std::string_view name, AxisRole role) {
  return std::any_of(kMeshAxes.begin(), kMeshAxes.end(),
                     [&](const AxisSpec& axis) { return axis.name == name && axis.role == role; });
}
// "dp_shard" → kData; also for an unknown axis.
constexpr AxisRole role_of(std::string_view name) {
  for (const AxisSpec& axis : kMeshAxes)
    if (axis.name == name) return axis.role;
  return AxisRole::kData;
}
// True if ranks along the axis divide the batch.
constexpr bool is_data_axis(std::string_view name) { return has_role(name, AxisRole::kData); }
// True if ranks along the axis divide the dims of the computation.
constexpr bool is_tensor_axis(std::string_view name) { return has_role(name, AxisRole::kTensor); }
// True if ranks along the axis divide the positions of a sequence.
constexpr bool is_context_axis(std::string_view name) { return has_role(name, AxisRole::kContext); }

// The configuration key of the axis's size: "mesh.tp".
inline std::string mesh_key(std::string_view axis) { return "mesh." + std::string(axis); }

}  // namespace chassis

// The axes of a mesh: their names, their order, and what ranks along each divide. Whoever names an axis takes it from
// here. It lies below everything because the schema of [mesh] needs it.
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
  bool takes_rest = false;  // the ranks that no other axis has, if nobody says otherwise
};

// Slowest first: ranks that talk most are neighbours.
inline constexpr std::array kMeshAxes = {
    AxisSpec{kStageAxis, AxisRole::kStage, "pipeline parallel"},
    AxisSpec{kReplicaAxis, AxisRole::kData, "data parallel, parameters replicated"},
    AxisSpec{kShardAxis, AxisRole::kData, "data parallel, parameters sharded", true},
    AxisSpec{kContextAxis, AxisRole::kContext, "context parallel"},
    AxisSpec{kExpertAxis, AxisRole::kExpert, "expert parallel"},
    AxisSpec{kTensorAxis, AxisRole::kTensor, "tensor parallel"},
};

// Ranks along it divide the batch.
constexpr bool is_data_axis(std::string_view name) {
  return std::any_of(kMeshAxes.begin(), kMeshAxes.end(),
                     [&](const AxisSpec& axis) { return axis.name == name && axis.role == AxisRole::kData; });
}

// The key of its size: "mesh.tp".
inline std::string mesh_key(std::string_view axis) { return "mesh." + std::string(axis); }

}  // namespace chassis

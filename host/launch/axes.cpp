// Replaces -1 by the remaining ranks, and checks the product of the sizes.
#include "host/launch/axes.hpp"

#include <fmt/format.h>

#include "host/base/mesh_axes.hpp"

namespace chassis {
namespace {

std::string shown(const AxisRequest& axis) { return fmt::format("{} = {}", mesh_key(axis.name), axis.size); }

// "mesh.dp_shard = 3, mesh.tp = 2": the sizes that the user set; those of 1 only if there are no others.
std::string shown(const std::vector<AxisRequest>& axes) {
  std::string text, ones;
  for (const AxisRequest& axis : axes) {
    std::string& to = axis.size == 1 ? ones : text;
    if (axis.by_user) to += (to.empty() ? "" : ", ") + shown(axis);
  }
  return !text.empty() ? text : !ones.empty() ? ones : "the mesh";
}

// "4 or 6".
std::string multiples_near(int64_t number, int64_t unit) {
  const int64_t below = number / unit * unit;
  return below == 0 ? std::to_string(unit) : fmt::format("{} or {}", below, below + unit);
}

// "mesh.tp = 1, mesh.dp_shard = 1": the settings that make a mesh of one rank.
std::string all_ones(const std::vector<AxisRequest>& axes) {
  std::string text;
  for (const AxisRequest& axis : axes)
    if (axis.size > 1) text += (text.empty() ? "" : ", ") + mesh_key(axis.name) + " = 1";
  return text;
}

Error axis_error(const AxisRequest& axis, std::string message) {
  return Error(ExitCode::kConfig, axis.where, std::move(message));
}

}  // namespace

std::vector<std::pair<std::string, int>> axis_sizes(const std::vector<AxisRequest>& requests, int world_size) {
  std::vector<AxisRequest> axes = requests;
  const AxisRequest* last_given = nullptr;
  AxisRequest* rest = nullptr;
  constexpr int64_t kLargest = int64_t{1} << 31;
  int64_t product = 1;
  for (AxisRequest& axis : axes) {
    if (axis.by_user) last_given = &axis;
    if (axis.size < -1 || axis.size == 0)
      throw axis_error(axis, shown(axis) + " is out of range: must be at least 1, or -1 for the rest");
    if (axis.size > 0) {
      product = std::min(product, kLargest) * std::min(axis.size, kLargest);
      continue;
    }
    if (rest && rest->by_user && axis.by_user)
      throw axis_error(axis, fmt::format("{} and {}: only one axis can be the rest", shown(*rest), shown(axis)));
    // An axis that the user set to -1 replaces the preset one, which becomes 1.
    AxisRequest* const other = !rest || axis.by_user ? std::exchange(rest, &axis) : &axis;
    if (other) other->size = 1;
  }
  const AxisRequest blamed = last_given ? *last_given : AxisRequest{};
  const auto hint = [&](std::string of_several) {
    if (world_size > 1) return of_several;
    return fmt::format("start {} ranks with --nproc {}, or set {} for one process", product, product, all_ones(axes));
  };
  if (rest) {
    if (world_size % product != 0)
      throw axis_error(blamed, fmt::format("{}: {} ranks are not a multiple of {}", shown(axes), world_size, product))
          .hint(hint(fmt::format("{} is the rest: start {} ranks, or change the others", mesh_key(rest->name),
                                 multiples_near(world_size, product))));
    rest->size = world_size / product;
  } else if (product != world_size) {
    throw axis_error(blamed, fmt::format("{}: needs {} ranks, but there are {}", shown(axes), product, world_size))
        .hint(hint(fmt::format(
            "use {} ranks (--nproc or a launcher; --world of plan), or set one axis to -1, which takes the rest, "
            "with a strategy of [[parallel]] that serves it",
            product)));
  }
  std::vector<std::pair<std::string, int>> sizes;
  for (const AxisRequest& axis : axes) sizes.emplace_back(axis.name, static_cast<int>(axis.size));
  return sizes;
}

}  // namespace chassis

// Compares the tile of a node with the device's limit.
#include "host/compile/kernel_tiles.hpp"

#include <fmt/format.h>

#include "host/base/error.hpp"

namespace chassis {
namespace {

constexpr uint32_t kMaxTiles = 64;

bool fits(const chassis_tile_t& tile, bool has_backward, uint64_t limit) {
  return tile.shared_forward_bytes <= limit && (!has_backward || tile.shared_backward_bytes <= limit);
}

// "70000 bytes of shared memory in forward and 90000 in backward": those that are above the limit.
std::string needs_text(const chassis_tile_t& tile, bool has_backward, uint64_t limit) {
  const bool in_forward = tile.shared_forward_bytes > limit;
  const bool in_backward = has_backward && tile.shared_backward_bytes > limit;
  const uint64_t first = in_forward ? tile.shared_forward_bytes : tile.shared_backward_bytes;
  return fmt::format("{} bytes of shared memory in {}", first, in_forward ? "forward" : "backward") +
         (in_forward && in_backward ? fmt::format(" and {} in backward", tile.shared_backward_bytes) : "");
}

}  // namespace

std::vector<chassis_tile_t> tiles_of(const chassis_infer_t& infer, const std::string& context) {
  if (infer.num_tiles > kMaxTiles)
    throw plugin_error(fmt::format("{}: infer lists {} tiles; the maximum is {}", context, infer.num_tiles, kMaxTiles));
  if (infer.num_tiles > 0 && infer.tiles == nullptr)
    throw plugin_error(fmt::format("{}: infer sets num_tiles to {}, but tiles is NULL", context, infer.num_tiles));
  if (infer.tile >= infer.num_tiles && infer.tile != 0)
    throw plugin_error(fmt::format("{}: infer chooses the tile with index {}, but num_tiles is {}", context, infer.tile,
                                   infer.num_tiles));
  std::vector<chassis_tile_t> tiles;
  for (uint32_t i = 0; i < infer.num_tiles; ++i) {
    const chassis_tile_t& tile = tiles.emplace_back(infer.tiles[i]);
    if (tile.queries == 0 || tile.keys == 0)
      throw plugin_error(
          fmt::format("{}: infer gives tile {} the size {} (queries × keys)", context, i, tile_text(tile)));
  }
  return tiles;
}

std::string tile_refusal(const Node& node, bool has_backward, const ResolveOptions& options) {
  if (node.tiles.empty() || !options.shared_limit_bytes) return "";
  const uint64_t limit = *options.shared_limit_bytes;
  const chassis_tile_t& used = node.tiles[node.infer.tile];
  if (fits(used, has_backward, limit)) return "";
  std::vector<std::string> fitting;
  for (const chassis_tile_t& tile : node.tiles)
    if (fits(tile, has_backward, limit)) fitting.push_back(tile_text(tile));
  std::string others = "it lists no other tile";
  if (!fitting.empty())
    others = fmt::format("of its {} tiles {}: {}", node.tiles.size(), fitting.size() == 1 ? "one fits" : "these fit",
                         fmt::join(fitting, ", "));
  else if (node.tiles.size() > 1)
    others = fmt::format("none of its {} tiles fits", node.tiles.size());
  return fmt::format("its tile {} (queries × keys) needs {}, and a block of threads on {} may use {}; {}",
                     tile_text(used), needs_text(used, has_backward, limit), options.device.text(), limit, others);
}

std::string tile_text(const chassis_tile_t& tile) { return fmt::format("{} × {}", tile.queries, tile.keys); }

}  // namespace chassis

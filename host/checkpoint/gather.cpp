// The texts travel through the launch's key-value store, one key per rank.
#include "host/checkpoint/gather.hpp"

#include <utility>

namespace chassis {

std::vector<std::string> gather_on_first(World& world, const std::string& what, const std::string& mine) {
  if (world.size() == 1) return {mine};
  const auto key = [&](int rank) { return "gather/" + what + "/" + std::to_string(rank); };
  if (world.rank() != 0) world.store()->set(key(world.rank()), mine);
  world.barrier(what);
  if (world.rank() != 0) return {};
  std::vector<std::string> texts = {mine};
  for (int rank = 1; rank < world.size(); ++rank) {
    auto text = world.store()->find(key(rank));
    CHASSIS_CHECK(text.has_value(), what + ": rank " + std::to_string(rank) + " sent nothing");
    texts.push_back(std::move(*text));
    world.store()->erase(key(rank));
  }
  return texts;
}

}  // namespace chassis

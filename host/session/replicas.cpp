// Ranks exchange one checksum for each set of parameters that they share, and one per parameter only if these differ.
#include "host/session/replicas.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "host/base/error.hpp"
#include "host/base/hash.hpp"
#include "host/base/json.hpp"
#include "host/service/tensor_checksum.hpp"

namespace chassis {
namespace {

std::string hex(uint64_t value) { return fmt::format("{:016x}", value); }

// The index of a rank along these axes, of which the first varies slowest.
int joined_coordinate(const std::vector<std::string>& axes, const MeshShape& mesh, const MeshShape::Coordinates& at) {
  int joined = 0;
  for (const std::string& name : axes)
    if (const int axis = mesh.find(name); axis >= 0) joined = joined * mesh.size(axis) + at[static_cast<size_t>(axis)];
  return joined;
}

// Equal for parameters and ranks if the ranks store the same part of each; nothing if the rank stores none of it.
// Ranks with different places on an exempt axis count as storing different parts.
std::optional<std::string> stored_part(const Descriptor& parameter, const MeshShape& mesh, int rank,
                                       const std::vector<std::string>& exempt_axes) {
  const MeshShape::Coordinates at = mesh.coordinates(rank);
  std::string part;
  for (const std::string& axis : exempt_axes) part += fmt::format("{}={}; ", axis, joined_coordinate({axis}, mesh, at));
  for (const Placement& placement : parameter.placements) {
    const int coordinate = joined_coordinate(placement.axes, mesh, at);
    switch (placement.kind) {
      case Placement::Kind::kOnlyOn:
        if (!placement.is_on(coordinate)) return std::nullopt;
        part += fmt::format("{} on {}", fmt::join(placement.axes, "×"), placement.coordinate);
        for (const int copy : placement.copies) part += fmt::format(" {}", copy);
        part += "; ";
        break;
      case Placement::Kind::kDimChunk:
      case Placement::Kind::kFlatRange:
        part += fmt::format("{}={}; ", fmt::join(placement.axes, "×"), coordinate);
        break;
    }
  }
  return part;
}

// "rank 2", "ranks 0, 1 and 3"
std::string ranks_text(const std::vector<int>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < ranks.size(); ++i)
    text += (i == 0 ? "" : i + 1 == ranks.size() ? " and " : ", ") + std::to_string(ranks[i]);
  return text;
}

}  // namespace

void ReplicaCheck::find_classes(std::vector<std::string> exempt_axes) {
  classes_.clear();
  any_shared_ = false;
  const auto& all = state_.parameters().all();
  std::map<std::string, size_t> known;
  for (size_t i = 0; i < all.size(); ++i) {
    const auto part =
        all[i]->is_here ? stored_part(all[i]->descriptor, state_.model.mesh.shape, state_.model.mesh.rank, exempt_axes)
                        : std::nullopt;
    if (!part) continue;
    const auto [found, is_new] = known.emplace(*part, classes_.size());
    if (is_new) classes_.push_back({*part, {}});
    classes_[found->second].parameters.push_back(i);
  }
  Json mine = Json::array();
  for (const Class& own : classes_) mine.push_back(own.id);
  std::map<std::string, int> num_ranks;
  for (const std::string& text : world_.exchange("which parameters are replicated", mine.dump()))
    for (const Json& id : Json::parse(text)) ++num_ranks[id.get<std::string>()];
  for (const auto& [id, count] : num_ranks) any_shared_ |= count > 1;
  for (Class& own : classes_) own.is_shared = num_ranks.at(own.id) > 1;
  exempt_axes_ = std::move(exempt_axes);
}

std::vector<uint64_t> ReplicaCheck::checksums(const Class& shared) const {
  std::vector<uint64_t> sums;
  for (const size_t index : shared.parameters) {
    uint64_t sum = 0;
    for (const Tensor& stored : state_.parameters().all()[index]->all_stored()) {
      const uint64_t pair[] = {sum, checksum_of(stored)};
      sum = hash64({reinterpret_cast<const char*>(pair), sizeof pair}, 0);
    }
    sums.push_back(sum);
  }
  return sums;
}

void ReplicaCheck::require_equal(int64_t step) {
  if (world_.size() == 1 || step == last_step_) return;
  if (auto exempt = state_.ranks().events().axes_of_differing_replicas(); exempt_axes_ != exempt)
    find_classes(std::move(exempt));
  if (!any_shared_) return;
  Json mine = Json::object();
  for (const Class& own : classes_) {
    if (!own.is_shared) continue;
    const std::vector<uint64_t> sums = checksums(own);
    mine[own.id] = hex(hash64({reinterpret_cast<const char*>(sums.data()), sums.size() * sizeof(uint64_t)}, 0));
  }
  std::map<std::string, std::string> first;  // by class: the checksum of the first rank
  bool are_equal = true;
  for (const std::string& text : world_.exchange("checksums of replicas", mine.dump())) {
    const Json of_rank = Json::parse(text);
    for (const auto& [id, sum] : of_rank.items())
      are_equal &= first.emplace(id, sum.get<std::string>()).first->second == sum.get<std::string>();
  }
  if (!are_equal) throw_difference(step);
  last_step_ = step;
}

void ReplicaCheck::throw_difference(int64_t step) {
  Json mine = Json::array();  // [parameter, class, checksum]
  for (const Class& own : classes_) {
    if (!own.is_shared) continue;
    const std::vector<uint64_t> sums = checksums(own);
    for (size_t i = 0; i < sums.size(); ++i) mine.push_back({own.parameters[i], own.id, hex(sums[i])});
  }
  // Keyed by parameter and part: the ranks with each checksum.
  std::map<std::pair<size_t, std::string>, std::map<std::string, std::vector<int>>> all;
  int rank = 0;
  for (const std::string& text : world_.exchange("checksums of single replicas", mine.dump())) {
    for (const Json& one : Json::parse(text))
      all[{one[0].get<size_t>(), one[1].get<std::string>()}][one[2].get<std::string>()].push_back(rank);
    ++rank;
  }
  std::erase_if(all, [](const auto& one) { return one.second.size() < 2; });
  CHASSIS_CHECK(!all.empty(), "checksums of replicas differed, and those of single parameters do not");
  std::set<size_t> different;
  for (const auto& [place, values] : all) different.insert(place.first);
  const auto& [where, values] = *all.begin();
  // The checksum of most ranks is taken to be right; in a tie, the one of the lowest rank.
  const auto by_count = [](const auto& a, const auto& b) {
    return a.second.size() != b.second.size() ? a.second.size() < b.second.size() : a.second.front() > b.second.front();
  };
  const auto usual = std::max_element(values.begin(), values.end(), by_count);
  const auto odd = usual == values.begin() ? std::next(values.begin()) : values.begin();
  const Parameter& parameter = *state_.parameters().all()[where.first];
  throw Error(ExitCode::kNumeric,
              fmt::format("replicas have drifted apart after step {}: the parameter '{}' has the checksum {} on {} and "
                          "{} on {}; {} of {} parameters differ",
                          step, parameter.name, odd->first, ranks_text(odd->second), usual->first,
                          ranks_text(usual->second), different.size(), state_.parameters().all().size()))
      .hint(
          "a plugin that writes parameters on some ranks alone, or defective memory of one machine; checkpoints that "
          "were saved before are of equal replicas: continue from one of them");
}

}  // namespace chassis

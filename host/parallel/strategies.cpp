// Reads the tables of strategies, and keeps what their instances borrow.
#include "host/parallel/strategies.hpp"

#include <algorithm>
#include <utility>

#include "host/base/mesh_axes.hpp"
#include "host/plugin/status.hpp"

namespace chassis {
namespace {

const chassis_parallel_t* table_of(const Instance& instance) {
  const auto* table = &instance.interface<chassis_parallel_t>(CHASSIS_PARALLEL_ID);
  instance.require(CHASSIS_PARALLEL_ID, {{"resolve", table->resolve != nullptr}});
  return table;
}

}  // namespace

Strategies::Strategies(std::vector<StackMember> members) {
  for (StackMember& member : members) {
    const chassis_parallel_t* table = table_of(*member.instance);
    all_.push_back({std::move(member.instance), std::move(member.where), table});
  }
}

std::string Strategies::home_axis(const std::vector<std::string>& given) const {
  for (const StackStrategy& strategy : all_)
    if (std::string home(view_of(strategy.table->home_axis));
        std::find(given.begin(), given.end(), home) == given.end())
      return home;
  if (!empty()) return std::string(view_of(all_.front().table->home_axis));
  const auto rest = std::find_if(kMeshAxes.begin(), kMeshAxes.end(), [](const AxisSpec& a) { return a.takes_rest; });
  return std::string(rest->name);
}

std::vector<std::string> Strategies::home_axes() const {
  std::vector<std::string> out;
  for (const StackStrategy& strategy : all_) out.emplace_back(view_of(strategy.table->home_axis));
  return out;
}

std::vector<Strategies::Saving> Strategies::savings() const {
  std::vector<Saving> out;
  for (size_t m = 0; m < all_.size(); ++m)
    for (uint32_t i = 0; i < all_[m].table->num_savings; ++i) {
      const chassis_saving_t& saving = all_[m].table->savings[i];
      out.push_back({m, std::string(view_of(saving.option)), std::string(view_of(saving.value))});
    }
  return out;
}

const ResolveArguments& Strategies::keep(std::unique_ptr<const ResolveArguments> problem) {
  return *kept_.emplace_back(std::move(problem));
}

}  // namespace chassis

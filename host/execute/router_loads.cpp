// Two small operations on the device for each router and micro-batch, and two copies when the sums are taken.
#include "host/execute/router_loads.hpp"

#include <algorithm>
#include <tuple>
#include <utility>

#include "host/base/mesh_axes.hpp"
#include "host/graph/output_names.hpp"
#include "host/service/memory.hpp"

namespace chassis {
namespace {

// Rows that earlier micro-batches did not have are added to the first ones.
template <typename Combine>
void combine_rows(Tensor& all, const Tensor& more, const Combine& combine) {
  if (!all) {
    all = more.clone();
    return;
  }
  for (int64_t row = 0; row < more.size(0); row += all.size(0)) {
    const int64_t rows = std::min(all.size(0), more.size(0) - row);
    combine(all.narrow(0, 0, rows), more.narrow(0, row, rows));
  }
}

std::vector<double> numbers_of(const Tensor& tensor) {
  const Tensor numbers = tensor.to(Device{}).to(Dtype::f64).contiguous();
  const auto* data = numbers.data_as<double>();
  return {data, data + numbers.num_elements()};
}

}  // namespace

bool is_own_part(const ProgramLayout& layout, const GraphValue& sums) {
  for (size_t a = 0; a < layout.axes.size(); ++a) {
    const bool is_part = a < sums.sharding.size() && sums.sharding[a].kind == Sharding::Kind::kPartial;
    if (!is_part && !divides_rows(layout.axes[a].name) && layout.axes[a].coordinate != 0) return false;
  }
  return true;
}

void RouterLoads::add(size_t unit, std::map<std::string, Tensor>& outputs) {
  const std::string sums_name = kRouterSumsOutput, largest_name = kRouterLargestOutput;
  const MemoryTag tag(MemoryCategory::kOther);
  for (auto output = outputs.lower_bound(sums_name); output != outputs.end() && output->first.starts_with(sums_name);) {
    Sums& all = sums_[{unit, output->first}];
    combine_rows(all.sums, output->second, [](const Tensor& sum, const Tensor& rows) { sum.add(rows); });
    const auto largest = outputs.find(largest_name + output->first.substr(sums_name.size()));
    if (largest != outputs.end()) {
      combine_rows(all.largest, largest->second, [](const Tensor& sum, const Tensor& rows) { sum.raise_to(rows); });
      outputs.erase(largest);
    }
    output = outputs.erase(output);
  }
}

std::vector<RouterLoad> RouterLoads::take(const std::function<bool(size_t, const std::string&)>& counts) {
  std::vector<RouterLoad> loads;
  for (const auto& [key, all] : std::exchange(sums_, {})) {
    RouterLoad load;
    std::tie(load.unit, load.output) = key;
    if (all.largest) {
      const std::vector<double> rows = numbers_of(all.largest);
      load.largest = *std::ranges::max_element(rows);
    }
    if (counts(load.unit, load.output)) {
      const std::vector<double> rows = numbers_of(all.sums);
      load.sums.resize(static_cast<size_t>(all.sums.size(1)));
      for (size_t i = 0; i < rows.size(); ++i) load.sums[i % load.sums.size()] += rows[i];
    }
    loads.push_back(std::move(load));
  }
  return loads;
}

}  // namespace chassis

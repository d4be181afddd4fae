// Compares fingerprints first, and tensor by tensor only if these differ.
#include "host/checkpoint/plan_agreement.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <map>
#include <sstream>
#include <vector>

namespace chassis {
namespace {

constexpr size_t kMaxListed = 4;
constexpr size_t kPrintDigits = 16;

// "rank 0", "ranks 1-3, 5"
std::string ranks_text(const std::vector<int>& ranks) {
  std::string text;
  for (size_t first = 0, last; first < ranks.size(); first = last + 1) {
    last = first;
    while (last + 1 < ranks.size() && ranks[last + 1] == ranks[last] + 1) ++last;
    text += (text.empty() ? "" : ", ") + std::to_string(ranks[first]);
    if (last > first) text += "-" + std::to_string(ranks[last]);
  }
  return (ranks.size() == 1 ? "rank " : "ranks ") + text;
}

std::string lines_of(const SavePlan& plan) {
  std::string lines;
  for (const SaveTensor& tensor : plan.tensors)
    lines += fmt::format("'{}' {}{}\n", tensor.descriptor.fqn, dtype_name(tensor.disk_dtype),
                         text(tensor.descriptor.global_shape));
  return lines;
}

// The lines that some ranks have and others do not.
std::string differences(const std::vector<std::string>& lists) {
  std::map<std::string, std::vector<int>> having;
  for (size_t rank = 0; rank < lists.size(); ++rank) {
    std::istringstream list(lists[rank]);
    for (std::string line; std::getline(list, line);) having[line].push_back(static_cast<int>(rank));
  }
  std::string message;
  size_t count = 0;
  for (const auto& [line, ranks] : having) {
    if (ranks.size() == lists.size() || ++count > kMaxListed) continue;
    std::vector<int> others;
    for (int rank = 0; rank < static_cast<int>(lists.size()); ++rank)
      if (!std::binary_search(ranks.begin(), ranks.end(), rank)) others.push_back(rank);
    message += fmt::format("; {} is on {}, not on {}", line, ranks_text(ranks), ranks_text(others));
  }
  if (count > kMaxListed) message += fmt::format("; and {} more", count - kMaxListed);
  return message;
}

}  // namespace

uint64_t agree_on_plan(const SavePlan& plan, const std::string& occasion, World& world) {
  if (world.size() == 1) return plan.file_bytes;
  std::vector<std::string> prints =
      world.exchange(occasion, fmt::format("{:016x}{}", plan.fingerprint(), plan.file_bytes));
  uint64_t file_bytes = 0;
  for (std::string& print : prints) {
    file_bytes += std::stoull(print.substr(kPrintDigits));
    print.resize(kPrintDigits);
  }
  const auto other =
      std::find_if(prints.begin(), prints.end(), [&](const std::string& print) { return print != prints[0]; });
  if (other == prints.end()) return plan.own_files ? file_bytes : plan.file_bytes;
  const std::string found = differences(world.exchange(occasion + ": tensors", lines_of(plan)));
  const std::vector<std::string> plans = world.exchange(occasion + ": layout", plan.text() + ", " + plan.mesh.text());
  const auto rank = static_cast<int>(other - prints.begin());
  const std::string message =
      occasion + " differs between ranks" +
      (found.empty() ? fmt::format(": {} on rank 0, {} on rank {}", plans[0], plans[static_cast<size_t>(rank)], rank)
                     : found);
  const std::string hint = "a plugin must declare all its states when it starts, the same on every rank";
  // One rank reports the error; the others refer to it.
  if (rank == world.rank()) throw storage_error(message).hint(hint);
  RemoteError error(ExitCode::kStorage, fmt::format("rank {}: {}", rank, message));
  error.hint(hint);
  throw error;
}

}  // namespace chassis

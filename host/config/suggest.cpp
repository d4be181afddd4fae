// A candidate is near if it differs in at most one letter in three.
#include "host/config/suggest.hpp"

#include <algorithm>
#include <cctype>

namespace chassis {
namespace {

std::string folded(std::string_view word) {
  std::string out(word);
  for (char& c : out) c = c == '-' ? '_' : static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return out;
}

}  // namespace

size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> two_ago, last(b.size() + 1), now(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) now[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    two_ago = std::move(last);
    last = std::move(now);
    now.assign(b.size() + 1, i);
    for (size_t j = 1; j <= b.size(); ++j) {
      now[j] = std::min({last[j] + 1, now[j - 1] + 1, last[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1)});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) now[j] = std::min(now[j], two_ago[j - 2] + 1);
    }
  }
  return now[b.size()];
}

std::string nearest(std::string_view word, const std::vector<std::string>& candidates) {
  if (word.size() > 100) return "";
  const std::string wanted = folded(word);
  std::string best;
  size_t best_distance = wanted.size() / 3 + 1;
  for (const std::string& candidate : candidates) {
    const std::string other = folded(candidate);
    const size_t limit = std::max(wanted.size(), other.size()) / 3;
    const size_t distance = edit_distance(wanted, other);
    if (distance <= limit && distance < best_distance) best = candidate, best_distance = distance;
  }
  if (!best.empty()) return best;
  // "warmup" for "warmup_steps", "epsilon" for "eps", "batch_size" for "global_batch_size": only if one candidate fits.
  for (const std::string& candidate : candidates) {
    const std::string other = folded(candidate);
    const bool extends = other.size() >= 3 && wanted.starts_with(other);
    if (!extends && (wanted.size() < 3 || other.find(wanted) == std::string::npos)) continue;
    if (!best.empty()) return "";
    best = candidate;
  }
  return best;
}

}  // namespace chassis

// Splits lines into key and the rest.
#include "host/launch/text_difference.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <sstream>
#include <string_view>
#include <utility>
#include <vector>

namespace chassis {
namespace {

struct KeyedLine {
  std::string key, line;
};

// A repeated key gets a number, so that the second line with a key is compared with the second one of the other text.
std::vector<KeyedLine> keyed_lines(const std::string& text) {
  std::vector<KeyedLine> lines;
  std::map<std::string, int> num_seen;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) {
    const size_t end = std::min(line.find(" = "), line.find(' '));
    // A line of one word has no key: such lines are matched by their order.
    std::string key = end == std::string::npos ? "" : line.substr(0, end);
    if (const int before = num_seen[key]++; before > 0) key += fmt::format(" ({})", before + 1);
    lines.push_back({std::move(key), std::move(line)});
  }
  return lines;
}

const KeyedLine* find_line(const std::vector<KeyedLine>& lines, const std::string& key) {
  const auto found = std::find_if(lines.begin(), lines.end(), [&](const KeyedLine& one) { return one.key == key; });
  return found == lines.end() ? nullptr : &*found;
}

}  // namespace

std::string text_difference(const std::string& theirs, int their_rank, const std::string& ours, int our_rank) {
  const std::vector<KeyedLine> there = keyed_lines(theirs), here = keyed_lines(ours);
  std::string first;
  int num_more = -1;
  const auto add = [&](const KeyedLine* a, const KeyedLine* b) {
    if (num_more++ >= 0) return;
    const auto side = [](const KeyedLine* line, const KeyedLine* other) {
      if (line != nullptr) return "'" + line->line + "'";
      return other->key.empty() ? std::string("nothing") : fmt::format("no '{}'", other->key);
    };
    first = fmt::format("{} on rank {}, {} on rank {}", side(a, b), their_rank, side(b, a), our_rank);
  };
  for (const KeyedLine& line : there) {
    const KeyedLine* const other = find_line(here, line.key);
    if (other == nullptr || other->line != line.line) add(&line, other);
  }
  for (const KeyedLine& line : here)
    if (find_line(there, line.key) == nullptr) add(nullptr, &line);
  if (first.empty()) return fmt::format("the order of lines on rank {} and rank {}", their_rank, our_rank);
  return num_more == 0 ? first : fmt::format("{}; and {} more", first, num_more);
}

}  // namespace chassis

// Names, regular expressions and ranges of layers.
#include "targets.hpp"

#include <algorithm>
#include <charconv>

#include "chassis/guard.hpp"

namespace lora {

using chassis::fail_invalid;

namespace {

constexpr size_t kMaxPatternBytes = 1024;  // std::regex recurses over the pattern

std::regex regex_of(const std::string& text, const std::string& expression) {
  if (text.empty()) fail_invalid("an empty name matches nothing");
  if (text.size() > kMaxPatternBytes)
    fail_invalid("a pattern of ", text.size(), " bytes; the maximum is ", kMaxPatternBytes);
  try {
    auto flags = std::regex::ECMAScript | std::regex::optimize;
#ifdef __GLIBCXX__
    flags |= std::regex_constants::__polynomial;  // else (.*)*x takes exponential time; excludes \1
#endif
    return std::regex(expression, flags);
  } catch (const std::regex_error& error) {
    fail_invalid("'", text, "' is no regular expression: ", error.what(),
                 text.starts_with('*') ? "; the * of a file pattern is written .* here" : "");
  }
}

bool ends_in_name(std::string_view module, std::string_view name) {
  return module == name ||
         (module.size() > name.size() && module.ends_with(name) && module[module.size() - name.size() - 1] == '.');
}

int64_t index_of(std::string_view text, const std::string& whole) {
  int64_t value = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 0)
    fail_invalid("\"", whole, "\": '", std::string(text), "' is not an index; write ranges such as \"0:16\"");
  return value;
}

}  // namespace

NamePattern::NamePattern(std::string text)
    : text_(std::move(text)), is_regex_(text_.find_first_of("^$*+?()[]{}|\\") != std::string::npos) {
  if (text_.size() > kMaxPatternBytes)
    fail_invalid("a pattern of ", text_.size(), " bytes; the maximum is ", kMaxPatternBytes);
  if (is_regex_ || text_.empty()) regex_ = regex_of(text_, text_);
}

bool NamePattern::matches(std::string_view module) const {
  return is_regex_ ? std::regex_match(module.begin(), module.end(), regex_) : ends_in_name(module, text_);
}

EndPattern::EndPattern(std::string text) : text_(std::move(text)), regex_(regex_of(text_, "(.*\\.)?(" + text_ + ")")) {}

bool EndPattern::matches(std::string_view module) const {
  return std::regex_match(module.begin(), module.end(), regex_);
}

LayerRanges::LayerRanges(const std::string& text) {
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    std::string_view part = std::string_view(text).substr(begin, end - begin);
    while (!part.empty() && part.front() == ' ') part.remove_prefix(1);
    const size_t colon = part.find(':');
    const int64_t first = index_of(part.substr(0, colon), text);
    const int64_t last = colon == std::string_view::npos ? first + 1 : index_of(part.substr(colon + 1), text);
    if (last <= first) fail_invalid("\"", text, "\": ", first, ":", last, " is empty");
    ranges_.emplace_back(first, last);
    begin = end + 1;
  }
}

LayerRanges::LayerRanges(const std::vector<int64_t>& layers) {
  for (int64_t layer : layers) {
    if (layer < 0) fail_invalid("layers_to_transform has ", layer, ", expected 0 or more");
    ranges_.emplace_back(layer, layer + 1);
  }
}

bool LayerRanges::contains(int64_t layer) const {
  return is_all() || std::any_of(ranges_.begin(), ranges_.end(),
                                 [&](const auto& r) { return layer >= r.first && layer < r.second; });
}

int64_t LayerRanges::last() const {
  int64_t last = -1;
  for (const auto& [begin, end] : ranges_) last = std::max(last, end - 1);
  return last;
}

}  // namespace lora

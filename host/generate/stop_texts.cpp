// Compares the end of the text with the beginnings of all stop texts, so that the pieces' borders do not matter.
#include "host/generate/stop_texts.hpp"

#include <algorithm>
#include <utility>

#include "host/base/error.hpp"

namespace chassis {

StopTexts::StopTexts(std::vector<std::string> texts) : texts_(std::move(texts)) {
  if (std::find(texts_.begin(), texts_.end(), "") != texts_.end())
    throw config_error("generate.stop has an empty text, which would end every answer before it begins");
}

std::string StopTexts::add(std::string_view piece) {
  if (found_) return "";
  held_ += piece;
  // The stop text that is complete first counts; of those that end at the same byte, the longest.
  size_t first_end = std::string::npos, begin = 0;
  for (const std::string& text : texts_) {
    const size_t at = held_.find(text);
    if (at == std::string::npos) continue;
    const size_t end = at + text.size();
    if (end < first_end || (end == first_end && at < begin)) {
      first_end = end;
      begin = at;
    }
  }
  if (first_end != std::string::npos) {
    found_ = true;
    std::string shown = held_.substr(0, begin);
    held_.clear();
    return shown;
  }
  size_t longest = 0;  // bytes at the end that may become a stop text
  for (const std::string& text : texts_)
    for (size_t size = std::min(text.size() - 1, held_.size()); size > longest; --size)
      if (held_.ends_with(std::string_view(text).substr(0, size))) longest = size;
  std::string shown = held_.substr(0, held_.size() - longest);
  held_.erase(0, shown.size());
  return shown;
}

std::string StopTexts::finish() { return std::exchange(held_, ""); }

}  // namespace chassis

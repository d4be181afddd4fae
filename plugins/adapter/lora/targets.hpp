// Which modules a list of names and patterns means, by PEFT's rules.
#pragma once

#include <cstdint>
#include <regex>
#include <string>
#include <string_view>
#include <vector>

namespace lora {

inline constexpr std::string_view kAllLinear = "all-linear";

// "q_proj" means every module whose name ends in ".q_proj" or equals it; a text with a character of regular expressions
// must match the whole name.
class NamePattern {
 public:
  // Throws INVALID_ARGUMENT if the text is empty or no regular expression.
  explicit NamePattern(std::string text);
  const std::string& text() const { return text_; }
  bool is_all_linear() const { return text_ == kAllLinear; }
  bool matches(std::string_view module) const;

 private:
  std::string text_;
  bool is_regex_ = false;
  std::regex regex_;
};

// A key of rank_pattern and alpha_pattern: a regular expression for the end of a module's name.
class EndPattern {
 public:
  explicit EndPattern(std::string text);
  const std::string& text() const { return text_; }
  bool matches(std::string_view module) const;

 private:
  std::string text_;
  std::regex regex_;
};

// "0:16", "3", "0:4,8:12": indexes of layers, ends excluded. An empty text means all.
class LayerRanges {
 public:
  explicit LayerRanges(const std::string& text);
  explicit LayerRanges(const std::vector<int64_t>& layers);
  bool is_all() const { return ranges_.empty(); }
  bool contains(int64_t layer) const;
  int64_t last() const;  // the largest index

 private:
  std::vector<std::pair<int64_t, int64_t>> ranges_;
};

}  // namespace lora

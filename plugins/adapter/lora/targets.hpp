// Matches modules with lists of names and patterns, by PEFT's rules.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace lora {

inline constexpr std::string_view kAllLinear = "all-linear";

// A regular expression (PCRE2, a superset of Python's for names) that must match a whole name, with limits so that no
// pattern can crash the program or keep it busy.
class NameRegex {
 public:
  // Compiles `expression`; `text` is what the user wrote. Throws INVALID_ARGUMENT if it is not a regular expression.
  NameRegex(const std::string& text, const std::string& expression);
  // Throws INVALID_ARGUMENT if the search exceeds its limits.
  bool matches(std::string_view module) const;
  const std::string& text() const { return text_; }

 private:
  std::string text_;
  std::shared_ptr<void> code_;  // a pcre2_code; not changed after construction
};

// "q_proj" means every module whose name ends in ".q_proj" or equals it; a text with a character of regular expressions
// must match the whole name.
class NamePattern {
 public:
  // Throws INVALID_ARGUMENT if the text is empty or no regular expression.
  explicit NamePattern(const std::string& text);
  // By PEFT's rule for modules_to_save: matches every module whose name ends in the text, with or without a dot before
  // it, and everything inside such a module. "norm" also matches input_layernorm.
  static NamePattern ending(const std::string& text);
  const std::string& text() const { return regex_.text(); }
  bool is_all_linear() const { return text() == kAllLinear; }
  bool is_name() const { return rule_ == Rule::kName; }
  bool matches(std::string_view module) const;

 private:
  enum class Rule { kName, kRegex, kEnding };
  NamePattern(const std::string& text, const std::string& expression, Rule rule)
      : regex_(text, expression), rule_(rule) {}

  NameRegex regex_;
  Rule rule_;
};

// A key of rank_pattern and alpha_pattern: a regular expression for the end of a module's name.
class EndPattern {
 public:
  explicit EndPattern(const std::string& text);
  const std::string& text() const { return regex_.text(); }
  bool matches(std::string_view module) const { return regex_.matches(module); }

 private:
  NameRegex regex_;
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

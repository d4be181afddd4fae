// Regular expressions written by users: PCRE2, because patterns of other tools use its lookaround, with limits so that
// no pattern can crash the program or keep it busy.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace chassis {

class Pattern {
 public:
  // Throws a config error that says what is wrong and at which character.
  explicit Pattern(std::string text);

  // True if a part of the subject matches. Throws a config error that names both if the search exceeds its limits.
  bool found_in(std::string_view subject) const;
  // The number of groups that capture a text.
  size_t num_groups() const;
  // The text of the first group in the first match. Nothing if there is no match, or if the group took no part in it.
  // Throws like found_in(); the pattern must have a group.
  std::optional<std::string> first_group_in(std::string_view subject) const;
  const std::string& text() const { return text_; }

 private:
  std::string text_;
  std::shared_ptr<void> code_;  // a pcre2_code; not changed after construction
};

}  // namespace chassis

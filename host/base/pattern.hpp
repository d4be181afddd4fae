// Regular expressions written by users: PCRE2, because patterns of other tools use its lookaround, with limits so that
// no pattern can crash the program or keep it busy.
#pragma once

#include <memory>
#include <string>
#include <string_view>

namespace chassis {

class Pattern {
 public:
  // Throws a config error that says what is wrong and at which character.
  explicit Pattern(std::string text);

  // True if a part of the subject matches. Throws a config error that names both if the search exceeds its limits.
  bool found_in(std::string_view subject) const;
  const std::string& text() const { return text_; }

 private:
  std::string text_;
  std::shared_ptr<void> code_;  // a pcre2_code; not changed after construction
};

}  // namespace chassis

// Ends a text, which arrives in pieces, at the beginning of the first stop text.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace chassis {

class StopTexts {
 public:
  // Throws a config error if one of them is empty.
  explicit StopTexts(std::vector<std::string> texts);

  // Returns what can be shown: text that cannot be the beginning of a stop text. After the first stop text, nothing.
  std::string add(std::string_view piece);
  // The end of the text: returns what was held back.
  std::string finish();
  bool found() const { return found_; }

 private:
  std::vector<std::string> texts_;
  std::string held_;
  bool found_ = false;
};

}  // namespace chassis

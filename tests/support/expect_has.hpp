// EXPECT_HAS: a message must contain a text.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <string_view>

namespace chassis::test {

inline ::testing::AssertionResult has_text(std::string_view text, std::string_view part) {
  if (!part.empty() && text.find(part) != std::string_view::npos) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << "\"" << part << "\" is not in\n" << (text.empty() ? "(empty)" : text);
}

inline size_t count_of(std::string_view text, std::string_view part) {
  size_t found = 0;
  for (size_t at = 0; (at = text.find(part, at)) != text.npos; at += part.size()) ++found;
  return found;
}

}  // namespace chassis::test

#define EXPECT_HAS(text, part) EXPECT_TRUE(::chassis::test::has_text(text, part))

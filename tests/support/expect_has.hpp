// EXPECT_HAS: a message must contain a text.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <string_view>

namespace chassis::test {

inline testing::AssertionResult has_text(std::string_view text, std::string_view part) {
  if (!part.empty() && text.find(part) != std::string_view::npos) return testing::AssertionSuccess();
  return testing::AssertionFailure() << "\"" << part << "\" is not in\n" << (text.empty() ? "(empty)" : text);
}

}  // namespace chassis::test

#define EXPECT_HAS(text, part) EXPECT_TRUE(::chassis::test::has_text(text, part))

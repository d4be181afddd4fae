// The progress line: its text at each width, and what appears on a terminal and elsewhere.
#include "host/base/progress.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <thread>

#include "host/base/log.hpp"
#include "tests/support/expect_has.hpp"
#include "tests/support/terminal.hpp"

namespace chassis {
namespace {

const ProgressFacts kHalf{.title = "loading out/checkpoints/step-000500",
                          .done = uint64_t{1} << 30,
                          .total = uint64_t{2} << 30,
                          .bytes_per_second = 100e6,
                          .rows_per_second = 5};

size_t num_columns(const std::string& text) {
  size_t count = 0;
  for (const char c : text) count += (c & 0xC0) != 0x80;
  return count;
}

TEST(ProgressLine, FitsEveryWidth) {
  EXPECT_EQ(
      progress_line(kHalf, 140, false),
      "loading out/checkpoints/step-000500 [###############...............]  50 % of 2 GiB, 100.0 MB/s, 5 rows/s, "
      "0:10 left");
  for (const bool is_utf8 : {false, true})
    for (int columns = 1; columns < 160; ++columns) {
      const std::string line = progress_line(kHalf, columns, is_utf8);
      EXPECT_LE(num_columns(line), static_cast<size_t>(std::max(columns - 1, 1))) << line;
      if (columns >= 8) {
        EXPECT_HAS(line, "50 %");
      }
      if (columns >= 40) {
        EXPECT_HAS(line, "step-000500");
      }
    }
  for (const char c : progress_line(kHalf, 100, false)) EXPECT_GE(c, ' ');
  EXPECT_HAS(progress_line(kHalf, 120, true), "███");
}

TEST(ProgressLine, IsRightAtTheEnds) {
  EXPECT_HAS(progress_line({.title = "reading", .done = 0, .total = 100}, 80, false),
             "..............................]   0 %");
  EXPECT_HAS(progress_line({.title = "reading", .done = 100, .total = 100}, 80, false), "##] 100 %");
  EXPECT_HAS(progress_line({.title = "reading", .done = 0, .total = 0}, 80, false), "100 %");
  EXPECT_HAS(progress_line({.title = "reading", .done = 300, .total = 100}, 80, false), "100 %");
}

// Works until the line was drawn, writes a log line, works again.
void work() {
  ProgressBar bar("loading the weights");
  for (int i = 1; i <= 60; ++i) {
    bar.update(static_cast<uint64_t>(i), 60, "weights");
    if (i == 30) log::info("a log line");
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
}

std::string shown_with(const char* terminal, const char* locale, int columns, const std::function<void()>& body) {
  return test::on_terminal(columns, [&] {
    setenv("TERM", terminal, 1);
    setenv("LC_ALL", locale, 1);
    body();
  });
}

// The lines that remain visible, each with the text after its last erasure.
std::string remains(const std::string& shown) {
  std::string out, line;
  const std::string erase = "\r\033[K";
  for (size_t i = 0; i < shown.size(); ++i) {
    if (shown.compare(i, erase.size(), erase) == 0) {
      line.clear();
      i += erase.size() - 1;
    } else if (shown[i] == '\n') {
      out += line + "\n";
      line.clear();
    } else if (shown[i] != '\r') {
      line += shown[i];
    }
  }
  return out + line;
}

TEST(ProgressBar, IsOneLineOnATerminalThatLogLinesPass) {
  for (const int columns : {40, 100}) {
    const std::string shown = shown_with("xterm", "C", columns, work);
    EXPECT_HAS(shown, "\r\033[Kloading the weights");
    EXPECT_HAS(shown, "\r\033[Ka log line\r\nloading the weights") << "erased before, drawn again after";
    EXPECT_EQ(remains(shown), "a log line\n") << "erased at the end";
    EXPECT_EQ(shown.find("\xE2"), std::string::npos) << "the locale is not UTF-8";
    for (size_t at = 0; (at = shown.find("\033[K", at)) != std::string::npos; ++at)
      EXPECT_LT(std::min(shown.find_first_of("\r\n", at), shown.size()) - at, static_cast<size_t>(columns + 3))
          << shown;
  }
  EXPECT_HAS(shown_with("xterm", "C.UTF-8", 100, work), "█");
}

TEST(ProgressBar, IsAbsentWithoutAFullTerminalAndOnOtherRanks) {
  EXPECT_EQ(shown_with("dumb", "C", 80, work), "a log line\r\n");
  EXPECT_EQ(shown_with("", "C", 80, work), "a log line\r\n");
  EXPECT_EQ(shown_with("xterm", "C", 80,
                       [] {
                         log::set_rank(1);
                         work();
                       }),
            "");
  testing::internal::CaptureStderr();
  work();
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "a log line\n");
}

TEST(ProgressBar, AnotherRanksWarningBeginsALineOfItsOwn) {
  const std::string shown = shown_with("xterm", "C", 80, [] {
    log::set_rank(1);
    log::warn("careful");
  });
  EXPECT_TRUE(shown.starts_with("\r\033[K")) << shown;
  EXPECT_HAS(shown, "careful\r\n");
}

}  // namespace
}  // namespace chassis

#include "host/base/log.hpp"

#include <gtest/gtest.h>

#include <filesystem>

#include "host/base/error.hpp"
#include "host/base/file.hpp"

namespace chassis {
namespace {

TEST(Log, InfoIsPlainOnTheConsoleAndWarningsArePrefixed) {
  testing::internal::CaptureStderr();
  log::info("step {}", 3);
  log::warn("{} rows dropped", 2);
  log::debug("not shown");
  log::flush();
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "step 3\nwarning: 2 rows dropped\n");
}

TEST(Log, AFileGetsEverythingWithTimes) {
  const std::string path = testing::TempDir() + "/chassis_log_test.txt";
  std::filesystem::remove(path);
  log::add_file(path);
  log::set_level(log::Level::kOff);
  log::debug("a {}", 1);
  log::info("b");
  log::set_level(log::Level::kInfo);
  log::close_files();
  const std::string text = read_file(path);
  EXPECT_NE(text.find("debug: a 1\n"), std::string::npos);
  EXPECT_NE(text.find("info: b\n"), std::string::npos);
  EXPECT_THROW(log::add_file("/dev/null/x"), Error);
}

TEST(Log, ACountedWarningIsShownOnceAndCountedAlways) {
  log::reset_counted_warnings();
  testing::internal::CaptureStderr();
  counted_warning("b", "first b");
  counted_warning("a", "first a", 3);
  counted_warning("b", "second b");
  counted_warning("c", "never", 0);
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "warning: first b\nwarning: first a\n");
  const auto counted = counted_warnings();
  ASSERT_EQ(counted.size(), 2u);
  EXPECT_EQ(counted[0], (std::pair<std::string, uint64_t>("b", 2)));
  EXPECT_EQ(counted[1], (std::pair<std::string, uint64_t>("a", 3)));
  log::reset_counted_warnings();
}

}  // namespace
}  // namespace chassis

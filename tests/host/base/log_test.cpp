#include "host/base/log.hpp"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

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

TEST(Log, AFileBeginsWithTheLinesLoggedBeforeIt) {
  const std::string path = testing::TempDir() + "/chassis_log_early_test.txt";
  testing::GTEST_FLAG(death_test_style) = "threadsafe";  // runs in a new process, where this is the first file
  const auto first_file = [&] {
    std::filesystem::remove(path);
    log::info("logged early");
    log::add_file(path);
    log::info("logged late");
    _exit(0);
  };
  EXPECT_EXIT(first_file(), testing::ExitedWithCode(0), "logged early");
  const std::string text = read_file(path);
  EXPECT_LT(text.find("info: logged early\n"), text.find("info: logged late\n"));
  EXPECT_NE(text.find("info: logged late\n"), std::string::npos);
}

TEST(Log, AFileThatIsALinkIsRefusedAndItsTargetStays) {
  const std::string folder = testing::TempDir();
  write_file_atomic(folder + "/chassis_log_target.txt", "precious\n");
  std::filesystem::remove(folder + "/chassis_log_link.txt");
  std::filesystem::create_symlink("chassis_log_target.txt", folder + "/chassis_log_link.txt");
  EXPECT_THROW(log::add_file(folder + "/chassis_log_link.txt"), Error);
  log::info("anything");
  EXPECT_EQ(read_file(folder + "/chassis_log_target.txt"), "precious\n");
}

TEST(Log, LinesThatDoNotFitIntoAFileAreCountedAndReportedOnce) {
  log::reset_counted_warnings();
  const std::string path = testing::TempDir() + "/chassis_log_full_test.txt";
  std::filesystem::remove(path);
  signal(SIGXFSZ, SIG_IGN);
  struct rlimit before {};
  getrlimit(RLIMIT_FSIZE, &before);
  log::add_file(path);
  testing::internal::CaptureStderr();
  log::info("fits");
  const uint64_t whole = read_file(path).size();
  const struct rlimit limit {whole + 20, before.rlim_max};
  setrlimit(RLIMIT_FSIZE, &limit);
  log::info("does not fit");
  log::info("does not fit either");
  setrlimit(RLIMIT_FSIZE, &before);
  log::info("fits again");
  log::close_files();
  const std::string console = testing::internal::GetCapturedStderr();
  EXPECT_EQ(console.find("cannot write"), console.rfind("cannot write"));
  EXPECT_NE(console.find("cannot write"), std::string::npos) << console;
  ASSERT_EQ(counted_warnings().size(), 1u);
  EXPECT_EQ(counted_warnings()[0].second, 2u);
  const std::string text = read_file(path);
  EXPECT_NE(text.find("fits again\n"), std::string::npos);
  EXPECT_EQ(text.find("does"), std::string::npos) << "a partial line is removed: " << text;
  log::reset_counted_warnings();
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

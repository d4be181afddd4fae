#include "host/base/file.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <functional>
#include <thread>

#include "host/base/creation_limit.hpp"
#include "host/base/descriptor_reserve.hpp"
#include "host/base/error.hpp"
#include "host/base/pipe.hpp"

namespace chassis {
namespace {

class FileTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = testing::TempDir() + "/chassis_file_test";
    std::filesystem::remove_all(folder_);
    create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::string folder_;
};

std::string storage_message_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ExitCode::kStorage);
    return e.what();
  }
  return "no error";
}

TEST_F(FileTest, WritesAndReadsAtOffsets) {
  File file = File::create_exclusive(folder_ + "/a");
  file.preallocate(100);
  EXPECT_EQ(file.size(), 100u);
  file.pwrite_exact("hello", 5, 95);
  char back[5];
  file.pread_exact(back, 5, 95);
  EXPECT_EQ(std::string(back, 5), "hello");
  file.truncate(7);
  file.fsync();
  file.close();
  EXPECT_EQ(read_file(folder_ + "/a").size(), 7u);
}

TEST_F(FileTest, ReplacesAFileAndLeavesNoOtherFile) {
  write_file_atomic(folder_ + "/a", "one");
  write_file_atomic(folder_ + "/a", "two");
  EXPECT_EQ(read_file(folder_ + "/a"), "two");
  int num_files = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(folder_)) ++num_files;
  EXPECT_EQ(num_files, 1);
}

TEST_F(FileTest, AFailureNamesPathBytesAndReason) {
  EXPECT_EQ(storage_message_of([&] { read_file(folder_ + "/none"); }),
            "cannot open '" + folder_ + "/none': No such file or directory");
  write_file_atomic(folder_ + "/a", "12345");
  const File file = File::open_read(folder_ + "/a");
  char bytes[8];
  EXPECT_EQ(storage_message_of([&] { file.pread_exact(bytes, 8, 1); }),
            "cannot read 8 bytes at offset 1 of '" + folder_ + "/a': it ends after 5 bytes");
  EXPECT_NE(storage_message_of([&] { File::create_exclusive(folder_ + "/a"); }).find("File exists"), std::string::npos);
}

TEST_F(FileTest, DoesNotFollowALinkInsideADirectory) {
  write_file_atomic(folder_ + "/a", "secret");
  std::filesystem::create_symlink("a", folder_ + "/link");
  const File directory = File::open_directory(folder_);
  EXPECT_EQ(File::open_read_at(directory, "a").size(), 6u);
  EXPECT_NE(storage_message_of([&] { File::open_read_at(directory, "link"); }).find("symbolic link"),
            std::string::npos);
}

TEST_F(FileTest, RefusesALinkInPlaceOfAnOwnFile) {
  write_file_atomic(folder_ + "/a", "of others");
  std::filesystem::create_symlink("a", folder_ + "/link");
  EXPECT_EQ(File::open_nofollow(folder_ + "/a").size(), 9u);
  EXPECT_NE(storage_message_of([&] { File::open_nofollow(folder_ + "/link"); }).find("link"), std::string::npos);
  EXPECT_NE(storage_message_of([&] { File::open_or_create_own(folder_ + "/link"); }).find("link"), std::string::npos);
}

TEST_F(FileTest, RefusesSpecialFilesWithoutBlocking) {
  std::signal(SIGPIPE, SIG_IGN);
  const std::string fifo = folder_ + "/fifo";
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  const std::string refusal = "cannot open '" + fifo + "': it is a FIFO\nhint: give a regular file";
  EXPECT_EQ(storage_message_of([&] { read_file(fifo); }), refusal);
  EXPECT_EQ(storage_message_of([&] { File::open_write(fifo); }), refusal);
  EXPECT_EQ(storage_message_of([&] { File::open_nofollow(fifo); }), refusal);
  EXPECT_EQ(storage_message_of([&] { File::open_read_at(File::open_directory(folder_), "fifo"); }), refusal);
  EXPECT_NE(storage_message_of([] { read_file("/dev/zero"); }).find("it is a device"), std::string::npos);
  EXPECT_NE(storage_message_of([&] { read_file(folder_); }).find("it is a directory"), std::string::npos);
}

TEST_F(FileTest, RefusesAFileThatIsLargerThanExpected) {
  write_file_atomic(folder_ + "/a", "12345");
  EXPECT_EQ(read_file(folder_ + "/a", 5), "12345");
  EXPECT_EQ(storage_message_of([&] { read_file(folder_ + "/a", 4); }),
            "'" + folder_ + "/a' has 5 B; the maximum is 4 B");
}

TEST_F(FileTest, ReadsAPipeToItsEndAndTimesOutOnASilentOne) {
  using namespace std::chrono_literals;
  std::signal(SIGPIPE, SIG_IGN);
  const std::string fifo = folder_ + "/fifo";
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  EXPECT_NE(storage_message_of([&] { read_file_or_pipe(fifo, 100, 20ms); }).find("fifo' within 20 ms"),
            std::string::npos);
  const auto written = [&](const std::string& text) {
    std::thread writer([&] {
      const int descriptor = open(fifo.c_str(), O_WRONLY);
      for (const char c : text) if (write(descriptor, &c, 1) != 1) break;
      close(descriptor);
    });
    std::string got;
    const std::string message = storage_message_of([&] { got = read_file_or_pipe(fifo, 100, 60s); });
    writer.join();
    return message == "no error" ? got : message;
  };
  EXPECT_EQ(written("two\nlines"), "two\nlines");
  EXPECT_NE(written(std::string(200, 'x')).find("gives more than the maximum of 100 B"), std::string::npos);
  EXPECT_NE(storage_message_of([] { read_file_or_pipe("/dev/zero", 100, 20ms); }).find("it is a device"),
            std::string::npos);
  write_file_atomic(folder_ + "/a", "text");
  EXPECT_EQ(read_file_or_pipe(folder_ + "/a", 100, 20ms), "text");
}

TEST_F(FileTest, OnlyAPathThatDoesNotExistIsAbsent) {
  write_file_atomic(folder_ + "/a", "1");
  std::filesystem::create_symlink("a", folder_ + "/link");
  std::filesystem::create_symlink("circle", folder_ + "/circle");
  EXPECT_EQ(path_kind(folder_ + "/a"), PathKind::kFile);
  EXPECT_EQ(path_kind(folder_ + "/link"), PathKind::kFile);
  EXPECT_EQ(path_kind_nofollow(folder_ + "/link"), PathKind::kLink);
  EXPECT_EQ(path_kind(folder_), PathKind::kDirectory);
  EXPECT_EQ(path_kind("/dev/null"), PathKind::kOther);
  EXPECT_EQ(path_kind(folder_ + "/none"), PathKind::kAbsent);
  EXPECT_EQ(path_kind(folder_ + "/a/below"), PathKind::kAbsent);
  EXPECT_NE(storage_message_of([&] { path_kind(folder_ + "/circle"); }).find("cannot access"), std::string::npos);
  EXPECT_NE(storage_message_of([&] { path_kind(folder_ + "/" + std::string(300, 'x')); }).find("too long"),
            std::string::npos);
}

TEST_F(FileTest, ListsADirectoryByNameAndKind) {
  write_file_atomic(folder_ + "/b", "1");
  std::filesystem::create_symlink("b", folder_ + "/a");
  std::filesystem::create_directory(folder_ + "/c");
  const std::vector<DirectoryEntry> entries = list_directory(folder_);
  ASSERT_EQ(entries.size(), 3u);
  EXPECT_EQ(entries[0].name + entries[1].name + entries[2].name, "abc");
  EXPECT_EQ(entries[0].kind, PathKind::kLink);
  EXPECT_EQ(entries[1].kind, PathKind::kFile);
  EXPECT_EQ(entries[2].kind, PathKind::kDirectory);
  EXPECT_NE(storage_message_of([&] { list_directory(folder_ + "/b"); }).find("cannot list"), std::string::npos);
}

TEST_F(FileTest, ReplacesOnlyRegularFilesAndKeepsTheirPermissions) {
  write_file_atomic(folder_ + "/a", "one", 0600);
  write_file_atomic(folder_ + "/a", "two");
  EXPECT_EQ(std::filesystem::status(folder_ + "/a").permissions(), std::filesystem::perms(0600));
  std::filesystem::create_symlink("a", folder_ + "/link");
  EXPECT_NE(storage_message_of([&] { write_file_atomic(folder_ + "/link", "x"); }).find("it is a symbolic link"),
            std::string::npos);
  EXPECT_NE(storage_message_of([] { write_file_atomic("/dev/full", "x"); }).find("it is a device"), std::string::npos);
  EXPECT_EQ(read_file(folder_ + "/a"), "two");
}

TEST_F(FileTest, AFullDiskIsAStorageErrorAndTheOldFileStays) {
  write_file_atomic(folder_ + "/a", "old");
  rlimit before{};
  getrlimit(RLIMIT_FSIZE, &before);
  rlimit small = before;
  small.rlim_cur = 1000;
  std::signal(SIGXFSZ, SIG_IGN);
  setrlimit(RLIMIT_FSIZE, &small);
  const std::string message = storage_message_of([&] { write_file_atomic(folder_ + "/a", std::string(5000, 'x')); });
  setrlimit(RLIMIT_FSIZE, &before);
  EXPECT_NE(message.find("File too large"), std::string::npos) << message;
  EXPECT_EQ(read_file(folder_ + "/a"), "old");
}

TEST_F(FileTest, FreeBytesIsPositive) { EXPECT_GT(free_bytes(folder_), 0u); }

TEST_F(FileTest, CreatesNothingMoreOpenThanItsSources) {
  const mode_t umask_before = ::umask(0022);
  const auto mode = [&](const std::string& name) {
    return static_cast<unsigned>(std::filesystem::status(folder_ + "/" + name).permissions());
  };
  for (const char* name : {"open", "grouped", "closed", "old", "log"}) write_file_atomic(folder_ + "/" + name, "x");
  std::filesystem::permissions(folder_ + "/grouped", std::filesystem::perms(0640));
  std::filesystem::permissions(folder_ + "/closed", std::filesystem::perms(0600));
  EXPECT_EQ(shared_read_mode({folder_ + "/open", folder_ + "/absent"}), 0044u);
  EXPECT_EQ(shared_read_mode({folder_ + "/open", folder_ + "/grouped"}), 0040u);
  EXPECT_EQ(shared_read_mode({folder_ + "/grouped", folder_ + "/closed"}), 0u);
  {
    const CreationLimit grouped(0040);
    write_file_atomic(folder_ + "/a", "x");
    create_directories(folder_ + "/b");
    EXPECT_EQ(mode("a"), 0640u);
    EXPECT_EQ(mode("b"), 0750u);
    const CreationLimit closed(0);
    std::fclose(std::fopen((folder_ + "/c").c_str(), "w"));  // as a plugin does
    write_file_atomic(folder_ + "/old", "new");
    File::open_or_create_own(folder_ + "/log");
    apply_creation_limit(folder_ + "/open");
    const CreationLimit no_more(0044);
    create_directories(folder_ + "/d");
    for (const char* name : {"c", "old", "log", "open"}) EXPECT_EQ(mode(name), 0600u) << name;
    EXPECT_EQ(mode("d"), 0700u);
  }
  write_file_atomic(folder_ + "/e", "x");
  EXPECT_EQ(mode("e"), 0644u);
  ::umask(umask_before);
}

TEST_F(FileTest, KeepsDescriptorsForFilesOfTheHost) {
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit few = before;
  few.rlim_cur = 128;
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &few), 0);
  std::vector<int> taken;
  const auto take_all = [&] {
    for (int one = 0; (one = ::dup(0)) >= 0;) taken.push_back(one);
  };
  {
    const DescriptorReserve reserve(6);
    take_all();
    for (int round = 0; round < 3; ++round) {
      std::vector<File> files;
      for (int i = 0; i < 5; ++i)
        files.push_back(File::create_exclusive(folder_ + "/" + std::to_string(10 * round + i)));
      EXPECT_EQ(list_directory(folder_).size(), files.size() * static_cast<size_t>(round + 1));
      files.push_back(File::open_directory(folder_));
      EXPECT_THROW(File::open_directory(folder_), Error);
      files.clear();
      take_all();  // gets none of the reserved descriptors
    }
  }
  for (const int one : taken) ::close(one);
  EXPECT_LT(taken.size(), 128u - 6u);
  ::setrlimit(RLIMIT_NOFILE, &before);
}

}  // namespace
}  // namespace chassis

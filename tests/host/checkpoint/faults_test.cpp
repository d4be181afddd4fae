// Errors of the system: no space, file size limits, directories that cannot be written. The previous checkpoint stays
// intact, no incomplete files remain, and the message names path and bytes.
#include <sched.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <csignal>
#include <cstdio>
#include <functional>

#include "fixture.hpp"
#include "host/checkpoint/checkpoint_root.hpp"
#include "host/checkpoint/disk_space.hpp"
#include "host/checkpoint/inspect.hpp"
#include "host/checkpoint/stream_writer.hpp"

namespace chassis {
namespace {

using namespace testing;

Model model_of(int64_t kib) {
  Model model;
  model.add("a", Dtype::f32, {kib * 128}).add("b", Dtype::f32, {kib * 128});
  return model;
}

std::string save_error(const Model& model, const std::string& parent, int64_t step, ExitCode* code = nullptr) {
  const BucketPair buckets(1 << 16);
  try {
    CheckpointWriter(native(), buckets)
        .save(plan_save(model.save_tensors(), {}, native()),
              request_for(model, parent, step_directory_name(step), step));
  } catch (const Error& error) {
    if (code != nullptr) *code = error.code();
    return error.what();
  }
  return "no error";
}

std::vector<std::string> hidden(const std::string& path) {
  std::vector<std::string> out;
  for (const auto& entry : fs::directory_iterator(path)) {
    if (entry.path().filename().string()[0] == '.') out.push_back(entry.path().filename().string());
  }
  return out;
}

// Runs `body` in a child process, since limits and mounts would persist. Prints its failures; true if there were none.
bool passes_in_child(const std::function<void()>& body) {
  std::fflush(nullptr);
  const pid_t child = ::fork();
  if (child == 0) {
    body();
    std::fflush(nullptr);
    ::_exit(::testing::Test::HasFailure() ? 1 : 0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

TEST(Save, SurvivesAFileSizeLimit) {
  const TemporaryDirectory dir;
  EXPECT_TRUE(passes_in_child([&] {
    std::signal(SIGXFSZ, SIG_IGN);
    ASSERT_EQ(save_error(model_of(64), dir.path(), 1), "no error");
    const rlimit limit = {1 << 20, 1 << 20};
    ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &limit), 0);
    ExitCode code{};
    const std::string text = save_error(model_of(2048), dir.path(), 2, &code);
    EXPECT_EQ(code, ExitCode::kStorage);
    EXPECT_NE(text.find("step-000002' was not saved; earlier checkpoints are unchanged"), std::string::npos) << text;
    EXPECT_NE(text.find("File too large"), std::string::npos) << text;
    EXPECT_TRUE(hidden(dir.path()).empty());
    EXPECT_FALSE(fs::exists(dir / "step-000002"));
    EXPECT_TRUE(verify_checkpoint(dir / "step-000001", BucketPair(4096)).ok());
    EXPECT_EQ(save_error(model_of(64), dir.path(), 3), "no error");
  }));
}

// Mounts a small tmpfs over the directory, for this process only.
bool mount_small_disk(const std::string& path) {
  if (::unshare(CLONE_NEWNS) != 0 && ::unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) return false;
  ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr);
  return ::mount("none", path.c_str(), "tmpfs", 0, "size=4m") == 0;
}

TEST(Save, SurvivesAFullDisk) {
  const TemporaryDirectory dir;
  if (!passes_in_child([&] { ::_exit(mount_small_disk(dir.path()) ? 0 : 1); }))
    GTEST_SKIP() << "no right to mount a tmpfs";
  EXPECT_TRUE(passes_in_child([&] {
    ASSERT_TRUE(mount_small_disk(dir.path()));
    ASSERT_EQ(save_error(model_of(512), dir.path(), 1), "no error");
    ExitCode code{};
    std::string text = save_error(model_of(8192), dir.path(), 2, &code);
    EXPECT_EQ(code, ExitCode::kStorage);
    EXPECT_NE(text.find("free, a checkpoint takes"), std::string::npos) << text;
    EXPECT_TRUE(hidden(dir.path()).empty());

    // The disk fills up between check_space() and streaming.
    const Model model = model_of(1024);
    const BucketPair buckets(1 << 16);
    SaveRequest request = request_for(model, dir.path(), "step-000003", 3);
    request.on_stage = [&](const char* stage) {
      if (std::string(stage) == "staged") write_text(dir / "filler", std::string(std::size_t{3} << 20, 'x'));
    };
    text = error_of(
        [&] { CheckpointWriter(native(), buckets).save(plan_save(model.save_tensors(), {}, native()), request); });
    EXPECT_NE(text.find("No space left on device"), std::string::npos) << text;
    EXPECT_TRUE(hidden(dir.path()).empty());
    EXPECT_FALSE(fs::exists(dir / "step-000003"));

    // It fills up while small files are written, which are not allocated in advance.
    fs::remove(dir / "filler");
    write_text(dir / "filler", std::string((std::size_t{5} << 19), 'x'));
    const Model small = model_of(16);
    SaveRequest carrying = request_for(small, dir.path(), "step-000004", 4);
    carrying.text_files = {{"big.txt", std::string(std::size_t{1} << 20, 'x')}};
    text = error_of(
        [&] { CheckpointWriter(native(), buckets).save(plan_save(small.save_tensors(), {}, native()), carrying); });
    EXPECT_NE(text, "no error");
    EXPECT_TRUE(hidden(dir.path()).empty());
    EXPECT_TRUE(verify_checkpoint(dir / "step-000001", buckets).ok());
    fs::remove(dir / "filler");
    EXPECT_EQ(save_error(model_of(512), dir.path(), 5), "no error");
  }));
}

TEST(Save, RefusesADirectoryThatCannotBeCreated) {
  const TemporaryDirectory dir;
  write_text(dir / "file", "x");
  const std::string text = save_error(model_of(1), dir / "file/checkpoints", 1);
  EXPECT_NE(text.find("file/checkpoints"), std::string::npos) << text;
  EXPECT_NE(error_of([&] { CheckpointRoot(dir / "file/checkpoints"); }).find("file/checkpoints"), std::string::npos);
}

TEST(Save, RefusesADirectoryThatIsNotWritable) {
  const TemporaryDirectory dir;
  EXPECT_TRUE(passes_in_child([&] {
    fs::create_directories(dir / "ro");
    ::chmod((dir / "ro").c_str(), 0555);
    ::chmod(dir.path().c_str(), 0755);
    if (::getuid() == 0 && ::setuid(65534) != 0) return;
    ExitCode code{};
    const std::string text = save_error(model_of(1), dir / "ro", 1, &code);
    EXPECT_EQ(code, ExitCode::kStorage);
    EXPECT_NE(text.find("Permission denied"), std::string::npos) << text;
    EXPECT_NE(error_of([&] { CheckpointRoot(dir / "ro"); }).find("Permission denied"), std::string::npos);
  }));
}

TEST(Save, RefusesASaveLargerThanTheFreeSpace) {
  const TemporaryDirectory dir;
  const BucketPair buckets(4096);
  SaveTensor huge = SaveTensor::plain(Descriptor::plain("huge", Dtype::f32, {int64_t{1} << 50}));
  const SavePlan plan = plan_save({huge}, {}, native());
  const std::string text = error_of([&] { check_space(plan.file_bytes, dir.path()); });
  EXPECT_NE(text.find("free, a checkpoint takes 4 PiB"), std::string::npos) << text;
  EXPECT_NE(text.find("needed_bytes: 4503599628419"), std::string::npos) << text;
}

TEST(Save, ReportsAFailureToReadATensor) {
  const TemporaryDirectory dir;
  const Model model = model_of(1);
  const BucketPair buckets(4096);
  SaveRequest request = request_for(model, dir.path(), "x");
  request.tensors = [&](const Descriptor& d, int rank) {
    if (d.fqn == "b") throw internal_error("the device is gone");
    return model.local(d, {}, rank);
  };
  const std::string text = error_of(
      [&] { CheckpointWriter(native(), buckets).save(plan_save(model.save_tensors(), {}, native()), request); });
  EXPECT_NE(text.find("the device is gone"), std::string::npos) << text;
  EXPECT_TRUE(fs::is_empty(dir.path()));
}

TEST(StreamWriter, RethrowsErrorsOfTheWriterThread) {
  const BucketPair buckets(4096);
  const TemporaryDirectory dir;
  write_text(dir / "f", "x");
  File file = File::open_read(dir / "f");  // not open for writing: every write fails
  StreamWriter writer(buckets);
  const std::string text = error_of([&] {
    for (uint64_t at = 0; at < 100'000;) at += writer.reserve(file, at, 100'000 - at).size();
    writer.flush();
  });
  EXPECT_NE(text.find("Bad file descriptor"), std::string::npos) << text;
}

TEST(StreamWriter, SplitsAtWholeElements) {
  const BucketPair buckets(4096);
  const TemporaryDirectory dir;
  File file = File::create_exclusive(dir / "f");
  StreamWriter writer(buckets);
  EXPECT_EQ(writer.reserve(file, 0, 3, 1).size(), 3u);
  EXPECT_EQ(writer.reserve(file, 3, 8000, 8).size(), 4088u);
  EXPECT_EQ(writer.reserve(file, 4091, 8, 8).size(), 8u);  // 5 bytes were left
  writer.flush();
  EXPECT_EQ(file.size(), 4099u);
}

TEST(StreamWriter, WritesWholePagesDirectlyAndEveryByteInItsPlace) {
  const BucketPair buckets(1 << 18);
  const TemporaryDirectory dir;
  File file = File::create_exclusive(dir / "f");
  file.write_directly();
  std::string expected(1'000'000, '\0');
  StreamWriter writer(buckets);
  const auto put = [&](uint64_t offset, uint64_t num_bytes) {
    for (const uint64_t end = offset + num_bytes; offset < end;) {
      const auto room = writer.reserve(file, offset, end - offset);
      for (std::byte& byte : room)
        byte = static_cast<std::byte>(offset % 251), expected[offset++] = static_cast<char>(byte);
    }
  };
  put(500'001, 499'999);
  put(100, 7);
  put(200, 300'000);
  put(300'200, 199'801);
  put(0, 100);
  writer.flush();
  EXPECT_TRUE(read_file(dir / "f") == expected);
}

uint64_t resident_bytes() {
  std::ifstream file("/proc/self/statm");
  uint64_t total = 0, resident = 0;
  file >> total >> resident;
  return resident * 4096;
}

// A thousand saves do not change the number of open files and threads, nor the memory in use.
TEST(Save, LeaksNoFilesThreadsOrMemory) {
  const TemporaryDirectory dir(fs::is_directory("/dev/shm") ? "/dev/shm"
                                                            : fs::temp_directory_path());  // avoids waiting for a disk
  const auto count = [](const char* path) {
    return std::distance(fs::directory_iterator(path), fs::directory_iterator());
  };
  const Model model = model_of(1);
  CheckpointRoot root(dir.path());
  const auto save = [&](int64_t step) {
    ASSERT_EQ(save_error(model, dir.path(), step), "no error");
    root.set_latest(step_directory_name(step));
    root.prune(2);
  };
  save(1);
  const auto files = count("/proc/self/fd"), threads = count("/proc/self/task");
  for (int64_t step = 2; step <= 100; ++step) save(step);
  [[maybe_unused]] const uint64_t resident = resident_bytes();
  for (int64_t step = 101; step <= 1000; ++step) save(step);
#ifndef __SANITIZE_ADDRESS__  // it keeps freed memory
  EXPECT_LT(resident_bytes(), resident + (1 << 20));
#endif
  EXPECT_EQ(count("/proc/self/fd"), files);
  EXPECT_EQ(count("/proc/self/task"), threads);
  EXPECT_EQ(list_checkpoints(dir.path()).size(), 2u);
}

}  // namespace
}  // namespace chassis

// Every call by which a save changes files fails once, with every error that a disk can report. The save reports the
// error and names the file, earlier checkpoints stay intact, no files remain, and the next save succeeds.
#include <algorithm>
#include <cerrno>
#include <cstring>

#include "file_calls.hpp"
#include "steps.hpp"

namespace chassis {
namespace {

using namespace testing;
using Kind = FileCall::Kind;

void save_at(const std::string& path, int64_t step) {
  CheckpointRoot root(path);
  testing::save_step(root, step, 1);
}

// Fails the n-th call of a kind.
class FailOnce : public FileCallObserver {
 public:
  FailOnce(Kind kind, int index, int error) : kind_(kind), index_(index), error_(error) {}
  int before(FileCall& call) override {
    if (call.kind != kind_ || seen_++ != index_) return 0;
    failed = call;
    return error_;
  }
  void after(const FileCall& call) override { deletes |= call.to.find(".deleting-") != std::string::npos; }
  FileCall failed{Kind::kClose};  // without a path: no call has failed
  bool deletes = false;           // the older checkpoint has been unpublished

 private:
  Kind kind_;
  int index_, error_, seen_ = 0;
};

// Calls that may fail without failing the save: deleting an older checkpoint, which causes a warning and is done later;
// and creating a link, which a file can replace.
bool may_fail(const FileCall& call, bool deletes) {
  deletes |= call.path.find(".deleting-") != std::string::npos || call.to.find(".deleting-") != std::string::npos;
  return deletes || call.kind == Kind::kLink || call.kind == Kind::kClose ||
         call.path.find("/.latest.") != std::string::npos;
}

struct Counts {
  int faults = 0, refused = 0, tolerated = 0;
};

Counts fail_every_call(Kind kind, int error) {
  Counts counts;
  for (int index = 0;; ++index) {
    const TemporaryDirectory dir;
    save_at(dir.path(), 1);
    FailOnce fault(kind, index, error);
    std::string message;
    {
      const ObservedFileCalls observed(dir.path(), fault);
      message = error_of([&] { save_at(dir.path(), 2); });
    }
    if (fault.failed.path.empty()) return counts;
    ++counts.faults;
    const std::string trace = std::string(name_of(kind)) + " " + std::to_string(index) + " of " + fault.failed.path +
                              ": " + std::strerror(error) + " → " + message;
    SCOPED_TRACE(trace);
    if (message == "no error") {
      ++counts.tolerated;
      EXPECT_TRUE(may_fail(fault.failed, fault.deletes));
    } else {
      ++counts.refused;
      EXPECT_NE(message.find(std::strerror(error)), std::string::npos);
      EXPECT_NE(message.find(fs::path(fault.failed.path).filename().string()), std::string::npos);
    }
    // Step 1 is intact unless step 2 replaced it.
    const auto newest = newest_checkpoint(dir.path());
    EXPECT_TRUE(newest.has_value());
    if (!newest) continue;
    expect_whole(*newest);
    EXPECT_TRUE(newest->step == 2 || message != "no error");
    save_at(dir.path(), 3);
    const auto all = list_checkpoints(dir.path());
    EXPECT_EQ(all.back().step, 3);
    for (const CheckpointInfo& info : all) expect_whole(info);
    for (const auto& entry : fs::directory_iterator(dir.path())) {
      const std::string name = entry.path().filename().string();
      EXPECT_TRUE(name[0] != '.' || name == ".lock") << name;
    }
  }
}

class EveryCall : public ::testing::TestWithParam<Kind> {};

TEST_P(EveryCall, MayFailWithAnyError) {
  Counts sum;
  for (const int error : {ENOSPC, EIO, EROFS, EDQUOT}) {
    const Counts counts = fail_every_call(GetParam(), error);
    EXPECT_GT(counts.faults, 0);
    sum.faults += counts.faults, sum.refused += counts.refused, sum.tolerated += counts.tolerated;
  }
  std::printf("%s: %d faults, %d refused, %d without consequence\n", name_of(GetParam()), sum.faults, sum.refused,
              sum.tolerated);
}

INSTANTIATE_TEST_SUITE_P(, EveryCall,
                         ::testing::Values(Kind::kCreate, Kind::kMakeDirectory, Kind::kWrite, Kind::kResize,
                                           Kind::kSync, Kind::kRename, Kind::kUnlink, Kind::kLink, Kind::kClose),
                         [](const auto& info) { return name_of(info.param); });

// Fails the n-th call of a kind that reads files.
class FailOneReading : public FailOnce {
 public:
  using FailOnce::FailOnce;
  bool sees_reading() const override { return true; }
};

class EveryReadingCall : public ::testing::TestWithParam<Kind> {};

// A checkpoint that cannot be read may be intact: the file server failed, not the disk.
TEST_P(EveryReadingCall, ThatFailsIsNeverReportedAsDamage) {
  const TemporaryDirectory dir;
  for (const int64_t step : {1, 2}) {
    CheckpointRoot root(dir.path());
    testing::save_step(root, step, 2);
  }
  const BucketPair buckets(kStepBucketBytes);
  for (const int error : {EIO, ESTALE, EACCES}) {
    for (int index = 0;; ++index) {
      FailOneReading fault(GetParam(), index, error);
      std::string on_skipped, message = "no error";
      int64_t step = 2;
      {
        const ObservedFileCalls observed(dir.path(), fault);
        try {
          const auto use = [&](const CheckpointInfo& info) {
            CheckpointReader reader(info.path, native());
            load_all(reader, model_of_step(info.step).load_tensors(), buckets);
          };
          const auto pass = [&](const CheckpointInfo& info, const std::string& why) { on_skipped += info.name + why; };
          const auto used = use_first_intact(dir.path(), checkpoints_to_resume(dir.path()), use, pass);
          step = used ? used->step : 0;
        } catch (const Error& e) {
          message = e.what();
        }
      }
      if (fault.failed.path.empty()) {
        EXPECT_GT(index, 0);
        break;
      }
      SCOPED_TRACE(std::string(name_of(GetParam())) + " " + std::to_string(index) + " of " + fault.failed.path + ": " +
                   std::strerror(error) + " → " + message);
      EXPECT_EQ(on_skipped, "");
      EXPECT_EQ(step, 2);
      const bool is_of_the_older_one = fault.failed.path.find("step-000001") != std::string::npos;
      EXPECT_TRUE(is_of_the_older_one || message.find(std::strerror(error)) != std::string::npos);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(, EveryReadingCall,
                         ::testing::Values(Kind::kOpen, Kind::kLook, Kind::kRead, Kind::kReadLink, Kind::kList),
                         [](const auto& info) { return name_of(info.param); });

// Writes only half of the bytes, or interrupts calls with EINTR; neither is an error.
class Reluctant : public FileCallObserver {
 public:
  explicit Reluctant(bool interrupts) : interrupts_(interrupts) {}
  int before(FileCall& call) override {
    if (interrupts_) return is_retried(call.kind) && ++calls % 2 == 1 ? EINTR : 0;
    if (call.kind != Kind::kWrite || call.num_bytes < 2) return 0;
    ++calls;
    call.num_bytes /= 2;
    return 0;
  }
  int calls = 0;

 private:
  static bool is_retried(Kind kind) {
    return kind == Kind::kWrite || kind == Kind::kResize || kind == Kind::kSync || kind == Kind::kCreate;
  }
  bool interrupts_;
};

TEST(ReluctantDisk, ReceivesAllBytes) {
  for (const bool interrupts : {true, false}) {
    const TemporaryDirectory dir;
    Reluctant disk(interrupts);
    {
      const ObservedFileCalls observed(dir.path(), disk);
      save_at(dir.path(), 1);
    }
    EXPECT_GT(disk.calls, 10);
    const auto all = list_checkpoints(dir.path());
    ASSERT_EQ(all.size(), 1u);
    expect_whole(all[0]);
  }
}

}  // namespace
}  // namespace chassis

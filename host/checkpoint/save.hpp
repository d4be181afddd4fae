// One save as one rank sees it: the stages stream, sync, publish and point, and a vote of all ranks behind each, so
// that all go on or none does. A rank's own part of a stage can run on a thread of its own while training goes on;
// votes are the caller's. Rank 0 makes, commits and publishes the directory; the others write into its files.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <optional>
#include <string>
#include <vector>

#include "host/checkpoint/file_content.hpp"
#include "host/checkpoint/part_stream.hpp"
#include "host/checkpoint/staged_directory.hpp"
#include "host/checkpoint/writer.hpp"

namespace chassis {

class Save {
 public:
  enum class Where { kHere, kOnAThread };

  // [all-ranks] Agrees on the plan, makes the directory and its files with room for all bytes, and starts the stream.
  // Everything but `request` must outlive it. kHere: a stage's part runs when it is waited for.
  Save(const FormatPlugin& format, const BucketPair& buckets, const SavePlan& plan, SaveRequest request, World& world,
       Where where);
  // Waits for this rank's part; what was not published is removed.
  ~Save();

  // [step] Returns when tensors are not read any more. If reading failed, the next advance() says so, on all ranks.
  void await_tensors();
  // Whether this rank's part of the stage is over, so that advance() does not wait for it.
  bool ready() const;
  // [all-ranks] Ends the stage and starts the next one. True if it was the last: the checkpoint is published. A failure
  // on any rank is thrown on all.
  bool advance();
  // [all-ranks] All stages that are left.
  SaveResult finish();

  const std::string& name() const { return request_.name; }
  // The same on all ranks, once advance() was true.
  const SaveResult& result() const { return result_; }

 private:
  using Clock = std::chrono::steady_clock;
  struct Stage {
    const char* name;
    void (Save::*part)();             // of this rank alone
    void (Save::*agree)() = nullptr;  // [all-ranks] behind the vote
  };
  static const Stage kStages[];

  void begin();
  void start_stage();
  std::string occasion(const char* stage) const { return "save " + request_.name + ": " + stage; }
  void together(const char* stage, const std::function<void()>& part) { world_.together(occasion(stage), part); }
  std::vector<std::string> exchange(const char* what, const std::string& mine) {
    return world_.exchange(occasion(what), mine);
  }
  void at(const char* stage) const {
    if (request_.on_stage) request_.on_stage(stage);
  }
  void throw_as_failure_of_the_save(const std::function<void()>& part);

  void prepare();
  void open(size_t file);
  void stream();
  void gather_checksums();
  std::vector<FileContent> contents_of_files() const;
  void sync();
  void publish();
  void point();
  void share_result();

  const FormatPlugin& format_;
  const BucketPair& buckets_;
  const SavePlan& plan_;
  const SaveRequest request_;
  World& world_;
  const std::launch launch_;
  const PartOwner owner_;
  const bool is_first_;
  const Clock::time_point start_ = Clock::now();

  std::optional<StagedDirectory> staged_;  // of rank 0; goes with this object unless it was published
  std::string directory_;
  std::vector<bool> has_parts_;  // by file
  std::vector<File> files_;      // open where this rank writes
  std::vector<PartRemainders> remainders_;
  std::vector<PartRemainders> crc_;  // by box
  CheckpointManifest manifest_;
  SaveResult result_;
  bool is_published_ = false;  // on all ranks
  size_t stage_ = 0;
  std::atomic<bool> gives_up_ = false;
  std::future<void> part_;  // of the stage; last, since it uses all of the above
};

}  // namespace chassis

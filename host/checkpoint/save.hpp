// One save on one rank, in the stages stream, sync, publish and latest. All ranks vote after each stage, so that either
// all continue or none does. A rank's work in a stage can run on its own thread during training; the caller's thread
// votes. Rank 0 creates and publishes the directory. Each rank creates its own files in it or, if the format stores
// boxes of several ranks in one file, writes into files that rank 0 created.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <optional>
#include <string>
#include <vector>

#include "host/checkpoint/bucket.hpp"
#include "host/checkpoint/checkpoint_manifest.hpp"
#include "host/checkpoint/file_content.hpp"
#include "host/checkpoint/part_stream.hpp"
#include "host/checkpoint/save_plan.hpp"
#include "host/checkpoint/save_request.hpp"
#include "host/checkpoint/staged_directory.hpp"
#include "host/launch/world.hpp"

namespace chassis {

class Save {
 public:
  enum class Where { kHere, kOnAThread };

  // [all-ranks] Agrees on the plan, creates the directory, allocates its files at full size, and starts the stream.
  // Everything but `request` must outlive this. With kHere, the work of a stage runs when the caller waits for it.
  Save(const FormatPlugin& format, const BucketPair& buckets, const SavePlan& plan, SaveRequest request, World& world,
       Where where);
  // Waits for this rank's work, and removes the directory unless it was published.
  ~Save();

  // [step] Returns when tensors are no longer being read. If reading failed, the next advance() throws on all ranks.
  void await_tensors();
  // Whether this rank's work in the stage is done, so that advance() does not wait for it.
  bool ready() const;
  // [all-ranks] Ends the stage and starts the next one. Returns true after the last: the checkpoint is saved. Throws on
  // all ranks if one failed.
  bool advance();
  // [all-ranks] Runs the remaining stages.
  SaveResult finish();

  const std::string& name() const { return request_.name; }
  // Valid after advance() returned true; the same on all ranks, except for stall_seconds.
  const SaveResult& result() const { return result_; }

 private:
  using Clock = std::chrono::steady_clock;
  struct Stage {
    const char* name;
    void (Save::*run)();              // the work of this rank alone
    void (Save::*agree)() = nullptr;  // [all-ranks] after the vote
  };
  static const Stage kStages[];
  struct WrittenBox;
  struct WrittenPart;

  void start_stage();
  std::string occasion(const char* stage) const { return "save " + request_.name + ": " + stage; }
  void run_and_agree(const char* stage, const std::function<void()>& part) {
    world_.run_and_agree(occasion(stage), part);
  }
  std::vector<std::string> exchange(const char* what, const std::string& mine) {
    return world_.exchange(occasion(what), mine);
  }
  void report_stage(const char* stage) const {
    if (request_.on_stage) request_.on_stage(stage);
  }
  // Rethrows errors as a failure of this save.
  void wrap_errors(const std::function<void()>& part);

  void prepare(uint64_t file_bytes);
  void create_files();
  void open(size_t file);
  void stream();
  void gather_checksums();
  std::vector<FileContent> contents_of_files() const;
  void sync();
  void gather_own_files();
  void write_manifest();
  void publish();
  void update_latest();
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

  std::optional<StagedDirectory> staged_;  // on rank 0; removed with this object unless it was published
  std::string directory_;
  std::vector<bool> has_parts_;  // by file
  std::vector<File> files_;      // those that this rank writes are open
  std::vector<PartRemainders> remainders_;
  std::vector<PartRemainders> crc_;               // by box of the plan
  CheckpointManifest manifest_;                   // without its boxes
  std::vector<std::vector<WrittenBox>> written_;  // on rank 0: each rank's boxes in its own files
  SaveResult result_;
  bool is_published_ = false;  // on all ranks
  size_t stage_ = 0;
  std::atomic<bool> cancelled_ = false;
  std::future<void> stage_work_;  // the last member, since it uses all others
};

}  // namespace chassis

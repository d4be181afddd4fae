// The stages of a save, and the errors and checksums that ranks exchange between them.
#include "host/checkpoint/save.hpp"

#include <fmt/core.h>

#include <cstring>
#include <ctime>
#include <set>
#include <string_view>
#include <utility>

#include "host/base/log.hpp"
#include "host/base/thread.hpp"
#include "host/base/units.hpp"
#include "host/checkpoint/checksum.hpp"
#include "host/checkpoint/disk_space.hpp"
#include "host/checkpoint/gather.hpp"
#include "host/checkpoint/plan_agreement.hpp"
#include "host/launch/rank_failure.hpp"
#include "host/service/device.hpp"

namespace chassis {
namespace {

using Clock = std::chrono::steady_clock;
double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

// Adds the time until its destruction to `seconds`.
class StallTimer {
 public:
  explicit StallTimer(double& seconds) : seconds_(seconds) {}
  ~StallTimer() { seconds_ += seconds_since(start_); }

 private:
  double& seconds_;
  const Clock::time_point start_ = Clock::now();
};

std::string utc_now() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  ::gmtime_r(&now, &parts);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text;
}

CheckpointManifest::FileEntry write_text(const StagedDirectory& staged, const std::string& path,
                                         const std::string& bytes, unsigned mode) {
  File file = StagedDirectory::create(staged.path(), path, mode);
  file.pwrite_exact(bytes.data(), bytes.size(), 0);
  file.fsync();
  file.close();
  return {path, bytes.size(), crc32c(0, bytes.data(), bytes.size())};
}

CheckpointManifest::FileEntry copy_file(const StagedDirectory& staged, const BucketPair& buckets,
                                        const CopiedFile& carried, unsigned mode) {
  const File& source = *carried.file;
  File file = StagedDirectory::create(staged.path(), carried.name, source.mode() & mode);
  const std::span<std::byte> bucket = buckets.bucket(0);
  uint64_t at = 0;
  uint32_t crc = 0;
  while (const size_t got = source.pread_some(bucket.data(), bucket.size(), at)) {
    file.pwrite_exact(bucket.data(), got, at);
    crc = crc32c(crc, bucket.data(), got);
    at += got;
  }
  file.fsync();
  file.close();
  return {carried.name, at, crc};
}

void check_request(const SavePlan& plan, const SaveRequest& request) {
  CHASSIS_CHECK(static_cast<bool>(request.tensors) != static_cast<bool>(request.source),
                "a save needs tensors or a source");
  if (!is_plain_path(request.name) || request.name.find('/') != std::string::npos) {
    throw storage_error("'" + request.name + "' is not a valid name for a checkpoint");
  }
  std::set<std::string> paths = {kManifestName};
  const auto claim = [&](const std::string& path) {
    if (!is_plain_path(path)) throw storage_error("'" + path + "' is not a valid path for a file of a checkpoint");
    if (!paths.insert(path).second) throw storage_error("the checkpoint would have two files '" + path + "'");
  };
  for (const auto& file : plan.layout.files) claim(file.path);
  for (const auto& [path, text] : plan.layout.text_files) claim(path);
  for (const auto& [path, text] : request.text_files) claim(path);
  for (const CopiedFile& carried : request.carried_files) claim(carried.name);
}

ExitCode exit_code(const Error& cause) {
  const bool is_kept = cause.code() == ExitCode::kInternal || cause.code() == ExitCode::kOutOfMemory ||
                       cause.code() == ExitCode::kCommunication;
  return is_kept ? cause.code() : ExitCode::kStorage;
}

}  // namespace

// A box as its rank wrote it.
struct Save::WrittenBox {
  uint64_t offset;
  uint32_t file, crc32c;
};

// A part that a rank wrote; rank 0 receives it if the file is shared.
struct Save::WrittenPart {
  uint32_t box;
  PartRemainders remainders;
};

const Save::Stage Save::kStages[] = {{"stream", &Save::stream, &Save::gather_checksums},
                                     {"sync", &Save::sync, &Save::gather_own_files},
                                     {"publish", &Save::publish, &Save::share_result},
                                     {"latest", &Save::update_latest}};

Save::Save(const FormatPlugin& format, const BucketPair& buckets, const SavePlan& plan, SaveRequest request,
           World& world, Where where)
    : format_(format),
      buckets_(buckets),
      plan_(plan),
      request_(std::move(request)),
      world_(world),
      launch_(where == Where::kHere ? std::launch::deferred : std::launch::async),
      owner_{world.rank(), world.size() == 1},
      is_first_(world.rank() == 0) {
  CHASSIS_CHECK(world.size() == 1 || world.size() == plan.mesh.world_size(),
                std::to_string(world.size()) + " ranks save a plan for " + plan.mesh.text());
  CHASSIS_CHECK(
      plan.options.rank == kAllRanks || (plan.options.rank == world.rank() && world.size() == plan.mesh.world_size()),
      "rank " + std::to_string(world.rank()) + " saves the plan of another");
  const StallTimer stall(result_.stall_seconds);
  result_.path = request_.parent + "/" + request_.name;
  result_.resumable = request_.resumable;
  wrap_errors([this] {
    const uint64_t file_bytes = agree_on_plan(plan_, "the plan of checkpoint " + request_.name, world_);
    run_and_agree("prepare", [&] { prepare(file_bytes); });
    directory_ = exchange("directory", is_first_ ? staged_->path() : "")[0];
    if (plan_.own_files) run_and_agree("files", [this] { create_files(); });
  });
  start_stage();
}

Save::~Save() { cancelled_ = true; }

void Save::start_stage() {
  stage_work_ = run_async(launch_, "save", [this, run = kStages[stage_].run] { (this->*run)(); });
}

void Save::await_tensors() {
  const StallTimer stall(result_.stall_seconds);
  if (stage_ == 0 && stage_work_.valid()) stage_work_.wait();
}

bool Save::ready() const { return stage_work_.wait_for(std::chrono::seconds(0)) == std::future_status::ready; }

bool Save::advance() {
  const StallTimer stall(result_.stall_seconds);
  const Stage& stage = kStages[stage_];
  wrap_errors([&] {
    run_and_agree(stage.name, [this] { stage_work_.get(); });
    if (stage.agree != nullptr) (this->*stage.agree)();
  });
  if (++stage_ == std::size(kStages)) return true;
  start_stage();
  return false;
}

SaveResult Save::finish() {
  while (!advance()) {
  }
  return result_;
}

void Save::wrap_errors(const std::function<void()>& part) {
  const auto what = [this] {
    return "checkpoint '" + result_.path +
           (is_published_ ? "' was saved, but 'latest' may not name it"
                          : "' was not saved; earlier checkpoints are unchanged");
  };
  try {
    part();
  } catch (const RemoteError& cause) {
    RemoteError error(exit_code(cause), what());
    error.caused_by(cause);  // its text includes its hint
    throw error;
  } catch (const Error& cause) {
    throw Error(exit_code(cause), what()).caused_by(cause);
  }
}

void Save::prepare(uint64_t file_bytes) {
  check_request(plan_, request_);
  has_parts_ = files_with_parts(plan_, owner_);
  files_.resize(plan_.layout.files.size());
  if (!is_first_) return;
  check_space(file_bytes, request_.parent);
  check_replaceable(result_.path, is_run_checkpoint(request_.resumable, request_.about));
  staged_.emplace(request_.parent, request_.name);
  directory_ = staged_->path();
  report_stage("staged");
  if (!plan_.own_files) create_files();
}

void Save::create_files() {
  for (size_t i = 0; i < files_.size(); ++i) {
    const auto& planned = plan_.layout.files[i];
    File file = StagedDirectory::create(directory_, planned.path, request_.mode);
    file.preallocate(planned.num_bytes);  // fails here, before a tensor is read, if the disk is full
    file.pwrite_exact(planned.header.data(), planned.header.size(), 0);
    if (has_parts_[i]) files_[i] = std::move(file);
  }
  report_stage("allocated");
}

void Save::open(size_t file) {
  if (!files_[file].is_open()) files_[file] = StagedDirectory::open(directory_, plan_.layout.files[file].path);
}

void Save::stream() {
  for (size_t i = 0; i < files_.size(); ++i) {
    if (!has_parts_[i]) continue;
    open(i);
    files_[i].write_directly();
  }
  const PartSource source = request_.source ? request_.source : from_tensors(request_.tensors);
  uint64_t done_bytes = 0, total_bytes = 0;
  for (const SavePart& part : plan_.parts)
    if (owner_.writes(part))
      total_bytes += static_cast<uint64_t>(numel(part.region) * size_bytes(plan_.boxes[part.box].dtype));
  remainders_ = stream_parts(plan_, owner_, files_, buckets_, [&](const SavePart& part, const ReserveBytes& room) {
    if (cancelled_) throw storage_error("the save was cancelled");
    if (!request_.progress) return source(plan_, part, room);
    source(plan_, part, [&](uint64_t at, uint64_t num_bytes) {
      const std::span<std::byte> given = room(at, num_bytes);
      request_.progress(done_bytes += given.size(), total_bytes);
      return given;
    });
  });
  report_stage("streamed");
}

// Combines the remainders of the parts of every box. For files that ranks share, only rank 0 needs the result, for
// trailers and the manifest.
void Save::gather_checksums() {
  std::vector<WrittenPart> mine;
  for (const SavePart& part : plan_.parts)
    if (owner_.writes(part)) mine.push_back({part.box, remainders_[mine.size()]});
  std::vector<std::string> all = {{reinterpret_cast<const char*>(mine.data()), mine.size() * sizeof(WrittenPart)}};
  if (!plan_.own_files) all = gather_on_first(world_, occasion("checksums"), all[0]);
  if (all.empty()) return;
  crc_.assign(plan_.boxes.size(), {});
  for (const std::string& of_rank : all) {
    CHASSIS_CHECK(of_rank.size() % sizeof(WrittenPart) == 0, "a rank sent a part of a checksum");
    for (size_t at = 0; at < of_rank.size(); at += sizeof(WrittenPart)) {
      WrittenPart part;
      std::memcpy(&part, of_rank.data() + at, sizeof part);
      CHASSIS_CHECK(part.box < crc_.size(), "a rank sent the checksum of another plan's box");
      crc_[part.box].crc32c ^= part.remainders.crc32c;
      crc_[part.box].of_format ^= part.remainders.of_format;
    }
  }
  for (size_t i = 0; i < crc_.size(); ++i) {
    const uint64_t num_bytes = plan_.boxes[i].num_bytes();
    crc_[i] = {box_checksum(crc_[i].crc32c, num_bytes), box_checksum(crc_[i].of_format, num_bytes, plan_.checksum)};
    if (plan_.checksum == Crc::k32c) crc_[i].of_format = crc_[i].crc32c;
  }
}

std::vector<FileContent> Save::contents_of_files() const {
  std::vector<FileContent> contents;
  for (const auto& file : plan_.layout.files)
    contents.emplace_back(file.path, file.num_bytes, file.header, plan_.checksum);
  for (const uint32_t i : plan_.order) {
    const DiskPlace& place = plan_.layout.places[i];
    contents[place.file].add_tensor(place.offset, plan_.boxes[i].num_bytes(), crc_[i].crc32c, crc_[i].of_format);
  }
  return contents;
}

// The rank that writes a file's header and trailer finishes the file: rank 0 for shared files, otherwise the rank whose
// file it is. The other ranks sync the files that they wrote.
void Save::sync() {
  const auto start = Clock::now();
  const bool finishes = is_first_ || plan_.own_files;
  std::vector<FileContent> contents;
  if (finishes) contents = contents_of_files();
  for (size_t i = 0; i < files_.size(); ++i) {
    if (!finishes && !has_parts_[i]) continue;
    open(i);
    if (finishes) {
      format_.finish(plan_.boxes, plan_.options.metadata, plan_.mesh.world_size(), plan_.options.max_file_bytes,
                     static_cast<uint32_t>(i), contents[i]);
      for (const auto& [offset, bytes] : contents[i].fills())
        files_[i].pwrite_exact(bytes.data(), bytes.size(), offset);
      manifest_.files.push_back({plan_.layout.files[i].path, plan_.layout.files[i].num_bytes, contents[i].crc32c()});
    }
    files_[i].fsync();
    files_[i].close();
  }
  result_.sync_seconds = seconds_since(start);
}

// Sends rank 0 the manifest's entries for each rank's files. Box entries come in the order of that rank's plan; rank 0
// computes their other fields from the tensors.
void Save::gather_own_files() {
  if (!plan_.own_files) return;
  Json files = Json::array();
  for (const auto& [path, num_bytes, crc] : manifest_.files) files.push_back({path, num_bytes, crc});
  std::vector<WrittenBox> boxes;
  for (size_t i = 0; i < plan_.boxes.size(); ++i) {
    const auto& [file, offset] = plan_.layout.places[i];
    boxes.push_back({offset, file, crc_[i].crc32c});
  }
  const std::vector<std::string> all = gather_on_first(
      world_, occasion("files"),
      pack({files.dump(), {reinterpret_cast<const char*>(boxes.data()), boxes.size() * sizeof(WrittenBox)}}));
  if (!is_first_) return;
  manifest_.files.clear();
  for (const std::string& of_rank : all) {
    const std::vector<std::string> parts = unpack(of_rank, 2);
    CHASSIS_CHECK(parts[1].size() % sizeof(WrittenBox) == 0, "a rank sent a part of a box");
    std::vector<WrittenBox>& of = written_.emplace_back(parts[1].size() / sizeof(WrittenBox));
    if (!of.empty()) std::memcpy(of.data(), parts[1].data(), parts[1].size());
    for (WrittenBox& box : of) box.file += static_cast<uint32_t>(manifest_.files.size());
    for (const Json& file : Json::parse(parts[0]))
      manifest_.files.push_back({file[0].get<std::string>(), file[1].get<uint64_t>(), file[2].get<uint32_t>()});
  }
}

// Writes box by box, since there may be as many boxes as tensors times ranks.
void Save::write_manifest() {
  constexpr size_t kPieceBytes = size_t{1} << 20;
  File file = StagedDirectory::create(directory_, kManifestName, request_.mode);
  std::string pending;
  uint64_t at = 0;
  const auto flush = [&] {
    file.pwrite_exact(pending.data(), pending.size(), at);
    at += pending.size();
    pending.clear();
  };
  ManifestText text(manifest_, [&](std::string_view piece) {
    pending += piece;
    if (pending.size() >= kPieceBytes) flush();
  });
  uint32_t num_boxes = 0;
  std::vector<size_t> num_of_rank(written_.size());
  plan_.for_each_box([&](const DiskBox& box) {
    if (!plan_.own_files) {
      text.add({box, plan_.layout.places[num_boxes], crc_[num_boxes].crc32c});
      ++num_boxes;
      return;
    }
    const auto rank = static_cast<size_t>(box.rank);
    CHASSIS_CHECK(num_of_rank[rank] < written_[rank].size(), "rank " + std::to_string(rank) + " wrote too few boxes");
    const WrittenBox& written = written_[rank][num_of_rank[rank]++];
    text.add({box, {written.file, written.offset}, written.crc32c});
  });
  const std::string checksum = text.finish();
  flush();
  file.pwrite_exact(checksum.data(), checksum.size(), ManifestText::checksum_at());
  file.fsync();
  file.close();
}

void Save::publish() {
  if (!is_first_) return;
  manifest_.step = request_.step;
  manifest_.format = plan_.format;
  manifest_.created = utc_now();
  manifest_.mesh = plan_.mesh;
  manifest_.resumable = request_.resumable;
  manifest_.about = request_.about;
  manifest_.state = request_.state;
  for (const auto* texts : {&plan_.layout.text_files, &request_.text_files})
    for (const auto& [path, text] : *texts) manifest_.files.push_back(write_text(*staged_, path, text, request_.mode));
  for (const CopiedFile& carried : request_.carried_files)
    manifest_.files.push_back(copy_file(*staged_, buckets_, carried, request_.mode));
  report_stage("written");

  write_manifest();
  report_stage("manifest");
  staged_->publish(is_run_checkpoint(request_.resumable, request_.about), [this](const char* stage) {
    report_stage(stage);
    // The last chance to stop: nothing is published after another rank has failed.
    if (std::string_view(stage) == "unmarked") world_.throw_if_another_failed();
  });
}

// All ranks take the numbers of rank 0.
void Save::share_result() {
  is_published_ = true;
  const Json mine = {
      {"bytes", manifest_.num_bytes()}, {"seconds", seconds_since(start_)}, {"sync", result_.sync_seconds}};
  const Json first = Json::parse(exchange("result", mine.dump())[0]);
  result_.num_bytes = first["bytes"].get<uint64_t>();
  result_.seconds = first["seconds"].get<double>();
  result_.sync_seconds = first["sync"].get<double>();
}

void Save::update_latest() {
  if (is_first_ && request_.on_published) request_.on_published();
}

std::string SaveResult::line() const {
  return fmt::format("{} saved: {} in {:.2f} s ({:.2f} GB/s), stall {:.2f} s, process peak {}, {}",
                     path.substr(path.rfind('/') + 1), bytes_text(num_bytes), seconds,
                     static_cast<double>(num_bytes) / seconds / 1e9, stall_seconds, bytes_text(peak_resident_bytes()),
                     resumable ? "resumable" : "weights only, not resumable");
}

Json SaveResult::json() const {
  return {{"path", path},
          {"bytes", num_bytes},
          {"seconds", seconds},
          {"sync_seconds", sync_seconds},
          {"stall_seconds", stall_seconds},
          {"peak_resident_bytes", peak_resident_bytes()},
          {"resumable", resumable}};
}

}  // namespace chassis

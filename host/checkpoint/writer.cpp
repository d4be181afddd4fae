// The stages of a save, in order: agree, prepare, stream, sync, publish. Ranks vote behind each, so that all go on or
// none does.
#include "host/checkpoint/writer.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <optional>
#include <set>

#include "host/base/log.hpp"
#include "host/base/units.hpp"
#include "host/checkpoint/checksum.hpp"
#include "host/checkpoint/part_stream.hpp"
#include "host/checkpoint/staged_directory.hpp"

namespace chassis {
namespace {

using Clock = std::chrono::steady_clock;
double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

// Beside the tensors: manifest, text files, directories.
constexpr uint64_t kReserveBytes = uint64_t{1} << 20;

std::string utc_now() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  ::gmtime_r(&now, &parts);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text;
}

CheckpointManifest::FileEntry write_text(StagedDirectory& staged, const std::string& path, const std::string& bytes) {
  File file = staged.create(path);
  file.pwrite_exact(bytes.data(), bytes.size(), 0);
  file.fsync();
  file.close();
  return {path, bytes.size(), crc32c(0, bytes.data(), bytes.size())};
}

CheckpointManifest::FileEntry copy_file(StagedDirectory& staged, const BucketPair& buckets, const std::string& from,
                                        const std::string& path) {
  const File source = File::open_read(from);
  File file = staged.create(path);
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
  return {path, at, crc};
}

void check_request(const SavePlan& plan, const SaveRequest& request) {
  CHASSIS_CHECK(static_cast<bool>(request.tensors), "a save needs tensors");
  if (!is_plain_path(request.name) || request.name.find('/') != std::string::npos) {
    throw storage_error("'" + request.name + "' is no name for a checkpoint");
  }
  std::set<std::string> paths = {kManifestName};
  const auto claim = [&](const std::string& path) {
    if (!is_plain_path(path)) throw storage_error("'" + path + "' is no path for a file of a checkpoint");
    if (!paths.insert(path).second) throw storage_error("the checkpoint would have two files '" + path + "'");
  };
  for (const auto& file : plan.layout.files) claim(file.path);
  for (const auto& [path, text] : plan.layout.text_files) claim(path);
  for (const auto& [path, text] : request.text_files) claim(path);
  for (const auto& [from, path] : request.carried_files) claim(path);
}

// One save as one rank sees it. Rank 0 makes, commits and publishes the directory; the others write into its files.
class Save {
 public:
  Save(const CheckpointWriter& writer, const FormatPlugin& format, const BucketPair& buckets, const SavePlan& plan,
       const SaveRequest& request, World& world)
      : writer_(writer),
        format_(format),
        buckets_(buckets),
        plan_(plan),
        request_(request),
        world_(world),
        owner_{world.rank(), world.size() == 1},
        is_first_(world.rank() == 0) {
    CHASSIS_CHECK(world.size() == 1 || world.size() == plan.mesh.world_size(),
                  std::to_string(world.size()) + " ranks save a plan for " + plan.mesh.text());
    result_.path = request.parent + "/" + request.name;
  }

  SaveResult run() {
    try {
      agree();
      together("prepare", [&] { prepare(); });
      directory_ = exchange("directory", is_first_ ? staged_->path() : "")[0];
      together("stream", [&] { stream(); });
      const std::vector<std::string> remainders = exchange("checksums", bytes_of(remainders_));
      together("sync", [&] {
        if (is_first_) collect_checksums(remainders);
        sync();
      });
      together("publish", [&] {
        if (is_first_) publish();
      });
    } catch (const RemoteError& cause) {
      RemoteError error(exit_code(cause), not_saved());
      error.caused_by(cause).hint(cause.hint_text());
      throw error;
    } catch (const Error& cause) {
      throw Error(exit_code(cause), not_saved()).caused_by(cause).hint(cause.hint_text());
    }
    share_result();
    return std::move(result_);
  }

 private:
  std::string occasion(const char* stage) const { return "save " + request_.name + ": " + stage; }
  void together(const char* stage, const std::function<void()>& part) { world_.together(occasion(stage), part); }
  std::vector<std::string> exchange(const char* what, const std::string& mine) {
    return world_.exchange(occasion(what), mine);
  }
  void at(const char* stage) const {
    if (request_.on_stage) request_.on_stage(stage);
  }
  std::string not_saved() const {
    return "checkpoint '" + result_.path + "' was not saved; what was published before is untouched";
  }
  static ExitCode exit_code(const Error& cause) {
    const bool stays = cause.code() == ExitCode::kInternal || cause.code() == ExitCode::kOutOfMemory ||
                       cause.code() == ExitCode::kCommunication;
    return stays ? cause.code() : ExitCode::kStorage;
  }

  void agree() {
    if (world_.size() == 1) return;
    world_.expect_same(occasion("plan"),
                       fmt::format("{} as {}, plan {:016x}", plan_.text(), request_.name, plan_.fingerprint()));
  }

  void prepare() {
    check_request(plan_, request_);
    has_parts_ = files_with_parts(plan_, owner_);
    files_.resize(plan_.layout.files.size());
    if (!is_first_) return;
    writer_.preflight(plan_, request_.parent);
    check_replaceable(result_.path);
    staged_.emplace(request_.parent, request_.name);
    at("staged");
    for (size_t i = 0; i < files_.size(); ++i) {
      const auto& planned = plan_.layout.files[i];
      File file = staged_->create(planned.path);
      file.preallocate(planned.num_bytes);  // no room is found out here, before a tensor is touched
      file.pwrite_exact(planned.header.data(), planned.header.size(), 0);
      if (has_parts_[i]) files_[i] = std::move(file);
    }
    at("allocated");
  }

  void stream() {
    for (size_t i = 0; i < files_.size(); ++i)
      if (has_parts_[i]) open(i);
    remainders_ = stream_parts(plan_, owner_, files_, buckets_, request_.tensors);
    at("streamed");
  }

  void open(size_t file) {
    if (!files_[file].is_open()) files_[file] = StagedDirectory::open(directory_, plan_.layout.files[file].path);
  }

  static std::string bytes_of(const std::vector<uint32_t>& numbers) {
    return {reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(uint32_t)};
  }

  // Of every box, from the remainders of its parts, which each rank lists in the plan's order.
  void collect_checksums(const std::vector<std::string>& all) {
    crc_.assign(plan_.boxes.size(), 0);
    std::vector<size_t> at(all.size());
    for (const SavePart& part : plan_.parts) {
      const size_t from = owner_.writes_all ? 0 : static_cast<size_t>(part.rank);
      CHASSIS_CHECK(at[from] + sizeof(uint32_t) <= all[from].size(), "a rank sent too few checksums");
      uint32_t remainder = 0;
      std::memcpy(&remainder, all[from].data() + at[from], sizeof remainder);
      at[from] += sizeof remainder;
      crc_[part.box] ^= remainder;
    }
    for (size_t i = 0; i < crc_.size(); ++i) crc_[i] = box_checksum(crc_[i], plan_.boxes[i].num_bytes());
  }

  // Rank 0 syncs every file, since it wrote the headers and trailers; ranks on other machines what they wrote.
  void sync() {
    const auto start = Clock::now();
    std::vector<FileChecksum> sums;
    std::vector<std::vector<uint32_t>> crc_of_file(files_.size());
    if (is_first_) {
      for (const auto& file : plan_.layout.files) sums.emplace_back(file.header);
      for (const uint32_t i : plan_.order) {
        const DiskPlace& place = plan_.layout.places[i];
        sums[place.file].add(place.offset, crc_[i], plan_.boxes[i].num_bytes());
        crc_of_file[place.file].push_back(crc_[i]);
      }
    }
    for (size_t i = 0; i < files_.size(); ++i) {
      if (!is_first_ && !has_parts_[i]) continue;
      open(i);
      if (is_first_) {
        const auto& planned = plan_.layout.files[i];
        const uint64_t end = sums[i].at();
        const std::string trailer = format_.trailer(static_cast<uint32_t>(i), crc_of_file[i], planned.num_bytes - end);
        files_[i].pwrite_exact(trailer.data(), trailer.size(), end);
        sums[i].add(end, crc32c(0, trailer.data(), trailer.size()), trailer.size());
        manifest_.files.push_back({planned.path, planned.num_bytes, sums[i].value()});
      }
      files_[i].fsync();
      files_[i].close();
    }
    result_.sync_seconds = seconds_since(start);
  }

  void publish() {
    manifest_.step = request_.step;
    manifest_.format = plan_.format;
    manifest_.created = utc_now();
    manifest_.mesh = plan_.mesh;
    manifest_.resumable = request_.resumable;
    manifest_.about = request_.about;
    manifest_.state = request_.state;
    for (uint32_t i = 0; i < plan_.boxes.size(); ++i)
      manifest_.boxes.push_back({plan_.boxes[i], plan_.layout.places[i], crc_[i]});
    for (const auto& [path, text] : plan_.layout.text_files)
      manifest_.files.push_back(write_text(*staged_, path, text));
    for (const auto& [path, text] : request_.text_files) manifest_.files.push_back(write_text(*staged_, path, text));
    for (const auto& [from, path] : request_.carried_files)
      manifest_.files.push_back(copy_file(*staged_, buckets_, from, path));
    at("written");

    write_text(*staged_, kManifestName, manifest_.dump());
    at("manifest");
    staged_->publish([this](const char* stage) { at(stage); });
  }

  // What rank 0 says of it is what all ranks say.
  void share_result() {
    result_.num_bytes = manifest_.num_bytes();
    result_.seconds = seconds_since(start_);
    const Json mine = {{"bytes", result_.num_bytes}, {"seconds", result_.seconds}, {"sync", result_.sync_seconds}};
    const Json first = Json::parse(exchange("result", mine.dump())[0]);
    result_.num_bytes = first["bytes"].get<uint64_t>();
    result_.seconds = first["seconds"].get<double>();
    result_.sync_seconds = first["sync"].get<double>();
    result_.line =
        fmt::format("{} published: {} in {:.2f} s ({:.2f} GB/s), {}", request_.name, bytes_text(result_.num_bytes),
                    result_.seconds, static_cast<double>(result_.num_bytes) / result_.seconds / 1e9,
                    request_.resumable ? "resumable" : "weights only");
  }

  const CheckpointWriter& writer_;
  const FormatPlugin& format_;
  const BucketPair& buckets_;
  const SavePlan& plan_;
  const SaveRequest& request_;
  World& world_;
  const PartOwner owner_;
  const bool is_first_;
  const Clock::time_point start_ = Clock::now();

  std::optional<StagedDirectory> staged_;  // of rank 0; goes with this object unless it was published
  std::string directory_;
  std::vector<bool> has_parts_;  // by file
  std::vector<File> files_;      // open where this rank writes
  std::vector<uint32_t> remainders_;
  std::vector<uint32_t> crc_;  // by box
  CheckpointManifest manifest_;
  SaveResult result_;
};

}  // namespace

void CheckpointWriter::preflight(const SavePlan& plan, const std::string& parent) const {
  create_directories(parent);
  const uint64_t needed = plan.file_bytes + kReserveBytes, free = free_bytes(parent);
  if (needed > free) {
    throw storage_error("'" + parent + "' has " + bytes_text(free) + " free, a checkpoint takes " + bytes_text(needed))
        .with("free_bytes", std::to_string(free))
        .with("needed_bytes", std::to_string(needed))
        .hint("free some space, choose another run.output_dir, or keep fewer checkpoints with checkpoint.keep_last");
  }
}

SaveResult CheckpointWriter::save(const SavePlan& plan, const SaveRequest& request) const {
  World alone;
  return save(plan, request, alone);
}

SaveResult CheckpointWriter::save(const SavePlan& plan, const SaveRequest& request, World& world) const {
  return Save(*this, format_, buckets_, plan, request, world).run();
}

std::vector<std::pair<std::string, std::string>> files_to_carry(const std::string& model_directory,
                                                                const std::set<std::string>& except) {
  static const std::set<std::string, std::less<>> kNames = {"config.json",
                                                            "generation_config.json",
                                                            "tokenizer.json",
                                                            "tokenizer_config.json",
                                                            "tokenizer.model",
                                                            "special_tokens_map.json",
                                                            "added_tokens.json",
                                                            "vocab.json",
                                                            "vocab.txt",
                                                            "merges.txt",
                                                            "spiece.model",
                                                            "chat_template.jinja",
                                                            "chat_template.json",
                                                            "preprocessor_config.json",
                                                            "processor_config.json"};
  std::vector<std::pair<std::string, std::string>> carried;
  const SourceDirectory directory(model_directory);
  for (const auto& file : directory.files()) {
    if (kNames.contains(file.path) && !except.contains(file.path))
      carried.emplace_back(model_directory + "/" + file.path, file.path);
  }
  return carried;
}

}  // namespace chassis

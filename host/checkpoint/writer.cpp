// The stages of a save, in order: check, stage, stream, sync, manifest, publish.
#include "host/checkpoint/writer.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <ctime>
#include <filesystem>
#include <set>

#include "host/base/hash.hpp"
#include "host/base/log.hpp"
#include "host/base/units.hpp"
#include "host/checkpoint/element_copy.hpp"
#include "host/checkpoint/staged_directory.hpp"
#include "host/checkpoint/stream_writer.hpp"
#include "host/state/intersect.hpp"

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

uint32_t crc_of_zeros(uint64_t num_bytes) {
  static constexpr std::array<char, 4096> kZeros{};
  uint32_t crc = 0;
  for (; num_bytes > 0; num_bytes -= std::min<uint64_t>(num_bytes, kZeros.size())) {
    crc = crc32c(crc, kZeros.data(), std::min<uint64_t>(num_bytes, kZeros.size()));
  }
  return crc;
}

// The local tensor as a flat range of elements, after a look whether it is what the descriptor says.
Tensor checked_flat(const Layout& layout, int rank, const LocalTensors& tensors) {
  const Descriptor& descriptor = layout.descriptor();
  const Tensor local = tensors(descriptor, rank);
  CHASSIS_CHECK(static_cast<bool>(local), "no local tensor for '" + descriptor.fqn + "'");
  const Shape found{std::span<const int64_t>(local.sizes())}, wanted = layout.local_shape(rank);
  if (found != wanted || local.dtype() != descriptor.dtype || !local.is_contiguous()) {
    throw internal_error("tensor '" + descriptor.fqn + "' is " + std::string(dtype_name(local.dtype())) + text(found) +
                         (local.is_contiguous() ? "" : ", not contiguous") + " on rank " + std::to_string(rank) +
                         "; its descriptor says " + std::string(dtype_name(descriptor.dtype)) + text(wanted));
  }
  return local.flat();
}

const Piece& piece_with(const std::vector<Piece>& pieces, const Box& box, const std::string& fqn) {
  for (const Piece& piece : pieces) {
    if (intersection(piece.box, box) == box) return piece;
  }
  throw internal_error("a box of '" + fqn + "' is in no piece of its rank");
}

// Sends every box through the buckets to its place. Returns the checksum of each.
std::vector<uint32_t> stream_boxes(const SavePlan& plan, std::vector<File>& files, const BucketPair& buckets,
                                   const LocalTensors& tensors) {
  std::vector<uint32_t> crc(plan.boxes.size(), 0);
  StreamWriter writer(buckets);
  for (const uint32_t i : plan.order) {
    const DiskBox& box = plan.boxes[i];
    if (box.box.empty()) continue;
    const Descriptor& descriptor = plan.tensors[plan.tensor_of[i]].descriptor;
    const Layout layout(descriptor, plan.mesh);
    const Tensor flat = checked_flat(layout, box.rank, tensors);
    const std::vector<Piece> pieces = layout.pieces(box.rank);
    const Shape sizes = box.box.sizes();
    const Copy copy{box.box, piece_with(pieces, box.box, descriptor.fqn).view(box.box),
                    row_major_view(sizes, Box::whole(sizes))};
    const auto element_bytes = static_cast<uint64_t>(size_bytes(box.dtype));
    const DiskPlace& place = plan.layout.places[i];
    for_each_run(copy, [&](int64_t from, int64_t to, int64_t length) {
      while (length > 0) {
        const uint64_t offset = place.offset + static_cast<uint64_t>(to) * element_bytes;
        const auto room =
            writer.reserve(files[place.file], offset, static_cast<uint64_t>(length) * element_bytes, element_bytes);
        const auto count = static_cast<int64_t>(room.size() / element_bytes);
        read_elements(flat, from, count, box.dtype, room.data());
        crc[i] = crc32c(crc[i], room.data(), room.size());
        from += count, to += count, length -= count;
      }
    });
  }
  writer.flush();
  return crc;
}

// The checksum of a whole file from those of its parts.
class FileChecksum {
 public:
  explicit FileChecksum(const std::string& header)
      : crc_(crc32c(0, header.data(), header.size())), at_(header.size()) {}
  void add(uint64_t offset, uint32_t crc, uint64_t num_bytes) {
    if (num_bytes == 0) return;
    if (offset > at_) crc_ = crc32c_combine(crc_, crc_of_zeros(offset - at_), offset - at_);
    crc_ = crc32c_combine(crc_, crc, num_bytes);
    at_ = offset + num_bytes;
  }
  uint64_t at() const { return at_; }
  uint32_t value() const { return crc_; }

 private:
  uint32_t crc_;
  uint64_t at_;
};

void write_text(StagedDirectory& staged, CheckpointManifest& manifest, const std::string& path,
                const std::string& bytes) {
  File file = staged.create(path);
  file.pwrite_exact(bytes.data(), bytes.size(), 0);
  file.fsync();
  file.close();
  manifest.files.push_back({path, bytes.size(), crc32c(0, bytes.data(), bytes.size())});
}

void copy_file(StagedDirectory& staged, CheckpointManifest& manifest, const BucketPair& buckets,
               const std::string& from, const std::string& path) {
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
  manifest.files.push_back({path, at, crc});
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
  const auto start = Clock::now();
  const auto at = [&](const char* stage) {
    if (request.on_stage) request.on_stage(stage);
  };
  SaveResult result;
  result.path = request.parent + "/" + request.name;
  try {
    check_request(plan, request);
    preflight(plan, request.parent);
    check_replaceable(result.path);
    StagedDirectory staged(request.parent, request.name);
    at("staged");

    std::vector<File> files;
    for (const auto& file : plan.layout.files) {
      files.push_back(staged.create(file.path));
      files.back().preallocate(file.num_bytes);  // no room is found out here, before a tensor is touched
    }
    at("allocated");
    for (size_t i = 0; i < files.size(); ++i)
      files[i].pwrite_exact(plan.layout.files[i].header.data(), plan.layout.files[i].header.size(), 0);
    const std::vector<uint32_t> crc = stream_boxes(plan, files, buckets_, request.tensors);
    at("streamed");

    CheckpointManifest manifest;
    manifest.step = request.step;
    manifest.format = plan.format;
    manifest.created = utc_now();
    manifest.mesh = plan.mesh;
    manifest.resumable = request.resumable;
    manifest.about = request.about;
    manifest.state = request.state;
    std::vector<FileChecksum> sums;
    std::vector<std::vector<uint32_t>> crc_of_file(files.size());
    for (const auto& file : plan.layout.files) sums.emplace_back(file.header);
    for (const uint32_t i : plan.order) {
      const DiskPlace& place = plan.layout.places[i];
      sums[place.file].add(place.offset, crc[i], plan.boxes[i].num_bytes());
      crc_of_file[place.file].push_back(crc[i]);
    }
    const auto sync_start = Clock::now();
    for (size_t i = 0; i < files.size(); ++i) {
      const uint64_t end = sums[i].at(), num_bytes = plan.layout.files[i].num_bytes;
      const std::string trailer = format_.trailer(static_cast<uint32_t>(i), crc_of_file[i], num_bytes - end);
      files[i].pwrite_exact(trailer.data(), trailer.size(), end);
      sums[i].add(end, crc32c(0, trailer.data(), trailer.size()), trailer.size());
      files[i].fsync();
      files[i].close();
      manifest.files.push_back({plan.layout.files[i].path, num_bytes, sums[i].value()});
    }
    result.sync_seconds = seconds_since(sync_start);
    for (uint32_t i = 0; i < plan.boxes.size(); ++i)
      manifest.boxes.push_back({plan.boxes[i], plan.layout.places[i], crc[i]});
    for (const auto& [path, text] : plan.layout.text_files) write_text(staged, manifest, path, text);
    for (const auto& [path, text] : request.text_files) write_text(staged, manifest, path, text);
    for (const auto& [from, path] : request.carried_files) copy_file(staged, manifest, buckets_, from, path);
    result.num_bytes = manifest.num_bytes();
    at("written");

    const std::string text = manifest.dump();
    CheckpointManifest unused;
    write_text(staged, unused, kManifestName, text);
    at("manifest");
    staged.publish(at);
  } catch (const Error& cause) {
    const bool is_ours = cause.code() == ExitCode::kInternal || cause.code() == ExitCode::kOutOfMemory;
    throw Error(is_ours ? cause.code() : ExitCode::kStorage,
                "checkpoint '" + result.path + "' was not saved; what was published before is untouched")
        .caused_by(cause)
        .hint(cause.hint_text());
  }
  result.seconds = seconds_since(start);
  result.line = fmt::format(
      "{} published: {} in {:.2f} s ({:.2f} GB/s), {}", request.name, bytes_text(result.num_bytes), result.seconds,
      static_cast<double>(result.num_bytes) / result.seconds / 1e9, request.resumable ? "resumable" : "weights only");
  return result;
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

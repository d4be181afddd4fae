#include "host/checkpoint/reader.hpp"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <map>
#include <string_view>
#include <unordered_set>

#include "host/base/hash.hpp"
#include "host/base/log.hpp"
#include "host/base/units.hpp"
#include "host/checkpoint/checksum.hpp"
#include "host/checkpoint/element_copy.hpp"
#include "host/checkpoint/gather.hpp"
#include "host/state/cover.hpp"
#include "host/state/tile.hpp"

namespace chassis {
namespace {

bool can_cast(Dtype from, Dtype to) { return from == to || (is_float(from) && is_float(to)); }

std::string shown(Dtype dtype, const Shape& shape) { return std::string(dtype_name(dtype)) + text(shape); }

std::string hex(uint32_t value) {
  char out[9];
  std::snprintf(out, sizeof out, "%08x", value);
  return out;
}

constexpr int64_t kLongRun = 4096, kShortRun = 64;  // of a tile: in a file, in memory
constexpr size_t kReadBytes = 256 << 10;    // at a time: still in the core's cache when they are checked and cast

[[noreturn]] void throw_damage(const std::string& what) {
  DamagedCheckpoint error(what);
  error.hint("resume from an older checkpoint; `chassis ckpt verify` lists all damage");
  throw error;
}

// What ranks tell each other.
template <class Plain>
std::string bytes_of(const Plain& value) {
  return {reinterpret_cast<const char*>(&value), sizeof value};
}
template <class Plain>
Plain taken(std::string_view& bytes) {
  Plain value;
  CHASSIS_CHECK(bytes.size() >= sizeof value, "what a rank says of its checksums is cut off");
  std::memcpy(&value, bytes.data(), sizeof value);
  bytes.remove_prefix(sizeof value);
  return value;
}

// One sort of misfit, with the first few spelled out.
void add_list(std::string& message, const char* what, const std::vector<std::string>& lines, size_t max_listed) {
  if (lines.empty()) return;
  message += "\n  " + std::to_string(lines.size()) + " " + what + ":";
  for (size_t i = 0; i < std::min(lines.size(), max_listed); ++i) message += "\n    " + lines[i];
  if (lines.size() > max_listed) message += "\n    … and " + std::to_string(lines.size() - max_listed) + " more";
}

}  // namespace

std::vector<DiskPart> LoadTensor::all_parts() const {
  if (!parts.empty()) return parts;
  return {DiskPart::whole(disk_name.empty() ? descriptor.fqn : disk_name, descriptor.global_shape)};
}

CheckpointReader::CheckpointReader(const std::string& path, const FormatPlugin& format)
    : directory_(std::make_unique<SourceDirectory>(path)) {
  if (directory_->find_file(kManifestName) < 0) {
    scan(format);
    return;
  }
  manifest_ = CheckpointManifest::read(*directory_);
  if (manifest_->format != format.name())
    throw storage_error("'" + path + "' is of format " + manifest_->format + ", not " + format.name());
  compare_files();
  try {
    scan(format);
  } catch (const Error& error) {
    directory_->throw_if_unreadable();
    if (error.code() != ExitCode::kStorage) throw;
    differs(error.message());
  }
  compare_boxes();
}

CheckpointReader::CheckpointReader(std::unique_ptr<SourceDirectory> directory, FormatScan scan)
    : directory_(std::move(directory)), scan_(std::move(scan)) {
  index_tensors();
  prove_boxes();
}

void CheckpointReader::scan(const FormatPlugin& format) {
  scan_ = format.scan(*directory_);
  index_tensors();
  prove_boxes();
}

CheckpointReader::~CheckpointReader() = default;

const std::string& CheckpointReader::path() const { return directory_->path(); }

const DiskTensor* CheckpointReader::find(const std::string& name) const {
  const auto it = by_name_.find(name);
  return it == by_name_.end() ? nullptr : &tensors_[it->second];
}

void CheckpointReader::index_tensors() {
  for (uint32_t i = 0; i < scan_.boxes.size(); ++i) {
    const DiskBox& box = scan_.boxes[i].box;
    const auto [it, is_new] = by_name_.emplace(box.name, tensors_.size());
    if (is_new) tensors_.push_back({box.name, box.dtype, box.global_shape, {}});
    DiskTensor& tensor = tensors_[it->second];
    if (tensor.dtype != box.dtype || tensor.global_shape != box.global_shape) {
      throw storage_error("'" + path() + "': tensor '" + box.name + "' is " + shown(tensor.dtype, tensor.global_shape) +
                          " in one file and " + shown(box.dtype, box.global_shape) + " in another");
    }
    tensor.boxes.push_back(i);
  }
}

void CheckpointReader::differs(const std::string& what) const {
  DamagedCheckpoint error("'" + path() + "' is not what its " + kManifestName + " says: " + what);
  error.hint("it is damaged, or was changed by hand; use another checkpoint");
  throw error;
}

// The checksums of a file and of its tensors leave one for what lies around these, its header above all.
void CheckpointReader::compare_files() {
  const std::vector<std::vector<CheckpointManifest::Extent>> extents = manifest_->extents();
  std::vector<bool> has_tensors(manifest_->files.size());
  for (const auto& entry : manifest_->boxes) has_tensors[entry.place.file] = true;
  std::vector<char> bytes;
  for (size_t i = 0; i < extents.size(); ++i) {
    if (!has_tensors[i]) continue;
    const auto& file = manifest_->files[i];
    const int64_t found = directory_->find_file(file.path);
    if (found < 0) differs("'" + file.path + "' is missing");
    const uint64_t num_bytes = directory_->files()[static_cast<size_t>(found)].num_bytes;
    if (num_bytes != file.num_bytes)
      differs("'" + file.path + "' has " + std::to_string(num_bytes) + " bytes, expected " +
              std::to_string(file.num_bytes));
    const File& opened = directory_->open(static_cast<size_t>(found));
    uint32_t crc = 0;
    for (const auto& extent : extents[i]) {
      if (extent.box >= 0) {
        crc = crc32c_combine(crc, manifest_->boxes[static_cast<size_t>(extent.box)].crc32c, extent.end - extent.begin);
        continue;
      }
      for (uint64_t at = extent.begin; at < extent.end; at += bytes.size()) {
        bytes.resize(std::min<uint64_t>(extent.end - at, kReadBytes));
        opened.pread_exact(bytes.data(), bytes.size(), at);
        crc = crc32c(crc, bytes.data(), bytes.size());
      }
    }
    if (crc != file.crc32c)
      differs("'" + file.path + "' is damaged in its header: its CRC32C is " + hex(crc) + ", expected " +
              hex(file.crc32c));
  }
}

void CheckpointReader::compare_boxes() {
  std::map<std::pair<std::string, std::string>, const CheckpointManifest::BoxEntry*> by_place;
  for (const auto& entry : manifest_->boxes) {
    const std::string& file = manifest_->files[entry.place.file].path;
    if (!by_place.emplace(std::pair(file, entry.box.name), &entry).second)
      differs("'" + file + "' has tensor '" + entry.box.name + "' twice");
  }
  for (const auto& found : scan_.boxes) {
    const std::string& file = directory_->files()[found.place.file].path;
    const auto it = by_place.find({file, found.box.name});
    if (it == by_place.end()) differs("'" + file + "' has the tensor '" + found.box.name + "', which is not listed");
    const auto& entry = *it->second;
    if (entry.box.dtype != found.box.dtype || entry.box.global_shape != found.box.global_shape ||
        entry.box.box != found.box.box || entry.place.offset != found.place.offset) {
      differs("tensor '" + found.box.name + "' is " + shown(found.box.dtype, found.box.global_shape) + " " +
              text(found.box.box) + " at byte " + std::to_string(found.place.offset) + " of '" + file + "', expected " +
              shown(entry.box.dtype, entry.box.global_shape) + " " + text(entry.box.box) + " at " +
              std::to_string(entry.place.offset));
    }
    manifest_crc_.push_back(entry.crc32c);
  }
  if (scan_.boxes.size() != manifest_->boxes.size()) {
    differs("it has " + std::to_string(scan_.boxes.size()) + " tensors or parts of them, expected " +
            std::to_string(manifest_->boxes.size()));
  }
}

void CheckpointReader::prove_boxes() const {
  std::map<int, int> shards;  // as found → dense
  for (const auto& found : scan_.boxes) shards.emplace(found.box.rank, 0);
  int num_shards = 0;
  for (auto& [rank, index] : shards) index = num_shards++;
  Cover cover(std::max(num_shards, 1));
  bool has_parts = false;
  for (const DiskTensor& tensor : tensors_) {
    if (tensor.boxes.size() == 1 && scan_.boxes[tensor.boxes[0]].box.box == Box::whole(tensor.global_shape)) continue;
    has_parts = true;
    const Descriptor descriptor = Descriptor::plain(tensor.name, tensor.dtype, tensor.global_shape);
    cover.expect(descriptor);
    std::map<int, std::vector<Box>> boxes;
    for (const auto& [rank, index] : shards) boxes[index];
    for (const uint32_t i : tensor.boxes) {
      if (!scan_.boxes[i].box.box.empty()) boxes[shards.at(scan_.boxes[i].box.rank)].push_back(scan_.boxes[i].box.box);
    }
    for (const auto& [rank, owned] : boxes) cover.declare(descriptor, rank, owned);
  }
  if (!has_parts) return;
  const std::vector<CoverFault> faults = cover.faults(1);
  if (!faults.empty()) throw storage_error("'" + path() + "' does not hold whole tensors: " + faults.front().message);
}

void CheckpointReader::check(std::span<const LoadTensor> tensors, const LoadOptions& options) const {
  std::vector<std::string> missing, misshaped, unexpected;
  std::unordered_set<std::string> wanted;
  const auto check_part = [&](const Descriptor& descriptor, const DiskPart& part) {
    const bool is_new = wanted.insert(part.disk_name).second;
    CHASSIS_CHECK(is_new || part.box.sizes() != part.disk_shape,
                  "two tensors are to be loaded from '" + part.disk_name + "'");
    const DiskTensor* found = find(part.disk_name);
    if (!descriptor.tie.empty() || !is_new) return;
    if (found == nullptr) {
      if (!options.optional || !options.optional(descriptor))
        missing.push_back(part.disk_name + " " + text(part.disk_shape));
    } else if (found->global_shape != part.disk_shape) {
      misshaped.push_back(part.disk_name + " is " + text(found->global_shape) + " on disk, " + text(part.disk_shape) +
                          " in the model");
    } else if (!can_cast(found->dtype, descriptor.dtype)) {
      misshaped.push_back(part.disk_name + " is " + std::string(dtype_name(found->dtype)) + " on disk, " +
                          std::string(dtype_name(descriptor.dtype)) + " in the model");
    }
  };
  for (const LoadTensor& tensor : tensors) {
    const Descriptor& descriptor = tensor.descriptor;
    CHASSIS_CHECK(descriptor.components.empty(), "'" + descriptor.fqn + "': components are loaded one by one");
    for (const DiskPart& part : tensor.all_parts()) check_part(descriptor, part);
  }
  for (const DiskTensor& tensor : tensors_) {
    if (wanted.contains(tensor.name) || (options.skip && options.skip(tensor.name))) continue;
    unexpected.push_back(tensor.name + " " + text(tensor.global_shape));
  }
  if (missing.empty() && misshaped.empty() && unexpected.empty()) return;
  std::string message = "'" + path() + "' does not fit the model:";
  add_list(message, "missing", missing, options.max_listed);
  add_list(message, "of another shape or type", misshaped, options.max_listed);
  add_list(message, "unexpected", unexpected, options.max_listed);
  throw storage_error(message);
}

// A part that is there.
struct CheckpointReader::Wanted {
  const LoadTensor* tensor;
  DiskPart part;
  const DiskTensor* from;
  bool is_first;  // of the tensor's parts

  uint64_t num_bytes() const { return static_cast<uint64_t>(numel(part.box) * size_bytes(from->dtype)); }
};

LoadResult CheckpointReader::load(std::span<const LoadTensor> tensors, const MeshShape& mesh, const BucketPair& buckets,
                                  const LocalTensors& local, const LoadOptions& options) {
  check(tensors, options);
  LoadResult result;
  std::vector<Wanted> order;
  uint64_t done_bytes = 0, total_bytes = 0;
  for (const LoadTensor& tensor : tensors) {
    std::vector<Wanted> wanted;
    for (DiskPart& part : tensor.all_parts()) {
      const DiskTensor* from = find(part.disk_name);
      wanted.push_back({&tensor, std::move(part), from, wanted.empty()});
    }
    const bool is_there =
        std::all_of(wanted.begin(), wanted.end(), [](const Wanted& part) { return part.from != nullptr; });
    if (!tensor.descriptor.tie.empty()) {
      if (is_there) {
        counted_warning("tied-copy", "'" + wanted.front().from->name + "' is stored, but tied to '" +
                                         tensor.descriptor.tie + "'; the copy is not read");
      }
      continue;
    }
    if (!is_there) {
      result.absent.push_back(tensor.descriptor.fqn);
      continue;
    }
    for (Wanted& part : wanted) {
      total_bytes += part.num_bytes();
      order.push_back(std::move(part));
    }
  }
  // As they lie in the files: the system reads ahead.
  const auto place = [&](const DiskTensor& found) {
    const DiskPlace& first = scan_.boxes[found.boxes.front()].place;
    return std::pair(first.file, first.offset);
  };
  std::stable_sort(order.begin(), order.end(),
                   [&](const Wanted& a, const Wanted& b) { return place(*a.from) < place(*b.from); });
  for (const Wanted& wanted : order) {
    load_part(wanted, mesh, buckets, local, options, result);
    done_bytes += wanted.num_bytes();
    if (options.progress) options.progress(done_bytes, total_bytes);
  }
  return result;
}

void CheckpointReader::load_part(const Wanted& wanted, const MeshShape& mesh, const BucketPair& buckets,
                                 const LocalTensors& local, const LoadOptions& options, LoadResult& result) {
  const Layout layout(wanted.tensor->descriptor, mesh);
  if (!layout.holds(options.rank)) return;
  const Tensor flat = checked_flat(layout, options.rank, local);
  std::vector<Piece> pieces = layout.pieces(options.rank);
  if (options.owned_only) std::erase_if(pieces, [](const Piece& piece) { return !piece.owned; });
  const Dtype dtype = wanted.from->dtype;
  const auto element_bytes = static_cast<uint64_t>(size_bytes(dtype));
  const std::span<std::byte> bucket = buckets.bucket(0);
  const bool has_checksums = !manifest_crc_.empty();
  for (const uint32_t i : wanted.from->boxes) {
    const FormatScan::Found& found = scan_.boxes[i];
    if (found.box.box.empty()) continue;
    const File& file = directory_->open(found.place.file);
    RunsChecksum checksum(found.box.num_bytes());
    uint64_t num_read = 0;
    const auto read = [&](int64_t at, std::span<std::byte> bytes) {
      const uint64_t offset = static_cast<uint64_t>(at) * element_bytes;
      file.pread_exact(bytes.data(), bytes.size(), found.place.offset + offset);
      if (has_checksums) checksum.add(offset, bytes);
      num_read += bytes.size();
    };
    const auto load_runs = [&](const Copy& copy) {
      for_each_run(copy, [&](int64_t at, int64_t to, int64_t length) {
        while (length > 0) {
          std::byte* const direct = direct_memory(flat, to, dtype);
          const uint64_t room = direct != nullptr ? kReadBytes : std::min(bucket.size(), kReadBytes);
          const int64_t count = std::min(length, static_cast<int64_t>(room / element_bytes));
          const std::span<std::byte> bytes(direct != nullptr ? direct : bucket.data(),
                                           static_cast<uint64_t>(count) * element_bytes);
          read(at, bytes);
          if (direct == nullptr) write_elements(flat, to, count, dtype, bytes.data());
          at += count, to += count, length -= count;
        }
      });
    };
    const auto load_tiles = [&](const Copy& copy) {
      const auto room = static_cast<int64_t>(bucket.size() / element_bytes);
      const int64_t short_run = std::min(kShortRun, std::max<int64_t>(1, room / kLongRun));
      for_each_tile(copy, &Copy::from, std::min(kLongRun, room / short_run), short_run, [&](const Copy& tile) {
        const Shape sizes = tile.box.sizes();
        for_each_run({tile.box, tile.from, {0, row_major_strides(sizes)}}, [&](int64_t at, int64_t to, int64_t length) {
          read(at, bucket.subspan(static_cast<uint64_t>(to) * element_bytes,
                                  static_cast<uint64_t>(length) * element_bytes));
        });
        write_strided(flat, sizes, tile.to, dtype, bucket.data());
      });
    };
    const Piece in_file = wanted.part.piece(found.box.box);
    if (in_file.box.empty()) continue;
    for (const Copy& copy : copies({in_file}, pieces)) {
      if (runs_agree(copy))
        load_runs(copy);
      else
        load_tiles(copy);
    }
    result.num_bytes += num_read;
    if (!has_checksums || num_read == 0) continue;
    if (num_read < found.box.num_bytes()) {
      result.parts.push_back({i, checksum.remainder(), num_read});
    } else {
      compare_checksum(i, box_checksum(checksum.remainder(), num_read));
      result.verified_bytes += num_read;
    }
  }
  if (wanted.is_first) ++result.num_tensors;
}

ReadBytes CheckpointReader::verify_parts(const LoadResult& result, World& world) const {
  const std::string occasion = "checksums of " + path();
  std::string mine = bytes_of(ReadBytes{result.num_bytes, result.verified_bytes});
  for (const PartRead& part : result.parts) mine += bytes_of(part);
  const std::vector<std::string> all = gather_on_first(world, occasion, mine);

  std::string outcome;
  if (world.rank() == 0) {
    ReadBytes total;
    const std::string damage = damage_of_parts(all, total);
    outcome = bytes_of(total) + damage;
  }
  outcome = world.exchange(occasion + ": outcome", outcome)[0];
  std::string_view text = outcome;
  const auto total = taken<ReadBytes>(text);
  if (!text.empty()) throw_damage(std::string(text));
  return total;
}

std::string CheckpointReader::damage_of_parts(const std::vector<std::string>& all, ReadBytes& total) const {
  std::map<uint32_t, PartRead> boxes;
  for (std::string_view text : all) {
    const auto read = taken<ReadBytes>(text);
    total.num_bytes += read.num_bytes;
    total.num_verified += read.num_verified;
    while (!text.empty()) {
      const auto part = taken<PartRead>(text);
      CHASSIS_CHECK(part.box < manifest_crc_.size(), "ranks have found other boxes in '" + path() + "'");
      boxes[part.box].remainder ^= part.remainder;
      boxes[part.box].num_bytes += part.num_bytes;
    }
  }
  for (const auto& [box, read] : boxes) {
    if (read.num_bytes != scan_.boxes[box].box.num_bytes()) continue;
    const std::string damage = damage_of(box, box_checksum(read.remainder, read.num_bytes));
    if (!damage.empty()) return damage;
    total.num_verified += read.num_bytes;
  }
  return "";
}

std::string ReadBytes::text() const {
  const std::string total = bytes_text(num_bytes);
  if (num_verified == num_bytes) return total + ", all of it compared with its checksums";
  if (num_verified == 0) return total + ", no checksums to compare it with";
  return total + ", " + bytes_text(num_bytes - num_verified) + " of it not compared with checksums";
}

std::string CheckpointReader::damage_of(uint32_t box, uint32_t crc) const {
  if (manifest_crc_.empty() || crc == manifest_crc_[box]) return "";
  const FormatScan::Found& found = scan_.boxes[box];
  return "tensor '" + found.box.name + "' in '" + path() + "/" + directory_->files()[found.place.file].path +
         "' is damaged: its CRC32C is " + hex(crc) + ", the manifest says " + hex(manifest_crc_[box]);
}

void CheckpointReader::compare_checksum(uint32_t box, uint32_t crc) const {
  const std::string damage = damage_of(box, crc);
  if (!damage.empty()) throw_damage(damage);
}

std::vector<std::string> compare_with_directory(const SavePlan& plan, const CheckpointReader& directory) {
  std::vector<std::string> lines;
  std::unordered_set<std::string_view> planned;
  for (const DiskBox& box : plan.boxes) {
    if (!planned.insert(box.name).second) continue;
    const DiskTensor* found = directory.find(box.name);
    const std::string ours = shown(box.dtype, box.global_shape);
    if (found == nullptr) {
      lines.push_back(box.name + " " + ours + " is not in the directory");
    } else if (found->global_shape != box.global_shape || found->dtype != box.dtype) {
      lines.push_back(box.name + " would be " + ours + ", it is " + shown(found->dtype, found->global_shape));
    }
  }
  for (const DiskTensor& tensor : directory.tensors()) {
    if (!planned.contains(tensor.name))
      lines.push_back(tensor.name + " " + shown(tensor.dtype, tensor.global_shape) + " would not be written");
  }
  return lines;
}

}  // namespace chassis

#include "host/checkpoint/reader.hpp"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <map>
#include <string_view>

#include "host/base/hash.hpp"
#include "host/base/log.hpp"
#include "host/base/units.hpp"
#include "host/checkpoint/checksum.hpp"
#include "host/checkpoint/element_copy.hpp"
#include "host/checkpoint/gather.hpp"
#include "host/state/cover.hpp"
#include "host/state/intersect.hpp"

namespace chassis {
namespace {

bool can_cast(Dtype from, Dtype to) { return from == to || (is_float(from) && is_float(to)); }

std::string shown(Dtype dtype, const Shape& shape) { return std::string(dtype_name(dtype)) + text(shape); }

std::string hex(uint32_t value) {
  char out[9];
  std::snprintf(out, sizeof out, "%08x", value);
  return out;
}

const std::string& name_on_disk(const LoadTensor& tensor) {
  return tensor.disk_name.empty() ? tensor.descriptor.fqn : tensor.disk_name;
}

constexpr int64_t kCastElements = 1 << 16;  // of a box that is copied to another dtype, at a time
constexpr size_t kReadBytes = 256 << 10;    // at a time: still in the core's cache when they are checked and cast

// What a file gives of a tensor, as if it were a rank's local storage.
Piece piece_of_file(const Box& box) {
  Piece piece;
  piece.box = box;
  piece.local = row_major_view(box.sizes(), Box::whole(box.sizes()));
  return piece;
}

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
  std::unordered_map<std::string_view, bool> wanted;
  for (const LoadTensor& tensor : tensors) {
    const std::string& name = name_on_disk(tensor);
    const Descriptor& descriptor = tensor.descriptor;
    CHASSIS_CHECK(descriptor.components.empty(), "'" + descriptor.fqn + "': components are loaded one by one");
    CHASSIS_CHECK(wanted.emplace(name, true).second, "two tensors are to be loaded from '" + name + "'");
    const DiskTensor* found = find(name);
    if (!descriptor.tie.empty()) continue;
    if (found == nullptr) {
      if (!options.optional || !options.optional(descriptor))
        missing.push_back(name + " " + text(descriptor.global_shape));
    } else if (found->global_shape != descriptor.global_shape) {
      misshaped.push_back(name + " is " + text(found->global_shape) + " on disk, " + text(descriptor.global_shape) +
                          " in the model");
    } else if (!can_cast(found->dtype, descriptor.dtype)) {
      misshaped.push_back(name + " is " + std::string(dtype_name(found->dtype)) + " on disk, " +
                          std::string(dtype_name(descriptor.dtype)) + " in the model");
    }
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

LoadResult CheckpointReader::load(std::span<const LoadTensor> tensors, const MeshShape& mesh, const BucketPair& buckets,
                                  const LocalTensors& local, const LoadOptions& options) {
  check(tensors, options);
  LoadResult result;
  std::vector<std::pair<const LoadTensor*, const DiskTensor*>> order;
  const auto num_bytes = [](const DiskTensor& found) {
    return static_cast<uint64_t>(numel(found.global_shape) * size_bytes(found.dtype));
  };
  uint64_t done_bytes = 0, total_bytes = 0;
  for (const LoadTensor& tensor : tensors) {
    const DiskTensor* found = find(name_on_disk(tensor));
    if (!tensor.descriptor.tie.empty()) {
      if (found != nullptr) {
        counted_warning("tied-copy", "'" + found->name + "' is stored, but tied to '" + tensor.descriptor.tie +
                                         "'; the copy is not read");
      }
      continue;
    }
    if (found == nullptr) {
      result.absent.push_back(tensor.descriptor.fqn);
      continue;
    }
    order.emplace_back(&tensor, found);
    total_bytes += num_bytes(*found);
  }
  // As they lie in the files: the system reads ahead.
  const auto place = [&](const DiskTensor& found) {
    const DiskPlace& first = scan_.boxes[found.boxes.front()].place;
    return std::pair(first.file, first.offset);
  };
  std::stable_sort(order.begin(), order.end(),
                   [&](const auto& a, const auto& b) { return place(*a.second) < place(*b.second); });
  for (const auto& [tensor, found] : order) {
    load_one(*tensor, *found, mesh, buckets, local, options, result);
    done_bytes += num_bytes(*found);
    if (options.progress) options.progress(done_bytes, total_bytes);
  }
  return result;
}

void CheckpointReader::load_one(const LoadTensor& tensor, const DiskTensor& from, const MeshShape& mesh,
                                const BucketPair& buckets, const LocalTensors& local, const LoadOptions& options,
                                LoadResult& result) {
  const Layout layout(tensor.descriptor, mesh);
  if (!layout.holds(options.rank)) return;
  const Tensor flat = checked_flat(layout, options.rank, local);
  std::vector<Piece> pieces = layout.pieces(options.rank);
  if (options.owned_only) std::erase_if(pieces, [](const Piece& piece) { return !piece.owned; });
  const auto element_bytes = static_cast<uint64_t>(size_bytes(from.dtype));
  const std::span<std::byte> bucket = buckets.bucket(0);
  const bool has_checksums = !manifest_crc_.empty();
  for (const uint32_t i : from.boxes) {
    const FormatScan::Found& found = scan_.boxes[i];
    if (found.box.box.empty()) continue;
    const File& file = directory_->open(found.place.file);
    RunsChecksum checksum(found.box.num_bytes());
    uint64_t num_read = 0;
    for (const Copy& copy : copies({piece_of_file(found.box.box)}, pieces)) {
      for_each_run(copy, [&](int64_t at, int64_t to, int64_t length) {
        while (length > 0) {
          std::byte* const direct = direct_memory(flat, to, from.dtype);
          const uint64_t room = direct != nullptr ? kReadBytes : std::min(bucket.size(), kReadBytes);
          const int64_t count = std::min(length, static_cast<int64_t>(room / element_bytes));
          const std::span<std::byte> bytes(direct != nullptr ? direct : bucket.data(),
                                           static_cast<uint64_t>(count) * element_bytes);
          const uint64_t offset = static_cast<uint64_t>(at) * element_bytes;
          file.pread_exact(bytes.data(), bytes.size(), found.place.offset + offset);
          if (has_checksums) checksum.add(offset, bytes);
          if (direct == nullptr) write_elements(flat, to, count, from.dtype, bytes.data());
          num_read += bytes.size();
          at += count, to += count, length -= count;
        }
      });
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
  ++result.num_tensors;
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

PartSource CheckpointReader::source(std::function<std::string(const Descriptor& tensor)> disk_name) {
  return [this, disk_name = std::move(disk_name)](const SavePlan& plan, const SavePart& part, const Room& room) {
    const DiskBox& to = plan.boxes[part.box];
    CHASSIS_CHECK(part.region == to.box, "a part of '" + to.name + "' is asked for, not the whole");
    const std::string name = disk_name(plan.tensors[plan.tensor_of[part.box]].descriptor);
    const DiskTensor* from = find(name);
    CHASSIS_CHECK(from != nullptr, name);
    for (const uint32_t box : from->boxes) copy_box(box, to, room);
  };
}

void CheckpointReader::copy_box(uint32_t box, const DiskBox& to, const Room& room) {
  const FormatScan::Found& from = scan_.boxes[box];
  if (from.box.box.empty()) return;
  const File& file = directory_->open(from.place.file);
  const auto in_bytes = static_cast<uint64_t>(size_bytes(from.box.dtype)),
             out_bytes = static_cast<uint64_t>(size_bytes(to.dtype));
  const bool casts = from.box.dtype != to.dtype;
  const Tensor chunk = casts ? Tensor::empty(std::vector<int64_t>{kCastElements}, from.box.dtype) : Tensor();
  for (const Copy& copy : copies({piece_of_file(from.box.box)}, {piece_of_file(to.box)})) {
    uint32_t crc = 0;
    for_each_run(copy, [&](int64_t at, int64_t to_at, int64_t length) {
      while (length > 0) {
        const uint64_t wanted = static_cast<uint64_t>(casts ? std::min(length, kCastElements) : length) * out_bytes;
        const std::span<std::byte> bytes = room(static_cast<uint64_t>(to_at) * out_bytes, wanted);
        const auto count = static_cast<int64_t>(bytes.size() / out_bytes);
        std::byte* const memory = casts ? chunk.data_as<std::byte>() : bytes.data();
        const uint64_t num_bytes = static_cast<uint64_t>(count) * in_bytes;
        file.pread_exact(memory, num_bytes, from.place.offset + static_cast<uint64_t>(at) * in_bytes);
        crc = crc32c(crc, memory, num_bytes);
        if (casts) read_elements(chunk, 0, count, to.dtype, bytes.data());
        at += count, to_at += count, length -= count;
      }
    });
    if (copy.box == from.box.box) compare_checksum(box, crc);
  }
}

std::vector<std::string> compare_with_directory(const SavePlan& plan, const CheckpointReader& directory) {
  std::vector<std::string> lines;
  std::unordered_map<std::string_view, bool> planned;
  for (const SaveTensor& tensor : plan.tensors) {
    planned.emplace(tensor.disk_name, true);
    const DiskTensor* found = directory.find(tensor.disk_name);
    const std::string ours = shown(tensor.disk_dtype, tensor.descriptor.global_shape);
    if (found == nullptr) {
      lines.push_back(tensor.disk_name + " " + ours + " is not in the directory");
    } else if (found->global_shape != tensor.descriptor.global_shape || found->dtype != tensor.disk_dtype) {
      lines.push_back(tensor.disk_name + " would be " + ours + ", it is " + shown(found->dtype, found->global_shape));
    }
  }
  for (const DiskTensor& tensor : directory.tensors()) {
    if (!planned.contains(tensor.name))
      lines.push_back(tensor.name + " " + shown(tensor.dtype, tensor.global_shape) + " would not be written");
  }
  return lines;
}

}  // namespace chassis

// Opens a directory: compares it with its manifest, proves that the boxes cover each tensor, and checks what fits a
// model. reader_load.cpp reads the tensors.
#include "host/checkpoint/reader.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <map>
#include <string_view>
#include <unordered_set>

#include "host/base/hash.hpp"
#include "host/state/cover.hpp"

namespace chassis {
namespace {

bool can_cast(Dtype from, Dtype to) { return from == to || (is_float(from) && is_float(to)); }

std::string shown(Dtype dtype, const Shape& shape) { return std::string(dtype_name(dtype)) + text(shape); }

constexpr size_t kHeaderPiece = 256 << 10;  // bytes of a header read at a time

// Appends the number of `lines` and the first few of them.
void add_list(std::string& message, const char* what, const std::vector<std::string>& lines, size_t max_listed) {
  if (lines.empty()) return;
  message += "\n  " + std::to_string(lines.size()) + " " + what + ":";
  for (size_t i = 0; i < std::min(lines.size(), max_listed); ++i) message += "\n    " + lines[i];
  if (lines.size() > max_listed) message += "\n    … and " + std::to_string(lines.size() - max_listed) + " more";
}

}  // namespace

std::vector<StoredPart> LoadTensor::all_parts() const {
  if (!parts.empty()) return parts;
  return {StoredPart::whole(disk_name.empty() ? descriptor.fqn : disk_name, descriptor.global_shape)};
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
    throw_mismatch(error.message());
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

void CheckpointReader::throw_mismatch(const std::string& what) const {
  DamagedCheckpoint error("'" + path() + "' does not match its " + kManifestName + ": " + what);
  error.hint("it is damaged, or was edited; use another checkpoint");
  throw error;
}

// Reads the bytes around the tensors, which are mostly the header, and takes the checksums of the tensors from the
// manifest: together they give the checksum of the file.
void CheckpointReader::compare_files() {
  const std::vector<std::vector<CheckpointManifest::Extent>> extents = manifest_->extents();
  std::vector<bool> has_tensors(manifest_->files.size());
  for (const auto& entry : manifest_->boxes) has_tensors[entry.place.file] = true;
  std::vector<char> bytes;
  for (size_t i = 0; i < extents.size(); ++i) {
    if (!has_tensors[i]) continue;
    const auto& file = manifest_->files[i];
    const int64_t found = directory_->find_file(file.path);
    if (found < 0) throw_mismatch("'" + file.path + "' is missing");
    const uint64_t num_bytes = directory_->files()[static_cast<size_t>(found)].num_bytes;
    if (num_bytes != file.num_bytes)
      throw_mismatch("'" + file.path + "' has " + std::to_string(num_bytes) + " bytes, expected " +
                     std::to_string(file.num_bytes));
    const File& opened = directory_->open(static_cast<size_t>(found));
    uint32_t crc = 0;
    for (const auto& extent : extents[i]) {
      if (extent.box >= 0) {
        crc = crc32c_combine(crc, manifest_->boxes[static_cast<size_t>(extent.box)].crc32c, extent.end - extent.begin);
        continue;
      }
      for (uint64_t at = extent.begin; at < extent.end; at += bytes.size()) {
        bytes.resize(std::min<uint64_t>(extent.end - at, kHeaderPiece));
        opened.pread_exact(bytes.data(), bytes.size(), at);
        crc = crc32c(crc, bytes.data(), bytes.size());
      }
    }
    if (crc != file.crc32c)
      throw_mismatch(fmt::format("'{}' is damaged in its header: its CRC32C is {:08x}, expected {:08x}", file.path, crc,
                                 file.crc32c));
  }
}

void CheckpointReader::compare_boxes() {
  std::map<std::pair<std::string, std::string>, const CheckpointManifest::BoxEntry*> by_place;
  for (const auto& entry : manifest_->boxes) {
    const std::string& file = manifest_->files[entry.place.file].path;
    if (!by_place.emplace(std::pair(file, entry.box.name), &entry).second)
      throw_mismatch("'" + file + "' has tensor '" + entry.box.name + "' twice");
  }
  for (const auto& found : scan_.boxes) {
    const std::string& file = directory_->files()[found.place.file].path;
    const auto it = by_place.find({file, found.box.name});
    if (it == by_place.end())
      throw_mismatch("'" + file + "' has the tensor '" + found.box.name + "', which is not listed");
    const auto& entry = *it->second;
    if (entry.box.dtype != found.box.dtype || entry.box.global_shape != found.box.global_shape ||
        entry.box.box != found.box.box || entry.place.offset != found.place.offset) {
      throw_mismatch("tensor '" + found.box.name + "' is " + shown(found.box.dtype, found.box.global_shape) + " " +
                     text(found.box.box) + " at byte " + std::to_string(found.place.offset) + " of '" + file +
                     "', expected " + shown(entry.box.dtype, entry.box.global_shape) + " " + text(entry.box.box) +
                     " at " + std::to_string(entry.place.offset));
    }
    manifest_crc_.push_back(entry.crc32c);
  }
  if (scan_.boxes.size() != manifest_->boxes.size()) {
    throw_mismatch("it has " + std::to_string(scan_.boxes.size()) + " tensors or parts of them, expected " +
                   std::to_string(manifest_->boxes.size()));
  }
}

void CheckpointReader::prove_boxes() const {
  std::map<int, int> shards;  // rank found → index from 0
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
  if (!faults.empty()) throw storage_error("'" + path() + "' has incomplete tensors: " + faults.front().message);
}

void CheckpointReader::check(std::span<const LoadTensor> tensors, const LoadOptions& options) const {
  std::vector<std::string> missing, misshaped, unexpected;
  std::unordered_set<std::string> wanted;
  const auto check_part = [&](const Descriptor& descriptor, const StoredPart& part) {
    const bool is_new = wanted.insert(part.disk_name).second;
    CHASSIS_CHECK(is_new || part.box.sizes() != part.disk_shape,
                  "two tensors would be loaded from '" + part.disk_name + "'");
    const DiskTensor* found = find(part.disk_name);
    if (!is_new) return;
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
    CHASSIS_CHECK(descriptor.components.empty() || tensor.take,
                  "'" + descriptor.fqn + "': components are loaded one by one");
    for (const StoredPart& part : tensor.all_parts()) check_part(descriptor, part);
  }
  std::string quantized;  // a wanted tensor with companions, such as x.weight.absmax of x.weight
  for (const DiskTensor& tensor : tensors_) {
    if (wanted.contains(tensor.name) || (options.skip && options.skip(tensor.name))) continue;
    unexpected.push_back(tensor.name + " " + text(tensor.global_shape));
    for (std::string name = tensor.name; quantized.empty() && name.find('.') != name.npos;) {
      name.resize(name.rfind('.'));
      if (wanted.contains(name)) quantized = name;
    }
  }
  if (missing.empty() && misshaped.empty() && unexpected.empty()) return;
  std::string message = "'" + path() + "' does not fit the model:";
  add_list(message, "missing", missing, options.max_listed);
  add_list(message, "with another shape or type", misshaped, options.max_listed);
  add_list(message, "unexpected", unexpected, options.max_listed);
  Misfit misfit(message);
  if (!quantized.empty())
    misfit.hint(quantized +
                " has companions, as quantized weights have, and is not quantized in the model: the head and "
                "embeddings never are, and the options of [quant] may leave out others");
  throw misfit;
}

std::vector<std::string> compare_with_directory(const SavePlan& plan, const CheckpointReader& directory) {
  std::vector<std::string> lines;
  std::unordered_set<std::string_view> planned;
  for (const SaveTensor& tensor : plan.tensors) {
    for (const StoredPart& part : tensor.parts) {
      if (!planned.insert(part.disk_name).second) continue;
      const DiskTensor* found = directory.find(part.disk_name);
      const std::string ours = shown(tensor.disk_dtype, part.disk_shape);
      if (found == nullptr)
        lines.push_back(part.disk_name + " " + ours + " is not in the directory");
      else if (found->global_shape != part.disk_shape || found->dtype != tensor.disk_dtype)
        lines.push_back(part.disk_name + " would be " + ours + ", it is " + shown(found->dtype, found->global_shape));
    }
  }
  for (const DiskTensor& tensor : directory.tensors()) {
    if (!planned.contains(tensor.name))
      lines.push_back(tensor.name + " " + shown(tensor.dtype, tensor.global_shape) + " would not be written");
  }
  return lines;
}

}  // namespace chassis

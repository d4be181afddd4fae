// Verification by the checksums of the manifest, and texts for `chassis ckpt`.
#include "host/checkpoint/inspect.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <map>
#include <optional>
#include <string_view>

#include "host/base/file.hpp"
#include "host/base/hash.hpp"
#include "host/base/json.hpp"
#include "host/base/units.hpp"
#include "host/state/layout.hpp"

namespace chassis {
namespace {

// Says "not verified", since contents are not read here.
std::string status_of(const CheckpointInfo& info) {
  const bool is_damaged = info.name.find(kDamagedSuffix) != std::string::npos;
  const std::string set_aside = !info.set_aside ? "" : is_damaged ? "set aside as damaged" : "set aside as replaced";
  if (!info.unreadable.empty()) return "unreadable: " + info.unreadable;
  if (!info.defect.empty()) return (info.set_aside ? set_aside + ": " : "damaged: ") + info.defect;
  if (info.set_aside) return set_aside;
  const std::string what = info.resumable ? "resumable" : "weights only";
  return what + ", not verified" + (info.is_link ? ", a link" : "");
}

using Extents = std::vector<CheckpointManifest::Extent>;

void verify_file(SourceDirectory& directory, const CheckpointManifest& manifest, size_t index, const Extents& extents,
                 const BucketPair& buckets, VerifyResult& result,
                 const std::function<void(uint64_t, uint64_t)>& progress, uint64_t total_bytes) {
  const auto& entry = manifest.files[index];
  const int64_t found = directory.find(entry.path);
  if (found < 0) {
    result.defects.push_back(entry.path + ": missing");
    return;
  }
  const uint64_t num_bytes = directory.files()[static_cast<size_t>(found)].num_bytes;
  if (num_bytes != entry.num_bytes) {
    result.defects.push_back(fmt::format("{}: {} bytes, expected {}", entry.path, num_bytes, entry.num_bytes));
    return;
  }
  std::vector<uint32_t> crc(extents.size());
  const File& file = directory.open(static_cast<size_t>(found));
  const std::span<std::byte> bucket = buckets.bucket(0);
  uint32_t whole = 0;
  size_t extent = 0;
  for (uint64_t at = 0; at < num_bytes;) {
    const uint64_t count = std::min<uint64_t>(bucket.size(), num_bytes - at);
    file.pread_exact(bucket.data(), count, at);
    whole = crc32c(whole, bucket.data(), count);
    for (; extent < extents.size(); ++extent) {
      const auto& e = extents[extent];
      const uint64_t from = std::max(e.begin, at), to = std::min(e.end, at + count);
      if (from < to) crc[extent] = crc32c(crc[extent], bucket.data() + (from - at), to - from);
      if (e.end > at + count) break;
    }
    at += count;
    result.num_bytes += count;
    if (progress) progress(result.num_bytes, total_bytes);
  }
  ++result.num_files;
  if (whole == entry.crc32c) return;
  bool is_named = false;
  for (size_t i = 0; i < extents.size(); ++i) {
    if (extents[i].box < 0) continue;
    const auto& box = manifest.boxes[static_cast<size_t>(extents[i].box)];
    if (box.crc32c == crc[i]) continue;
    is_named = true;
    result.defects.push_back(fmt::format("{}: tensor '{}' is damaged: CRC32C {:08x}, expected {:08x}", entry.path,
                                         box.box.name, crc[i], box.crc32c));
  }
  if (!is_named) {
    result.defects.push_back(fmt::format("{}: damaged{}: CRC32C {:08x}, expected {:08x}", entry.path,
                                         extents.size() > 1 ? " in its header" : "", whole, entry.crc32c));
  }
}

// Returns what is wrong with a file, by its size and checksum; empty if nothing is.
std::string defect_of_file(SourceDirectory& directory, const CheckpointManifest::FileEntry& entry) {
  constexpr uint64_t kPieceBytes = 256 << 10;
  const int64_t found = directory.find(entry.path);
  if (found < 0) return "is missing, and its manifest lists it";
  const uint64_t num_bytes = directory.files()[static_cast<size_t>(found)].num_bytes;
  if (num_bytes != entry.num_bytes)
    return fmt::format("is damaged: it has {} bytes, its manifest says {}", num_bytes, entry.num_bytes);
  const File& file = directory.open(static_cast<size_t>(found));
  std::vector<std::byte> piece(std::min(kPieceBytes, num_bytes));
  uint32_t crc = 0;
  for (uint64_t at = 0; at < num_bytes; at += piece.size()) {
    piece.resize(std::min(kPieceBytes, num_bytes - at));
    file.pread_exact(piece.data(), piece.size(), at);
    crc = crc32c(crc, piece.data(), piece.size());
  }
  if (crc == entry.crc32c) return "";
  return fmt::format("is damaged: its CRC32C is {:08x}, its manifest says {:08x}", crc, entry.crc32c);
}

// Also false for a file of this name that another program wrote. If one of ours is too damaged to be recognized, the
// reader of the weights refuses it.
bool has_own_manifest(SourceDirectory& directory) {
  constexpr std::string_view kMark = "\"chassis_checkpoint\"";
  const int64_t found = directory.find(kManifestName);
  if (found < 0) return false;
  char start[64];
  const size_t length = directory.open(static_cast<size_t>(found)).pread_some(start, sizeof start, 0);
  return std::string_view(start, length).find(kMark) != std::string_view::npos;
}

CheckpointManifest read_manifest(const std::string& path) {
  SourceDirectory directory(path);
  return CheckpointManifest::read(directory);
}

std::string shown(const CheckpointManifest::BoxEntry& entry) {
  return std::string(dtype_name(entry.box.dtype)) + text(entry.box.global_shape);
}

// Boxes by name of their tensor, in order of the manifest.
std::map<std::string, std::vector<const CheckpointManifest::BoxEntry*>> by_name(const CheckpointManifest& manifest) {
  std::map<std::string, std::vector<const CheckpointManifest::BoxEntry*>> out;
  for (const auto& entry : manifest.boxes) out[entry.box.name].push_back(&entry);
  return out;
}

// Adds "key: value". Objects and lists take one indented line per member; a short object of plain values, such as a
// plugin, takes a single line.
void add_lines(const std::string& key, const Json& value, const std::string& indent, std::vector<std::string>& lines) {
  constexpr size_t kMaxColumns = 240;
  const auto is_plain = [](const Json& part) { return !part.is_structured(); };
  const auto plain = [](const Json& part) { return part.is_string() ? part.get<std::string>() : part.dump(); };
  if (is_plain(value)) return lines.push_back(indent + key + ": " + plain(value));
  if (value.is_object() && !indent.empty() && std::all_of(value.begin(), value.end(), is_plain)) {
    std::string line = indent + key + ":";
    for (const auto& [name, part] : value.items()) {
      const std::string text = plain(part);
      if (text != key && !text.empty()) line += " " + name + " " + (name == "sha256" ? text.substr(0, 12) : text);
    }
    if (line.size() <= kMaxColumns) return lines.push_back(line);
  }
  lines.push_back(indent + key + ":");
  for (const auto& [name, part] : value.items())
    add_lines(value.is_array() && part.is_object() ? json_string_or(part, "id", name, key) : name, part, indent + "  ",
              lines);
}

using Boxes = std::vector<const CheckpointManifest::BoxEntry*>;

// The checksum of the whole tensor in row-major order. Nothing if a box is not contiguous in that order; shards of rows
// and flat ranges are contiguous.
std::optional<uint32_t> whole_checksum(Boxes boxes) {
  const Shape& shape = boxes.front()->box.global_shape;
  const StridedView order = row_major_view(shape, Box::whole(shape));
  const auto position = [&](const Shape& element) {
    int64_t at = 0;
    for (int dim = 0; dim < shape.ndim(); ++dim) at += element[dim] * order.strides[dim];
    return at;
  };
  std::erase_if(boxes, [](const auto* entry) { return entry->box.box.empty(); });
  std::sort(boxes.begin(), boxes.end(),
            [&](const auto* a, const auto* b) { return position(a->box.box.begin) < position(b->box.box.begin); });
  int64_t at = 0;
  uint32_t crc = 0;
  for (const auto* entry : boxes) {
    const Box& box = entry->box.box;
    const int64_t count = numel(box);
    Shape last = box.end;
    for (int dim = 0; dim < shape.ndim(); ++dim) --last[dim];
    if (position(box.begin) != at || position(last) != at + count - 1) return std::nullopt;
    crc = crc32c_combine(crc, entry->crc32c, entry->box.num_bytes());
    at += count;
  }
  return crc;
}

// The difference between the contents of two tensors of the same dtype and shape; nothing if they are the same.
std::optional<TensorDifference::Kind> difference_of(const Boxes& boxes, const Boxes& others) {
  using Kind = TensorDifference::Kind;
  const auto same_box = [](const auto* x, const auto* y) { return x->box.box == y->box.box; };
  const auto same_bytes = [](const auto* x, const auto* y) { return x->crc32c == y->crc32c; };
  bool same = true;
  if (boxes.size() == others.size() && std::equal(boxes.begin(), boxes.end(), others.begin(), same_box)) {
    same = std::equal(boxes.begin(), boxes.end(), others.begin(), same_bytes);
  } else {
    const auto ours = whole_checksum(boxes), theirs = whole_checksum(others);
    if (!ours || !theirs) return Kind::kNotCompared;
    same = *ours == *theirs;
  }
  return same ? std::nullopt : std::optional(Kind::kContents);
}

CheckpointDiff::Side side_of(const std::string& path, const CheckpointManifest& manifest) {
  return {path, manifest.step, manifest.num_tensors(), manifest.num_bytes()};
}

std::string crc_text(uint32_t crc) { return fmt::format("{:08x}", crc); }

Json dims_json(const Shape& shape) {
  Json out = Json::array();
  for (int dim = 0; dim < shape.ndim(); ++dim) out.push_back(shape[dim]);
  return out;
}

}  // namespace

VerifyResult verify_checkpoint(const std::string& path, const BucketPair& buckets,
                               const std::function<void(uint64_t done, uint64_t total)>& progress) {
  SourceDirectory directory(path);
  const CheckpointManifest manifest = CheckpointManifest::read(directory);
  VerifyResult result;
  result.num_tensors = static_cast<uint64_t>(manifest.num_tensors());
  const std::vector<Extents> extents = manifest.extents();
  for (size_t i = 0; i < manifest.files.size(); ++i)
    verify_file(directory, manifest, i, extents[i], buckets, result, progress, manifest.num_bytes());
  return result;
}

void compare_with_manifest(const std::string& path, const CheckpointManifest* manifest) {
  if (manifest == nullptr) return;
  SourceDirectory directory(path);
  const auto extents = manifest->extents();
  for (size_t i = 0; i < manifest->files.size(); ++i) {
    if (std::any_of(extents[i].begin(), extents[i].end(), [](const auto& extent) { return extent.box >= 0; })) continue;
    const std::string defect = defect_of_file(directory, manifest->files[i]);
    if (defect.empty()) continue;
    DamagedCheckpoint damage("'" + path + "/" + manifest->files[i].path + "' " + defect);
    damage.hint(manifest->is_run_checkpoint()
                    ? "use another checkpoint"
                    : "restore the file; if it was changed on purpose, delete " + path + "/" + kManifestName +
                          ", and the directory counts as one of another program");
    throw damage;
  }
}

void compare_with_manifest(const std::string& path) {
  if (path_kind(path) != PathKind::kDirectory) return;
  SourceDirectory directory(path);
  if (!has_own_manifest(directory)) return;
  const CheckpointManifest manifest = CheckpointManifest::read(directory);
  compare_with_manifest(path, &manifest);
}

std::vector<std::string> describe_checkpoint(const std::string& path, bool with_tensors) {
  const CheckpointManifest manifest = read_manifest(path);
  std::vector<std::string> lines;
  lines.push_back(fmt::format("{}: step {}, format {}, {}", path, manifest.step, manifest.format,
                              manifest.resumable ? "resumable" : "weights only"));
  lines.push_back("created " + manifest.created);
  lines.push_back(fmt::format("written by {} rank{}{}", manifest.mesh.world_size(),
                              manifest.mesh.world_size() == 1 ? "" : "s",
                              manifest.mesh.num_axes() == 0 ? "" : " (" + manifest.mesh.text() + ")"));
  lines.push_back(fmt::format("{} tensors, {} in {} files", manifest.num_tensors(), bytes_text(manifest.num_bytes()),
                              manifest.files.size()));
  for (const auto& [key, value] : manifest.about.items()) add_lines(key, value, "", lines);
  for (const auto& file : manifest.files) {
    lines.push_back(fmt::format("  {:>10}  {:08x}  {}", bytes_text(file.num_bytes), file.crc32c, file.path));
  }
  if (!with_tensors) return lines;
  for (const auto& entry : manifest.boxes) {
    const bool is_whole = entry.box.box == Box::whole(entry.box.global_shape);
    lines.push_back(fmt::format("  {}  {}{}  {:08x}", entry.box.name, shown(entry),
                                is_whole ? "" : " " + text(entry.box.box), entry.crc32c));
  }
  return lines;
}

Json checkpoint_json(const std::string& path, bool with_tensors) {
  const CheckpointManifest manifest = read_manifest(path);
  Json mesh = Json::object(), files = Json::array();
  for (const MeshAxis& axis : manifest.mesh.axes()) mesh[axis.name] = axis.size;
  for (const auto& file : manifest.files)
    files.push_back({{"path", file.path}, {"bytes", file.num_bytes}, {"crc32c", crc_text(file.crc32c)}});
  Json out = {{"path", path},
              {"step", manifest.step},
              {"format", manifest.format},
              {"resumable", manifest.resumable},
              {"created", manifest.created},
              {"world_size", manifest.mesh.world_size()},
              {"mesh", std::move(mesh)},
              {"tensors", manifest.num_tensors()},
              {"bytes", manifest.num_bytes()},
              {"about", manifest.about},
              {"files", std::move(files)}};
  if (!with_tensors) return out;
  Json boxes = Json::array();
  for (const auto& entry : manifest.boxes) {
    Json box = {{"name", entry.box.name},
                {"dtype", dtype_name(entry.box.dtype)},
                {"shape", dims_json(entry.box.global_shape)},
                {"crc32c", crc_text(entry.crc32c)}};
    if (entry.box.box != Box::whole(entry.box.global_shape)) {
      box["begin"] = dims_json(entry.box.box.begin);
      box["end"] = dims_json(entry.box.box.end);
    }
    boxes.push_back(std::move(box));
  }
  out["boxes"] = std::move(boxes);
  return out;
}

std::string TensorDifference::line() const {
  switch (kind) {
    case Kind::kOnlyFirst:
      return "- " + name + " " + first;
    case Kind::kOnlySecond:
      return "+ " + name + " " + second;
    case Kind::kForm:
      return "! " + name + " " + first + " → " + second;
    case Kind::kNotCompared:
      return "? " + name + " is cut differently across its columns; contents were not compared";
    case Kind::kContents:
      break;
  }
  return "~ " + name + " " + first + " has different contents";
}

std::string CheckpointDiff::Side::title() const {
  return fmt::format("{}: step {}, {} tensors, {}", path, step, num_tensors, bytes_text(num_bytes));
}

CheckpointDiff diff_checkpoints(const std::string& path_a, const std::string& path_b) {
  using Kind = TensorDifference::Kind;
  const CheckpointManifest a = read_manifest(path_a), b = read_manifest(path_b);
  const auto in_a = by_name(a), in_b = by_name(b);
  CheckpointDiff diff{side_of(path_a, a), side_of(path_b, b), {}};
  for (const auto& [name, boxes] : in_a) {
    const std::string first = shown(*boxes.front());
    const auto it = in_b.find(name);
    if (it == in_b.end()) {
      diff.tensors.push_back({Kind::kOnlyFirst, name, first, ""});
      continue;
    }
    const auto& others = it->second;
    const std::string second = shown(*others.front());
    if (first != second)
      diff.tensors.push_back({Kind::kForm, name, first, second});
    else if (const auto kind = difference_of(boxes, others))
      diff.tensors.push_back({*kind, name, first, second});
  }
  for (const auto& [name, boxes] : in_b)
    if (!in_a.contains(name)) diff.tensors.push_back({Kind::kOnlySecond, name, "", shown(*boxes.front())});
  return diff;
}

Json diff_json(const CheckpointDiff& diff) {
  constexpr const char* kKinds[] = {"only_first", "only_second", "form", "contents", "not_compared"};
  const auto side = [](const CheckpointDiff::Side& one) {
    return Json{{"path", one.path}, {"step", one.step}, {"tensors", one.num_tensors}, {"bytes", one.num_bytes}};
  };
  const auto form = [](const std::string& text) { return text.empty() ? Json() : Json(text); };
  Json tensors = Json::array();
  for (const TensorDifference& tensor : diff.tensors)
    tensors.push_back({{"name", tensor.name},
                       {"difference", kKinds[static_cast<size_t>(tensor.kind)]},
                       {"first", form(tensor.first)},
                       {"second", form(tensor.second)}});
  return {{"same", diff.tensors.empty()},
          {"first", side(diff.first)},
          {"second", side(diff.second)},
          {"differences", std::move(tensors)}};
}

std::vector<std::string> checkpoint_table(const std::vector<CheckpointInfo>& checkpoints) {
  size_t width = 10;
  for (const auto& info : checkpoints) width = std::max(width, info.name.size());
  std::vector<std::string> lines;
  for (const auto& info : checkpoints) {
    lines.push_back(fmt::format("{:<{}}  {:>8}  {:>10}  {:<20}  {:<11}  {}", info.name, width, info.step,
                                bytes_text(info.num_bytes), info.created, info.format,
                                status_of(info)));
  }
  return lines;
}

Json checkpoint_table_json(const std::vector<CheckpointInfo>& checkpoints) {
  Json out = Json::array();
  for (const auto& info : checkpoints)
    out.push_back({{"name", info.name},
                   {"path", info.path},
                   {"step", info.step},
                   {"bytes", info.num_bytes},
                   {"tensors", info.num_tensors},
                   {"created", info.created},
                   {"format", info.format},
                   {"resumable", info.resumable},
                   {"link", info.is_link},
                   {"set_aside", info.set_aside},
                   {"defect", info.defect.empty() ? Json() : Json(info.defect)},
                   {"unreadable", info.unreadable.empty() ? Json() : Json(info.unreadable)},
                   {"status", status_of(info)}});
  return out;
}

}  // namespace chassis

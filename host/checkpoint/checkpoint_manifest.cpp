// Writes and parses the manifest: one line per file and per box, readable for the user and for diff.
#include "host/checkpoint/checkpoint_manifest.hpp"

#include <algorithm>
#include <cstdio>
#include <set>

#include "host/base/error.hpp"
#include "host/base/hash.hpp"
#include "host/base/printable.hpp"
#include "host/base/reading.hpp"

namespace chassis {
namespace {

constexpr uint64_t kMaxManifestBytes = uint64_t{1} << 30;
constexpr std::string_view kPrefix = "{\n\"chassis_checkpoint\": ", kVersion = "1", kChecksum = ",\n\"crc32c\": \"";
constexpr std::string_view kNoChecksum = "00000000";

std::string hex(uint32_t value) {
  char text[9];
  std::snprintf(text, sizeof text, "%08x", value);
  return text;
}

uint32_t parse_hex(const std::string& text) {
  if (text.size() != 8 || text.find_first_not_of("0123456789abcdef") != text.npos) {
    throw storage_error("'" + text + "' is not a checksum of 8 hexadecimal digits");
  }
  return static_cast<uint32_t>(std::stoul(text, nullptr, 16));
}

Json json_of(const Shape& shape) {
  Json out = Json::array();
  for (const int64_t size : shape) out.push_back(size);
  return out;
}

Shape shape_of(const Json& list, const std::string& where) {
  if (!list.is_array() || list.size() > static_cast<size_t>(Shape::kMaxDims))
    throw storage_error(where + " is not a shape");
  std::vector<int64_t> sizes;
  for (const Json& size : list) {
    if (!size.is_number_integer() || size.get<int64_t>() < 0) throw storage_error(where + " is not a shape");
    sizes.push_back(size.get<int64_t>());
  }
  return Shape(sizes);
}

CheckpointManifest::BoxEntry box_of(const Json& line, size_t num_files, const std::string& where) {
  CheckpointManifest::BoxEntry entry;
  DiskBox& box = entry.box;
  box.name = json_string(line, "name", where);
  const auto dtype = dtype_from_name(json_string(line, "dtype", where));
  if (!dtype) throw storage_error(where + ": tensor '" + box.name + "' has an unknown dtype");
  box.dtype = *dtype;
  box.global_shape = shape_of(json_at(line, "shape", where), where);
  box.box = Box::whole(box.global_shape);
  if (line.contains("box")) {
    const Json& corners = line["box"];
    if (!corners.is_array() || corners.size() != 2) throw storage_error(where + ": 'box' is not a pair");
    box.box = {shape_of(corners[0], where), shape_of(corners[1], where)};
    bool fits = box.box.begin.ndim() == box.global_shape.ndim() && box.box.end.ndim() == box.global_shape.ndim();
    for (int dim = 0; fits && dim < box.global_shape.ndim(); ++dim) {
      fits = box.box.begin[dim] <= box.box.end[dim] && box.box.end[dim] <= box.global_shape[dim];
    }
    if (!fits) throw storage_error(where + ": a box of tensor '" + box.name + "' does not lie inside it");
  }
  numel(box.global_shape);
  box.rank = static_cast<int>(json_int_or(line, "rank", 0, where));
  const int64_t file = json_int(line, "file", where), at = json_int(line, "at", where);
  if (file < 0 || static_cast<size_t>(file) >= num_files || at < 0)
    throw storage_error(where + ": tensor '" + box.name + "' has no place in any file");
  entry.place = {static_cast<uint32_t>(file), static_cast<uint64_t>(at)};
  entry.crc32c = parse_hex(json_string(line, "crc32c", where));
  return entry;
}

MeshShape mesh_of(const Json& axes, const std::string& where) {
  std::vector<MeshAxis> out;
  if (!axes.is_object()) throw storage_error(where + ": 'mesh' is not an object");
  for (const auto& [name, value] : axes.items()) {
    const int64_t size = json_int_in(value, name, where + ": 'mesh'");
    if (size < 1 || size > INT32_MAX)
      throw storage_error(where + ": 'mesh': '" + printable(name) + "' is " + std::to_string(size) +
                          ", which is not a valid size of an axis");
    out.push_back({name, static_cast<int>(size)});
  }
  return MeshShape(std::move(out));
}

const Json& object_at(const Json& json, const char* key, const std::string& where) {
  const Json& value = json_at(json, key, where);
  if (!value.is_object()) throw storage_error(where + ": '" + key + "' is not an object, but " + value.type_name());
  return value;
}

const Json& list_at(const Json& json, const char* key, const std::string& where) {
  const Json& value = json_at(json, key, where);
  if (!value.is_array()) throw storage_error(where + ": '" + key + "' is not a list, but " + value.type_name());
  return value;
}

CheckpointManifest parse_checked(const std::string& text, const std::string& name) {
  const Json json = parse_json(text, name, ExitCode::kStorage);
  CheckpointManifest manifest;
  manifest.step = static_cast<int64_t>(json_count(json, "step", name));
  manifest.format = json_string(json, "format", name);
  manifest.created = json_string(json, "created", name);
  manifest.mesh = mesh_of(json_at(json, "mesh", name), name);
  manifest.resumable = json_bool(json, "resumable", name);
  manifest.about = object_at(json, "about", name);
  json_string_or(manifest.about, "names", "", name + ": 'about'");
  manifest.state = object_at(json, "state", name);
  const int64_t state_step = json_int_or(manifest.state, "step", manifest.step, name + ": 'state'");
  if (state_step != manifest.step)
    throw storage_error(name + ": 'step' is " + std::to_string(manifest.step) + ", but the 'state' is of step " +
                        std::to_string(state_step));
  std::set<std::string> paths;
  for (const Json& line : list_at(json, "files", name)) {
    const std::string path = json_string(line, "path", name);
    const int64_t num_bytes = json_int(line, "bytes", name);
    if (!is_plain_path(path) || num_bytes < 0 || !paths.insert(path).second)
      throw storage_error(name + ": file '" + path + "' has an invalid path or size, or is listed twice");
    manifest.files.push_back({path, static_cast<uint64_t>(num_bytes), parse_hex(json_string(line, "crc32c", name))});
  }
  for (const Json& line : list_at(json, "tensors", name)) {
    manifest.boxes.push_back(box_of(line, manifest.files.size(), name));
    const auto& entry = manifest.boxes.back();
    const auto& file = manifest.files[entry.place.file];
    if (entry.place.offset > file.num_bytes || entry.box.num_bytes() > file.num_bytes - entry.place.offset) {
      throw storage_error(name + ": tensor '" + entry.box.name + "' extends past the end of '" + file.path + "'");
    }
  }
  return manifest;
}

}  // namespace

bool CheckpointManifest::is_run_checkpoint() const { return chassis::is_run_checkpoint(resumable, about); }

bool is_run_checkpoint(bool resumable, const Json& about) {
  return (resumable || about.value("names", "") == kParameterNames) && !about.contains("imported");
}

uint64_t CheckpointManifest::num_bytes() const {
  uint64_t sum = 0;
  for (const FileEntry& file : files) sum += file.num_bytes;
  return sum;
}

int64_t CheckpointManifest::num_tensors() const {
  std::set<std::string_view> names;
  for (const BoxEntry& entry : boxes) names.insert(entry.box.name);
  return static_cast<int64_t>(names.size());
}

std::vector<std::vector<CheckpointManifest::Extent>> CheckpointManifest::extents() const {
  std::vector<std::vector<Extent>> out(files.size());
  std::vector<size_t> order;
  for (size_t i = 0; i < boxes.size(); ++i)
    if (boxes[i].box.num_bytes() > 0) order.push_back(i);
  std::sort(order.begin(), order.end(),
            [&](size_t a, size_t b) { return boxes[a].place.offset < boxes[b].place.offset; });
  const auto reached = [&](uint32_t file) { return out[file].empty() ? 0 : out[file].back().end; };
  for (const size_t i : order) {
    const DiskPlace& place = boxes[i].place;
    const uint64_t at = reached(place.file);
    if (place.offset < at)
      throw DamagedCheckpoint("tensor '" + boxes[i].box.name + "' overlaps another tensor in '" +
                              files[place.file].path + "'");
    if (place.offset > at) out[place.file].push_back({at, place.offset, -1});
    out[place.file].push_back({place.offset, place.offset + boxes[i].box.num_bytes(), static_cast<int64_t>(i)});
  }
  for (uint32_t file = 0; file < files.size(); ++file)
    if (const uint64_t at = reached(file); at < files[file].num_bytes)
      out[file].push_back({at, files[file].num_bytes, -1});
  return out;
}

ManifestText::ManifestText(const CheckpointManifest& head, Append append) : append_(std::move(append)) {
  std::string out;
  for (const std::string_view part : {kPrefix, kVersion, kChecksum}) out += part;
  out += std::string(kNoChecksum) + "\",\n";
  const auto add = [&](const char* key, const Json& value) {
    out += "\"" + std::string(key) + "\": " + value.dump() + ",\n";
  };
  Json axes = Json::object();
  for (const MeshAxis& axis : head.mesh.axes()) axes[axis.name] = axis.size;
  add("step", head.step);
  add("format", head.format);
  add("created", head.created);
  add("mesh", axes);
  add("resumable", head.resumable);
  add("about", head.about.is_null() ? Json::object() : head.about);
  add("state", head.state.is_null() ? Json::object() : head.state);
  out += "\"files\": [";
  for (size_t i = 0; i < head.files.size(); ++i) {
    const auto& [path, num_bytes, crc] = head.files[i];
    const Json line = {{"path", path}, {"bytes", num_bytes}, {"crc32c", hex(crc)}};
    out += (i > 0 ? ",\n  " : "\n  ") + line.dump();
  }
  out += "\n],\n\"tensors\": [";
  this->append(out);
}

void ManifestText::append(std::string_view text) {
  crc32c_ = crc32c(crc32c_, text.data(), text.size());
  append_(text);
}

void ManifestText::add(const CheckpointManifest::BoxEntry& entry) {
  Json line = {
      {"name", entry.box.name}, {"dtype", dtype_name(entry.box.dtype)}, {"shape", json_of(entry.box.global_shape)}};
  if (entry.box.box != Box::whole(entry.box.global_shape))
    line["box"] = Json::array({json_of(entry.box.box.begin), json_of(entry.box.box.end)});
  if (entry.box.rank != 0) line["rank"] = entry.box.rank;
  line["file"] = entry.place.file;
  line["at"] = entry.place.offset;
  line["crc32c"] = hex(entry.crc32c);
  append((is_first_ ? "\n  " : ",\n  ") + line.dump());
  is_first_ = false;
}

std::string ManifestText::finish() {
  append("\n]\n}\n");
  return hex(crc32c_);
}

uint64_t ManifestText::checksum_at() { return kPrefix.size() + kVersion.size() + kChecksum.size(); }

std::string CheckpointManifest::dump() const {
  std::string out;
  ManifestText text(*this, [&](std::string_view piece) { out += piece; });
  for (const BoxEntry& entry : boxes) text.add(entry);
  const std::string checksum = text.finish();
  out.replace(ManifestText::checksum_at(), checksum.size(), checksum);
  return out;
}

CheckpointManifest CheckpointManifest::parse(const std::string& text, const std::string& name) {
  size_t end = 0;  // end of the version
  if (text.starts_with(kPrefix)) end = std::min(text.find_first_not_of("0123456789", kPrefix.size()), text.size());
  const size_t at = end + kChecksum.size(), rest = at + kNoChecksum.size();
  if (end == 0 || text.compare(end, kChecksum.size(), kChecksum) != 0 || text.size() < rest) {
    throw DamagedCheckpoint("'" + name + "' is not the manifest of a checkpoint, or is damaged in its first line");
  }
  const std::string written = text.substr(at, kNoChecksum.size());
  uint32_t found = crc32c(0, text.data(), at);
  found = crc32c(found, kNoChecksum.data(), kNoChecksum.size());
  found = crc32c(found, text.data() + rest, text.size() - rest);
  if (written != hex(found)) {
    throw DamagedCheckpoint("'" + name + "' is damaged: its checksum is " + hex(found) + ", expected " +
                            printable(written));
  }
  if (const std::string version = text.substr(kPrefix.size(), end - kPrefix.size()); version != kVersion) {
    throw storage_error("'" + name + "' has manifest version " + printable(version) + "; this release reads " +
                        std::string(kVersion))
        .hint("use the release that wrote it, or a later one");
  }
  try {
    return reading(name, ExitCode::kStorage, [&] { return parse_checked(text, name); });
  } catch (const Error& error) {
    throw DamagedCheckpoint(error.what());
  }
}

CheckpointManifest CheckpointManifest::read(SourceDirectory& directory) {
  const int64_t file = directory.find_file(kManifestName);
  if (file < 0) {
    throw storage_error("'" + directory.path() + "' is not a checkpoint: it has no " + kManifestName);
  }
  const uint64_t num_bytes = directory.files()[static_cast<size_t>(file)].num_bytes;
  if (num_bytes > kMaxManifestBytes)
    throw DamagedCheckpoint("'" + directory.path() + "/" + kManifestName + "' has " + std::to_string(num_bytes) +
                            " bytes, at most " + std::to_string(kMaxManifestBytes) + " are expected");
  return parse(directory.read_text(kManifestName, kMaxManifestBytes), directory.path() + "/" + kManifestName);
}

}  // namespace chassis

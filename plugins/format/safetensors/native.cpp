// DCP reads the metadata DCP_SHARDING_INFO, and ignores our additional key global_shape; this reader checks it.
#include "native.hpp"

#include <algorithm>
#include <cstdio>
#include <map>
#include <optional>
#include <unordered_map>
#include <unordered_set>

namespace safetensors {
namespace {

constexpr char kShardingInfo[] = "DCP_SHARDING_INFO";

std::string file_name(uint32_t rank, size_t index, size_t count) {
  char name[96];
  std::snprintf(name, sizeof name, "sharded/shard-%05u-model-%05zu-of-%05zu.safetensors", rank + 1, index + 1, count);
  return name;
}

std::string numbers(std::span<const int64_t> values) {
  std::string out = "[";
  for (size_t i = 0; i < values.size(); ++i) out += (i > 0 ? ", " : "") + std::to_string(values[i]);
  return out + "]";
}

// {"<fqn>": {"saved_offsets": […], "global_shape": […]}, …}
std::string sharding_info(const chassis_save_request_t& request, const std::vector<uint32_t>& boxes) {
  std::string out = "{";
  for (const uint32_t box : boxes) {
    const chassis_disk_tensor_t& t = *request.tensors[box];
    if (out.size() > 1) out += ", ";
    append_json_string(out, view_of(t.name));
    out += ": {\"saved_offsets\": " + numbers({t.box_offset, t.num_dims});
    out += ", \"global_shape\": " + numbers({t.global_shape, t.num_dims}) + "}";
  }
  return out + "}";
}

// Boxes by file of one rank: a second box of the same tensor goes into the next file.
std::vector<std::vector<uint32_t>> files_of_rank(const chassis_save_request_t& request,
                                                 const std::vector<uint32_t>& boxes, uint64_t max_bytes) {
  std::vector<std::vector<uint32_t>> files;
  std::vector<uint64_t> bytes;
  std::vector<std::unordered_set<std::string_view>> names;
  size_t first_open = 0;  // files before it are full
  for (const uint32_t box : boxes) {
    const chassis_disk_tensor_t& t = *request.tensors[box];
    size_t file = first_open;
    while (file < files.size() &&
           (names[file].contains(view_of(t.name)) || (bytes[file] > 0 && bytes[file] + t.num_bytes > max_bytes))) {
      if (file == first_open && bytes[file] >= max_bytes) ++first_open;
      ++file;
    }
    if (file == files.size()) {
      files.emplace_back();
      bytes.push_back(0);
      names.emplace_back();
    }
    files[file].push_back(box);
    bytes[file] += t.num_bytes;
    names[file].insert(view_of(t.name));
  }
  return files;
}

// ---- reading

struct ShardName {
  uint32_t shard = 0, index = 0, count = 0;
};

std::optional<ShardName> parse_name(std::string_view path) {
  std::string text(path.starts_with("sharded/") ? path.substr(8) : path);
  ShardName name;
  if (std::sscanf(text.c_str(), "shard-%5u-model-%5u-of-%5u", &name.shard, &name.index, &name.count) != 3)
    return std::nullopt;
  if (name.shard == 0 || name.index == 0 || name.index > name.count) return std::nullopt;
  // sscanf is lenient: the name must be exactly the one that file_name() returns.
  if ("sharded/" + text != file_name(name.shard - 1, name.index - 1, name.count)) return std::nullopt;
  return name;
}

struct BoxInfo {
  std::vector<int64_t> offsets, global_shape;
};

std::vector<int64_t> parse_numbers(JsonReader& json) {
  std::vector<int64_t> out;
  json.expect('[', "at the start of a list");
  if (json.consume(']')) return out;
  do {
    const uint64_t value = json.unsigned_integer("an offset or a size");
    if (value > static_cast<uint64_t>(INT64_MAX)) throw Defect("a number of more than 63 bits");
    if (out.size() == static_cast<size_t>(kMaxDims))
      throw Defect("a list of more than " + std::to_string(kMaxDims) + " numbers");
    out.push_back(static_cast<int64_t>(value));
  } while (json.consume(','));
  json.expect(']', "after a list");
  return out;
}

std::unordered_map<std::string, BoxInfo> parse_sharding_info(std::string_view info) {
  std::string text(info);
  std::unordered_map<std::string, BoxInfo> boxes;
  JsonReader json(text);
  json.expect('{', "at the start");
  if (!json.consume('}')) {
    do {
      const std::string_view name = json.string("a tensor's name");
      json.expect(':', "after a name");
      json.expect('{', "after a name");
      BoxInfo box;
      bool has_offsets = false;
      do {
        const std::string_view key = json.string("a key");
        json.expect(':', "after a key");
        if (key == "saved_offsets") {
          box.offsets = parse_numbers(json);
          has_offsets = true;
        } else if (key == "global_shape") {
          box.global_shape = parse_numbers(json);
        } else {
          json.skip_value();
        }
      } while (json.consume(','));
      json.expect('}', "after a tensor");
      if (!has_offsets) throw Defect("'" + std::string(name) + "' has no saved_offsets");
      if (!boxes.emplace(name, std::move(box)).second) throw Defect("'" + std::string(name) + "' appears twice");
    } while (json.consume(','));
    json.expect('}', "at the end");
  }
  json.finish();
  return boxes;
}

struct Shard {
  uint32_t file = 0;
  uint32_t rank = 0;
  Header header;
  std::unordered_map<std::string, BoxInfo> boxes;
};

Shard read_shard(const Source& source, uint32_t file, uint32_t rank) {
  Shard shard{file, rank, read_header(source, file), {}};
  const std::string& path = source.files[file].path;
  const std::string_view info = shard.header.metadata_value(kShardingInfo);
  if (info.empty()) throw Defect(path + ": the header has no " + kShardingInfo);
  try {
    shard.boxes = parse_sharding_info(info);
  } catch (const Defect& defect) {
    throw Defect(path + ": " + kShardingInfo + ": " + defect.what());
  }
  for (size_t i = 0; i < shard.header.size(); ++i) {
    const std::string name(shard.header.name(i));
    const auto it = shard.boxes.find(name);
    if (it == shard.boxes.end()) throw Defect(path + ": tensor '" + name + "' is not in " + kShardingInfo);
    const std::vector<int64_t> shape = shard.header.shape(i);
    const BoxInfo& box = it->second;
    bool fits =
        box.offsets.size() == shape.size() && (box.global_shape.empty() || box.global_shape.size() == shape.size());
    for (size_t dim = 0; fits && dim < shape.size(); ++dim) {
      int64_t end = 0;
      fits = !__builtin_add_overflow(box.offsets[dim], shape[dim], &end) &&
             (box.global_shape.empty() || end <= box.global_shape[dim]);
    }
    if (!fits) {
      throw Defect(path + ": tensor '" + name + "' with shape " + numbers(shape) + " does not fit at " +
                   numbers(box.offsets) + " of " + numbers(box.global_shape));
    }
  }
  return shard;
}

// Reads all shards. Throws a Defect unless the files are as many as their names say.
std::vector<Shard> read_shards(const Source& source) {
  const bool has_folder = std::any_of(source.files.begin(), source.files.end(), [](const SourceFile& f) {
    return f.path.starts_with("sharded/") && parse_name(f.path);
  });
  std::vector<Shard> shards;
  std::map<uint32_t, std::pair<uint32_t, uint32_t>> counts;  // shard → files named, files found
  for (uint32_t i = 0; i < source.files.size(); ++i) {
    const std::string& path = source.files[i].path;
    const auto name = parse_name(path);
    if (!name || path.starts_with("sharded/") != has_folder) continue;
    const auto it = counts.try_emplace(name->shard, name->count, 0u).first;
    if (it->second.first != name->count)
      throw Defect(path + ": other files of this shard have names of " + std::to_string(it->second.first));
    ++it->second.second;
    shards.push_back(read_shard(source, i, name->shard - 1));
  }
  if (shards.empty()) throw NotFound("no sharded/shard-…-model-…-of-….safetensors");
  for (const auto& [shard, count] : counts) {
    if (count.first != count.second) {
      throw Defect("shard " + std::to_string(shard) + " has " + std::to_string(count.second) + " of " +
                   std::to_string(count.first) + " files");
    }
  }
  return shards;
}

// The global shape of each tensor: the declared one, or else the furthest ends of its boxes.
std::unordered_map<std::string_view, std::vector<int64_t>> global_shapes(const Source& source,
                                                                         const std::vector<Shard>& shards) {
  std::unordered_map<std::string_view, std::vector<int64_t>> declared, reached;
  for (const Shard& shard : shards) {
    for (size_t i = 0; i < shard.header.size(); ++i) {
      const std::string_view name = shard.header.name(i);
      const BoxInfo& box = shard.boxes.find(std::string(name))->second;
      const std::vector<int64_t> shape = shard.header.shape(i);
      if (!box.global_shape.empty()) {
        const auto [it, is_new] = declared.emplace(name, box.global_shape);
        if (!is_new && it->second != box.global_shape) {
          throw Defect(source.files[shard.file].path + ": tensor '" + std::string(name) + "' has the global shape " +
                       numbers(box.global_shape) + ", elsewhere " + numbers(it->second));
        }
      }
      auto& furthest = reached.try_emplace(name, shape.size(), 0).first->second;
      if (furthest.size() != shape.size()) {
        throw Defect("tensor '" + std::string(name) + "' has different numbers of dims in different files");
      }
      for (size_t dim = 0; dim < shape.size(); ++dim)
        furthest[dim] = std::max(furthest[dim], box.offsets[dim] + shape[dim]);
    }
  }
  for (auto& [name, shape] : declared) reached[name] = std::move(shape);
  return reached;
}

}  // namespace

SaveLayout native_layout(const chassis_save_request_t& request) {
  std::map<uint32_t, std::vector<uint32_t>> boxes_of;  // by rank
  for (uint32_t i = 0; i < request.num_tensors; ++i) {
    check_request(*request.tensors[i]);
    if (request.tensors[i]->dtype == CHASSIS_DTYPE_BOOL) {
      throw Defect("tensor '" + std::string(view_of(request.tensors[i]->name)) +
                   "' is boolean, which DCP cannot read; save it as u8");
    }
    boxes_of[request.tensors[i]->rank].push_back(i);
  }
  if (boxes_of.empty()) boxes_of[0] = {};
  if (boxes_of.rbegin()->first >= 99'999) throw Defect("at most 99999 ranks can be named");

  SaveLayout layout;
  layout.places.resize(request.num_tensors);
  const uint64_t max_bytes = request.max_file_bytes > 0 ? request.max_file_bytes : UINT64_MAX;
  for (const auto& [rank, boxes] : boxes_of) {
    std::vector<std::vector<uint32_t>> files = files_of_rank(request, boxes, max_bytes);
    if (files.empty()) files.emplace_back();
    if (files.size() > 99'999)
      throw Defect("one rank would have " + std::to_string(files.size()) + " files; at most 99999 can be named");
    for (size_t index = 0; index < files.size(); ++index) {
      Metadata metadata = request_metadata(request);
      metadata.emplace_back(kShardingInfo, sharding_info(request, files[index]));
      metadata.emplace_back("DCP_VERSION", "1.0");
      std::sort(metadata.begin(), metadata.end());
      std::vector<FileTensor> tensors;
      for (const uint32_t box : files[index]) tensors.push_back(file_tensor(request, box));
      add_file(layout, file_name(rank, index, files.size()), std::move(tensors), metadata, rank);
    }
  }
  return layout;
}

void native_scan(const Source& source, const ScanSink& sink) {
  const std::vector<Shard> shards = read_shards(source);
  const auto shapes = global_shapes(source, shards);
  for (const auto& [key, value] : shards.front().header.metadata()) {
    if (key != kShardingInfo) sink.metadata(key, value);
  }
  FoundTensor found;
  for (const Shard& shard : shards) {
    const uint64_t start = data_start(source, shard.file);
    for (size_t i = 0; i < shard.header.size(); ++i) {
      found.name = shard.header.name(i);
      found.dtype = host_dtype(shard.header, i);
      found.box_shape = shard.header.shape(i);
      found.box_offset = shard.boxes.find(std::string(found.name))->second.offsets;
      found.global_shape = shapes.at(found.name);
      found.num_bytes = shard.header.end(i) - shard.header.begin(i);
      found.rank = shard.rank;
      found.file = shard.file;
      found.offset = start + shard.header.begin(i);
      sink.tensor(found);
    }
  }
}

}  // namespace safetensors

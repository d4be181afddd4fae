// Splits files as huggingface_hub does: in order, a file ends when the next tensor would make it too large.
#include "huggingface.hpp"

#include <algorithm>
#include <cstdio>
#include <map>

namespace safetensors {
namespace {

constexpr uint64_t kDefaultFileBytes = 5'000'000'000;
constexpr uint64_t kMaxIndexBytes = 100'000'000;
constexpr char kSingle[] = "model.safetensors";
constexpr char kIndex[] = "model.safetensors.index.json";

std::string shard_name(size_t index, size_t count) {
  char name[64];
  std::snprintf(name, sizeof name, "model-%05zu-of-%05zu.safetensors", index + 1, count);
  return name;
}

std::string index_text(const std::vector<std::pair<std::string_view, std::string>>& file_of, uint64_t total_bytes) {
  std::string out =
      "{\n  \"metadata\": {\n    \"total_size\": " + std::to_string(total_bytes) + "\n  },\n  \"weight_map\": {";
  bool is_first = true;
  for (const auto& [name, file] : file_of) {
    out += is_first ? "\n    " : ",\n    ";
    is_first = false;
    append_json_string(out, name);
    out += ": ";
    append_json_string(out, file);
  }
  return out + "\n  }\n}\n";
}

// ---- reading

struct Index {
  std::map<std::string, std::string, std::less<>> file_of;
  uint64_t total_bytes = 0;
  bool has_total = false;
};

void check_file_name(std::string_view name) {
  bool is_plain = !name.empty() && name.front() != '.' && name.size() < 256;
  for (const char c : name) {
    is_plain = is_plain &&
               ((c >= '0' && c <= '9') || ((c | 0x20) >= 'a' && (c | 0x20) <= 'z') || c == '.' || c == '_' || c == '-');
  }
  if (!is_plain) {
    std::string shown;
    for (const char c : name.substr(0, 80)) shown += static_cast<unsigned char>(c) < 0x20 ? '?' : c;
    throw Defect("weight_map names the file '" + shown + "'; only plain names in the same directory are allowed");
  }
}

Index parse_index(const Source& source, uint32_t file) {
  const uint64_t num_bytes = source.files[file].num_bytes;
  if (num_bytes > kMaxIndexBytes) {
    throw Defect("the index has " + std::to_string(num_bytes) + " bytes, at most " + std::to_string(kMaxIndexBytes) +
                 " are allowed");
  }
  std::string text(num_bytes, '\0');
  source.read(file, 0, num_bytes, text.data());
  Index index;
  bool has_map = false, has_metadata = false;
  JsonReader json(text);
  json.expect('{', "at the start");
  if (!json.consume('}')) {
    do {
      const std::string_view key = json.string("a key");
      json.expect(':', "after a key");
      if (key == "weight_map") {
        if (std::exchange(has_map, true)) throw Defect("duplicate key 'weight_map'");
        json.expect('{', "at the start of weight_map");
        if (json.consume('}')) continue;
        do {
          const std::string_view name = json.string("a tensor's name");
          json.expect(':', "after a name");
          const std::string_view path = json.string("a file's name");
          check_tensor_name(name);
          check_file_name(path);
          if (!index.file_of.emplace(name, path).second)
            throw Defect("weight_map has '" + std::string(name) + "' twice");
        } while (json.consume(','));
        json.expect('}', "after weight_map");
      } else if (key == "metadata") {
        if (std::exchange(has_metadata, true)) throw Defect("duplicate key 'metadata'");
        json.expect('{', "at the start of metadata");
        if (json.consume('}')) continue;
        do {
          const std::string_view fact = json.string("a key");
          json.expect(':', "after a key");
          const size_t start = (json.peek(), json.position());
          json.skip_value();
          const std::string_view value = std::string_view(text).substr(start, json.position() - start);
          if (fact != "total_size" || value.empty() || value.size() > 18) continue;
          if (!std::all_of(value.begin(), value.end(), [](char c) { return c >= '0' && c <= '9'; })) continue;
          index.total_bytes = std::stoull(std::string(value));
          index.has_total = true;
        } while (json.consume(','));
        json.expect('}', "after metadata");
      } else {
        json.skip_value();
      }
    } while (json.consume(','));
    json.expect('}', "at the end");
  }
  json.finish();
  if (!has_map) throw Defect("the index has no weight_map");
  if (index.file_of.empty()) throw Defect("weight_map is empty");
  return index;
}

void scan_shards(const Source& source, uint32_t index_file, const ScanSink& sink) {
  const Index index = [&] {
    try {
      return parse_index(source, index_file);
    } catch (const Defect& defect) {
      throw Defect(std::string(kIndex) + ": " + defect.what());
    }
  }();
  std::map<std::string, size_t> tensors_in;  // by file
  for (const auto& [name, file] : index.file_of) ++tensors_in[file];

  uint64_t total_bytes = 0;
  bool is_first = true;
  for (const auto& [path, expected] : tensors_in) {
    const int64_t file = source.find(path);
    if (file < 0) throw Defect(std::string(kIndex) + " names the file '" + path + "', which does not exist");
    const Header header = read_header(source, static_cast<uint32_t>(file));
    for (size_t i = 0; i < header.size(); ++i) {
      const auto it = index.file_of.find(header.name(i));
      if (it == index.file_of.end() || it->second != path) {
        throw Defect(path + " holds the tensor '" + std::string(header.name(i)) + "', which " + kIndex +
                     (it == index.file_of.end() ? " does not name" : " places in '" + it->second + "'") +
                     ": the index is stale");
      }
      total_bytes += header.end(i) - header.begin(i);
    }
    if (header.size() != expected) {
      for (const auto& [name, where] : index.file_of) {
        if (where == path && header.find(name) == header.size()) {
          throw Defect(std::string(kIndex) + " places the tensor '" + name + "' in '" + path +
                       "', which does not hold it: the index is stale");
        }
      }
    }
    if (std::exchange(is_first, false)) {
      for (const auto& [key, value] : header.metadata()) sink.metadata(key, value);
    }
    emit(source, static_cast<uint32_t>(file), header, sink);
  }
  if (!tensors_in.contains(kValueHead)) emit_value_head(source, sink);
  if (index.has_total && index.total_bytes != total_bytes) {
    sink.warning("index-total-size", std::string(kIndex) + " gives a total_size of " +
                                         std::to_string(index.total_bytes) + " bytes, the tensors have " +
                                         std::to_string(total_bytes));
  }
}

[[noreturn]] void refuse_directory(const Source& source) {
  for (const SourceFile& file : source.files) {
    const std::string_view path = file.path;
    if (path.starts_with("model-") && path.ends_with(".safetensors")) {
      throw Defect("there is '" + file.path + "', but no " + kIndex);
    }
    if (path.ends_with(".bin") || path.ends_with(".pt") || path.ends_with(".pth")) {
      throw NotFound(std::string("no ") + kSingle + "; '" + file.path +
                     "' is a pickle, which is never read: convert the model to safetensors first");
    }
  }
  throw NotFound(std::string("no ") + kSingle + " and no " + kIndex);
}

}  // namespace

SaveLayout huggingface_layout(const chassis_save_request_t& request) {
  std::vector<FileTensor> tensors = whole_tensors(request);
  const uint64_t max_bytes = request.max_file_bytes > 0 ? request.max_file_bytes : kDefaultFileBytes;
  std::vector<std::vector<FileTensor>> shards(1);
  uint64_t shard_bytes = 0, total_bytes = 0;
  for (FileTensor& tensor : tensors) {
    if (!shards.back().empty() && shard_bytes + tensor.num_bytes > max_bytes) {
      shards.emplace_back();
      shard_bytes = 0;
    }
    shard_bytes += tensor.num_bytes;
    total_bytes += tensor.num_bytes;
    shards.back().push_back(std::move(tensor));
  }
  if (shards.size() > 99'999) throw Defect(std::to_string(shards.size()) + " files; at most 99999 can be named");

  SaveLayout layout;
  layout.places.resize(request.num_tensors);
  const Metadata metadata = request_metadata(request);
  std::vector<std::pair<std::string_view, std::string>> file_of;
  for (size_t i = 0; i < shards.size(); ++i) {
    const std::string path = shards.size() == 1 ? kSingle : shard_name(i, shards.size());
    for (const FileTensor& tensor : shards[i]) file_of.emplace_back(tensor.name, path);
    add_file(layout, path, std::move(shards[i]), metadata, 0);
  }
  if (shards.size() > 1) {
    std::sort(file_of.begin(), file_of.end());
    layout.text_files.emplace_back(kIndex, index_text(file_of, total_bytes));
  }
  return layout;
}

void huggingface_scan(const Source& source, const ScanSink& sink) {
  const int64_t single = source.find(kSingle), index = source.find(kIndex);
  if (single >= 0 && index >= 0) {
    throw Defect(std::string("there are both ") + kSingle + " and " + kIndex + "; remove the one that is out of date");
  }
  if (index >= 0) return scan_shards(source, static_cast<uint32_t>(index), sink);
  if (single < 0) refuse_directory(source);
  const Header header = read_header(source, static_cast<uint32_t>(single));
  for (const auto& [key, value] : header.metadata()) sink.metadata(key, value);
  emit(source, static_cast<uint32_t>(single), header, sink);
  emit_value_head(source, sink);
}

}  // namespace safetensors

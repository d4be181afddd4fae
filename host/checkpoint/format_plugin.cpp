// The tables that a format plugin receives, and the checks of its answers.
#include "host/checkpoint/format_plugin.hpp"

#include <algorithm>
#include <numeric>
#include <set>

#include "host/base/error.hpp"
#include "host/base/units.hpp"
#include "host/plugin/call.hpp"
#include "host/plugin/sized.hpp"
#include "host/plugin/status.hpp"

namespace chassis {
namespace {

// Maximum number of unused bytes between two tensors of a file: enough to align them.
constexpr uint64_t kMaxGapBytes = 4095;

struct LayoutReceiver {
  FormatLayout layout;
  std::vector<bool> placed;
};

chassis_layout_sink_t layout_sink(LayoutReceiver& receiver) {
  chassis_layout_sink_t sink{};
  sink.struct_size = sizeof sink;
  sink.impl = &receiver;
  sink.file = [](const chassis_layout_sink_t* s, chassis_str_t path, chassis_str_t header, uint64_t num_bytes,
                 uint32_t rank) {
    return guarded([&] {
      static_cast<LayoutReceiver*>(s->impl)->layout.files.push_back(
          {std::string(view_of(path)), std::string(view_of(header)), num_bytes, static_cast<int>(rank)});
    });
  };
  sink.place = [](const chassis_layout_sink_t* s, uint32_t tensor, uint32_t file, uint64_t offset) {
    return guarded([&] {
      auto& receiver = *static_cast<LayoutReceiver*>(s->impl);
      if (tensor >= receiver.placed.size()) throw plugin_error("place: there is no tensor " + std::to_string(tensor));
      if (receiver.placed[tensor]) throw plugin_error("place: tensor " + std::to_string(tensor) + " is placed twice");
      receiver.placed[tensor] = true;
      receiver.layout.places[tensor] = {file, offset};
    });
  };
  sink.text_file = [](const chassis_layout_sink_t* s, chassis_str_t path, chassis_str_t bytes) {
    return guarded(
        [&] { static_cast<LayoutReceiver*>(s->impl)->layout.text_files.emplace_back(view_of(path), view_of(bytes)); });
  };
  return sink;
}

Dtype checked_dtype(uint32_t raw, const std::string& name) {
  const auto dtype = static_cast<Dtype>(raw);
  if (size_bytes(dtype) == 0) throw plugin_error("tensor '" + name + "' has the unknown dtype " + std::to_string(raw));
  return dtype;
}

Shape checked_shape(const int64_t* sizes, uint32_t num_dims, const std::string& name) {
  if (num_dims > static_cast<uint32_t>(Shape::kMaxDims)) {
    throw storage_error("tensor '" + name + "' has " + std::to_string(num_dims) + " dims, at most " +
                        std::to_string(Shape::kMaxDims) + " are supported");
  }
  const Shape shape(std::span<const int64_t>(sizes, num_dims));
  for (const int64_t size : shape) {
    if (size < 0) throw plugin_error("tensor '" + name + "' has a negative size");
  }
  numel(shape);
  return shape;
}

struct ScanReceiver {
  FormatScan scan;
  const SourceDirectory* directory;
};

DiskBox checked_box(const chassis_disk_tensor_t& raw) {
  DiskBox found;
  found.name = view_of(raw.name);
  found.dtype = checked_dtype(raw.dtype, found.name);
  found.global_shape = checked_shape(raw.global_shape, raw.num_dims, found.name);
  const Shape begin = checked_shape(raw.box_offset, raw.num_dims, found.name);
  const Shape sizes = checked_shape(raw.box_shape, raw.num_dims, found.name);
  found.box = {begin, sizes};
  for (int dim = 0; dim < sizes.ndim(); ++dim) {
    if (__builtin_add_overflow(begin[dim], sizes[dim], &found.box.end[dim]) ||
        found.box.end[dim] > found.global_shape[dim]) {
      throw storage_error("tensor '" + found.name + "': a box of " + text(sizes) + " at " + text(begin) +
                          " does not lie inside " + text(found.global_shape));
    }
  }
  found.rank = static_cast<int>(std::min<uint32_t>(raw.rank, 1u << 20));
  int64_t bytes = 0;
  const bool overflows = __builtin_mul_overflow(numel(sizes), size_bytes(found.dtype), &bytes);
  if (overflows || static_cast<uint64_t>(bytes) != raw.num_bytes) {
    throw plugin_error("tensor '" + found.name + "' has " + std::to_string(raw.num_bytes) + " bytes, its box of " +
                       text(sizes) + " takes " + (overflows ? "too many to count" : std::to_string(bytes)));
  }
  return found;
}

chassis_scan_sink_t scan_sink(ScanReceiver& receiver) {
  chassis_scan_sink_t sink{};
  sink.struct_size = sizeof sink;
  sink.impl = &receiver;
  sink.tensor = [](const chassis_scan_sink_t* s, const chassis_disk_tensor_t* tensor, uint32_t file, uint64_t offset) {
    return guarded([&] {
      auto& receiver = *static_cast<ScanReceiver*>(s->impl);
      receiver.scan.add(read_struct(tensor, "a tensor that scan() found"), {file, offset}, *receiver.directory);
    });
  };
  sink.metadata = [](const chassis_scan_sink_t* s, chassis_str_t key, chassis_str_t value) {
    return guarded(
        [&] { static_cast<ScanReceiver*>(s->impl)->scan.metadata.emplace_back(view_of(key), view_of(value)); });
  };
  return sink;
}

chassis_finish_sink_t finish_sink(FileContent& content) {
  chassis_finish_sink_t sink{};
  sink.struct_size = sizeof sink;
  sink.impl = &content;
  sink.fill = [](const chassis_finish_sink_t* s, uint64_t offset, chassis_str_t bytes) {
    return guarded([&] { static_cast<FileContent*>(s->impl)->fill(offset, std::string(view_of(bytes))); });
  };
  sink.checksum = [](const chassis_finish_sink_t* s, uint64_t offset, uint64_t num_bytes, uint32_t* out) {
    return guarded([&] { *out = static_cast<FileContent*>(s->impl)->checksum(offset, num_bytes); });
  };
  return sink;
}

// A save request in the form of the C interface; borrows from the arguments of its constructor.
class RawRequest {
 public:
  RawRequest(std::span<const DiskBox> boxes, const MetadataPairs& metadata, int num_ranks, uint64_t max_file_bytes) {
    tensors_.reserve(boxes.size());
    sizes_.reserve(boxes.size());
    for (const DiskBox& box : boxes) {
      sizes_.push_back(box.box.sizes());
      tensors_.push_back({sizeof tensors_.front(), static_cast<uint32_t>(box.dtype), str_of(box.name),
                          box.global_shape.begin(), box.box.begin.begin(), sizes_.back().begin(),
                          static_cast<uint32_t>(box.global_shape.ndim()), static_cast<uint32_t>(box.rank),
                          box.num_bytes()});
    }
    for (const chassis_disk_tensor_t& tensor : tensors_) pointers_.push_back(&tensor);
    for (const auto& [key, value] : metadata) pairs_.push_back({str_of(key), str_of(value)});
    request_ = {sizeof request_, static_cast<uint32_t>(pointers_.size()), pointers_.data(),
                pairs_.data(),   static_cast<uint32_t>(pairs_.size()),    static_cast<uint32_t>(num_ranks),
                max_file_bytes};
  }
  RawRequest(const RawRequest&) = delete;
  RawRequest& operator=(const RawRequest&) = delete;
  const chassis_save_request_t* get() const { return &request_; }

 private:
  std::vector<chassis_disk_tensor_t> tensors_;
  std::vector<const chassis_disk_tensor_t*> pointers_;
  std::vector<Shape> sizes_;  // referred to by tensors_
  std::vector<chassis_disk_pair_t> pairs_;
  chassis_save_request_t request_{};
};

}  // namespace

void FormatScan::add(const chassis_disk_tensor_t& tensor, const DiskPlace& place, const SourceDirectory& directory) {
  DiskBox box = checked_box(tensor);
  const auto& files = directory.files();
  if (place.file >= files.size())
    throw plugin_error("tensor '" + box.name + "' lies in file " + std::to_string(place.file) + " of " +
                       std::to_string(files.size()));
  const auto& file = files[place.file];
  if (place.offset > file.num_bytes || tensor.num_bytes > file.num_bytes - place.offset)
    throw storage_error("tensor '" + box.name + "' extends past the end of '" + file.path + "'");
  boxes.push_back({std::move(box), place});
}

FormatPlugin::FormatPlugin(const Instance& instance)
    : name_(instance.id()),
      label_(instance.label()),
      table_(instance.interface<chassis_format_t>(CHASSIS_FORMAT_ID)),
      self_(instance.get()) {
  if (table_.checksum > CHASSIS_CHECKSUM_CRC32)
    throw plugin_error(label_ + " asks for the unknown checksum " + std::to_string(table_.checksum));
}

FormatPlugin::FormatPlugin(std::string name, const chassis_format_t& table, chassis_instance_t* self)
    : name_(std::move(name)), label_("format '" + name_ + "'"), table_(table), self_(self) {}

FormatLayout FormatPlugin::layout(std::span<const DiskBox> boxes, const MetadataPairs& metadata, int num_ranks,
                                  uint64_t max_file_bytes) const {
  if (is_read_only())
    throw plugin_error(label_ + " can only read: checkpoints cannot be saved in it")
        .hint("`chassis plugins list` shows the other formats");
  const RawRequest request(boxes, metadata, num_ranks, max_file_bytes);
  LayoutReceiver receiver;
  receiver.layout.places.resize(boxes.size());
  receiver.placed.resize(boxes.size());
  const chassis_layout_sink_t sink = layout_sink(receiver);
  const PluginCall call(call_site(label_), "layout");
  throw_if_failed(call_plugin([&] { return table_.layout(self_, request.get(), &sink); }), label_);
  for (size_t i = 0; i < boxes.size(); ++i) {
    if (!receiver.placed[i]) throw plugin_error(label_ + ": tensor '" + boxes[i].name + "' has no place in any file");
  }
  check(receiver.layout, boxes);
  return std::move(receiver.layout);
}

bool FormatPlugin::divides_by_rank(const MetadataPairs& metadata) const {
  if (whole_tensors() || is_read_only()) return false;
  const auto part = [](const char* name, int64_t begin, int64_t end, int rank) {
    return DiskBox{name, Dtype::f32, {4}, {{begin}, {end}}, rank};
  };
  // Two boxes of one tensor on one rank, which may need two files.
  const std::vector<DiskBox> all = {part("a", 0, 2, 0), part("a", 2, 3, 1), part("a", 3, 4, 1), part("b", 0, 4, 0)};
  try {
    for (const uint64_t max_file_bytes : {uint64_t{0}, uint64_t{1}}) {
      const FormatLayout together = layout(all, metadata, 2, max_file_bytes);
      if (!together.text_files.empty()) return false;
      uint32_t num_files = 0;
      for (const int rank : {0, 1}) {
        std::vector<DiskBox> own;
        for (const DiskBox& box : all)
          if (box.rank == rank) own.push_back(box);
        const FormatLayout alone = layout(own, metadata, 2, max_file_bytes);
        if (!alone.text_files.empty() || num_files + alone.files.size() > together.files.size()) return false;
        for (size_t i = 0; i < alone.files.size(); ++i)
          if (alone.files[i].rank != rank || alone.files[i] != together.files[num_files + i]) return false;
        size_t at = 0;
        for (size_t i = 0; i < all.size(); ++i) {
          if (all[i].rank != rank) continue;
          const DiskPlace& place = alone.places[at++];
          if (together.places[i] != DiskPlace{place.file + num_files, place.offset}) return false;
        }
        num_files += static_cast<uint32_t>(alone.files.size());
      }
      if (num_files != together.files.size()) return false;
    }
  } catch (const Error&) {
    return false;
  }
  return true;
}

void FormatPlugin::check(const FormatLayout& layout, std::span<const DiskBox> boxes) const {
  std::set<std::string> paths = {kManifestName};
  const auto claim = [&](const std::string& path) {
    if (!is_plain_path(path))
      throw plugin_error(label_ + ": '" + path + "' is not a valid path for a file of a checkpoint");
    if (!paths.insert(path).second) throw plugin_error(label_ + ": there are two files '" + path + "'");
  };
  for (const auto& file : layout.files) {
    claim(file.path);
    if (file.header.size() >= kMaxHeaderBytes) {
      throw plugin_error(label_ + ": the header of '" + file.path + "' has " + std::to_string(file.header.size()) +
                         " bytes; other readers refuse more than " + std::to_string(kMaxHeaderBytes));
    }
  }
  for (const auto& [path, bytes] : layout.text_files) claim(path);

  std::vector<uint32_t> order(boxes.size());
  std::iota(order.begin(), order.end(), 0u);
  std::sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) {
    const DiskPlace &x = layout.places[a], &y = layout.places[b];
    return std::tuple(x.file, x.offset, boxes[a].num_bytes()) < std::tuple(y.file, y.offset, boxes[b].num_bytes());
  });
  std::vector<uint64_t> reached;
  for (const auto& file : layout.files) reached.push_back(file.header.size());
  for (const uint32_t i : order) {
    const DiskPlace& place = layout.places[i];
    if (place.file >= layout.files.size()) {
      throw plugin_error(label_ + ": tensor '" + boxes[i].name + "' is placed in file " + std::to_string(place.file) +
                         " of " + std::to_string(layout.files.size()));
    }
    const auto& file = layout.files[place.file];
    uint64_t& at = reached[place.file];
    const uint64_t num_bytes = boxes[i].num_bytes();
    if (place.offset < at || place.offset - at > kMaxGapBytes || place.offset > file.num_bytes ||
        num_bytes > file.num_bytes - place.offset) {
      throw plugin_error(label_ + ": tensor '" + boxes[i].name + "' is placed at byte " + std::to_string(place.offset) +
                         " of '" + file.path + "', expected " + std::to_string(at));
    }
    at = place.offset + num_bytes;
  }
  for (size_t i = 0; i < layout.files.size(); ++i) {
    if (reached[i] > layout.files[i].num_bytes ||
        (reached[i] < layout.files[i].num_bytes && table_.finish == nullptr)) {
      throw plugin_error(label_ + ": '" + layout.files[i].path + "' should have " +
                         std::to_string(layout.files[i].num_bytes) + " bytes, its header and tensors have " +
                         std::to_string(reached[i]));
    }
  }
}

FormatScan FormatPlugin::scan(SourceDirectory& directory) const {
  if (isolated()) {
    throw plugin_error(label_ + " reads '" + directory.path() + "' only in a separate process")
        .hint("import the directory first: `chassis ckpt import-zero`");
  }
  return scan(directory, directory.table());
}

FormatScan FormatPlugin::scan(SourceDirectory& directory, const chassis_directory_t& source) const {
  if (is_write_only()) throw plugin_error(label_ + " can only write: it cannot read '" + directory.path() + "'");
  ScanReceiver receiver{{}, &directory};
  const chassis_scan_sink_t sink = scan_sink(receiver);
  const PluginCall call(call_site(label_), "scan");
  chassis_status_t* status = call_plugin([&] { return table_.scan(self_, &source, &sink); });
  if (status_code(status) == CHASSIS_NOT_FOUND) {
    const std::string what = status_text(status);
    status_release(status);
    const std::string in_the_way = directory.left_out_in(what);
    OtherFormat error("'" + directory.path() + "' is not of format " + name_ + ": " + what +
                      (in_the_way.empty() ? "" : "; " + in_the_way));
    if (!directory.links().empty())
      error.hint("the link '" + directory.links().front() +
                 "' was not followed: links to files are followed in a model directory, none in a checkpoint");
    throw error;
  }
  throw_if_failed(status, "'" + directory.path() + "'");
  return std::move(receiver.scan);
}

void FormatPlugin::finish(std::span<const DiskBox> boxes, const MetadataPairs& metadata, int num_ranks,
                          uint64_t max_file_bytes, uint32_t file, FileContent& content) const {
  if (table_.finish == nullptr) return;
  const RawRequest request(boxes, metadata, num_ranks, max_file_bytes);
  const chassis_finish_sink_t sink = finish_sink(content);
  const PluginCall call(call_site(label_), "finish");
  throw_if_failed(call_plugin([&] { return table_.finish(self_, request.get(), file, &sink); }), label_);
}

}  // namespace chassis
